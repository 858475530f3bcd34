// RUN: planonce opt %s --pass-pipeline='select-attention{arm=portable}'
// RUN: planonce opt %s --pass-pipeline='select-attention{device=cuda:0}' --check-prefix=CUDA

// In 16 bits the portable arm's softcap, mask and softmax are single precision between the two products. On CUDA
// positions that something else reads are counted from the tokens: a range would come from their shape.
// CHECK-LABEL: func.func @half
// CHECK: "onnx.range"
// CHECK: %[[S:.*]] = "onnx.ms_fused_mat_mul"({{.*}}) {alpha = 2.500000e-01 : f32, transB = 1 : i64} : ({{.*}}xf16>)
// CHECK: %[[W:.*]] = "onnx.cast"({{.*}}) {to = 1 : i64} : (tensor<?x4x?x?xf16>) -> tensor<?x4x?x?xf32>
// CHECK: "onnx.tanh"({{.*}}) : (tensor<?x4x?x?xf32>)
// CHECK: "onnx.softmax"({{.*}}) {axis = -1 : i64} : (tensor<?x4x?x?xf32>)
// CHECK-NEXT: "onnx.cast"({{.*}}) {to = 10 : i64} : (tensor<?x4x?x?xf32>) -> tensor<?x4x?x?xf16>
// CHECK: "onnx.mat_mul"({{.*}}) : ({{.*}}xf16>
// CUDA-LABEL: func.func @half
// CUDA-NOT: onnx.range
// CUDA: %[[SAME:.*]] = "onnx.equal"(%arg0, %arg0)
// CUDA: %[[ONES:.*]] = "onnx.cast"(%[[SAME]]) {to = 7 : i64}
// CUDA-DAG: %[[COUNT:.*]] = "onnx.cum_sum"(%[[ONES]], %{{.*}})
// CUDA-DAG: %[[LESS:.*]] = "onnx.sub"(%arg1, %{{.*}}) : (tensor<?xi64>, tensor<1xi64>)
// CUDA-DAG: %[[COLUMN:.*]] = "onnx.unsqueeze"(%[[LESS]], %{{.*}})
// CUDA: %[[P:.*]] = "onnx.add"(%[[COLUMN]], %[[COUNT]])
// CUDA: "onnx.ms_group_query_attention"
// CUDA: return %{{.*}}, %{{.*}}, %{{.*}}, %[[P]]
func.func @half(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x?xi64> {plan.name = "p", plan.role = "logits", plan.dims = ["batch", "sequence"]}) {
  %none = "onnx.no_value"() : () -> none
  %zero = "onnx.constant"() {value = dense<0> : tensor<i64>} : () -> tensor<i64>
  %one = "onnx.constant"() {value = dense<1> : tensor<i64>} : () -> tensor<i64>
  %axis0 = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %axis1 = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %column = "onnx.unsqueeze"(%at, %axis1) : (tensor<?xi64>, tensor<1xi64>) -> tensor<?x1xi64>
  %shape = "onnx.shape"(%ids) {start = 1 : i64, end = 2 : i64} : (tensor<?x?xi64>) -> tensor<1xi64>
  %length = "onnx.squeeze"(%shape, %axis0) : (tensor<1xi64>, tensor<1xi64>) -> tensor<i64>
  %steps = "onnx.range"(%zero, %length, %one) : (tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<?xi64>
  %positions = "onnx.add"(%column, %steps) : (tensor<?x1xi64>, tensor<?xi64>) -> tensor<?x?xi64>
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 5.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw, %positions : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x?xi64>
}
