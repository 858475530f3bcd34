// RUN: planonce opt %s --pass-pipeline='verify-plan'

// Logits and next tokens, both on the host.
// CHECK-LABEL: func.func @sound
// CHECK: onnx.arg_max
func.func @sound(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]},
        tensor<?x?xi64> {plan.name = "next_tokens", plan.role = "next_tokens", plan.dims = ["batch", "sequence"]}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %m = "onnx.arg_max"(%g) {axis = -1 : i64, keepdims = 0 : i64, plan.device = "cpu:0"} : (tensor<?x?x8xf32>) -> tensor<?x?xi64>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %next = "plan.copy"(%m) {to = "host"} : (tensor<?x?xi64>) -> tensor<?x?xi64>
  return %out, %next : tensor<?x?x8xf32>, tensor<?x?xi64>
}

// -----

func.func @device_tokens(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]},
        tensor<?x?xi64> {plan.name = "next_tokens", plan.role = "next_tokens", plan.dims = ["batch", "sequence"]}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %m = "onnx.arg_max"(%g) {axis = -1 : i64, keepdims = 0 : i64, plan.device = "cpu:0"} : (tensor<?x?x8xf32>) -> tensor<?x?xi64>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  // expected-error@below {{returns next_tokens that are not on the host}}
  return %out, %m : tensor<?x?x8xf32>, tensor<?x?xi64>
}

// -----

func.func @twice(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]})
    -> (tensor<?x?x8xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "8"]},
        tensor<?x?xi64> {plan.name = "next_tokens", plan.role = "next_tokens", plan.dims = ["batch", "sequence"]},
        tensor<?x?xi64> {plan.name = "more_tokens", plan.role = "next_tokens", plan.dims = ["batch", "sequence"]}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x8xf32>
  %g = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %m = "onnx.arg_max"(%g) {axis = -1 : i64, keepdims = 0 : i64, plan.device = "cpu:0"} : (tensor<?x?x8xf32>) -> tensor<?x?xi64>
  %out = "plan.copy"(%g) {to = "host"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %next = "plan.copy"(%m) {to = "host"} : (tensor<?x?xi64>) -> tensor<?x?xi64>
  // expected-error@below {{must not return next tokens twice}}
  return %out, %next, %next : tensor<?x?x8xf32>, tensor<?x?xi64>, tensor<?x?xi64>
}
