// RUN: planonce opt %s --pass-pipeline='tabulate-positions{max-seq-len=3}' --remarks

// A cosine of the positions: a row of numbers for each of three positions, and one gather. cos(1) = 0.5403.
// CHECK: remark: a table of 3 x 4 f32
// CHECK-LABEL: func.func @rotary
// CHECK: %[[P:.*]] = "onnx.add"(%{{.*}}) : (tensor<?x1xi64>, tensor<?xi64>)
// CHECK: %[[T:.*]] = "onnx.constant"() {value = dense<{{\[\[}}1.000000e+00, 1.000000e+00, 1.000000e+00, 1.000000e+00], [0.540302277, 0.87758255{{[0-9]*}}, 0.540302277, 0.87758255
// CHECK: %[[G:.*]] = "onnx.gather"(%[[T]], %[[P]]) {axis = 0 : i64}
// CHECK-NOT: onnx.cos
// CHECK: return %[[G]]
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

// -----

// Read inside and outside of what is looked up: each value that is read outside has its own table.
// CHECK-LABEL: func.func @two_readers
// CHECK-COUNT-2: onnx.gather
// CHECK-NOT: onnx.cos
func.func @two_readers(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}) -> (tensor<?x?x4xf32>, tensor<?x?x4xf32>) {
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
  return %cos, %both : tensor<?x?x4xf32>, tensor<?x?x4xf32>
}

// -----

// Near miss: the angles also follow from the tokens.
// CHECK-LABEL: func.func @of_tokens
// CHECK-NOT: onnx.gather
// CHECK: onnx.cos
func.func @of_tokens(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}) -> tensor<?x?x1xf32> {
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
  %sum = "onnx.add"(%positions, %ids) : (tensor<?x?xi64>, tensor<?x?xi64>) -> tensor<?x?xi64>
  %p3 = "onnx.unsqueeze"(%sum, %axis2) : (tensor<?x?xi64>, tensor<1xi64>) -> tensor<?x?x1xi64>
  %pf = "onnx.cast"(%p3) {to = 1 : i64} : (tensor<?x?x1xi64>) -> tensor<?x?x1xf32>
  %cos = "onnx.cos"(%pf) : (tensor<?x?x1xf32>) -> tensor<?x?x1xf32>
  return %cos : tensor<?x?x1xf32>
}

// -----

// Near miss: a longest position does not follow from each position.
// CHECK-LABEL: func.func @of_the_longest
// CHECK-NOT: onnx.gather
// CHECK: onnx.cos
func.func @of_the_longest(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}) -> tensor<?x1xf32> {
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
  %longest = "onnx.reduce_max"(%positions, %axis1) {keepdims = 1 : i64} : (tensor<?x?xi64>, tensor<1xi64>) -> tensor<?x1xi64>
  %pf = "onnx.cast"(%longest) {to = 1 : i64} : (tensor<?x1xi64>) -> tensor<?x1xf32>
  %cos = "onnx.cos"(%pf) : (tensor<?x1xf32>) -> tensor<?x1xf32>
  return %cos : tensor<?x1xf32>
}

// -----

// Near miss: positions that start at 1 are not the step's.
// CHECK: remark: no positions of the form write_offset + arange(sequence) were found
// CHECK-LABEL: func.func @from_one
// CHECK-NOT: onnx.gather
func.func @from_one(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}) -> tensor<?x?x4xf32> {
  %zero = "onnx.constant"() {value = dense<0> : tensor<i64>} : () -> tensor<i64>
  %one = "onnx.constant"() {value = dense<1> : tensor<i64>} : () -> tensor<i64>
  %axis0 = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %axis1 = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %axis2 = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %column = "onnx.unsqueeze"(%at, %axis1) : (tensor<?xi64>, tensor<1xi64>) -> tensor<?x1xi64>
  %shape = "onnx.shape"(%ids) {start = 1 : i64, end = 2 : i64} : (tensor<?x?xi64>) -> tensor<1xi64>
  %length = "onnx.squeeze"(%shape, %axis0) : (tensor<1xi64>, tensor<1xi64>) -> tensor<i64>
  %steps = "onnx.range"(%one, %length, %one) : (tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<?xi64>
  %positions = "onnx.add"(%column, %steps) : (tensor<?x1xi64>, tensor<?xi64>) -> tensor<?x?xi64>
  %p3 = "onnx.unsqueeze"(%positions, %axis2) : (tensor<?x?xi64>, tensor<1xi64>) -> tensor<?x?x1xi64>
  %pf = "onnx.cast"(%p3) {to = 1 : i64} : (tensor<?x?x1xi64>) -> tensor<?x?x1xf32>
  %rate = "onnx.constant"() {value = dense<[1.0, 0.5]> : tensor<2xf32>} : () -> tensor<2xf32>
  %angle = "onnx.mul"(%pf, %rate) : (tensor<?x?x1xf32>, tensor<2xf32>) -> tensor<?x?x2xf32>
  %both = "onnx.concat"(%angle, %angle) {axis = 2 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x?x2xf32>, tensor<?x?x2xf32>) -> tensor<?x?x4xf32>
  %cos = "onnx.cos"(%both) : (tensor<?x?x4xf32>) -> tensor<?x?x4xf32>
  return %cos : tensor<?x?x4xf32>
}
