// RUN: planonce opt %s --pass-pipeline='fuse-rms-norm' --remarks

// CHECK: remark: 1 RMSNorms became one operation each
// CHECK-LABEL: func.func @llama
// CHECK: %[[W:.*]] = "plan.weight"()
// CHECK-NEXT: %[[N:.*]]:2 = "onnx.simplified_layer_normalization"(%arg0, %[[W]]) {axis = -1 : i64, epsilon = 9.99999974E-6 : f32, stash_type = 1 : i64}
// CHECK-NEXT: return %[[N]]#0
func.func @llama(%x: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %axis = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = "onnx.constant"() {value = dense<1.000000e-05> : tensor<f32>} : () -> tensor<f32>
  %w = "plan.weight"() {name = "norm.weight"} : () -> tensor<8xf32>
  %square = "onnx.mul"(%x, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %mean = "onnx.reduce_mean"(%square, %axis) {keepdims = 1 : i64} : (tensor<?x?x8xf32>, tensor<1xi64>) -> tensor<?x?x1xf32>
  %biased = "onnx.add"(%mean, %eps) : (tensor<?x?x1xf32>, tensor<f32>) -> tensor<?x?x1xf32>
  %root = "onnx.sqrt"(%biased) : (tensor<?x?x1xf32>) -> tensor<?x?x1xf32>
  %factor = "onnx.reciprocal"(%root) : (tensor<?x?x1xf32>) -> tensor<?x?x1xf32>
  %scaled = "onnx.mul"(%x, %factor) : (tensor<?x?x8xf32>, tensor<?x?x1xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%w, %scaled) : (tensor<8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}

// -----

// Gemma's weight is 1 + w; here with a division instead of a reciprocal.
// CHECK-LABEL: func.func @gemma
// CHECK: %[[S:.*]] = "onnx.add"(%{{.*}}) : (tensor<8xf32>, tensor<f32>)
// CHECK: %[[N:.*]]:2 = "onnx.simplified_layer_normalization"(%arg0, %[[S]])
// CHECK: return %[[N]]#0
func.func @gemma(%x: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %axis = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = "onnx.constant"() {value = dense<1.000000e-05> : tensor<f32>} : () -> tensor<f32>
  %w = "plan.weight"() {name = "norm.weight"} : () -> tensor<8xf32>
  %square = "onnx.mul"(%x, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %mean = "onnx.reduce_mean"(%square, %axis) {keepdims = 1 : i64} : (tensor<?x?x8xf32>, tensor<1xi64>) -> tensor<?x?x1xf32>
  %biased = "onnx.add"(%mean, %eps) : (tensor<?x?x1xf32>, tensor<f32>) -> tensor<?x?x1xf32>
  %root = "onnx.sqrt"(%biased) : (tensor<?x?x1xf32>) -> tensor<?x?x1xf32>
  %scaled = "onnx.div"(%x, %root) : (tensor<?x?x8xf32>, tensor<?x?x1xf32>) -> tensor<?x?x8xf32>
  %one = "onnx.constant"() {value = dense<1.000000e+00> : tensor<f32>} : () -> tensor<f32>
  %w1 = "onnx.add"(%w, %one) : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  %y = "onnx.mul"(%scaled, %w1) : (tensor<?x?x8xf32>, tensor<8xf32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}

// -----

// Half precision: widened, normalised, narrowed, then weighted.
// CHECK-LABEL: func.func @half
// CHECK-NOT: onnx.cast
// CHECK: "onnx.simplified_layer_normalization"(%arg0, %arg1)
func.func @half(%h: tensor<?x?x8xf16>, %wh: tensor<8xf16>) -> tensor<?x?x8xf16> {
  %x = "onnx.cast"(%h) {to = 1 : i64} : (tensor<?x?x8xf16>) -> tensor<?x?x8xf32>
  %axis = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = "onnx.constant"() {value = dense<1.000000e-05> : tensor<f32>} : () -> tensor<f32>
  %w = "plan.weight"() {name = "norm.weight"} : () -> tensor<8xf32>
  %square = "onnx.mul"(%x, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %mean = "onnx.reduce_mean"(%square, %axis) {keepdims = 1 : i64} : (tensor<?x?x8xf32>, tensor<1xi64>) -> tensor<?x?x1xf32>
  %biased = "onnx.add"(%mean, %eps) : (tensor<?x?x1xf32>, tensor<f32>) -> tensor<?x?x1xf32>
  %root = "onnx.sqrt"(%biased) : (tensor<?x?x1xf32>) -> tensor<?x?x1xf32>
  %factor = "onnx.reciprocal"(%root) : (tensor<?x?x1xf32>) -> tensor<?x?x1xf32>
  %scaled = "onnx.mul"(%x, %factor) : (tensor<?x?x8xf32>, tensor<?x?x1xf32>) -> tensor<?x?x8xf32>
  %narrow = "onnx.cast"(%scaled) {to = 10 : i64} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf16>
  %y = "onnx.mul"(%wh, %narrow) : (tensor<8xf16>, tensor<?x?x8xf16>) -> tensor<?x?x8xf16>
  return %y : tensor<?x?x8xf16>
}

// -----

// A norm of transposed heads: the transpose moves behind it.
// CHECK-LABEL: func.func @heads
// CHECK: %[[N:.*]]:2 = "onnx.simplified_layer_normalization"(%arg0, %{{.*}}) {{.*}} : (tensor<?x?x2x8xf32>, tensor<8xf32>)
// CHECK-NEXT: %[[T:.*]] = "onnx.transpose"(%[[N]]#0) {perm = array<i64: 0, 2, 1, 3>}
// CHECK-NEXT: return %[[T]]
func.func @heads(%heads: tensor<?x?x2x8xf32>) -> tensor<?x2x?x8xf32> {
  %x = "onnx.transpose"(%heads) {perm = array<i64: 0, 2, 1, 3>} : (tensor<?x?x2x8xf32>) -> tensor<?x2x?x8xf32>
  %axis = "onnx.constant"() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = "onnx.constant"() {value = dense<1.000000e-05> : tensor<f32>} : () -> tensor<f32>
  %w = "plan.weight"() {name = "norm.weight"} : () -> tensor<8xf32>
  %square = "onnx.mul"(%x, %x) : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>) -> tensor<?x2x?x8xf32>
  %mean = "onnx.reduce_mean"(%square, %axis) {keepdims = 1 : i64} : (tensor<?x2x?x8xf32>, tensor<1xi64>) -> tensor<?x2x?x1xf32>
  %biased = "onnx.add"(%mean, %eps) : (tensor<?x2x?x1xf32>, tensor<f32>) -> tensor<?x2x?x1xf32>
  %root = "onnx.sqrt"(%biased) : (tensor<?x2x?x1xf32>) -> tensor<?x2x?x1xf32>
  %factor = "onnx.reciprocal"(%root) : (tensor<?x2x?x1xf32>) -> tensor<?x2x?x1xf32>
  %scaled = "onnx.mul"(%x, %factor) : (tensor<?x2x?x8xf32>, tensor<?x2x?x1xf32>) -> tensor<?x2x?x8xf32>
  %y = "onnx.mul"(%w, %scaled) : (tensor<8xf32>, tensor<?x2x?x8xf32>) -> tensor<?x2x?x8xf32>
  return %y : tensor<?x2x?x8xf32>
}

// -----

// Double use: the factor is read elsewhere too.
// CHECK: remark: an RMSNorm stays as it is: a value inside it is read elsewhere too
// CHECK-LABEL: func.func @factor_read_twice
// CHECK-NOT: onnx.simplified
func.func @factor_read_twice(%x: tensor<?x?x8xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x1xf32>) {
  %axis = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = "onnx.constant"() {value = dense<1.000000e-05> : tensor<f32>} : () -> tensor<f32>
  %w = "plan.weight"() {name = "norm.weight"} : () -> tensor<8xf32>
  %square = "onnx.mul"(%x, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %mean = "onnx.reduce_mean"(%square, %axis) {keepdims = 1 : i64} : (tensor<?x?x8xf32>, tensor<1xi64>) -> tensor<?x?x1xf32>
  %biased = "onnx.add"(%mean, %eps) : (tensor<?x?x1xf32>, tensor<f32>) -> tensor<?x?x1xf32>
  %root = "onnx.sqrt"(%biased) : (tensor<?x?x1xf32>) -> tensor<?x?x1xf32>
  %factor = "onnx.reciprocal"(%root) : (tensor<?x?x1xf32>) -> tensor<?x?x1xf32>
  %scaled = "onnx.mul"(%x, %factor) : (tensor<?x?x8xf32>, tensor<?x?x1xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%w, %scaled) : (tensor<8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y, %factor : tensor<?x?x8xf32>, tensor<?x?x1xf32>
}

// -----

// Double use: the normalised value is read before the weight is applied.
// CHECK: remark: an RMSNorm stays as it is: the normalised value is read elsewhere too
// CHECK-LABEL: func.func @normalised_read_twice
// CHECK-NOT: onnx.simplified
func.func @normalised_read_twice(%x: tensor<?x?x8xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
  %axis = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = "onnx.constant"() {value = dense<1.000000e-05> : tensor<f32>} : () -> tensor<f32>
  %w = "plan.weight"() {name = "norm.weight"} : () -> tensor<8xf32>
  %square = "onnx.mul"(%x, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %mean = "onnx.reduce_mean"(%square, %axis) {keepdims = 1 : i64} : (tensor<?x?x8xf32>, tensor<1xi64>) -> tensor<?x?x1xf32>
  %biased = "onnx.add"(%mean, %eps) : (tensor<?x?x1xf32>, tensor<f32>) -> tensor<?x?x1xf32>
  %root = "onnx.sqrt"(%biased) : (tensor<?x?x1xf32>) -> tensor<?x?x1xf32>
  %factor = "onnx.reciprocal"(%root) : (tensor<?x?x1xf32>) -> tensor<?x?x1xf32>
  %scaled = "onnx.mul"(%x, %factor) : (tensor<?x?x8xf32>, tensor<?x?x1xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%w, %scaled) : (tensor<8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y, %scaled : tensor<?x?x8xf32>, tensor<?x?x8xf32>
}

// -----

// Near miss: another value is scaled than was squared.
// CHECK: remark: an RMSNorm stays as it is: what is multiplied is not what was squared
// CHECK-LABEL: func.func @another_value
// CHECK-NOT: onnx.simplified
func.func @another_value(%x: tensor<?x?x8xf32>, %z: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %axis = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = "onnx.constant"() {value = dense<1.000000e-05> : tensor<f32>} : () -> tensor<f32>
  %w = "plan.weight"() {name = "norm.weight"} : () -> tensor<8xf32>
  %square = "onnx.mul"(%x, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %mean = "onnx.reduce_mean"(%square, %axis) {keepdims = 1 : i64} : (tensor<?x?x8xf32>, tensor<1xi64>) -> tensor<?x?x1xf32>
  %biased = "onnx.add"(%mean, %eps) : (tensor<?x?x1xf32>, tensor<f32>) -> tensor<?x?x1xf32>
  %root = "onnx.sqrt"(%biased) : (tensor<?x?x1xf32>) -> tensor<?x?x1xf32>
  %factor = "onnx.reciprocal"(%root) : (tensor<?x?x1xf32>) -> tensor<?x?x1xf32>
  %scaled = "onnx.mul"(%z, %factor) : (tensor<?x?x8xf32>, tensor<?x?x1xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%w, %scaled) : (tensor<8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}

// -----

// Near miss: the mean is over the sequence.
// CHECK: remark: an RMSNorm stays as it is: the mean is not over the last axis alone
// CHECK-LABEL: func.func @over_the_sequence
// CHECK-NOT: onnx.simplified
func.func @over_the_sequence(%x: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %axis = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = "onnx.constant"() {value = dense<1.000000e-05> : tensor<f32>} : () -> tensor<f32>
  %w = "plan.weight"() {name = "norm.weight"} : () -> tensor<8xf32>
  %square = "onnx.mul"(%x, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %mean = "onnx.reduce_mean"(%square, %axis) {keepdims = 1 : i64} : (tensor<?x?x8xf32>, tensor<1xi64>) -> tensor<?x1x8xf32>
  %biased = "onnx.add"(%mean, %eps) : (tensor<?x1x8xf32>, tensor<f32>) -> tensor<?x1x8xf32>
  %root = "onnx.sqrt"(%biased) : (tensor<?x1x8xf32>) -> tensor<?x1x8xf32>
  %factor = "onnx.reciprocal"(%root) : (tensor<?x1x8xf32>) -> tensor<?x1x8xf32>
  %scaled = "onnx.mul"(%x, %factor) : (tensor<?x?x8xf32>, tensor<?x1x8xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%w, %scaled) : (tensor<8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}
