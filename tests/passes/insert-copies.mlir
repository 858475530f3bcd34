// RUN: planonce opt %s --pass-pipeline='insert-copies'

// A diamond: one value, two readers on another device, one copy; readers at home have none.
// CHECK-LABEL: func.func @diamond
// CHECK: %[[A:.*]] = "onnx.neg"(%arg0) {plan.device = "cpu:0"}
// CHECK-NEXT: %[[C:.*]] = "plan.copy"(%[[A]]) {to = "cpu:1"}
// CHECK-NEXT: %[[L:.*]] = "onnx.abs"(%[[C]]) {plan.device = "cpu:1"}
// CHECK-NEXT: %[[R:.*]] = "onnx.sqrt"(%[[C]]) {plan.device = "cpu:1"}
// CHECK-NEXT: %[[H:.*]] = "onnx.exp"(%[[A]]) {plan.device = "cpu:0"}
// CHECK-NEXT: "onnx.add"(%[[L]], %[[R]]) {plan.device = "cpu:1"}
// CHECK-NOT: plan.copy
func.func @diamond(%x: tensor<4xf32>) -> (tensor<4xf32> {plan.name = "y", plan.role = "kv", plan.dims = ["4"], plan.layer = 0 : i64, plan.which = "key"},
                                          tensor<4xf32> {plan.name = "z", plan.role = "kv", plan.dims = ["4"], plan.layer = 0 : i64, plan.which = "value"}) {
  %0 = "onnx.neg"(%x) {plan.device = "cpu:0"} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "onnx.abs"(%0) {plan.device = "cpu:1"} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "onnx.sqrt"(%0) {plan.device = "cpu:1"} : (tensor<4xf32>) -> tensor<4xf32>
  %3 = "onnx.exp"(%0) {plan.device = "cpu:0"} : (tensor<4xf32>) -> tensor<4xf32>
  %4 = "onnx.add"(%1, %2) {plan.device = "cpu:1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %4, %3 : tensor<4xf32>, tensor<4xf32>
}

// -----

// One value to three devices: a copy for each, both from the value itself. A value that comes back crosses
// once in each direction. Arguments and weights need none.
// CHECK-LABEL: func.func @three
// CHECK: %[[A:.*]] = "onnx.add"(%arg0, %{{.*}}) {plan.device = "cpu:0"}
// CHECK-DAG: %[[C1:.*]] = "plan.copy"(%[[A]]) {to = "cpu:1"}
// CHECK-DAG: %[[C2:.*]] = "plan.copy"(%[[A]]) {to = "cpu:2"}
// CHECK: %[[B:.*]] = "onnx.mul"(%[[C1]], %{{.*}}) {plan.device = "cpu:1"}
// CHECK: %[[BACK:.*]] = "plan.copy"(%[[B]]) {to = "cpu:0"}
// CHECK: "onnx.mul"(%[[C2]], %{{.*}}) {plan.device = "cpu:2"}
// CHECK: "onnx.sub"(%[[BACK]], %[[A]]) {plan.device = "cpu:0"}
// CHECK-NOT: plan.copy
func.func @three(%x: tensor<4xf32>) -> (tensor<4xf32> {plan.name = "y", plan.role = "kv", plan.dims = ["4"], plan.layer = 0 : i64, plan.which = "key"},
                                        tensor<4xf32> {plan.name = "z", plan.role = "kv", plan.dims = ["4"], plan.layer = 0 : i64, plan.which = "value"}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<4xf32>
  %0 = "onnx.add"(%x, %w) {plan.device = "cpu:0"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "onnx.mul"(%0, %w) {plan.device = "cpu:1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "onnx.mul"(%0, %w) {plan.device = "cpu:2"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = "onnx.sub"(%1, %0) {plan.device = "cpu:0"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %2, %3 : tensor<4xf32>, tensor<4xf32>
}

// -----

// The logits, and only they, come to the host. A copy that is there already serves; on one device there is
// none between operations.
// CHECK-LABEL: func.func @logits
// CHECK: %[[N:.*]] = "onnx.neg"(%arg0)
// CHECK-NEXT: %[[A:.*]] = "onnx.abs"(%[[N]])
// CHECK-NEXT: %[[H:.*]] = "plan.copy"(%[[A]]) {to = "host"}
// CHECK-NOT: plan.copy
// CHECK: return %[[H]], %[[N]]
func.func @logits(%x: tensor<4xf32>) -> (tensor<4xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["4"]},
                                         tensor<4xf32> {plan.name = "z", plan.role = "kv", plan.dims = ["4"], plan.layer = 0 : i64, plan.which = "value"}) {
  %0 = "onnx.neg"(%x) {plan.device = "cpu:0"} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "onnx.abs"(%0) {plan.device = "cpu:0"} : (tensor<4xf32>) -> tensor<4xf32>
  return %1, %0 : tensor<4xf32>, tensor<4xf32>
}

// -----

// CHECK-LABEL: func.func @done_already
// CHECK-COUNT-2: plan.copy
// CHECK-NOT: plan.copy
func.func @done_already(%x: tensor<4xf32>) -> (tensor<4xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["4"]}) {
  %0 = "onnx.neg"(%x) {plan.device = "cpu:0"} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "plan.copy"(%0) {to = "cpu:1"} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "onnx.abs"(%1) {plan.device = "cpu:1"} : (tensor<4xf32>) -> tensor<4xf32>
  %3 = "plan.copy"(%2) {to = "host"} : (tensor<4xf32>) -> tensor<4xf32>
  return %3 : tensor<4xf32>
}

// -----

// Data has no place of its own: constants, weights and absent operands are in every program that reads them,
// and arguments are bound wherever they are read. So nothing is copied here.
// CHECK-LABEL: func.func @data
// CHECK-NOT: plan.copy
func.func @data(%x: tensor<4xf32>) -> (tensor<4xf32> {plan.name = "y", plan.role = "kv", plan.dims = ["4"], plan.layer = 0 : i64, plan.which = "key"},
                                       tensor<4xf32> {plan.name = "z", plan.role = "kv", plan.dims = ["4"], plan.layer = 0 : i64, plan.which = "value"}) {
  %c = "onnx.constant"() {value = dense<2.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %w = "plan.weight"() {name = "w"} : () -> tensor<4xf32>
  %none = "onnx.no_value"() : () -> none
  %0 = "onnx.mul"(%c, %w) {plan.device = "cpu:0"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "onnx.clip"(%0, %none, %none) {plan.device = "cpu:0"} : (tensor<4xf32>, none, none) -> tensor<4xf32>
  %2 = "onnx.mul"(%c, %w) {plan.device = "cpu:1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = "onnx.add"(%x, %2) {plan.device = "cpu:1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %1, %3 : tensor<4xf32>, tensor<4xf32>
}

// -----

// KV on another device than its layer: the new keys and values go there, what was attended comes back, and
// the slot itself, bound where it is written, moves nowhere.
// CHECK-LABEL: func.func @kv_elsewhere
// CHECK: %[[Q:.*]] = "onnx.neg"(%arg0) {plan.device = "cpu:0"}
// CHECK-NEXT: %[[THERE:.*]] = "plan.copy"(%[[Q]]) {to = "cpu:1"}
// CHECK: %[[A:.*]]:4 = "onnx.ms_group_query_attention"(%[[THERE]], %[[THERE]], %[[THERE]], %arg1, %arg2, %arg3, %arg4
// CHECK-SAME: plan.device = "cpu:1"
// CHECK-NEXT: %[[HERE:.*]] = "plan.copy"(%[[A]]#0) {to = "cpu:0"}
// CHECK-NEXT: %[[R:.*]] = "onnx.add"(%[[Q]], %[[HERE]]) {plan.device = "cpu:0"}
// CHECK-NEXT: %[[L:.*]] = "plan.copy"(%[[R]]) {to = "host"}
// CHECK-NOT: plan.copy
// CHECK: return %[[L]], %[[A]]#1, %[[A]]#2
func.func @kv_elsewhere(%x: tensor<?x?x16xf32>,
    %k: tensor<?x2x?x8xf32>, %v: tensor<?x2x?x8xf32>, %lengths: tensor<?xi32>, %total: tensor<i32>)
    -> (tensor<?x?x16xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["b", "s", "16"]},
        tensor<?x2x?x8xf32> {plan.name = "present.0.key", plan.role = "kv", plan.dims = ["b", "2", "c", "8"], plan.layer = 0 : i64, plan.which = "key"},
        tensor<?x2x?x8xf32> {plan.name = "present.0.value", plan.role = "kv", plan.dims = ["b", "2", "c", "8"], plan.layer = 0 : i64, plan.which = "value"}) {
  %none = "onnx.no_value"() : () -> none
  %q = "onnx.neg"(%x) {plan.device = "cpu:0"} : (tensor<?x?x16xf32>) -> tensor<?x?x16xf32>
  %a:4 = "onnx.ms_group_query_attention"(%q, %q, %q, %k, %v, %lengths, %total, %none, %none, %none, %none, %none, %none, %none, %none, %none)
    {num_heads = 2 : i64, kv_num_heads = 2 : i64, plan.device = "cpu:1"}
    : (tensor<?x?x16xf32>, tensor<?x?x16xf32>, tensor<?x?x16xf32>, tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi32>, tensor<i32>,
       none, none, none, none, none, none, none, none, none)
    -> (tensor<?x?x16xf32>, tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, none)
  %r = "onnx.add"(%q, %a#0) {plan.device = "cpu:0"} : (tensor<?x?x16xf32>, tensor<?x?x16xf32>) -> tensor<?x?x16xf32>
  return %r, %a#1, %a#2 : tensor<?x?x16xf32>, tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>
}

// -----

// An in-place write into a value that was made elsewhere would write the copy.
func.func @write_across(%k: tensor<?x2x?x4xf32>, %new: tensor<?x2x?x4xf32>, %at: tensor<?xi64>)
    -> (tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.role = "kv", plan.dims = ["b", "2", "c", "4"], plan.layer = 0 : i64, plan.which = "key"}) {
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"}
    : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  // expected-error@below {{would write a copy in place of the KV slot}}
  %1 = "onnx.tensor_scatter"(%0, %new, %at) {axis = 2 : i64, plan.device = "cpu:1"}
    : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  return %1 : tensor<?x2x?x4xf32>
}

// -----

func.func @unplaced(%x: tensor<4xf32>) -> (tensor<4xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["4"]}) {
  // expected-error@below {{has no device}}
  %0 = "onnx.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
