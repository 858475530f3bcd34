// RUN: planonce opt %s --pass-pipeline='select-attention{arm=portable}' --remarks

// A window begins the slice at the first position that any query sees, and masks both ends; a softcap and
// sinks take part before and in the softmax.
// CHECK: remark: layer 0: portable: asked for
// CHECK-LABEL: func.func @windowed
// CHECK: %[[MIN:.*]] = "onnx.reduce_min"(%arg1, %{{.*}}) {keepdims = 1 : i64}
// CHECK: %[[SEEN:.*]] = "onnx.sub"(%[[MIN]], %[[W:.*]])
// CHECK: %[[START:.*]] = "onnx.max"(%[[SEEN]], %{{.*}})
// CHECK: "onnx.less_or_equal"
// CHECK: "onnx.greater"
// CHECK: "onnx.and"
// CHECK: "onnx.slice"
// CHECK: "onnx.tanh"
// CHECK: %[[MASKED:.*]] = "onnx.where"
// CHECK: "onnx.concat"(%[[MASKED]],
// CHECK: "onnx.softmax"
// CHECK-NOT: plan.
func.func @windowed(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf32> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf32> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []},
    %vn: tensor<?x2x?x16xf32> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []}, %k: tensor<?x2x?x16xf32> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}, %v: tensor<?x2x?x16xf32> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}, %sinks: tensor<4xf32> {plan.name = "sinks", plan.role = "logit_positions", plan.dims = []})
    -> (tensor<?x?x4x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>) -> tensor<?x2x?x16xf32>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>) -> tensor<?x2x?x16xf32>
  %a = "plan.attention"(%q, %kw, %vw, %at, %sinks) {layer = 0 : i64, scale = 2.500000e-01 : f32, window = 5 : i64, softcap = 3.000000e+01 : f32}
    : (tensor<?x4x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>, tensor<4xf32>) -> tensor<?x?x4x16xf32>
  return %a, %kw, %vw : tensor<?x?x4x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>
}

// -----

// As many KV heads as heads: nothing to regroup, and the masks are shared, not made twice.
// CHECK: remark: layer 0: portable
// CHECK-LABEL: func.func @ungrouped
// CHECK-COUNT-1: "onnx.less_or_equal"
// CHECK-NOT: "onnx.less_or_equal"
func.func @ungrouped(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf32> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x4x?x16xf32> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []},
    %vn: tensor<?x4x?x16xf32> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []}, %k: tensor<?x4x?x16xf32> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "4", "capacity", "16"]}, %v: tensor<?x4x?x16xf32> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "4", "capacity", "16"]})
    -> (tensor<?x?x4x16xf32>, tensor<?x4x?x16xf32>, tensor<?x4x?x16xf32>) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x4x?x16xf32>, tensor<?x4x?x16xf32>, tensor<?xi64>) -> tensor<?x4x?x16xf32>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x4x?x16xf32>, tensor<?x4x?x16xf32>, tensor<?xi64>) -> tensor<?x4x?x16xf32>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.500000e-01 : f32, window = 0 : i64, softcap = 0.000000e+00 : f32}
    : (tensor<?x4x?x16xf32>, tensor<?x4x?x16xf32>, tensor<?x4x?x16xf32>, tensor<?xi64>, none) -> tensor<?x?x4x16xf32>
  return %a, %kw, %vw : tensor<?x?x4x16xf32>, tensor<?x4x?x16xf32>, tensor<?x4x?x16xf32>
}
