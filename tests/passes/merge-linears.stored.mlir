// RUN: planonce opt %s --pass-pipeline='merge-linears' --remarks

// Weights that the plan keeps in different blocks stay apart: together they would need the wider format.
// CHECK: remark: a, b stay alone: they are stored as q4_k, q6_k
// CHECK-LABEL: func.func @different
// CHECK-COUNT-2: onnx.ms_fused_mat_mul
// CHECK-NOT: parts
module attributes {plan.stored = {q4_k = ["a"], q6_k = ["b"]}} {
  func.func @different(%x: tensor<?x?x64xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
    %a = "plan.weight"() {name = "a"} : () -> tensor<8x64xf32>
    %b = "plan.weight"() {name = "b"} : () -> tensor<8x64xf32>
    %0 = "onnx.ms_fused_mat_mul"(%x, %a) {transB = 1 : i64} : (tensor<?x?x64xf32>, tensor<8x64xf32>) -> tensor<?x?x8xf32>
    %1 = "onnx.ms_fused_mat_mul"(%x, %b) {transB = 1 : i64} : (tensor<?x?x64xf32>, tensor<8x64xf32>) -> tensor<?x?x8xf32>
    return %0, %1 : tensor<?x?x8xf32>, tensor<?x?x8xf32>
  }
}

// -----

// CHECK-LABEL: func.func @equal
// CHECK: parts = ["a", "b"]
module attributes {plan.stored = {q4_k = ["a", "b"]}} {
  func.func @equal(%x: tensor<?x?x64xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
    %a = "plan.weight"() {name = "a"} : () -> tensor<8x64xf32>
    %b = "plan.weight"() {name = "b"} : () -> tensor<8x64xf32>
    %0 = "onnx.ms_fused_mat_mul"(%x, %a) {transB = 1 : i64} : (tensor<?x?x64xf32>, tensor<8x64xf32>) -> tensor<?x?x8xf32>
    %1 = "onnx.ms_fused_mat_mul"(%x, %b) {transB = 1 : i64} : (tensor<?x?x64xf32>, tensor<8x64xf32>) -> tensor<?x?x8xf32>
    return %0, %1 : tensor<?x?x8xf32>, tensor<?x?x8xf32>
  }
}

// -----

// The offsets of quantised weights look like linears of one input; they are no values to be joined.
// CHECK-LABEL: func.func @offsets
// CHECK-COUNT-2: onnx.ms_fused_mat_mul
// CHECK-NOT: parts
module attributes {plan.stored = {q4_1 = ["a", "b"]}} {
  func.func @offsets(%x: tensor<?x?x2xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
    %a = "plan.weight"() {name = "a", format = "int4/32+offset", form = "offset"} : () -> tensor<8x2xf32>
    %b = "plan.weight"() {name = "b", format = "int4/32+offset", form = "offset"} : () -> tensor<8x2xf32>
    %0 = "onnx.ms_fused_mat_mul"(%x, %a) {transB = 1 : i64} : (tensor<?x?x2xf32>, tensor<8x2xf32>) -> tensor<?x?x8xf32>
    %1 = "onnx.ms_fused_mat_mul"(%x, %b) {transB = 1 : i64} : (tensor<?x?x2xf32>, tensor<8x2xf32>) -> tensor<?x?x8xf32>
    return %0, %1 : tensor<?x?x8xf32>, tensor<?x?x8xf32>
  }
}
