// RUN: planonce opt %s --pass-pipeline='assign-placement{place="layers[0:1]=cpu:0, layers[1:]=cpu:1, embed=cpu:2, kv=with-layer"}' --remarks
// RUN: planonce opt %s --pass-pipeline='assign-placement{place="layers=cpu:0, kv=cpu:1"}' --check-prefix=KV
// RUN: planonce opt %s --pass-pipeline='assign-placement{place="layers[0:1]=cpu:0, layers[1:]=cpu:1, embed=cpu:2, kv=with-layer"},insert-copies' --check-prefix=COPY

// Each layer's operations follow its weights and its KV slot, a norm goes with the weight it is multiplied
// by, and a residual sum stays with its addends. What follows from the token ids alone is computed on each
// device that reads it.
// CHECK: remark: embed on cpu:2; layers 0 on cpu:0, 1 on cpu:1; head on cpu:1 [assign-placement]
// CHECK-LABEL: func.func @decoder
// CHECK: %[[H:.*]] = "onnx.gather"{{.*}}plan.device = "cpu:2"
// CHECK: %[[S0:.*]] = "onnx.cast"(%arg0) {plan.device = "cpu:0"
// CHECK-NEXT: %[[S1:.*]] = "onnx.cast"(%arg0) {plan.device = "cpu:1"
// CHECK-NEXT: %[[C0:.*]] = "onnx.unsqueeze"(%[[S0]], %{{.*}}) {plan.device = "cpu:0"}
// CHECK-NEXT: %[[C1:.*]] = "onnx.unsqueeze"(%[[S1]], %{{.*}}) {plan.device = "cpu:1"}
// CHECK-NEXT: %[[X0:.*]] = "onnx.add"(%[[H]], %[[C0]]) {plan.device = "cpu:0"}
// CHECK: "onnx.mul"(%[[X0]], %[[X0]]) {plan.device = "cpu:0"}
// CHECK: "plan.write_slice"{{.*}}plan.device = "cpu:0"
// CHECK-NEXT: "plan.attention"{{.*}}plan.device = "cpu:0"
// CHECK: %[[X1:.*]] = "onnx.add"(%[[X0]], %{{.*}}) {plan.device = "cpu:0"}
// CHECK: "onnx.mul"(%[[X1]], %[[X1]]) {plan.device = "cpu:1"}
// CHECK: "plan.write_slice"{{.*}}plan.device = "cpu:1"
// CHECK-NEXT: "plan.attention"{{.*}}plan.device = "cpu:1"
// CHECK: %[[X2:.*]] = "onnx.add"(%[[X1]], %{{.*}}) {plan.device = "cpu:1"}
// CHECK: "onnx.mul"(%[[X2]], %[[C1]]) {plan.device = "cpu:1"}
// CHECK-NOT: plan.copy

// A KV slot elsewhere takes its write and its attention along, and nothing else.
// KV-LABEL: func.func @decoder
// KV: "onnx.transpose"{{.*}}plan.device = "cpu:0"
// KV-NEXT: "plan.write_slice"{{.*}}plan.device = "cpu:1"
// KV-NEXT: "plan.attention"{{.*}}plan.device = "cpu:1"
// KV-NEXT: "onnx.reduce_mean"{{.*}}plan.device = "cpu:0"

