// RUN: planonce opt %s --pass-pipeline='fold-offsets' --remarks

// The kernel adds the offsets itself: one operation is left, on weights named for it.
// CHECK: remark: 1 linears take their offsets from packed weights
// CHECK-LABEL: func.func @folds
// CHECK: %[[F:.*]] = "plan.weight"() {form = "folded", format = "int4/32+offset", name = "a"} : () -> tensor<8x2x16xui8>
// CHECK: %[[Y:.*]] = "onnx.ms_mat_mul_n_bits"(%arg0, %[[F]], %{{.*}}) {K = 64 : i64, N = 8 : i64, accuracy_level = 4 : i64
// CHECK-NOT: onnx.
// CHECK: return %[[Y]]
func.func @folds(%x: tensor<?x?x64xf32>) -> tensor<?x?x8xf32> {
  %n = "onnx.no_value"() : () -> none
  %d = "plan.weight"() {name = "a", format = "int4/32+offset", form = "data"} : () -> tensor<8x2x16xui8>
  %s = "plan.weight"() {name = "a", format = "int4/32+offset", form = "scales"} : () -> tensor<8x2xf32>
  %o = "plan.weight"() {name = "a", format = "int4/32+offset", form = "offset"} : () -> tensor<8x2xf32>
  %p = "onnx.ms_mat_mul_n_bits"(%x, %d, %s, %n, %n, %n) {K = 64 : i64, N = 8 : i64, bits = 4 : i64, block_size = 32 : i64, accuracy_level = 4 : i64} : (tensor<?x?x64xf32>, tensor<8x2x16xui8>, tensor<8x2xf32>, none, none, none) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 32]> : tensor<4xi64>} : () -> tensor<4xi64>
  %axis = "onnx.constant"() {value = dense<[3]> : tensor<1xi64>} : () -> tensor<1xi64>
  %b = "onnx.reshape"(%x, %shape) : (tensor<?x?x64xf32>, tensor<4xi64>) -> tensor<?x?x2x32xf32>
  %t = "onnx.reduce_sum"(%b, %axis) {keepdims = 0 : i64} : (tensor<?x?x2x32xf32>, tensor<1xi64>) -> tensor<?x?x2xf32>
  %m = "onnx.ms_fused_mat_mul"(%t, %o) {transB = 1 : i64} : (tensor<?x?x2xf32>, tensor<8x2xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.add"(%p, %m) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}

// -----

// A kernel that does not round its input packs no numbers for sums of it: the term stays. So does one of
// another weight's offsets, and one of another input's sums.
// CHECK: remark: 1 linears add their offsets: their inputs are not rounded
// CHECK-LABEL: func.func @stays
// CHECK-NOT: folded
// CHECK: return
func.func @stays(%x: tensor<?x?x64xf32>, %z: tensor<?x?x64xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
  %n = "onnx.no_value"() : () -> none
  %d = "plan.weight"() {name = "a", format = "int4/32+offset", form = "data"} : () -> tensor<8x2x16xui8>
  %s = "plan.weight"() {name = "a", format = "int4/32+offset", form = "scales"} : () -> tensor<8x2xf32>
  %o = "plan.weight"() {name = "a", format = "int4/32+offset", form = "offset"} : () -> tensor<8x2xf32>
  %ob = "plan.weight"() {name = "b", format = "int4/32+offset", form = "offset"} : () -> tensor<8x2xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 32]> : tensor<4xi64>} : () -> tensor<4xi64>
  %axis = "onnx.constant"() {value = dense<[3]> : tensor<1xi64>} : () -> tensor<1xi64>
  %b = "onnx.reshape"(%x, %shape) : (tensor<?x?x64xf32>, tensor<4xi64>) -> tensor<?x?x2x32xf32>
  %t = "onnx.reduce_sum"(%b, %axis) {keepdims = 0 : i64} : (tensor<?x?x2x32xf32>, tensor<1xi64>) -> tensor<?x?x2xf32>
  %m = "onnx.ms_fused_mat_mul"(%t, %o) {transB = 1 : i64} : (tensor<?x?x2xf32>, tensor<8x2xf32>) -> tensor<?x?x8xf32>
  %mb = "onnx.ms_fused_mat_mul"(%t, %ob) {transB = 1 : i64} : (tensor<?x?x2xf32>, tensor<8x2xf32>) -> tensor<?x?x8xf32>
  %p0 = "onnx.ms_mat_mul_n_bits"(%x, %d, %s, %n, %n, %n) {K = 64 : i64, N = 8 : i64, bits = 4 : i64, block_size = 32 : i64, accuracy_level = 0 : i64} : (tensor<?x?x64xf32>, tensor<8x2x16xui8>, tensor<8x2xf32>, none, none, none) -> tensor<?x?x8xf32>
  %p1 = "onnx.ms_mat_mul_n_bits"(%x, %d, %s, %n, %n, %n) {K = 64 : i64, N = 8 : i64, bits = 4 : i64, block_size = 32 : i64, accuracy_level = 4 : i64} : (tensor<?x?x64xf32>, tensor<8x2x16xui8>, tensor<8x2xf32>, none, none, none) -> tensor<?x?x8xf32>
  %p2 = "onnx.ms_mat_mul_n_bits"(%z, %d, %s, %n, %n, %n) {K = 64 : i64, N = 8 : i64, bits = 4 : i64, block_size = 32 : i64, accuracy_level = 4 : i64} : (tensor<?x?x64xf32>, tensor<8x2x16xui8>, tensor<8x2xf32>, none, none, none) -> tensor<?x?x8xf32>
  %y0 = "onnx.add"(%p0, %m) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %y1 = "onnx.add"(%p1, %mb) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %y2 = "onnx.add"(%p2, %m) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y0, %y1, %y2 : tensor<?x?x8xf32>, tensor<?x?x8xf32>, tensor<?x?x8xf32>
}

