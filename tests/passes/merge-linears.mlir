// RUN: planonce opt %s --pass-pipeline='merge-linears' --remarks

// CHECK: remark: 1 x gate + up became one linear
// CHECK-LABEL: func.func @gate_and_up
// CHECK: %[[W:.*]] = "plan.weight"() {name = "mlp.gate.weight+up.weight", parts = ["mlp.gate.weight", "mlp.up.weight"]} : () -> tensor<10x8xf32>
// CHECK: %[[M:.*]] = "onnx.ms_fused_mat_mul"(%arg0, %[[W]]) {transB = 1 : i64} : {{.*}} -> tensor<?x?x10xf32>
// CHECK: %[[N:.*]] = "onnx.constant"() {value = dense<[4, 6]>
// CHECK: %[[S:.*]]:2 = "onnx.split"(%[[M]], %[[N]]) {axis = 2 : i64
// CHECK-NOT: onnx.ms_fused_mat_mul
// CHECK: return %[[S]]#0, %[[S]]#1
func.func @gate_and_up(%x: tensor<?x?x8xf32>) -> (tensor<?x?x4xf32>, tensor<?x?x6xf32>) {
  %wg = "plan.weight"() {name = "mlp.gate.weight"} : () -> tensor<4x8xf32>
  %g = "onnx.ms_fused_mat_mul"(%x, %wg) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<4x8xf32>) -> tensor<?x?x4xf32>
  %wu = "plan.weight"() {name = "mlp.up.weight"} : () -> tensor<6x8xf32>
  %u = "onnx.ms_fused_mat_mul"(%x, %wu) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<6x8xf32>) -> tensor<?x?x6xf32>
  return %g, %u : tensor<?x?x4xf32>, tensor<?x?x6xf32>
}

// -----

// Both have a bias: one merged bias. A name in common is said once.
// CHECK-LABEL: func.func @biases
// CHECK: %[[M:.*]] = "onnx.ms_fused_mat_mul"
// CHECK: %[[B:.*]] = "plan.weight"() {name = "a.bias+b.bias", parts = ["a.bias", "b.bias"]} : () -> tensor<10xf32>
// CHECK: %[[A:.*]] = "onnx.add"(%[[M]], %[[B]])
// CHECK: "onnx.split"(%[[A]],
// CHECK-NOT: onnx.add
func.func @biases(%x: tensor<?x?x8xf32>) -> (tensor<?x?x4xf32>, tensor<?x?x6xf32>) {
  %wa = "plan.weight"() {name = "a.weight"} : () -> tensor<4x8xf32>
  %ba = "plan.weight"() {name = "a.bias"} : () -> tensor<4xf32>
  %a = "onnx.ms_fused_mat_mul"(%x, %wa) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<4x8xf32>) -> tensor<?x?x4xf32>
  %ab = "onnx.add"(%a, %ba) : (tensor<?x?x4xf32>, tensor<4xf32>) -> tensor<?x?x4xf32>
  %wb = "plan.weight"() {name = "b.weight"} : () -> tensor<6x8xf32>
  %bb = "plan.weight"() {name = "b.bias"} : () -> tensor<6xf32>
  %b = "onnx.ms_fused_mat_mul"(%x, %wb) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<6x8xf32>) -> tensor<?x?x6xf32>
  %bbb = "onnx.add"(%bb, %b) : (tensor<6xf32>, tensor<?x?x6xf32>) -> tensor<?x?x6xf32>
  return %ab, %bbb : tensor<?x?x4xf32>, tensor<?x?x6xf32>
}

// -----

// One has a bias: the products are merged, the bias is added behind the split.
// CHECK-LABEL: func.func @one_bias
// CHECK: %[[S:.*]]:2 = "onnx.split"
// CHECK: %[[A:.*]] = "onnx.add"(%[[S]]#0,
// CHECK: return %[[A]], %[[S]]#1
func.func @one_bias(%x: tensor<?x?x8xf32>) -> (tensor<?x?x4xf32>, tensor<?x?x6xf32>) {
  %wa = "plan.weight"() {name = "a.weight"} : () -> tensor<4x8xf32>
  %ba = "plan.weight"() {name = "a.bias"} : () -> tensor<4xf32>
  %a = "onnx.ms_fused_mat_mul"(%x, %wa) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<4x8xf32>) -> tensor<?x?x4xf32>
  %ab = "onnx.add"(%a, %ba) : (tensor<?x?x4xf32>, tensor<4xf32>) -> tensor<?x?x4xf32>
  %wb = "plan.weight"() {name = "b.weight"} : () -> tensor<6x8xf32>
  %b = "onnx.ms_fused_mat_mul"(%x, %wb) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<6x8xf32>) -> tensor<?x?x6xf32>
  return %ab, %b : tensor<?x?x4xf32>, tensor<?x?x6xf32>
}

// -----

