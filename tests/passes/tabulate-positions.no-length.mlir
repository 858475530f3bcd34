// RUN: planonce opt %s --pass-pipeline='tabulate-positions' --remarks

// Without a length there is no telling how large a table must be.
// CHECK: remark: no table is made: max-seq-len says how many positions it needs
// CHECK: onnx.cos
func.func @rotary(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}) -> tensor<?x?x4xf32> {
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
  %both = "onnx.concat"(%angle, %angle) {axis = 2 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x?x2xf32>, tensor<?x?x2xf32>) -> tensor<?x?x4xf32>
  %cos = "onnx.cos"(%both) : (tensor<?x?x4xf32>) -> tensor<?x?x4xf32>
  return %cos : tensor<?x?x4xf32>
}
