// RUN: planonce opt %s --pass-pipeline='fuse-activation' --remarks

// In 16 bits the formula's constants are what its dtype has nearest: 0.5 * x * (1 + erf(x / sqrt(2))).
// CHECK: remark: 1 activations became Gelu
// CHECK-LABEL: func.func @gelu
// CHECK: %[[Y:.*]] = "onnx.gelu"(%arg0) {approximate = "none"}
// CHECK-NEXT: return %[[Y]]
func.func @gelu(%x: tensor<?x?x8xbf16>) -> tensor<?x?x8xbf16> {
  %half = "onnx.constant"() {value = dense<5.000000e-01> : tensor<bf16>} : () -> tensor<bf16>
  %one = "onnx.constant"() {value = dense<1.000000e+00> : tensor<bf16>} : () -> tensor<bf16>
  %root = "onnx.constant"() {value = dense<1.414213562> : tensor<bf16>} : () -> tensor<bf16>
  %a = "onnx.div"(%x, %root) : (tensor<?x?x8xbf16>, tensor<bf16>) -> tensor<?x?x8xbf16>
  %e = "onnx.erf"(%a) : (tensor<?x?x8xbf16>) -> tensor<?x?x8xbf16>
  %m = "onnx.add"(%e, %one) : (tensor<?x?x8xbf16>, tensor<bf16>) -> tensor<?x?x8xbf16>
  %h = "onnx.mul"(%x, %half) : (tensor<?x?x8xbf16>, tensor<bf16>) -> tensor<?x?x8xbf16>
  %y = "onnx.mul"(%h, %m) : (tensor<?x?x8xbf16>, tensor<?x?x8xbf16>) -> tensor<?x?x8xbf16>
  return %y : tensor<?x?x8xbf16>
}

// -----

// The next bfloat16 is another formula.
// CHECK: remark: an erf stays as it is: its argument is not x / sqrt(2)
// CHECK-LABEL: func.func @not_quite
// CHECK-NOT: onnx.gelu
func.func @not_quite(%x: tensor<?x?x8xbf16>) -> tensor<?x?x8xbf16> {
  %half = "onnx.constant"() {value = dense<5.000000e-01> : tensor<bf16>} : () -> tensor<bf16>
  %one = "onnx.constant"() {value = dense<1.000000e+00> : tensor<bf16>} : () -> tensor<bf16>
  %root = "onnx.constant"() {value = dense<1.421875> : tensor<bf16>} : () -> tensor<bf16>
  %a = "onnx.div"(%x, %root) : (tensor<?x?x8xbf16>, tensor<bf16>) -> tensor<?x?x8xbf16>
  %e = "onnx.erf"(%a) : (tensor<?x?x8xbf16>) -> tensor<?x?x8xbf16>
  %m = "onnx.add"(%e, %one) : (tensor<?x?x8xbf16>, tensor<bf16>) -> tensor<?x?x8xbf16>
  %h = "onnx.mul"(%x, %half) : (tensor<?x?x8xbf16>, tensor<bf16>) -> tensor<?x?x8xbf16>
  %y = "onnx.mul"(%h, %m) : (tensor<?x?x8xbf16>, tensor<?x?x8xbf16>) -> tensor<?x?x8xbf16>
  return %y : tensor<?x?x8xbf16>
}
