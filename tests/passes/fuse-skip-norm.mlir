// RUN: planonce opt %s --pass-pipeline='fuse-skip-norm' --remarks

// The sum goes on as the fourth result.
// CHECK: remark: 1 residual additions and norms became SkipSimplifiedLayerNormalization
// CHECK-LABEL: func.func @residual
// CHECK: %[[W:.*]] = "plan.weight"()
// CHECK: %[[S:.*]]:4 = "onnx.ms_skip_simplified_layer_normalization"(%arg0, %arg1, %[[W]], %{{.*}}) {epsilon = 9.99999974E-6 : f32}
// CHECK-NOT: onnx.add
// CHECK: return %[[S]]#0, %[[S]]#3
func.func @residual(%x: tensor<?x?x8xf32>, %r: tensor<?x?x8xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
  %a = "onnx.add"(%x, %r) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %g = "plan.weight"() {name = "g"} : () -> tensor<8xf32>
  %n:2 = "onnx.simplified_layer_normalization"(%a, %g) {axis = -1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<?x?x8xf32>, tensor<8xf32>) -> (tensor<?x?x8xf32>, none)
  return %n#0, %a : tensor<?x?x8xf32>, tensor<?x?x8xf32>
}

// -----

// A reader of the sum that stands before the norm still finds it made.
// CHECK-LABEL: func.func @reader_in_between
// CHECK: %[[S:.*]]:4 = "onnx.ms_skip_layer_normalization"(%arg0, %arg1,
// CHECK-NEXT: %[[R:.*]] = "onnx.relu"(%[[S]]#3)
// CHECK-NEXT: return %[[S]]#0, %[[R]]
func.func @reader_in_between(%x: tensor<?x?x8xf32>, %r: tensor<?x?x8xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
  %a = "onnx.add"(%x, %r) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %early = "onnx.relu"(%a) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %g = "plan.weight"() {name = "g"} : () -> tensor<8xf32>
  %b = "plan.weight"() {name = "b"} : () -> tensor<8xf32>
  %n:3 = "onnx.layer_normalization"(%a, %g, %b) {axis = -1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<?x?x8xf32>, tensor<8xf32>, tensor<8xf32>) -> (tensor<?x?x8xf32>, none, none)
  return %n#0, %early : tensor<?x?x8xf32>, tensor<?x?x8xf32>
}

// -----

// Double use: two norms of one sum; the first takes it in, the second reads the fourth result.
// CHECK: remark: 1 residual additions and norms became
// CHECK-LABEL: func.func @two_norms
// CHECK: %[[S:.*]]:4 = "onnx.ms_skip_simplified_layer_normalization"
// CHECK: %[[N:.*]]:2 = "onnx.simplified_layer_normalization"(%[[S]]#3,
// CHECK: return %[[S]]#0, %[[N]]#0
func.func @two_norms(%x: tensor<?x?x8xf32>, %r: tensor<?x?x8xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
  %a = "onnx.add"(%x, %r) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %g = "plan.weight"() {name = "g"} : () -> tensor<8xf32>
  %h = "plan.weight"() {name = "h"} : () -> tensor<8xf32>
  %n:2 = "onnx.simplified_layer_normalization"(%a, %g) {axis = -1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<?x?x8xf32>, tensor<8xf32>) -> (tensor<?x?x8xf32>, none)
  %m:2 = "onnx.simplified_layer_normalization"(%a, %h) {axis = -1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<?x?x8xf32>, tensor<8xf32>) -> (tensor<?x?x8xf32>, none)
  return %n#0, %m#0 : tensor<?x?x8xf32>, tensor<?x?x8xf32>
}

// -----

// Near miss: a bias is no residual.
// CHECK: remark: a norm stays apart from the addition before it: what is added is not two values
// CHECK-LABEL: func.func @bias
// CHECK-NOT: ms_skip
func.func @bias(%x: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %b = "plan.weight"() {name = "b"} : () -> tensor<8xf32>
  %a = "onnx.add"(%x, %b) : (tensor<?x?x8xf32>, tensor<8xf32>) -> tensor<?x?x8xf32>
  %g = "plan.weight"() {name = "g"} : () -> tensor<8xf32>
  %n:2 = "onnx.simplified_layer_normalization"(%a, %g) {axis = -1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<?x?x8xf32>, tensor<8xf32>) -> (tensor<?x?x8xf32>, none)
  return %n#0 : tensor<?x?x8xf32>
}

// -----

// Near miss: a scale that is computed cannot move ahead of the addition.
// CHECK: remark: a norm stays apart from the addition before it: its weight is computed from something else than weights
// CHECK-LABEL: func.func @computed_scale
// CHECK-NOT: ms_skip
func.func @computed_scale(%x: tensor<?x?x8xf32>, %r: tensor<?x?x8xf32>, %s: tensor<8xf32>) -> tensor<?x?x8xf32> {
  %a = "onnx.add"(%x, %r) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %g = "onnx.relu"(%s) : (tensor<8xf32>) -> tensor<8xf32>
  %n:2 = "onnx.simplified_layer_normalization"(%a, %g) {axis = -1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<?x?x8xf32>, tensor<8xf32>) -> (tensor<?x?x8xf32>, none)
  return %n#0 : tensor<?x?x8xf32>
}
