// RUN: planonce opt %s --pass-pipeline='compensate-rounding{bits=8 skip="skipped.*"}' --remarks

// The input and what rounding leaves of it go through one product; two linears share both rows.
// CHECK: remark: 2 linears multiply their inputs' rounding errors too: 1 inputs
// CHECK-LABEL: func.func @shared_input
// CHECK: %[[XB:.*]] = "onnx.reshape"(%arg0, %{{.*}}) : (tensor<?x?x64xf32>, tensor<4xi64>) -> tensor<?x?x2x32xf32>
// CHECK: %[[R:.*]] = "onnx.ms_mat_mul_n_bits"(%[[XB]], %{{.*}}) {K = 32 : i64, N = 32 : i64, accuracy_level = 4 : i64, bits = 8 : i64, block_size = 32 : i64}
// CHECK: %[[D:.*]] = "onnx.sub"(%[[XB]], %[[R]])
// CHECK: %[[L:.*]] = "onnx.reshape"(%[[D]], %{{.*}}) : (tensor<?x?x2x32xf32>, tensor<3xi64>) -> tensor<?x?x64xf32>
// CHECK: %[[B:.*]] = "onnx.concat"(%arg0, %[[L]]) {axis = 0 : i64
// CHECK: %[[P:.*]] = "onnx.ms_mat_mul_n_bits"(%[[B]], %{{.*}}) {K = 64 : i64, N = 8 : i64
// CHECK: %[[H:.*]]:2 = "onnx.split"(%[[P]], %{{.*}}) {axis = 0 : i64, num_outputs = 2 : i64
// CHECK: %[[Y:.*]] = "onnx.add"(%[[H]]#0, %[[H]]#1)
// CHECK-NOT: onnx.concat
// CHECK: "onnx.ms_mat_mul_n_bits"(%[[B]],
// CHECK: return %[[Y]], %{{.*}} : tensor<?x?x8xf32>, tensor<?x?x8xf32>
func.func @shared_input(%x: tensor<?x?x64xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
  %n = "onnx.no_value"() : () -> none
  %da = "plan.weight"() {name = "a", format = "int8/32", form = "data"} : () -> tensor<8x2x32xui8>
  %sa = "plan.weight"() {name = "a", format = "int8/32", form = "scales"} : () -> tensor<8x2xf32>
  %db = "plan.weight"() {name = "b", format = "int8/32", form = "data"} : () -> tensor<8x2x32xui8>
  %sb = "plan.weight"() {name = "b", format = "int8/32", form = "scales"} : () -> tensor<8x2xf32>
  %a = "onnx.ms_mat_mul_n_bits"(%x, %da, %sa, %n, %n, %n) {K = 64 : i64, N = 8 : i64, bits = 8 : i64, block_size = 32 : i64, accuracy_level = 4 : i64} : (tensor<?x?x64xf32>, tensor<8x2x32xui8>, tensor<8x2xf32>, none, none, none) -> tensor<?x?x8xf32>
  %b = "onnx.ms_mat_mul_n_bits"(%x, %db, %sb, %n, %n, %n) {K = 64 : i64, N = 8 : i64, bits = 8 : i64, block_size = 32 : i64, accuracy_level = 4 : i64} : (tensor<?x?x64xf32>, tensor<8x2x32xui8>, tensor<8x2xf32>, none, none, none) -> tensor<?x?x8xf32>
  return %a, %b : tensor<?x?x8xf32>, tensor<?x?x8xf32>
}

// -----

// A device's linear has both rows made there.
// CHECK-LABEL: func.func @on_a_device
// CHECK: "onnx.concat"(%arg0, %{{.*}}) {axis = 0 : i64, {{.*}}plan.device = "cpu:1"
// CHECK: "onnx.add"(%{{.*}}) {plan.device = "cpu:1"}
// CHECK: return
func.func @on_a_device(%x: tensor<1x?x64xf32>) -> tensor<1x?x8xf32> {
  %n = "onnx.no_value"() : () -> none
  %d = "plan.weight"() {name = "a", format = "int8/32", form = "data"} : () -> tensor<8x2x32xui8>
  %s = "plan.weight"() {name = "a", format = "int8/32", form = "scales"} : () -> tensor<8x2xf32>
  %a = "onnx.ms_mat_mul_n_bits"(%x, %d, %s, %n, %n, %n) {K = 64 : i64, N = 8 : i64, bits = 8 : i64, block_size = 32 : i64, accuracy_level = 4 : i64, plan.device = "cpu:1"} : (tensor<1x?x64xf32>, tensor<8x2x32xui8>, tensor<8x2xf32>, none, none, none) -> tensor<1x?x8xf32>
  return %a : tensor<1x?x8xf32>
}

