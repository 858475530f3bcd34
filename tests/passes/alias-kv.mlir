// RUN: planonce opt %s --pass-pipeline='alias-kv'

// Each KV result is tied to the argument with its layer and part, whatever their order; nothing else changes.
// CHECK-LABEL: func.func @ties
// CHECK-SAME: plan.alias = 3 : i64{{[^}]*}}plan.name = "present.0.value"
// CHECK-SAME: plan.alias = 2 : i64{{[^}]*}}plan.name = "present.0.key"
// CHECK: %[[K:.*]] = "onnx.tensor_scatter"(%arg2
// CHECK: %[[V:.*]] = "onnx.tensor_scatter"(%arg3
// CHECK: return %[[V]], %[[K]]
func.func @ties(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x8xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}, %v: tensor<?x2x?x8xf32> {plan.name = "past.0.value", plan.which = "value", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}, %new: tensor<?x2x?x8xf32> {plan.name = "new", plan.role = "logit_positions", plan.dims = []})
    -> (tensor<?x2x?x8xf32> {plan.name = "present.0.value", plan.which = "value", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}, tensor<?x2x?x8xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}) {
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  %1 = "onnx.tensor_scatter"(%v, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  return %1, %0 : tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>
}

// -----

// What is no KV slot gets no alias.
// CHECK-LABEL: func.func @logits_only
// CHECK-NOT: plan.alias
func.func @logits_only(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}) {
  %0 = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %1 = "onnx.gather"(%0, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  return %1 : tensor<?x?x8xf32>
}

// -----

// A second reader of the argument would see old or new bytes, as the order of execution has it.
func.func @read_beside(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x8xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}, %new: tensor<?x2x?x8xf32> {plan.name = "new", plan.role = "logit_positions", plan.dims = []})
    -> (tensor<?x2x?x8xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}) {
  // expected-error@below {{reads present.0.key's buffer beside the operation that writes it}}
  %0 = "onnx.neg"(%k) {plan.device = "cpu:0"} : (tensor<?x2x?x8xf32>) -> tensor<?x2x?x8xf32>
  %1 = "onnx.tensor_scatter"(%k, %0, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  return %1 : tensor<?x2x?x8xf32>
}

// -----

func.func @twice(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x8xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}, %new: tensor<?x2x?x8xf32> {plan.name = "new", plan.role = "logit_positions", plan.dims = []})
    -> (tensor<?x2x?x8xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}) {
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  // expected-error@below {{writes another value than the argument}}
  %1 = "onnx.tensor_scatter"(%0, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  return %1 : tensor<?x2x?x8xf32>
}

// -----

func.func @through_a_copy(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x8xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}, %new: tensor<?x2x?x8xf32> {plan.name = "new", plan.role = "logit_positions", plan.dims = []})
    -> (tensor<?x2x?x8xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}) {
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  // expected-error@below {{which must be a KV write}}
  %1 = "plan.copy"(%0) {to = "cpu:1"} : (tensor<?x2x?x8xf32>) -> tensor<?x2x?x8xf32>
  return %1 : tensor<?x2x?x8xf32>
}

// -----

func.func @unwritten(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x8xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}, %new: tensor<?x2x?x8xf32> {plan.name = "new", plan.role = "logit_positions", plan.dims = []})
    -> (tensor<?x2x?x8xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64}) {
  // expected-error@below {{which must be a KV write}}
  return %k : tensor<?x2x?x8xf32>
}
