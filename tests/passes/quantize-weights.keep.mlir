// RUN: planonce opt %s --pass-pipeline='quantize-weights,cse' --remarks

// A format with minima: symmetric codes, and block sums of the input times the offset, for each linear; after
// cse the sums are made once for all that read the input.
// CHECK: remark: 2 weights kept exactly, q4_1 as int4/32+offset
// CHECK-LABEL: func.func @minima
// CHECK: %[[D:.*]] = "plan.weight"() {form = "data", format = "int4/32+offset", name = "a"} : () -> tensor<8x2x16xui8>
// CHECK: %[[P:.*]] = "onnx.ms_mat_mul_n_bits"(%arg1, %[[D]],
// CHECK: %[[M:.*]] = "plan.weight"() {form = "offset", format = "int4/32+offset", name = "a"} : () -> tensor<8x2xf32>
// CHECK: %[[B:.*]] = "onnx.reshape"(%arg1, %{{.*}}) : (tensor<?x?x64xf32>, tensor<4xi64>) -> tensor<?x?x2x32xf32>
// CHECK: %[[S:.*]] = "onnx.reduce_sum"(%[[B]], %{{.*}}) {keepdims = 0 : i64}
// CHECK: %[[T:.*]] = "onnx.ms_fused_mat_mul"(%[[S]], %[[M]]) {transB = 1 : i64}
// CHECK: %[[Y:.*]] = "onnx.add"(%[[P]], %[[T]])
// CHECK-NOT: reduce_sum
// CHECK: %[[T2:.*]] = "onnx.ms_fused_mat_mul"(%[[S]], %{{.*}}) {transB = 1 : i64}
// CHECK: return %[[Y]]
module attributes {plan.stored = {q4_1 = ["a", "b"]}} {
  func.func @minima(%ids: tensor<?x?xi64> {plan.name = "ids", plan.role = "token_ids", plan.dims = ["b", "s"]},
                    %x: tensor<?x?x64xf32> {plan.name = "x", plan.role = "kv", plan.dims = ["b", "s", "64"], plan.layer = 0 : i64, plan.which = "key"})
    -> (tensor<?x?x8xf32> {plan.name = "r0", plan.role = "kv", plan.dims = ["n", "n", "8"], plan.layer = 0 : i64, plan.which = "key"},
        tensor<?x?x8xf32> {plan.name = "r1", plan.role = "kv", plan.dims = ["n", "n", "8"], plan.layer = 0 : i64, plan.which = "key"}) {
    %a = "plan.weight"() {name = "a"} : () -> tensor<8x64xf32>
    %b = "plan.weight"() {name = "b"} : () -> tensor<8x64xf32>
    %0 = "onnx.ms_fused_mat_mul"(%x, %a) {transB = 1 : i64} : (tensor<?x?x64xf32>, tensor<8x64xf32>) -> tensor<?x?x8xf32>
    %1 = "onnx.ms_fused_mat_mul"(%x, %b) {transB = 1 : i64} : (tensor<?x?x64xf32>, tensor<8x64xf32>) -> tensor<?x?x8xf32>
    return %0, %1 : tensor<?x?x8xf32>, tensor<?x?x8xf32>
  }
}

// -----

// An embedding whose rows have offsets, one for each block.
// CHECK-LABEL: func.func @rows
// CHECK: %[[G:.*]] = "onnx.ms_gather_block_quantized"
// CHECK: %[[M:.*]] = "plan.weight"() {form = "offset", format = "int4/32+offset", name = "e"} : () -> tensor<6x2xf32>
// CHECK: %[[O:.*]] = "onnx.gather"(%[[M]], %arg0) {axis = 0 : i64}
// CHECK: %[[U:.*]] = "onnx.unsqueeze"(%[[O]]
// CHECK: %[[R:.*]] = "onnx.reshape"(%[[G]]
// CHECK: %[[A:.*]] = "onnx.add"(%[[R]], %[[U]]) : (tensor<?x?x2x32xf32>, tensor<?x?x2x1xf32>) -> tensor<?x?x2x32xf32>
// CHECK: %[[Y:.*]] = "onnx.reshape"(%[[A]]
// CHECK: return %[[Y]]
module attributes {plan.stored = {q4_k = ["e"]}} {
  func.func @rows(%ids: tensor<?x?xi64> {plan.name = "ids", plan.role = "token_ids", plan.dims = ["b", "s"]})
    -> (tensor<?x?x64xf32> {plan.name = "r0", plan.role = "kv", plan.dims = ["n", "n", "64"], plan.layer = 0 : i64, plan.which = "key"}) {
    %e = "plan.weight"() {name = "e"} : () -> tensor<6x64xf32>
    %0 = "onnx.gather"(%e, %ids) {axis = 0 : i64} : (tensor<6x64xf32>, tensor<?x?xi64>) -> tensor<?x?x64xf32>
    return %0 : tensor<?x?x64xf32>
  }
}