// -----

// What the product alone is also needed for keeps the two terms apart.
// CHECK-LABEL: func.func @product_read_elsewhere
// CHECK-NOT: folded
// CHECK: "onnx.add"
// CHECK: return
func.func @product_read_elsewhere(%x: tensor<?x?x64xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
  %n = "onnx.no_value"() : () -> none
  %d = "plan.weight"() {name = "a", format = "int4/32+offset", form = "data"} : () -> tensor<8x2x16xui8>
  %s = "plan.weight"() {name = "a", format = "int4/32+offset", form = "scales"} : () -> tensor<8x2xf32>
  %o = "plan.weight"() {name = "a", format = "int4/32+offset", form = "offset"} : () -> tensor<8x2xf32>
  %p = "onnx.ms_mat_mul_n_bits"(%x, %d, %s, %n, %n, %n) {K = 64 : i64, N = 8 : i64, bits = 4 : i64, block_size = 32 : i64, accuracy_level = 4 : i64} : (tensor<?x?x64xf32>, tensor<8x2x16xui8>, tensor<8x2xf32>, none, none, none) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 32]> : tensor<4xi64>} : () -> tensor<4xi64>
  %axis = "onnx.constant"() {value = dense<[3]> : tensor<1xi64>} : () -> tensor<1xi64>
  %b = "onnx.reshape"(%x, %shape) : (tensor<?x?x64xf32>, tensor<4xi64>) -> tensor<?x?x2x32xf32>
  %t = "onnx.reduce_sum"(%b, %axis) {keepdims = 0 : i64} : (tensor<?x?x2x32xf32>, tensor<1xi64>) -> tensor<?x?x2xf32>
  %m = "onnx.ms_fused_mat_mul"(%t, %o) {transB = 1 : i64} : (tensor<?x?x2xf32>, tensor<8x2xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.add"(%p, %m) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y, %p : tensor<?x?x8xf32>, tensor<?x?x8xf32>
}

