// RUN: planonce opt %s --pass-pipeline='fuse-rms-norm' --remarks

// Llama in 16 bits: widened, normalised, narrowed, and only then weighted. One 16-bit operation, and the
// transpose ahead of the norm behind it.
// CHECK: remark: 1 RMSNorms became one operation each
// CHECK-LABEL: func.func @narrowed_before_the_weight
// CHECK: %[[N:.*]]:2 = "onnx.simplified_layer_normalization"(%arg0, %{{.*}}) {{.*}} : (tensor<?x?x2x8xbf16>, tensor<8xbf16>) -> (tensor<?x?x2x8xbf16>
// CHECK-NEXT: %[[T:.*]] = "onnx.transpose"(%[[N]]#0)
// CHECK-NEXT: return %[[T]]
func.func @narrowed_before_the_weight(%x: tensor<?x?x2x8xbf16>) -> tensor<?x2x?x8xbf16> {
  %axis = "onnx.constant"() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = "onnx.constant"() {value = dense<1.000000e-05> : tensor<f32>} : () -> tensor<f32>
  %w = "plan.weight"() {name = "norm.weight"} : () -> tensor<8xbf16>
  %t = "onnx.transpose"(%x) {perm = array<i64: 0, 2, 1, 3>} : (tensor<?x?x2x8xbf16>) -> tensor<?x2x?x8xbf16>
  %wide = "onnx.cast"(%t) {to = 1 : i64} : (tensor<?x2x?x8xbf16>) -> tensor<?x2x?x8xf32>
  %square = "onnx.mul"(%wide, %wide) : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>) -> tensor<?x2x?x8xf32>
  %mean = "onnx.reduce_mean"(%square, %axis) {keepdims = 1 : i64} : (tensor<?x2x?x8xf32>, tensor<1xi64>) -> tensor<?x2x?x1xf32>
  %biased = "onnx.add"(%mean, %eps) : (tensor<?x2x?x1xf32>, tensor<f32>) -> tensor<?x2x?x1xf32>
  %root = "onnx.sqrt"(%biased) : (tensor<?x2x?x1xf32>) -> tensor<?x2x?x1xf32>
  %factor = "onnx.reciprocal"(%root) : (tensor<?x2x?x1xf32>) -> tensor<?x2x?x1xf32>
  %scaled = "onnx.mul"(%wide, %factor) : (tensor<?x2x?x8xf32>, tensor<?x2x?x1xf32>) -> tensor<?x2x?x8xf32>
  %narrow = "onnx.cast"(%scaled) {to = 16 : i64} : (tensor<?x2x?x8xf32>) -> tensor<?x2x?x8xbf16>
  %y = "onnx.mul"(%w, %narrow) : (tensor<8xbf16>, tensor<?x2x?x8xbf16>) -> tensor<?x2x?x8xbf16>
  return %y : tensor<?x2x?x8xbf16>
}

// -----

