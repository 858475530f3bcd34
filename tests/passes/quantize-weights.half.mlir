// RUN: planonce opt %s --pass-pipeline='quantize-weights{scheme=int4 symmetric=false}' --remarks
// RUN: planonce opt %s --pass-pipeline='quantize-weights' --remarks --check-prefix=KEEP

// The kernels want scales, and the offset's product offsets, in the dtype of what is multiplied.
// CHECK: remark: 1 weight rounded to int4/32+offset
// CHECK-LABEL: func.func @linear
// CHECK-DAG: %[[D:.*]] = "plan.weight"() {form = "data", format = "int4/32+offset", name = "w"} : () -> tensor<8x2x16xui8>
// CHECK-DAG: %[[S:.*]] = "plan.weight"() {form = "scales", format = "int4/32+offset", name = "w"} : () -> tensor<8x2xbf16>
// CHECK-DAG: %[[O:.*]] = "plan.weight"() {form = "offset", format = "int4/32+offset", name = "w"} : () -> tensor<8x2xbf16>
// CHECK-DAG: "onnx.ms_mat_mul_n_bits"(%arg1, %[[D]], %[[S]]
// CHECK-DAG: "onnx.ms_fused_mat_mul"(%{{.*}}, %[[O]])
// CHECK-NOT: f32
// KEEP: remark: 1 weight kept, q8_0 as int8/32, their codes as they are and their scales rounded to bf16
// KEEP-LABEL: func.func @linear
module attributes {plan.stored = {q8_0 = ["w"]}} {
func.func @linear(%ids: tensor<?x?xi64> {plan.name = "ids", plan.role = "token_ids", plan.dims = ["b", "s"]},
                  %x: tensor<?x?x64xbf16> {plan.name = "x", plan.role = "kv", plan.dims = ["b", "s", "64"], plan.layer = 0 : i64, plan.which = "key"})
    -> (tensor<?x?x8xbf16> {plan.name = "r0", plan.role = "kv", plan.dims = ["n", "n", "8"], plan.layer = 0 : i64, plan.which = "key"}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<8x64xbf16>
  %y = "onnx.ms_fused_mat_mul"(%x, %w) {transB = 1 : i64} : (tensor<?x?x64xbf16>, tensor<8x64xbf16>) -> tensor<?x?x8xbf16>
  return %y : tensor<?x?x8xbf16>
}
}

// -----

// A q8_0 block's scale is a float16 in the file.
// KEEP: remark: 1 weight kept exactly, q8_0 as int8/32
// KEEP-LABEL: func.func @embedding
// KEEP: "onnx.ms_gather_block_quantized"(%{{.*}}) {{.*}} -> tensor<?x?x64xf16>
module attributes {plan.stored = {q8_0 = ["w"]}} {
func.func @embedding(%ids: tensor<?x?xi64> {plan.name = "ids", plan.role = "token_ids", plan.dims = ["b", "s"]})
    -> (tensor<?x?x64xf16> {plan.name = "r0", plan.role = "kv", plan.dims = ["n", "n", "64"], plan.layer = 0 : i64, plan.which = "key"}) {
  %w = "plan.weight"() {name = "w"} : () -> tensor<8x64xf16>
  %y = "onnx.gather"(%w, %ids) {axis = 0 : i64} : (tensor<8x64xf16>, tensor<?x?xi64>) -> tensor<?x?x64xf16>
  return %y : tensor<?x?x64xf16>
}
}
