// RUN: planonce opt %s --pass-pipeline='verify-capture'

// Shapes where kernels read shapes, arithmetic on shapes, and a copy of the logits at the end: accepted.
// CHECK-LABEL: func.func @accepted
// CHECK: onnx.reshape
// CHECK: plan.copy
func.func @accepted(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %one = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %shape = "onnx.shape"(%x) {plan.device = "cuda:0"} : (tensor<?x?xf16>) -> tensor<2xi64>
  %same = "onnx.mul"(%shape, %one) {plan.device = "cuda:0"} : (tensor<2xi64>, tensor<1xi64>) -> tensor<2xi64>
  %0 = "onnx.reshape"(%x, %same) {plan.device = "cuda:0"} : (tensor<?x?xf16>, tensor<2xi64>) -> tensor<?x?xf16>
  %next = "onnx.add"(%at, %one) {plan.device = "cuda:0"} : (tensor<?xi64>, tensor<1xi64>) -> tensor<?xi64>
  %out = "plan.copy"(%0) {to = "host"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  return %out : tensor<?x?xf16>
}

// -----

func.func @copy_inside(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %0 = "onnx.neg"(%x) {plan.device = "cuda:0"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  // expected-error@below {{copies between devices inside the program}}
  %1 = "plan.copy"(%0) {to = "cuda:1"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  %out = "onnx.neg"(%1) {plan.device = "cuda:1"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  return %out : tensor<?x?xf16>
}

// -----

func.func @host_op(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %0 = "onnx.neg"(%x) {plan.device = "cuda:0"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  // expected-error@below {{'onnx.abs' op does not run on the captured device}}
  %out = "onnx.abs"(%0) {plan.device = "cpu:0"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  return %out : tensor<?x?xf16>
}

// -----

func.func @on_the_cpu(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  // expected-error@below {{does not run on the captured device}}
  %out = "onnx.neg"(%x) {plan.device = "cpu:0"} : (tensor<?x?xf16>) -> tensor<?x?xf16>
  return %out : tensor<?x?xf16>
}

// -----

// The live length becomes the end of a slice, as in the portable arm.
func.func @length_to_the_host(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %zero = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %none = "onnx.no_value"() : () -> none
  // expected-error@below {{needs on the host what is computed on the device}}
  %out = "onnx.slice"(%x, %zero, %at, %none, %none) {plan.device = "cuda:0"}
    : (tensor<?x?xf16>, tensor<1xi64>, tensor<?xi64>, none, none) -> tensor<?x?xf16>
  return %out : tensor<?x?xf16>
}

// -----

// A shape becomes data, as in the lengths of a program for the CPU.
func.func @shape_to_the_device(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %x: tensor<?x?xf16> {plan.name = "x", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]})
    -> (tensor<?x?xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %s = "onnx.shape"(%ids) {start = 1 : i64, end = 2 : i64, plan.device = "cuda:0"} : (tensor<?x?xi64>) -> tensor<1xi64>
  // expected-error@below {{takes a shape, which is on the host, as data}}
  %total = "onnx.add"(%at, %s) {plan.device = "cuda:0"} : (tensor<?xi64>, tensor<1xi64>) -> tensor<?xi64>
  return %x : tensor<?x?xf16>
}
