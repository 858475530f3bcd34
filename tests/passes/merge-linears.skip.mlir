// RUN: planonce opt %s --pass-pipeline='merge-linears{skip=b.weight}' --remarks

// CHECK: remark: the linear of b.weight stays alone: asked for
// CHECK: remark: 1 x a + c became one linear
// CHECK-LABEL: func.func @three
// CHECK: "plan.weight"() {name = "a.weight+c.weight"
// CHECK: "plan.weight"() {name = "b.weight"}
func.func @three(%x: tensor<?x?x8xf32>) -> (tensor<?x?x4xf32>, tensor<?x?x6xf32>, tensor<?x?x4xf32>) {
  %wa = "plan.weight"() {name = "a.weight"} : () -> tensor<4x8xf32>
  %a = "onnx.ms_fused_mat_mul"(%x, %wa) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<4x8xf32>) -> tensor<?x?x4xf32>
  %wb = "plan.weight"() {name = "b.weight"} : () -> tensor<6x8xf32>
  %b = "onnx.ms_fused_mat_mul"(%x, %wb) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<6x8xf32>) -> tensor<?x?x6xf32>
  %wc = "plan.weight"() {name = "c.weight"} : () -> tensor<4x8xf32>
  %c = "onnx.ms_fused_mat_mul"(%x, %wc) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<4x8xf32>) -> tensor<?x?x4xf32>
  return %a, %b, %c : tensor<?x?x4xf32>, tensor<?x?x6xf32>, tensor<?x?x4xf32>
}
