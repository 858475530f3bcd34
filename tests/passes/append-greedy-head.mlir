// RUN: planonce opt %s --pass-pipeline='append-greedy-head' --remarks
// RUN: planonce opt %s --pass-pipeline='append-greedy-head,insert-copies' --check-prefix=COPIES

// The largest of the last axis, the first of equals, on the device of the logits; -1 where their sum is NaN. The
// logits stay a result, and so does what came after them.
// CHECK: remark: the likeliest next token is picked in the program on cpu:1
// CHECK-LABEL: func.func @step
// CHECK-SAME: -> (tensor<?x?x8xf32> {{[^}]*}}plan.role = "logits"}
// CHECK-SAME: tensor<?x?x8xf32> {{[^}]*}}plan.role = "kv"
// CHECK-SAME: tensor<?x?xi64> {plan.dims = ["batch", "num_logits"], plan.name = "next_tokens", plan.role = "next_tokens"})
// CHECK: %[[L:.*]] = "onnx.neg"(%arg0)
// CHECK: %[[MAX:.*]] = "onnx.arg_max"(%[[L]]) {axis = -1 : i64, keepdims = 0 : i64, plan.device = "cpu:1", select_last_index = 0 : i64}
// CHECK: %[[AXIS:.*]] = "onnx.constant"() {{.*}}dense<-1> : tensor<1xi64>
// CHECK: %[[SUM:.*]] = "onnx.reduce_sum"(%[[L]], %[[AXIS]]) {keepdims = 0 : i64, plan.device = "cpu:1"}
// CHECK: %[[NAN:.*]] = "onnx.is_nan"(%[[SUM]]) {plan.device = "cpu:1"}
// CHECK: %[[HOST:.*]] = "onnx.constant"() {{.*}}dense<-1> : tensor<i64>
// CHECK: %[[NEXT:.*]] = "onnx.where"(%[[NAN]], %[[HOST]], %[[MAX]]) {plan.device = "cpu:1"}
// CHECK-NOT: plan.copy
// CHECK: return %[[L]], %[[L]], %[[NEXT]]

// Both results come to the host, each once; the operations between read the logits where they are made.
// COPIES-LABEL: func.func @step
// COPIES: %[[L:.*]] = "onnx.neg"(%arg0)
// COPIES: "onnx.arg_max"(%[[L]])
// COPIES: %[[NEXT:.*]] = "onnx.where"
// COPIES-DAG: %[[HL:.*]] = "plan.copy"(%[[L]]) {to = "host"}
// COPIES-DAG: %[[HN:.*]] = "plan.copy"(%[[NEXT]]) {to = "host"}
// COPIES-NOT: plan.copy
// COPIES: return %[[HL]], %[[L]], %[[HN]]
func.func @step(%x: tensor<?x?x8xf32>)
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "num_logits", "8"]},
        tensor<?x?x8xf32> {plan.name = "z", plan.role = "kv", plan.dims = ["a", "b", "8"], plan.layer = 0 : i64, plan.which = "key"}) {
  %0 = "onnx.neg"(%x) {plan.device = "cpu:1"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %0, %0 : tensor<?x?x8xf32>, tensor<?x?x8xf32>
}

// -----

// Logits that were copied to the host already: the next token is still picked on their device, and they are not
// copied again.
// CHECK-LABEL: func.func @copied
// CHECK: %[[L:.*]] = "onnx.neg"(%arg0)
// CHECK: %[[H:.*]] = "plan.copy"(%[[L]]) {to = "host"}
// CHECK: "onnx.arg_max"(%[[L]]) {{.*}}plan.device = "cuda:0"
// CHECK: return %[[H]]
// COPIES-LABEL: func.func @copied
// COPIES-COUNT-2: plan.copy
// COPIES-NOT: plan.copy
func.func @copied(%x: tensor<?x?x8xf16>)
    -> (tensor<?x?x8xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "num_logits", "8"]}) {
  %0 = "onnx.neg"(%x) {plan.device = "cuda:0"} : (tensor<?x?x8xf16>) -> tensor<?x?x8xf16>
  %1 = "plan.copy"(%0) {to = "host"} : (tensor<?x?x8xf16>) -> tensor<?x?x8xf16>
  return %1 : tensor<?x?x8xf16>
}

// -----

// A program that has a greedy head already does not change.
// CHECK-LABEL: func.func @done_already
// CHECK: onnx.arg_max
// CHECK-NOT: onnx.arg_max
// CHECK-NOT: onnx.is_nan
func.func @done_already(%x: tensor<?x?x8xf32>)
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "num_logits", "8"]},
        tensor<?x?xi64> {plan.name = "next_tokens", plan.role = "next_tokens", plan.dims = ["batch", "num_logits"]}) {
  %0 = "onnx.neg"(%x) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %1 = "onnx.arg_max"(%0) {axis = -1 : i64, keepdims = 0 : i64, plan.device = "cpu:0"} : (tensor<?x?x8xf32>) -> tensor<?x?xi64>
  return %0, %1 : tensor<?x?x8xf32>, tensor<?x?xi64>
}

// -----

// expected-error@below {{has not exactly one result with the role logits}}
func.func @no_logits(%x: tensor<?x?x8xf32>)
    -> (tensor<?x?x8xf32> {plan.name = "z", plan.role = "kv", plan.dims = ["a", "b", "8"], plan.layer = 0 : i64, plan.which = "key"}) {
  %0 = "onnx.neg"(%x) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %0 : tensor<?x?x8xf32>
}

// -----

// expected-error@below {{has not exactly one result with the role logits}}
func.func @two_logits(%x: tensor<?x?x8xf32>)
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "num_logits", "8"]},
        tensor<?x?x8xf32> {plan.name = "more", plan.role = "logits", plan.dims = ["batch", "num_logits", "8"]}) {
  %0 = "onnx.neg"(%x) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %0, %0 : tensor<?x?x8xf32>, tensor<?x?x8xf32>
}

// -----

func.func @flat_logits(%x: tensor<?x8xf32>)
    -> (tensor<?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["num_logits", "8"]}) {
  %0 = "onnx.neg"(%x) {plan.device = "cpu:0"} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  // expected-error@below {{returns logits of another rank}}
  return %0 : tensor<?x8xf32>
}
