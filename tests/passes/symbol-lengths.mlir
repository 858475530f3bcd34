// RUN: planonce opt %s --pass-pipeline='symbol-lengths' --remarks

// The two symbols are arguments with their roles, and what followed the write offset follows cached_len, made
// one value a row. The write offset stays an argument: every step has one.
// CHECK: remark: lengths are the symbols cached_len and attended_len
// CHECK-LABEL: func.func @step
// CHECK-SAME: %arg1: tensor<?xi64> {{[^}]*}}plan.role = "write_offset"
// CHECK-SAME: %arg4: tensor<i64> {{[^}]*}}plan.role = "cached_len"
// CHECK-SAME: %arg5: tensor<i64> {{[^}]*}}plan.role = "attended_len"
// CHECK: %[[B:.*]] = "onnx.shape"(%arg0) {end = 1 : i64, start = 0 : i64}
// CHECK: %[[C:.*]] = "onnx.reshape"(%arg4, %{{.*}})
// CHECK: %[[ROWS:.*]] = "onnx.expand"(%[[C]], %[[B]])
// CHECK: "onnx.neg"(%[[ROWS]])
// CHECK: "plan.write_slice"(%arg3, %arg2, %[[ROWS]])
// CHECK-NOT: %arg1
func.func @step(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %new: tensor<?x2x?x8xf32> {plan.name = "new", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x8xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64})
    -> (tensor<?xi64> {plan.name = "positions", plan.role = "logits", plan.dims = ["batch"]},
        tensor<?x2x?x8xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}) {
  %0 = "onnx.neg"(%at) : (tensor<?xi64>) -> tensor<?xi64>
  %1 = "plan.write_slice"(%k, %new, %at) {axis = 2 : i64} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  return %0, %1 : tensor<?xi64>, tensor<?x2x?x8xf32>
}

// -----

// A program on the symbol path already does not change.
// CHECK-LABEL: func.func @done_already
// CHECK-NOT: onnx.expand
func.func @done_already(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %new: tensor<?x2x?x8xf32> {plan.name = "new", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x8xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64},
    %cached: tensor<i64> {plan.name = "cached_len", plan.role = "cached_len", plan.dims = []},
    %attended: tensor<i64> {plan.name = "attended_len", plan.role = "attended_len", plan.dims = []})
    -> (tensor<?xi64> {plan.name = "positions", plan.role = "logits", plan.dims = ["batch"]},
        tensor<?x2x?x8xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}) {
  %1 = "plan.write_slice"(%k, %new, %at) {axis = 2 : i64} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  return %at, %1 : tensor<?xi64>, tensor<?x2x?x8xf32>
}

// -----

// expected-error@below {{has no write_offset or no token_ids argument}}
func.func @no_tokens(%at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]})
    -> (tensor<?xi64> {plan.name = "positions", plan.role = "logits", plan.dims = ["batch"]}) {
  return %at : tensor<?xi64>
}
