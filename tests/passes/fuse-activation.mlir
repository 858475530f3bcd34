// RUN: planonce opt %s --pass-pipeline='fuse-activation' --remarks

// CHECK: remark: 1 activations became QuickGelu
// CHECK-LABEL: func.func @silu
// CHECK-NEXT: %[[A:.*]] = "onnx.ms_quick_gelu"(%arg0) {alpha = 1.000000e+00 : f32}
// CHECK-NEXT: return %[[A]]
func.func @silu(%x: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %s = "onnx.sigmoid"(%x) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%s, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}

// -----

// CHECK-LABEL: func.func @quick_gelu
// CHECK: "onnx.ms_quick_gelu"(%arg0) {alpha = 1.702000e+00 : f32}
// CHECK-NOT: onnx.sigmoid
func.func @quick_gelu(%x: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %c = "onnx.constant"() {value = dense<1.702> : tensor<f32>} : () -> tensor<f32>
  %m = "onnx.mul"(%x, %c) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %s = "onnx.sigmoid"(%m) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%x, %s) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}

// -----

// Double use: the gate is a result as well.
// CHECK: remark: a gate stays as it is: the sigmoid is read elsewhere too
// CHECK-LABEL: func.func @gate_read_twice
// CHECK-NOT: quick_gelu
func.func @gate_read_twice(%x: tensor<?x?x8xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
  %s = "onnx.sigmoid"(%x) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%s, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y, %s : tensor<?x?x8xf32>, tensor<?x?x8xf32>
}

// -----

// Near miss: a gate on another value (GLU).
// CHECK: remark: a gate stays as it is: the sigmoid multiplies something else than its own argument
// CHECK-LABEL: func.func @glu
// CHECK-NOT: quick_gelu
func.func @glu(%x: tensor<?x?x8xf32>, %z: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %s = "onnx.sigmoid"(%x) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%s, %z) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}

// -----

// CHECK-LABEL: func.func @gelu_tanh
// CHECK-NEXT: %[[A:.*]] = "onnx.gelu"(%arg0) {approximate = "tanh"}
// CHECK-NEXT: return %[[A]]
func.func @gelu_tanh(%x: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %half = "onnx.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %c3 = "onnx.constant"() {value = dense<0.044715> : tensor<f32>} : () -> tensor<f32>
  %c1 = "onnx.constant"() {value = dense<0.797884583> : tensor<f32>} : () -> tensor<f32>
  %one = "onnx.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %h = "onnx.mul"(%x, %half) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %x2 = "onnx.mul"(%x, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %x3 = "onnx.mul"(%x2, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %t3 = "onnx.mul"(%x3, %c3) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %sum = "onnx.add"(%x, %t3) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %arg = "onnx.mul"(%sum, %c1) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %t = "onnx.tanh"(%arg) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %more = "onnx.add"(%t, %one) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%h, %more) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}

// -----

// Near miss: another coefficient of the cube.
// CHECK: remark: a tanh stays as it is: its argument is not sqrt(2 / pi) * (x + 0.044715 * x ** 3)
// CHECK-LABEL: func.func @another_cubic
// CHECK-NOT: onnx.gelu
func.func @another_cubic(%x: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %half = "onnx.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %c3 = "onnx.constant"() {value = dense<0.05> : tensor<f32>} : () -> tensor<f32>
  %c1 = "onnx.constant"() {value = dense<0.797884583> : tensor<f32>} : () -> tensor<f32>
  %one = "onnx.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %h = "onnx.mul"(%x, %half) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %x2 = "onnx.mul"(%x, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %x3 = "onnx.mul"(%x2, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %t3 = "onnx.mul"(%x3, %c3) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %sum = "onnx.add"(%x, %t3) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %arg = "onnx.mul"(%sum, %c1) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %t = "onnx.tanh"(%arg) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %more = "onnx.add"(%t, %one) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%h, %more) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}

// -----

// A soft cap is a tanh that is no GELU: nothing happens and nothing is said.
// CHECK-NOT: remark
// CHECK-LABEL: func.func @soft_cap
// CHECK: onnx.tanh
func.func @soft_cap(%x: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %cap = "onnx.constant"() {value = dense<30.0> : tensor<f32>} : () -> tensor<f32>
  %d = "onnx.div"(%x, %cap) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %t = "onnx.tanh"(%d) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%t, %cap) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}

// -----

// CHECK-LABEL: func.func @gelu_erf
// CHECK-NEXT: %[[A:.*]] = "onnx.gelu"(%arg0) {approximate = "none"}
// CHECK-NEXT: return %[[A]]
func.func @gelu_erf(%x: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %half = "onnx.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %root = "onnx.constant"() {value = dense<1.41421354> : tensor<f32>} : () -> tensor<f32>
  %one = "onnx.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %d = "onnx.div"(%x, %root) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %e = "onnx.erf"(%d) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %more = "onnx.add"(%e, %one) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %p = "onnx.mul"(%x, %more) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%p, %half) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}

// -----

// Double use inside of it.
// CHECK: remark: an erf stays as it is: a value inside it is read elsewhere too
// CHECK-LABEL: func.func @erf_read_twice
// CHECK-NOT: onnx.gelu
func.func @erf_read_twice(%x: tensor<?x?x8xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
  %half = "onnx.constant"() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %root = "onnx.constant"() {value = dense<1.41421354> : tensor<f32>} : () -> tensor<f32>
  %one = "onnx.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %d = "onnx.div"(%x, %root) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %e = "onnx.erf"(%d) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %more = "onnx.add"(%e, %one) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  %p = "onnx.mul"(%x, %more) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%p, %half) : (tensor<?x?x8xf32>, tensor<f32>) -> tensor<?x?x8xf32>
  return %y, %e : tensor<?x?x8xf32>, tensor<?x?x8xf32>
}
