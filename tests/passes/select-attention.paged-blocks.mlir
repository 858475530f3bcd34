// RUN: planonce opt %s --pass-pipeline='select-attention{arm=paged device=cuda:0 block-size=64}'

// Smaller blocks waste less of the last one of each sequence.
// CHECK-LABEL: func.func @smaller
// CHECK-SAME: tensor<?x64x2x16xf16>
// CHECK: onnx.ms_paged_attention
func.func @smaller(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

// Sinks are applied in flash attention, which takes no block that a tile of it would straddle: at head_dim 256
// a tile is 64 positions.
// CHECK-LABEL: func.func @sinks_in_wide_heads
// CHECK: onnx.ms_paged_attention
func.func @sinks_in_wide_heads(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x256xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x256xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x256xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x256xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "256"]},
    %v: tensor<?x2x?x256xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "256"]})
    -> (tensor<?x?x4x256xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "256"]},
        tensor<?x2x?x256xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "256"]},
        tensor<?x2x?x256xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "256"]}) {
  %none = "onnx.no_value"() : () -> none
  %sinks = "plan.weight"() {name = "sinks"} : () -> tensor<4xf16>
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x256xf16>, tensor<?x2x?x256xf16>, tensor<?xi64>) -> tensor<?x2x?x256xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x256xf16>, tensor<?x2x?x256xf16>, tensor<?xi64>) -> tensor<?x2x?x256xf16>
  %a = "plan.attention"(%q, %kw, %vw, %at, %sinks) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x256xf16>, tensor<?x2x?x256xf16>, tensor<?x2x?x256xf16>, tensor<?xi64>, tensor<4xf16>) -> tensor<?x?x4x256xf16>
  return %a, %kw, %vw : tensor<?x?x4x256xf16>, tensor<?x2x?x256xf16>, tensor<?x2x?x256xf16>
}

// -----

// And 256 up to head_dim 64.
func.func @sinks_in_narrow_heads(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x64xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x64xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x64xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x64xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "64"]},
    %v: tensor<?x2x?x64xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "64"]})
    -> (tensor<?x?x4x64xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "64"]},
        tensor<?x2x?x64xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "64"]},
        tensor<?x2x?x64xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "64"]}) {
  %none = "onnx.no_value"() : () -> none
  %sinks = "plan.weight"() {name = "sinks"} : () -> tensor<4xf16>
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x64xf16>, tensor<?x2x?x64xf16>, tensor<?xi64>) -> tensor<?x2x?x64xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x64xf16>, tensor<?x2x?x64xf16>, tensor<?xi64>) -> tensor<?x2x?x64xf16>
  // expected-error@below {{has sinks, which PagedAttention applies in flash attention only, in layer 0}}
  %a = "plan.attention"(%q, %kw, %vw, %at, %sinks) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x64xf16>, tensor<?x2x?x64xf16>, tensor<?x2x?x64xf16>, tensor<?xi64>, tensor<4xf16>) -> tensor<?x?x4x64xf16>
  return %a, %kw, %vw : tensor<?x?x4x64xf16>, tensor<?x2x?x64xf16>, tensor<?x2x?x64xf16>
}
