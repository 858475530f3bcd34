// RUN: planonce opt %s --pass-pipeline='verify-plan'

// A sound program passes and stays as it is.
// CHECK-LABEL: func.func @sound
// CHECK: onnx.tensor_scatter
// CHECK: "plan.copy"
// CHECK-NOT: plan.write_slice
func.func @sound(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %out, %0 : tensor<?x?x8xf32>, tensor<?x2x?x4xf32>
}

// -----

// A position that is a constant is a cached length baked in.
func.func @baked(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %c = "onnx.constant"() {value = dense<7> : tensor<1xi64>} : () -> tensor<1xi64>
  %p = "onnx.cast"(%c) {to = 7 : i64, plan.device = "cpu:0"} : (tensor<1xi64>) -> tensor<?xi64>
  // expected-error@below {{does not follow from the write offset}}
  %0 = "onnx.tensor_scatter"(%k, %new, %p) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %out, %0 : tensor<?x?x8xf32>, tensor<?x2x?x4xf32>
}

// -----

// One that is computed from the offset is fine.
// CHECK-LABEL: func.func @computed
// CHECK: onnx.add
func.func @computed(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %c = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %p = "onnx.add"(%at, %c) {plan.device = "cpu:0"} : (tensor<?xi64>, tensor<1xi64>) -> tensor<?xi64>
  %0 = "onnx.tensor_scatter"(%k, %new, %p) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %out, %0 : tensor<?x?x8xf32>, tensor<?x2x?x4xf32>
}

// -----

func.func @twice(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  // expected-error@below {{is not written exactly once}}
  %1 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %out, %0 : tensor<?x?x8xf32>, tensor<?x2x?x4xf32>
}

// -----

// expected-error@below {{is not written exactly once}}
func.func @never(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %out, %k : tensor<?x?x8xf32>, tensor<?x2x?x4xf32>
}

// -----

func.func @no_alias(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  // expected-error@below {{without its buffer}}
  return %out, %0 : tensor<?x?x8xf32>, tensor<?x2x?x4xf32>
}

// -----

func.func @wrong_alias(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  // expected-error@below {{returns two values for the KV slot}}
  return %out, %0, %0 : tensor<?x?x8xf32>, tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>
}

// -----

func.func @edge(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  // expected-error@below {{reads a value from another device without a copy}}
  %n = "onnx.neg"(%g) {plan.device = "cpu:1"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  %out = "plan.copy"(%n) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %out, %0 : tensor<?x?x8xf32>, tensor<?x2x?x4xf32>
}

// -----

func.func @unplaced(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  // expected-error@below {{has no device}}
  %n = "onnx.neg"(%g) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %out, %0 : tensor<?x?x8xf32>, tensor<?x2x?x4xf32>
}

// -----

func.func @not_lowered(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  // expected-error@below {{has no ONNX form}}
  %0 = "plan.write_slice"(%k, %new, %at) {axis = 2 : i64} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %out, %0 : tensor<?x?x8xf32>, tensor<?x2x?x4xf32>
}

// -----

func.func @device_logits(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  // expected-error@below {{logits that are not on the host}}
  return %g, %0 : tensor<?x?x8xf32>, tensor<?x2x?x4xf32>
}

// -----

// expected-error@below {{fixes dimension 1 of input_ids}}
func.func @fixed_length(%ids: tensor<?x3xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x3x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x3xi64>) -> tensor<?x3x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x3x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x3x8xf32>) -> tensor<?x3x8xf32>
  return %out, %0 : tensor<?x3x8xf32>, tensor<?x2x?x4xf32>
}

// -----

func.func @two_shapes(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %k: tensor<?x2x?x4xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]}, tensor<?x2x?x4xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.alias = 2 : i64}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  // expected-error@below {{uses the weight w in another shape}}
  %w2 = "plan.weight"() {name = "w"} : () -> tensor<8xf32>
  %n = "onnx.add"(%g, %w2) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<8xf32>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%g, %shape) {plan.device = "cpu:0"} : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %new = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>, plan.device = "cpu:0"} : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %0 = "onnx.tensor_scatter"(%k, %new, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  %out = "plan.copy"(%n) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %out, %0 : tensor<?x?x8xf32>, tensor<?x2x?x4xf32>
}