// -----

// Parts in different blocks go into the format that holds both; one without blocks keeps all plain; a format
// that has no exact form is rounded again, and that is said.
// CHECK-DAG: remark: q+f stays f32: only some of its parts are stored in blocks
// CHECK-DAG: remark: 2 weights kept exactly, q4_1, q6_k as int8/16+offset
// CHECK-DAG: remark: 1 weight rounded again, from iq2_xxs to int8/32, which has no exact form
// CHECK-LABEL: func.func @parts
// CHECK-DAG: format = "int8/16+offset", name = "q+v", parts = ["q", "v"]} : () -> tensor<8x4x16xui8>
// CHECK-DAG: "plan.weight"() {name = "q+f", parts = ["q", "f"]} : () -> tensor<8x64xf32>
// CHECK-DAG: format = "int8/32", name = "odd"
module attributes {plan.stored = {q4_1 = ["q"], q6_k = ["v"], iq2_xxs = ["odd"]}} {
  func.func @parts(%ids: tensor<?x?xi64> {plan.name = "ids", plan.role = "token_ids", plan.dims = ["b", "s"]},
                   %x: tensor<?x?x64xf32> {plan.name = "x", plan.role = "kv", plan.dims = ["b", "s", "64"], plan.layer = 0 : i64, plan.which = "key"})
    -> (tensor<?x?x8xf32> {plan.name = "r0", plan.role = "kv", plan.dims = ["n", "n", "8"], plan.layer = 0 : i64, plan.which = "key"},
        tensor<?x?x8xf32> {plan.name = "r1", plan.role = "kv", plan.dims = ["n", "n", "8"], plan.layer = 0 : i64, plan.which = "key"},
        tensor<?x?x4xf32> {plan.name = "r2", plan.role = "kv", plan.dims = ["n", "n", "4"], plan.layer = 0 : i64, plan.which = "key"}) {
    %a = "plan.weight"() {name = "q+v", parts = ["q", "v"]} : () -> tensor<8x64xf32>
    %b = "plan.weight"() {name = "q+f", parts = ["q", "f"]} : () -> tensor<8x64xf32>
    %c = "plan.weight"() {name = "odd"} : () -> tensor<4x64xf32>
    %0 = "onnx.ms_fused_mat_mul"(%x, %a) {transB = 1 : i64} : (tensor<?x?x64xf32>, tensor<8x64xf32>) -> tensor<?x?x8xf32>
    %1 = "onnx.ms_fused_mat_mul"(%x, %b) {transB = 1 : i64} : (tensor<?x?x64xf32>, tensor<8x64xf32>) -> tensor<?x?x8xf32>
    %2 = "onnx.ms_fused_mat_mul"(%x, %c) {transB = 1 : i64} : (tensor<?x?x64xf32>, tensor<4x64xf32>) -> tensor<?x?x4xf32>
    return %0, %1, %2 : tensor<?x?x8xf32>, tensor<?x?x8xf32>, tensor<?x?x4xf32>
  }
}

// -----

