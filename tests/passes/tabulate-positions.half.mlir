// RUN: planonce opt %s --pass-pipeline='tabulate-positions{max-seq-len=2}' --remarks

// Angles in single precision, narrowed at the end: the table is what the step reads. cos(1) = 0.5403.
// CHECK: remark: a table of 2 x 2 bf16
// CHECK-LABEL: func.func @narrowed
// CHECK: %[[T:.*]] = "onnx.constant"() {value = dense<{{\[\[}}1.000000e+00, 1.000000e+00], [5.390630e-01, 8.789060e-01]]> : tensor<2x2xbf16>}
// CHECK: %[[G:.*]] = "onnx.gather"(%[[T]], %{{.*}}) {axis = 0 : i64}
// CHECK-NOT: onnx.cos
// CHECK: return %[[G]]
func.func @narrowed(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}) -> tensor<?x?x2xbf16> {
  %zero = "onnx.constant"() {value = dense<0> : tensor<i64>} : () -> tensor<i64>
  %one = "onnx.constant"() {value = dense<1> : tensor<i64>} : () -> tensor<i64>
  %axis0 = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %axis1 = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %axis2 = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %column = "onnx.unsqueeze"(%at, %axis1) : (tensor<?xi64>, tensor<1xi64>) -> tensor<?x1xi64>
  %shape = "onnx.shape"(%ids) {start = 1 : i64, end = 2 : i64} : (tensor<?x?xi64>) -> tensor<1xi64>
  %length = "onnx.squeeze"(%shape, %axis0) : (tensor<1xi64>, tensor<1xi64>) -> tensor<i64>
  %steps = "onnx.range"(%zero, %length, %one) : (tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<?xi64>
  %positions = "onnx.add"(%column, %steps) : (tensor<?x1xi64>, tensor<?xi64>) -> tensor<?x?xi64>
  %p3 = "onnx.unsqueeze"(%positions, %axis2) : (tensor<?x?xi64>, tensor<1xi64>) -> tensor<?x?x1xi64>
  %pf = "onnx.cast"(%p3) {to = 1 : i64} : (tensor<?x?x1xi64>) -> tensor<?x?x1xf32>
  %rate = "onnx.constant"() {value = dense<[1.0, 0.5]> : tensor<2xf32>} : () -> tensor<2xf32>
  %angle = "onnx.mul"(%pf, %rate) : (tensor<?x?x1xf32>, tensor<2xf32>) -> tensor<?x?x2xf32>
  %cos = "onnx.cos"(%angle) : (tensor<?x?x2xf32>) -> tensor<?x?x2xf32>
  %half = "onnx.cast"(%cos) {to = 16 : i64} : (tensor<?x?x2xf32>) -> tensor<?x?x2xbf16>
  // One that is divided in 16 bits, not rounded down as integers are.
  %two = "onnx.constant"() {value = dense<1.000000e+00> : tensor<bf16>} : () -> tensor<bf16>
  %y = "onnx.div"(%half, %two) : (tensor<?x?x2xbf16>, tensor<bf16>) -> tensor<?x?x2xbf16>
  return %y : tensor<?x?x2xbf16>
}
