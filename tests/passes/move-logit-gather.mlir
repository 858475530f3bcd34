// RUN: planonce opt %s --pass-pipeline='move-logit-gather' --remarks

// Through a norm, a product, an addition: both values that come from elsewhere are gathered instead.
// CHECK: remark: 4 operations run only for the positions whose logits are wanted
// CHECK-LABEL: func.func @tail
// CHECK: %[[X:.*]] = "onnx.gather"(%arg0, %arg2) {axis = 1 : i64}
// CHECK-NEXT: %[[M:.*]] = "onnx.ms_fused_mat_mul"(%[[X]], %{{.*}}) {transB = 1 : i64}
// CHECK-NEXT: %[[R:.*]] = "onnx.gather"(%arg1, %arg2) {axis = 1 : i64}
// CHECK-NEXT: %[[A:.*]] = "onnx.add"(%[[R]], %[[M]])
// CHECK-NEXT: %[[N:.*]]:2 = "onnx.simplified_layer_normalization"(%[[A]],
// CHECK-NEXT: %[[G:.*]] = "onnx.ms_quick_gelu"(%[[N]]#0)
// CHECK-NEXT: %[[L:.*]] = "onnx.ms_fused_mat_mul"(%[[G]],
// CHECK-NEXT: return %[[L]]
func.func @tail(%x: tensor<?x?x8xf32> {plan.name = "x", plan.role = "token_ids", plan.dims = []}, %r: tensor<?x?x8xf32> {plan.name = "r", plan.role = "token_ids", plan.dims = []}, %lp: tensor<?xi64> {plan.name = "logit_positions", plan.role = "logit_positions", plan.dims = ["logits"]}) -> tensor<?x?x8xf32> {
  %w = "plan.weight"() {name = "w"} : () -> tensor<8x8xf32>
  %head = "plan.weight"() {name = "head"} : () -> tensor<8x8xf32>
  %g = "plan.weight"() {name = "g"} : () -> tensor<8xf32>
  %m = "onnx.ms_fused_mat_mul"(%x, %w) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<8x8xf32>) -> tensor<?x?x8xf32>
  %a = "onnx.add"(%r, %m) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %n:2 = "onnx.simplified_layer_normalization"(%a, %g) {axis = -1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<?x?x8xf32>, tensor<8xf32>) -> (tensor<?x?x8xf32>, none)
  %q = "onnx.ms_quick_gelu"(%n#0) {alpha = 1.000000e+00 : f32} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %c = "onnx.gather"(%q, %lp) {axis = 1 : i64} : (tensor<?x?x8xf32>, tensor<?xi64>) -> tensor<?x?x8xf32>
  %l = "onnx.ms_fused_mat_mul"(%c, %head) {transB = 1 : i64} : (tensor<?x?x8xf32>, tensor<8x8xf32>) -> tensor<?x?x8xf32>
  return %l : tensor<?x?x8xf32>
}

// -----

// Double use: what another operation reads at all positions is computed at all positions.
// CHECK: remark: 1 operations run only for the positions whose logits are wanted
// CHECK-LABEL: func.func @read_twice
// CHECK: %[[A:.*]] = "onnx.add"(%arg0, %arg1)
// CHECK-NEXT: %[[G:.*]] = "onnx.gather"(%[[A]], %arg2)
// CHECK-NEXT: %[[N:.*]] = "onnx.relu"(%[[G]])
// CHECK-NEXT: return %[[N]], %[[A]]
func.func @read_twice(%x: tensor<?x?x8xf32> {plan.name = "x", plan.role = "token_ids", plan.dims = []}, %r: tensor<?x?x8xf32> {plan.name = "r", plan.role = "token_ids", plan.dims = []}, %lp: tensor<?xi64> {plan.name = "logit_positions", plan.role = "logit_positions", plan.dims = ["logits"]}) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>) {
  %a = "onnx.add"(%x, %r) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %n = "onnx.relu"(%a) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %c = "onnx.gather"(%n, %lp) {axis = 1 : i64} : (tensor<?x?x8xf32>, tensor<?xi64>) -> tensor<?x?x8xf32>
  return %c, %a : tensor<?x?x8xf32>, tensor<?x?x8xf32>
}

// -----

// Near miss: a softmax over the sequence mixes positions.
// CHECK-NOT: remark
// CHECK-LABEL: func.func @mixes_positions
// CHECK: %[[S:.*]] = "onnx.softmax"(%arg0)
// CHECK-NEXT: %[[G:.*]] = "onnx.gather"(%[[S]], %arg2)
// CHECK-NEXT: return %[[G]]
func.func @mixes_positions(%x: tensor<?x?x8xf32> {plan.name = "x", plan.role = "token_ids", plan.dims = []}, %r: tensor<?x?x8xf32> {plan.name = "r", plan.role = "token_ids", plan.dims = []}, %lp: tensor<?xi64> {plan.name = "logit_positions", plan.role = "logit_positions", plan.dims = ["logits"]}) -> tensor<?x?x8xf32> {
  %s = "onnx.softmax"(%x) {axis = 1 : i64} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %c = "onnx.gather"(%s, %lp) {axis = 1 : i64} : (tensor<?x?x8xf32>, tensor<?xi64>) -> tensor<?x?x8xf32>
  return %c : tensor<?x?x8xf32>
}

// -----

// Near miss: an operand that has one row for each position of its own.
// CHECK-LABEL: func.func @by_position
// CHECK: onnx.mul
// CHECK-NEXT: onnx.gather
func.func @by_position(%x: tensor<?x?x8xf32> {plan.name = "x", plan.role = "token_ids", plan.dims = []}, %r: tensor<?x8xf32> {plan.name = "r", plan.role = "token_ids", plan.dims = []}, %lp: tensor<?xi64> {plan.name = "logit_positions", plan.role = "logit_positions", plan.dims = ["logits"]}) -> tensor<?x?x8xf32> {
  %m = "onnx.mul"(%x, %r) : (tensor<?x?x8xf32>, tensor<?x8xf32>) -> tensor<?x?x8xf32>
  %c = "onnx.gather"(%m, %lp) {axis = 1 : i64} : (tensor<?x?x8xf32>, tensor<?xi64>) -> tensor<?x?x8xf32>
  return %c : tensor<?x?x8xf32>
}

// -----

// Near miss: chosen by something else than the logits' positions.
// CHECK-LABEL: func.func @another_choice
// CHECK: onnx.relu
// CHECK-NEXT: onnx.gather
func.func @another_choice(%x: tensor<?x?x8xf32> {plan.name = "x", plan.role = "token_ids", plan.dims = []}, %i: tensor<?xi64> {plan.name = "i", plan.role = "write_offset", plan.dims = []}, %lp: tensor<?xi64> {plan.name = "logit_positions", plan.role = "logit_positions", plan.dims = ["logits"]}) -> tensor<?x?x8xf32> {
  %m = "onnx.relu"(%x) : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %c = "onnx.gather"(%m, %i) {axis = 1 : i64} : (tensor<?x?x8xf32>, tensor<?xi64>) -> tensor<?x?x8xf32>
  return %c : tensor<?x?x8xf32>
}