// The linears of queries, keys and values read their inputs unrounded, whatever lies between them and the
// attention; the one behind it, and those in 8 bits, do not.
// CHECK-LABEL: func.func @attention
// CHECK: %[[Q:.*]] = "plan.weight"() {form = "data", format = "int4/32", name = "q"}
// CHECK: "onnx.ms_mat_mul_n_bits"(%arg1, %[[Q]], {{.*}}accuracy_level = 0 : i64
// CHECK: %[[K:.*]] = "plan.weight"() {form = "data", format = "int8/32", name = "k"}
// CHECK: "onnx.ms_mat_mul_n_bits"(%arg1, %[[K]], {{.*}}accuracy_level = 4 : i64
// CHECK: "plan.attention"
// CHECK: %[[O:.*]] = "plan.weight"() {form = "data", format = "int4/32", name = "o"}
// CHECK: "onnx.ms_mat_mul_n_bits"(%{{.*}}, %[[O]], {{.*}}accuracy_level = 4 : i64
module attributes {plan.stored = {q4_0 = ["q", "o"], q8_0 = ["k"]}} {
  func.func @attention(%at: tensor<?xi64> {plan.name = "at", plan.role = "write_offset", plan.dims = ["b"]},
                       %x: tensor<?x?x32xf32> {plan.name = "x", plan.role = "kv", plan.dims = ["b", "s", "32"], plan.layer = 0 : i64, plan.which = "key"},
                       %c: tensor<?x1x?x32xf32> {plan.name = "c", plan.role = "kv", plan.dims = ["b", "1", "c", "32"], plan.layer = 0 : i64, plan.which = "value"})
      -> (tensor<?x?x32xf32> {plan.name = "r", plan.role = "kv", plan.dims = ["b", "s", "32"], plan.layer = 0 : i64, plan.which = "key"},
          tensor<?x1x?x32xf32> {plan.name = "w", plan.role = "kv", plan.dims = ["b", "1", "c", "32"], plan.layer = 0 : i64, plan.which = "value"}) {
    %q = "plan.weight"() {name = "q"} : () -> tensor<32x32xf32>
    %k = "plan.weight"() {name = "k"} : () -> tensor<32x32xf32>
    %o = "plan.weight"() {name = "o"} : () -> tensor<32x32xf32>
    %shape = "onnx.constant"() {value = dense<[0, 1, -1, 32]> : tensor<4xi64>} : () -> tensor<4xi64>
    %back = "onnx.constant"() {value = dense<[0, -1, 32]> : tensor<3xi64>} : () -> tensor<3xi64>
    %none = "onnx.no_value"() : () -> none
    %0 = "onnx.ms_fused_mat_mul"(%x, %q) {transB = 1 : i64} : (tensor<?x?x32xf32>, tensor<32x32xf32>) -> tensor<?x?x32xf32>
    %1 = "onnx.neg"(%0) : (tensor<?x?x32xf32>) -> tensor<?x?x32xf32>
    %2 = "onnx.reshape"(%1, %shape) : (tensor<?x?x32xf32>, tensor<4xi64>) -> tensor<?x1x?x32xf32>
    %3 = "onnx.ms_fused_mat_mul"(%x, %k) {transB = 1 : i64} : (tensor<?x?x32xf32>, tensor<32x32xf32>) -> tensor<?x?x32xf32>
    %4 = "onnx.reshape"(%3, %shape) : (tensor<?x?x32xf32>, tensor<4xi64>) -> tensor<?x1x?x32xf32>
    %5 = "plan.write_slice"(%c, %4, %at) {axis = 2 : i64} : (tensor<?x1x?x32xf32>, tensor<?x1x?x32xf32>, tensor<?xi64>) -> tensor<?x1x?x32xf32>
    %6 = "plan.attention"(%2, %5, %5, %at, %none) {layer = 0 : i64, scale = 1.0 : f32, window = 0 : i64, softcap = 0.0 : f32}
      : (tensor<?x1x?x32xf32>, tensor<?x1x?x32xf32>, tensor<?x1x?x32xf32>, tensor<?xi64>, none) -> tensor<?x?x1x32xf32>
    %7 = "onnx.reshape"(%6, %back) : (tensor<?x?x1x32xf32>, tensor<3xi64>) -> tensor<?x?x32xf32>
    %8 = "onnx.ms_fused_mat_mul"(%7, %o) {transB = 1 : i64} : (tensor<?x?x32xf32>, tensor<32x32xf32>) -> tensor<?x?x32xf32>
    return %8, %5 : tensor<?x?x32xf32>, tensor<?x1x?x32xf32>
  }
}
