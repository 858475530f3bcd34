// RUN: planonce opt %s --pass-pipeline='select-attention,assign-placement{device=cuda:0},alias-kv' --remarks
// RUN: planonce opt %s --pass-pipeline='select-attention{arm=fused}' --check-prefix=ASKED

// Half precision on CUDA is one GroupQueryAttention. Nothing that is computed on the device is asked for by
// the host: the kernel's bound, which it reads there, is the capacity, and the number of new positions is
// counted from the tokens, for their shape is on the host. Every operation made is on the device.
// CHECK: remark: layer 0: fused: one GroupQueryAttention
// CHECK-LABEL: func.func @half
// CHECK-DAG: %[[SAME:.*]] = "onnx.equal"(%arg0, %arg0) {plan.device = "cuda:0"}
// CHECK-DAG: %[[ONES:.*]] = "onnx.cast"(%[[SAME]]) {plan.device = "cuda:0"
// CHECK-DAG: %[[N:.*]] = "onnx.reduce_sum"(%[[ONES]], %{{.*}}) {keepdims = 0 : i64, plan.device = "cuda:0"}
// CHECK-DAG: %[[T:.*]] = "onnx.add"(%arg1, %[[N]]) {plan.device = "cuda:0"}
// CHECK-DAG: %[[C:.*]] = "onnx.shape"(%arg5) {end = 3 : i64, plan.device = "cuda:0", start = 2 : i64}
// CHECK-DAG: %[[CS:.*]] = "onnx.reshape"(%[[C]], %{{.*}})
// CHECK-DAG: %[[BOUND:.*]] = "onnx.cast"(%[[CS]]) {plan.device = "cuda:0"
// CHECK-DAG: %[[LAST:.*]] = "onnx.sub"(%[[T]], %{{.*}})
// CHECK-DAG: %[[LENGTHS:.*]] = "onnx.cast"(%[[LAST]]) {plan.device = "cuda:0"
// CHECK: "onnx.ms_group_query_attention"(%{{.*}}, %{{.*}}, %{{.*}}, %arg5, %arg6, %[[LENGTHS]], %[[BOUND]]
// CHECK-NOT: onnx.reduce_max
// ASKED-LABEL: func.func @half
// ASKED: ms_group_query_attention
func.func @half(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64, plan.device = "cuda:0"} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64, plan.device = "cuda:0"} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32, plan.device = "cuda:0"}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

// bfloat16 too; on the CPU it has no such kernel.
// CHECK: remark: layer 0: fused: one GroupQueryAttention
// CHECK-LABEL: func.func @brain_float
// CHECK: "onnx.ms_group_query_attention"
// ASKED-LABEL: func.func @brain_float
// ASKED: ms_group_query_attention
func.func @brain_float(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x64xbf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x64xbf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x64xbf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x64xbf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "64"]},
    %v: tensor<?x2x?x64xbf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "64"]})
    -> (tensor<?x?x4x64xbf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "64"]},
        tensor<?x2x?x64xbf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "64"]},
        tensor<?x2x?x64xbf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "64"]}) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64, plan.device = "cuda:1"} : (tensor<?x2x?x64xbf16>, tensor<?x2x?x64xbf16>, tensor<?xi64>) -> tensor<?x2x?x64xbf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64, plan.device = "cuda:1"} : (tensor<?x2x?x64xbf16>, tensor<?x2x?x64xbf16>, tensor<?xi64>) -> tensor<?x2x?x64xbf16>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32, plan.device = "cuda:1"}
    : (tensor<?x4x?x64xbf16>, tensor<?x2x?x64xbf16>, tensor<?x2x?x64xbf16>, tensor<?xi64>, none) -> tensor<?x?x4x64xbf16>
  return %a, %kw, %vw : tensor<?x?x4x64xbf16>, tensor<?x2x?x64xbf16>, tensor<?x2x?x64xbf16>
}

// -----

// Half precision on the CPU: there the live length is the bound, and shapes are where everything is.
// CHECK-LABEL: func.func @half_on_cpu
// CHECK-NOT: onnx.equal
// CHECK: onnx.reduce_max
// CHECK: "onnx.ms_group_query_attention"
// ASKED-LABEL: func.func @half_on_cpu
// ASKED: ms_group_query_attention
func.func @half_on_cpu(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32, plan.device = "cpu:0"}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}