// Gemma: weighted in single precision before it is narrowed. The norm stays single, between the two casts, and
// the transpose moves behind all three.
// CHECK-LABEL: func.func @narrowed_after_the_weight
// CHECK: %[[W:.*]] = "onnx.cast"(%arg0) {to = 1 : i64}
// CHECK: %[[N:.*]]:2 = "onnx.simplified_layer_normalization"(%[[W]], %{{.*}}) {{.*}} : (tensor<?x?x2x8xf32>, tensor<8xf32>)
// CHECK: %[[H:.*]] = "onnx.cast"(%[[N]]#0) {to = 10 : i64} : (tensor<?x?x2x8xf32>) -> tensor<?x?x2x8xf16>
// CHECK: %[[T:.*]] = "onnx.transpose"(%[[H]])
// CHECK: return %[[T]]
func.func @narrowed_after_the_weight(%x: tensor<?x?x2x8xf16>) -> tensor<?x2x?x8xf16> {
  %axis = "onnx.constant"() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = "onnx.constant"() {value = dense<1.000000e-05> : tensor<f32>} : () -> tensor<f32>
  %w = "onnx.constant"() {value = dense<1.500000e+00> : tensor<8xf32>} : () -> tensor<8xf32>
  %t = "onnx.transpose"(%x) {perm = array<i64: 0, 2, 1, 3>} : (tensor<?x?x2x8xf16>) -> tensor<?x2x?x8xf16>
  %wide = "onnx.cast"(%t) {to = 1 : i64} : (tensor<?x2x?x8xf16>) -> tensor<?x2x?x8xf32>
  %square = "onnx.mul"(%wide, %wide) : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>) -> tensor<?x2x?x8xf32>
  %mean = "onnx.reduce_mean"(%square, %axis) {keepdims = 1 : i64} : (tensor<?x2x?x8xf32>, tensor<1xi64>) -> tensor<?x2x?x1xf32>
  %biased = "onnx.add"(%mean, %eps) : (tensor<?x2x?x1xf32>, tensor<f32>) -> tensor<?x2x?x1xf32>
  %root = "onnx.sqrt"(%biased) : (tensor<?x2x?x1xf32>) -> tensor<?x2x?x1xf32>
  %scaled = "onnx.div"(%wide, %root) : (tensor<?x2x?x8xf32>, tensor<?x2x?x1xf32>) -> tensor<?x2x?x8xf32>
  %weighted = "onnx.mul"(%scaled, %w) : (tensor<?x2x?x8xf32>, tensor<8xf32>) -> tensor<?x2x?x8xf32>
  %y = "onnx.cast"(%weighted) {to = 10 : i64} : (tensor<?x2x?x8xf32>) -> tensor<?x2x?x8xf16>
  return %y : tensor<?x2x?x8xf16>
}

// -----

// Something else reads the transposed value: the transpose stays where it is.
// CHECK-LABEL: func.func @transposed_value_read_elsewhere
// CHECK: %[[T:.*]] = "onnx.transpose"(%arg0)
// CHECK: %[[W:.*]] = "onnx.cast"(%[[T]])
// CHECK: "onnx.simplified_layer_normalization"(%[[W]]
// CHECK-NOT: onnx.transpose
func.func @transposed_value_read_elsewhere(%x: tensor<?x?x2x8xf16>) -> (tensor<?x2x?x8xf16>, tensor<?x2x?x8xf16>) {
  %axis = "onnx.constant"() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = "onnx.constant"() {value = dense<1.000000e-05> : tensor<f32>} : () -> tensor<f32>
  %w = "onnx.constant"() {value = dense<1.500000e+00> : tensor<8xf32>} : () -> tensor<8xf32>
  %t = "onnx.transpose"(%x) {perm = array<i64: 0, 2, 1, 3>} : (tensor<?x?x2x8xf16>) -> tensor<?x2x?x8xf16>
  %wide = "onnx.cast"(%t) {to = 1 : i64} : (tensor<?x2x?x8xf16>) -> tensor<?x2x?x8xf32>
  %square = "onnx.mul"(%wide, %wide) : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>) -> tensor<?x2x?x8xf32>
  %mean = "onnx.reduce_mean"(%square, %axis) {keepdims = 1 : i64} : (tensor<?x2x?x8xf32>, tensor<1xi64>) -> tensor<?x2x?x1xf32>
  %biased = "onnx.add"(%mean, %eps) : (tensor<?x2x?x1xf32>, tensor<f32>) -> tensor<?x2x?x1xf32>
  %root = "onnx.sqrt"(%biased) : (tensor<?x2x?x1xf32>) -> tensor<?x2x?x1xf32>
  %scaled = "onnx.div"(%wide, %root) : (tensor<?x2x?x8xf32>, tensor<?x2x?x1xf32>) -> tensor<?x2x?x8xf32>
  %weighted = "onnx.mul"(%scaled, %w) : (tensor<?x2x?x8xf32>, tensor<8xf32>) -> tensor<?x2x?x8xf32>
  %y = "onnx.cast"(%weighted) {to = 10 : i64} : (tensor<?x2x?x8xf32>) -> tensor<?x2x?x8xf16>
  return %y, %t : tensor<?x2x?x8xf16>, tensor<?x2x?x8xf16>
}