// One value crosses at each of the two places, and the logits come to the host.
// COPY-LABEL: func.func @decoder
// COPY: plan.copy{{.*}}to = "cpu:0"
// COPY: plan.copy{{.*}}to = "cpu:1"
// COPY: plan.copy{{.*}}to = "host"
// COPY-NOT: plan.copy
func.func @decoder(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %k0: tensor<?x2x?x8xf32> {plan.name = "past.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64},
    %k1: tensor<?x2x?x8xf32> {plan.name = "past.1.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 1 : i64})
    -> (tensor<?x?x9xf32> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "9"]},
        tensor<?x2x?x8xf32> {plan.name = "present.0.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 0 : i64},
        tensor<?x2x?x8xf32> {plan.name = "present.1.key", plan.which = "key", plan.role = "kv", plan.dims = ["batch", "2", "capacity", "8"], plan.layer = 1 : i64}) {
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 8]> : tensor<4xi64>} : () -> tensor<4xi64>
  %axis = "onnx.constant"() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %none = "onnx.no_value"() : () -> none
  %embed = "plan.weight"() {name = "embed.weight"} : () -> tensor<9x8xf32>
  %h = "onnx.gather"(%embed, %ids) {axis = 0 : i64} : (tensor<9x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %steps = "onnx.cast"(%ids) {to = 1 : i64} : (tensor<?x?xi64>) -> tensor<?x?xf32>
  %column = "onnx.unsqueeze"(%steps, %axis) : (tensor<?x?xf32>, tensor<1xi64>) -> tensor<?x?x1xf32>
  %x = "onnx.add"(%h, %column) : (tensor<?x?x8xf32>, tensor<?x?x1xf32>) -> tensor<?x?x8xf32>
  %norm0 = "plan.weight"() {name = "layers.0.norm.weight"} : () -> tensor<8xf32>
  %square0 = "onnx.mul"(%x, %x) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %n0 = "onnx.mul"(%square0, %norm0) : (tensor<?x?x8xf32>, tensor<8xf32>) -> tensor<?x?x8xf32>
  %w0 = "plan.weight"() {name = "layers.0.k.weight"} : () -> tensor<8x16xf32>
  %p0 = "onnx.mat_mul"(%n0, %w0) : (tensor<?x?x8xf32>, tensor<8x16xf32>) -> tensor<?x?x16xf32>
  %r0 = "onnx.reshape"(%p0, %shape) : (tensor<?x?x16xf32>, tensor<4xi64>) -> tensor<?x?x2x8xf32>
  %new0 = "onnx.transpose"(%r0) {perm = array<i64: 0, 2, 1, 3>} : (tensor<?x?x2x8xf32>) -> tensor<?x2x?x8xf32>
  %kv0 = "plan.write_slice"(%k0, %new0, %at) {axis = 2 : i64} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  %a0 = "plan.attention"(%new0, %kv0, %kv0, %at, %none) {layer = 0 : i64, scale = 1.0 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>, none) -> tensor<?x?x2x8xf32>
  %m0 = "onnx.reduce_mean"(%a0, %axis) {keepdims = 0 : i64} : (tensor<?x?x2x8xf32>, tensor<1xi64>) -> tensor<?x?x8xf32>
  %x1 = "onnx.add"(%x, %m0) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %norm1 = "plan.weight"() {name = "layers.1.norm.weight"} : () -> tensor<8xf32>
  %square1 = "onnx.mul"(%x1, %x1) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %n1 = "onnx.mul"(%square1, %norm1) : (tensor<?x?x8xf32>, tensor<8xf32>) -> tensor<?x?x8xf32>
  %w1 = "plan.weight"() {name = "layers.1.k.weight"} : () -> tensor<8x16xf32>
  %p1 = "onnx.mat_mul"(%n1, %w1) : (tensor<?x?x8xf32>, tensor<8x16xf32>) -> tensor<?x?x16xf32>
  %r1 = "onnx.reshape"(%p1, %shape) : (tensor<?x?x16xf32>, tensor<4xi64>) -> tensor<?x?x2x8xf32>
  %new1 = "onnx.transpose"(%r1) {perm = array<i64: 0, 2, 1, 3>} : (tensor<?x?x2x8xf32>) -> tensor<?x2x?x8xf32>
  %kv1 = "plan.write_slice"(%k1, %new1, %at) {axis = 2 : i64} : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>) -> tensor<?x2x?x8xf32>
  %a1 = "plan.attention"(%new1, %kv1, %kv1, %at, %none) {layer = 1 : i64, scale = 1.0 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>, tensor<?xi64>, none) -> tensor<?x?x2x8xf32>
  %m1 = "onnx.reduce_mean"(%a1, %axis) {keepdims = 0 : i64} : (tensor<?x?x2x8xf32>, tensor<1xi64>) -> tensor<?x?x8xf32>
  %sum = "onnx.add"(%x1, %m1) : (tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %y = "onnx.mul"(%sum, %column) : (tensor<?x?x8xf32>, tensor<?x?x1xf32>) -> tensor<?x?x8xf32>
  %head = "plan.weight"() {name = "lm_head.weight"} : () -> tensor<8x9xf32>
  %logits = "onnx.mat_mul"(%y, %head) : (tensor<?x?x8xf32>, tensor<8x9xf32>) -> tensor<?x?x9xf32>
  return %logits, %kv0, %kv1 : tensor<?x?x9xf32>, tensor<?x2x?x8xf32>, tensor<?x2x?x8xf32>
}