// -----

// What is not rounded has no rounding errors; 4 bits are not asked for; skip names one.
// CHECK-LABEL: func.func @not_meant
// CHECK-NOT: onnx.concat
// CHECK: return
func.func @not_meant(%x: tensor<?x?x64xf32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
  %n = "onnx.no_value"() : () -> none
  %d = "plan.weight"() {name = "a", format = "int8/32", form = "data"} : () -> tensor<8x2x32xui8>
  %s = "plan.weight"() {name = "a", format = "int8/32", form = "scales"} : () -> tensor<8x2xf32>
  %d4 = "plan.weight"() {name = "b", format = "int4/32", form = "data"} : () -> tensor<8x2x16xui8>
  %s4 = "plan.weight"() {name = "b", format = "int4/32", form = "scales"} : () -> tensor<8x2xf32>
  %ds = "plan.weight"() {name = "skipped.c", format = "int8/32", form = "data"} : () -> tensor<8x2x32xui8>
  %ss = "plan.weight"() {name = "skipped.c", format = "int8/32", form = "scales"} : () -> tensor<8x2xf32>
  %a = "onnx.ms_mat_mul_n_bits"(%x, %d, %s, %n, %n, %n) {K = 64 : i64, N = 8 : i64, bits = 8 : i64, block_size = 32 : i64, accuracy_level = 0 : i64} : (tensor<?x?x64xf32>, tensor<8x2x32xui8>, tensor<8x2xf32>, none, none, none) -> tensor<?x?x8xf32>
  %b = "onnx.ms_mat_mul_n_bits"(%x, %d4, %s4, %n, %n, %n) {K = 64 : i64, N = 8 : i64, bits = 4 : i64, block_size = 32 : i64, accuracy_level = 4 : i64} : (tensor<?x?x64xf32>, tensor<8x2x16xui8>, tensor<8x2xf32>, none, none, none) -> tensor<?x?x8xf32>
  %c = "onnx.ms_mat_mul_n_bits"(%x, %ds, %ss, %n, %n, %n) {K = 64 : i64, N = 8 : i64, bits = 8 : i64, block_size = 32 : i64, accuracy_level = 4 : i64} : (tensor<?x?x64xf32>, tensor<8x2x32xui8>, tensor<8x2xf32>, none, none, none) -> tensor<?x?x8xf32>
  return %a, %b, %c : tensor<?x?x8xf32>, tensor<?x?x8xf32>, tensor<?x?x8xf32>
}

// -----

// Half a block at the end cannot be a row of the identity's product.
// CHECK: remark: 1 linears keep their rounding errors: not float32, or no whole blocks
// CHECK-LABEL: func.func @half_a_block
// CHECK-NOT: onnx.concat
// CHECK: return
func.func @half_a_block(%x: tensor<?x?x48xf32>) -> tensor<?x?x8xf32> {
  %n = "onnx.no_value"() : () -> none
  %d = "plan.weight"() {name = "a", format = "int8/32", form = "data"} : () -> tensor<8x2x32xui8>
  %s = "plan.weight"() {name = "a", format = "int8/32", form = "scales"} : () -> tensor<8x2xf32>
  %a = "onnx.ms_mat_mul_n_bits"(%x, %d, %s, %n, %n, %n) {K = 48 : i64, N = 8 : i64, bits = 8 : i64, block_size = 32 : i64, accuracy_level = 4 : i64} : (tensor<?x?x48xf32>, tensor<8x2x32xui8>, tensor<8x2xf32>, none, none, none) -> tensor<?x?x8xf32>
  return %a : tensor<?x?x8xf32>
}