// Query, key and value of one attention, in that order, whatever the order of the program; a fourth linear
// of the same input is no part of it.
// CHECK: remark: 1 x q + k + v became one linear
// CHECK-LABEL: func.func @attention
// CHECK: "plan.weight"() {name = "q.weight+k.weight+v.weight", parts = ["q.weight", "k.weight", "v.weight"]}
// CHECK: %[[S:.*]]:3 = "onnx.split"
// CHECK: "plan.weight"() {name = "fc.weight"}
func.func @attention(%x: tensor<?x?x8xf32>, %at: tensor<?xi64>, %kc: tensor<?x1x?x4xf32>, %vc: tensor<?x1x?x4xf32>) -> (tensor<?x?x1x4xf32>, tensor<?x?x8xf32>) {
  %none = "onnx.no_value"() : () -> none
  %heads = "onnx.constant"() {value = dense<[0, 0, 1, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %wv = "plan.weight"() {name = "v.weight"} : () -> tensor<4x8xf32>
  %v = "onnx.ms_fused_mat_mul"(%x, %wv) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<4x8xf32>) -> tensor<?x?x4xf32>
  %wk = "plan.weight"() {name = "k.weight"} : () -> tensor<4x8xf32>
  %k = "onnx.ms_fused_mat_mul"(%x, %wk) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<4x8xf32>) -> tensor<?x?x4xf32>
  %wq = "plan.weight"() {name = "q.weight"} : () -> tensor<4x8xf32>
  %q = "onnx.ms_fused_mat_mul"(%x, %wq) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<4x8xf32>) -> tensor<?x?x4xf32>
  %wf = "plan.weight"() {name = "fc.weight"} : () -> tensor<8x8xf32>
  %f = "onnx.ms_fused_mat_mul"(%x, %wf) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<8x8xf32>) -> tensor<?x?x8xf32>
  %q4 = "onnx.reshape"(%q, %heads) : (tensor<?x?x4xf32>, tensor<4xi64>) -> tensor<?x?x1x4xf32>
  %k4 = "onnx.reshape"(%k, %heads) : (tensor<?x?x4xf32>, tensor<4xi64>) -> tensor<?x?x1x4xf32>
  %v4 = "onnx.reshape"(%v, %heads) : (tensor<?x?x4xf32>, tensor<4xi64>) -> tensor<?x?x1x4xf32>
  %qt = "onnx.transpose"(%q4) {perm = array<i64: 0, 2, 1, 3>} : (tensor<?x?x1x4xf32>) -> tensor<?x1x?x4xf32>
  %kt = "onnx.transpose"(%k4) {perm = array<i64: 0, 2, 1, 3>} : (tensor<?x?x1x4xf32>) -> tensor<?x1x?x4xf32>
  %vt = "onnx.transpose"(%v4) {perm = array<i64: 0, 2, 1, 3>} : (tensor<?x?x1x4xf32>) -> tensor<?x1x?x4xf32>
  %kw = "plan.write_slice"(%kc, %kt, %at) {axis = 2 : i64} : (tensor<?x1x?x4xf32>, tensor<?x1x?x4xf32>, tensor<?xi64>) -> tensor<?x1x?x4xf32>
  %vw = "plan.write_slice"(%vc, %vt, %at) {axis = 2 : i64} : (tensor<?x1x?x4xf32>, tensor<?x1x?x4xf32>, tensor<?xi64>) -> tensor<?x1x?x4xf32>
  %a = "plan.attention"(%qt, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 0.5 : f32, window = 0 : i64, softcap = 0.0 : f32} : (tensor<?x1x?x4xf32>, tensor<?x1x?x4xf32>, tensor<?x1x?x4xf32>, tensor<?xi64>, none) -> tensor<?x?x1x4xf32>
  return %a, %f : tensor<?x?x1x4xf32>, tensor<?x?x8xf32>
}

// -----

// Double use: a tied weight is stored once, so it stays alone.
// CHECK: remark: the linear of embed.weight stays alone: its weight is read elsewhere too
// CHECK-LABEL: func.func @tied
// CHECK-COUNT-2: onnx.ms_fused_mat_mul
// CHECK-NOT: parts
func.func @tied(%x: tensor<?x?x8xf32>, %ids: tensor<?x?xi64>) -> (tensor<?x?x4xf32>, tensor<?x?x6xf32>, tensor<?x?x8xf32>) {
  %we = "plan.weight"() {name = "embed.weight"} : () -> tensor<4x8xf32>
  %e = "onnx.gather"(%we, %ids) {axis = 0 : i64} : (tensor<4x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %h = "onnx.ms_fused_mat_mul"(%x, %we) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<4x8xf32>) -> tensor<?x?x4xf32>
  %wu = "plan.weight"() {name = "up.weight"} : () -> tensor<6x8xf32>
  %u = "onnx.ms_fused_mat_mul"(%x, %wu) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<6x8xf32>) -> tensor<?x?x6xf32>
  return %h, %u, %e : tensor<?x?x4xf32>, tensor<?x?x6xf32>, tensor<?x?x8xf32>
}

// -----

// Near miss: two inputs, and a product with a factor.
// CHECK-NOT: remark
// CHECK-LABEL: func.func @two_inputs
// CHECK-COUNT-3: onnx.ms_fused_mat_mul
// CHECK-NOT: onnx.split
func.func @two_inputs(%x: tensor<?x?x8xf32>, %z: tensor<?x?x8xf32>) -> (tensor<?x?x4xf32>, tensor<?x?x6xf32>, tensor<?x?x6xf32>) {
  %wg = "plan.weight"() {name = "gate.weight"} : () -> tensor<4x8xf32>
  %g = "onnx.ms_fused_mat_mul"(%x, %wg) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<4x8xf32>) -> tensor<?x?x4xf32>
  %wu = "plan.weight"() {name = "up.weight"} : () -> tensor<6x8xf32>
  %u = "onnx.ms_fused_mat_mul"(%z, %wu) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<6x8xf32>) -> tensor<?x?x6xf32>
  %wd = "plan.weight"() {name = "down.weight"} : () -> tensor<6x8xf32>
  %d = "onnx.ms_fused_mat_mul"(%x, %wd) {transB = 1 : i64, alpha = 2.0 : f32} : (tensor<?x?x8xf32>, tensor<6x8xf32>) -> tensor<?x?x6xf32>
  return %g, %u, %d : tensor<?x?x4xf32>, tensor<?x?x6xf32>, tensor<?x?x6xf32>
}