// -----

// With compensated rounding (compensate-rounding) the product is the sum of both rows', and offsets fold too:
// x as rounded and what that left over sum up to x.
// CHECK: remark: 1 linears take their offsets from packed weights
// CHECK-LABEL: func.func @both_rows
// CHECK: %[[P:.*]] = "onnx.ms_mat_mul_n_bits"(%{{.*}}) {K = 64 : i64, N = 8 : i64
// CHECK: %[[H:.*]]:2 = "onnx.split"(%[[P]],
// CHECK: %[[Y:.*]] = "onnx.add"(%[[H]]#0, %[[H]]#1)
// CHECK-NOT: onnx.
// CHECK: return %[[Y]]
func.func @both_rows(%x: tensor<?x?x64xf32>) -> tensor<?x?x8xf32> {
  %n = "onnx.no_value"() : () -> none
  %d = "plan.weight"() {name = "a", format = "int4/32+offset", form = "data"} : () -> tensor<8x2x16xui8>
  %s = "plan.weight"() {name = "a", format = "int4/32+offset", form = "scales"} : () -> tensor<8x2xf32>
  %o = "plan.weight"() {name = "a", format = "int4/32+offset", form = "offset"} : () -> tensor<8x2xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 32]> : tensor<4xi64>} : () -> tensor<4xi64>
  %back = "onnx.constant"() {value = dense<[0, 0, -1]> : tensor<3xi64>} : () -> tensor<3xi64>
  %axis = "onnx.constant"() {value = dense<[3]> : tensor<1xi64>} : () -> tensor<1xi64>
  %i = "onnx.constant"() {value = dense<128> : tensor<32x1x32xui8>} : () -> tensor<32x1x32xui8>
  %is = "onnx.constant"() {value = dense<0.015625> : tensor<32x1xf32>} : () -> tensor<32x1xf32>
  %b = "onnx.reshape"(%x, %shape) : (tensor<?x?x64xf32>, tensor<4xi64>) -> tensor<?x?x2x32xf32>
  %r = "onnx.ms_mat_mul_n_bits"(%b, %i, %is, %n, %n, %n) {K = 32 : i64, N = 32 : i64, bits = 8 : i64, block_size = 32 : i64, accuracy_level = 4 : i64} : (tensor<?x?x2x32xf32>, tensor<32x1x32xui8>, tensor<32x1xf32>, none, none, none) -> tensor<?x?x2x32xf32>
  %e = "onnx.sub"(%b, %r) : (tensor<?x?x2x32xf32>, tensor<?x?x2x32xf32>) -> tensor<?x?x2x32xf32>
  %l = "onnx.reshape"(%e, %back) : (tensor<?x?x2x32xf32>, tensor<3xi64>) -> tensor<?x?x64xf32>
  %both = "onnx.concat"(%x, %l) {axis = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x?x64xf32>, tensor<?x?x64xf32>) -> tensor<?x?x64xf32>
  %p = "onnx.ms_mat_mul_n_bits"(%both, %d, %s, %n, %n, %n) {K = 64 : i64, N = 8 : i64, bits = 4 : i64, block_size = 32 : i64, accuracy_level = 4 : i64} : (tensor<?x?x64xf32>, tensor<8x2x16xui8>, tensor<8x2xf32>, none, none, none) -> tensor<?x?x8xf32>
  %h:2 = "onnx.split"(%p, %n) {axis = 0 : i64, num_outputs = 2 : i64, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x?x8xf32>, none) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>)
  %product = "onnx.add"(%h#0, %h#1) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %t = "onnx.reduce_sum"(%b, %axis) {keepdims = 0 : i64} : (tensor<?x?x2x32xf32>, tensor<1xi64>) -> tensor<?x?x2xf32>
  %m = "onnx.ms_fused_mat_mul"(%t, %o) {transB = 1 : i64} : (tensor<?x?x2xf32>, tensor<8x2xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.add"(%product, %m) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}
