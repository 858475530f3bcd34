// RUN: planonce opt %s --pass-pipeline='select-attention{arm=fused}' --remarks

// CHECK: remark: layer 0: fused: asked for
// CHECK-LABEL: func.func @fits
// CHECK: group_query
// CHECK-NOT: softmax
func.func @fits(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf32> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf32> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []},
    %vn: tensor<?x2x?x16xf32> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []}, %k: tensor<?x2x?x16xf32> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}, %v: tensor<?x2x?x16xf32> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>) -> tensor<?x2x?x16xf32>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>) -> tensor<?x2x?x16xf32>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.500000e-01 : f32, window = 0 : i64, softcap = 0.000000e+00 : f32}
    : (tensor<?x4x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>, none) -> tensor<?x?x4x16xf32>
  return %a, %kw, %vw : tensor<?x?x4x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>
}

// -----

func.func @odd(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x12xf32> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x12xf32> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []},
    %vn: tensor<?x2x?x12xf32> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []}, %k: tensor<?x2x?x12xf32> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "12"]}, %v: tensor<?x2x?x12xf32> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "12"]})
    -> (tensor<?x?x4x12xf32>, tensor<?x2x?x12xf32>, tensor<?x2x?x12xf32>) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x12xf32>, tensor<?x2x?x12xf32>, tensor<?xi64>) -> tensor<?x2x?x12xf32>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x12xf32>, tensor<?x2x?x12xf32>, tensor<?xi64>) -> tensor<?x2x?x12xf32>
  // expected-error@below {{cannot be computed by the fused arm in layer 0}}
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.500000e-01 : f32, window = 0 : i64, softcap = 0.000000e+00 : f32}
    : (tensor<?x4x?x12xf32>, tensor<?x2x?x12xf32>, tensor<?x2x?x12xf32>, tensor<?xi64>, none) -> tensor<?x?x4x12xf32>
  return %a, %kw, %vw : tensor<?x?x4x12xf32>, tensor<?x2x?x12xf32>, tensor<?x2x?x12xf32>
}
