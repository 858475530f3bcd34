// RUN: planonce opt %s --pass-pipeline='select-attention{arm=paged device=cuda:0},assign-placement{device=cuda:0},alias-kv' --remarks
// RUN: planonce opt %s --pass-pipeline='select-attention{device=cuda:0}' --check-prefix=AUTO

// The slots become pools, of 256 positions a block, and a block table joins the arguments. Rows are packed one
// token below another; where each begins is counted on the device; the bounds that the kernel reads on the host
// follow from shapes alone.
// CHECK: remark: 2 KV slots became pools of blocks, 256 positions each
// CHECK: remark: layer 0: paged: asked for; one PagedAttention
// CHECK-LABEL: func.func @half
// CHECK-SAME: %arg5: tensor<?x256x2x16xf16> {plan.dims = ["blocks", "256", "2", "16"], plan.layer = 0 : i64, plan.name = "past.0.key", plan.role = "kv_pool", plan.which = "key"}
// CHECK-SAME: %arg6: tensor<?x256x2x16xf16>
// CHECK-SAME: %arg7: tensor<?x?xi32> {plan.dims = ["batch", "blocks_per_row"], plan.name = "block_table", plan.role = "block_table"})
// CHECK-SAME: tensor<?x256x2x16xf16> {plan.alias = 5 : i64, {{.*}}plan.role = "kv_pool", plan.which = "key"}
// CHECK-SAME: tensor<?x256x2x16xf16> {plan.alias = 6 : i64, {{.*}}plan.role = "kv_pool", plan.which = "value"}
// CHECK-DAG: %[[SAME:.*]] = "onnx.equal"(%arg0, %arg0) {plan.device = "cuda:0"}
// CHECK-DAG: %[[ONES:.*]] = "onnx.cast"(%[[SAME]])
// CHECK-DAG: %[[S:.*]] = "onnx.reduce_sum"(%[[ONES]], %{{.*}}) {keepdims = 0 : i64
// CHECK-DAG: %[[ENDS:.*]] = "onnx.cum_sum"(%[[S]], %{{.*}})
// CHECK-DAG: %[[ZERO:.*]] = "onnx.constant"() {value = dense<0> : tensor<1xi64>}
// CHECK-DAG: %[[ALL:.*]] = "onnx.concat"(%[[ZERO]], %[[ENDS]]) {axis = 0 : i64
// CHECK-DAG: %[[STARTS:.*]] = "onnx.cast"(%[[ALL]]) {plan.device = "cuda:0", to = 6 : i64}
// CHECK-DAG: %[[PAST:.*]] = "onnx.cast"(%arg1) {plan.device = "cuda:0", to = 6 : i64}
// CHECK-DAG: %[[BLOCKS:.*]] = "onnx.shape"(%arg7) {end = 2 : i64, plan.device = "cuda:0", start = 1 : i64}
// CHECK-DAG: %[[SIZE:.*]] = "onnx.constant"() {value = dense<256> : tensor<1xi64>}
// CHECK-DAG: %[[REACH:.*]] = "onnx.mul"(%[[BLOCKS]], %[[SIZE]])
// CHECK-DAG: %[[LONGEST:.*]] = "onnx.shape"(%arg0) {end = 2 : i64, plan.device = "cuda:0", start = 1 : i64}
// CHECK-DAG: %[[BOTH:.*]] = "onnx.concat"(%[[LONGEST]], %[[REACH]])
// CHECK-DAG: %[[BOUNDS:.*]] = "onnx.cast"(%[[BOTH]]) {plan.device = "cuda:0", to = 6 : i64}
// CHECK: %[[Q:.*]] = "onnx.reshape"{{.*}} -> tensor<?x64xf16>
// CHECK: %[[K:.*]] = "onnx.reshape"{{.*}} -> tensor<?x32xf16>
// CHECK: %[[V:.*]] = "onnx.reshape"{{.*}} -> tensor<?x32xf16>
// CHECK: %[[NONE:.*]] = "onnx.no_value"()
// CHECK: %[[A:.*]]:3 = "onnx.ms_paged_attention"(%[[Q]], %[[K]], %[[V]], %arg5, %arg6, %[[STARTS]], %[[PAST]], %arg7, %[[NONE]], %[[NONE]], %[[NONE]], %[[NONE]], %[[NONE]], %[[NONE]], %[[NONE]], %[[NONE]], %[[BOUNDS]])
// CHECK-SAME: {kv_num_heads = 2 : i64, num_heads = 4 : i64, plan.device = "cuda:0", scale = 2.500000e-01 : f32}
// CHECK: "onnx.reshape"(%[[A]]#0, %{{.*}}) {plan.device = "cuda:0"} : {{.*}} -> tensor<?x?x64xf16>
// CHECK-NOT: plan.write_slice
// CHECK: return %{{.*}}, %[[A]]#1, %[[A]]#2
// Left to choose, the pass takes another arm: the caller has to bind something else.
// AUTO-LABEL: func.func @half
// AUTO-NOT: paged
// AUTO: "onnx.ms_group_query_attention"
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
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

// bfloat16; the window counts the query, softcap and sinks are the kernel's, and 256 suits its flash attention.
// CHECK-LABEL: func.func @brain_float
// CHECK: %[[SINKS:.*]] = "plan.weight"
// CHECK: "onnx.ms_paged_attention"({{.*}}, %[[SINKS]], %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {kv_num_heads = 2 : i64, local_window_size = 7 : i64, num_heads = 4 : i64, {{.*}}softcap = 3.000000e+00 : f32}
// AUTO-LABEL: func.func @brain_float
// AUTO: "onnx.ms_group_query_attention"
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
  %sinks = "plan.weight"() {name = "sinks"} : () -> tensor<4xbf16>
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x64xbf16>, tensor<?x2x?x64xbf16>, tensor<?xi64>) -> tensor<?x2x?x64xbf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x64xbf16>, tensor<?x2x?x64xbf16>, tensor<?xi64>) -> tensor<?x2x?x64xbf16>
  %a = "plan.attention"(%q, %kw, %vw, %at, %sinks) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 7 : i64, softcap = 3.0 : f32}
    : (tensor<?x4x?x64xbf16>, tensor<?x2x?x64xbf16>, tensor<?x2x?x64xbf16>, tensor<?xi64>, tensor<4xbf16>) -> tensor<?x?x4x64xbf16>
  return %a, %kw, %vw : tensor<?x?x4x64xbf16>, tensor<?x2x?x64xbf16>, tensor<?x2x?x64xbf16>
}

// -----

// The kernel turns queries and keys itself, at each row's past length and onwards.
// CHECK-LABEL: func.func @turned
// CHECK: %[[COS:.*]] = "plan.weight"() {name = "cos"}
// CHECK: %[[SIN:.*]] = "plan.weight"() {name = "sin"}
// CHECK: "onnx.ms_paged_attention"({{.*}}, %arg7, %[[COS]], %[[SIN]], {{.*}}) {do_rotary = 1 : i64, {{.*}}rotary_interleaved = 1 : i64
// CHECK-NOT: onnx.rotary_embedding
// AUTO-LABEL: func.func @turned
// AUTO: do_rotary
func.func @turned(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %none = "onnx.no_value"() : () -> none
  %cos = "plan.weight"() {name = "cos"} : () -> tensor<32x8xf16>
  %sin = "plan.weight"() {name = "sin"} : () -> tensor<32x8xf16>
  %one = "onnx.constant"() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %column = "onnx.unsqueeze"(%at, %one) : (tensor<?xi64>, tensor<1xi64>) -> tensor<?x1xi64>
  %first = "onnx.constant"() {value = dense<0> : tensor<i64>} : () -> tensor<i64>
  %step = "onnx.constant"() {value = dense<1> : tensor<i64>} : () -> tensor<i64>
  %s = "onnx.shape"(%ids) {start = 1 : i64, end = 2 : i64} : (tensor<?x?xi64>) -> tensor<1xi64>
  %zero = "onnx.constant"() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %n = "onnx.squeeze"(%s, %zero) : (tensor<1xi64>, tensor<1xi64>) -> tensor<i64>
  %range = "onnx.range"(%first, %n, %step) : (tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<?xi64>
  %pos = "onnx.add"(%column, %range) : (tensor<?x1xi64>, tensor<?xi64>) -> tensor<?x?xi64>
  %qr = "plan.rope"(%q, %cos, %sin, %pos) {interleaved = 1 : i64, rotary_dim = 16 : i64} : (tensor<?x4x?x16xf16>, tensor<32x8xf16>, tensor<32x8xf16>, tensor<?x?xi64>) -> tensor<?x4x?x16xf16>
  %knr = "plan.rope"(%kn, %cos, %sin, %pos) {interleaved = 1 : i64, rotary_dim = 16 : i64} : (tensor<?x2x?x16xf16>, tensor<32x8xf16>, tensor<32x8xf16>, tensor<?x?xi64>) -> tensor<?x2x?x16xf16>
  %kw = "plan.write_slice"(%k, %knr, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %a = "plan.attention"(%qr, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

// Positions of their own cannot be given to it: the embeddings stay in front of it.
// CHECK: remark: 2 rotary embeddings are operations of their own
// CHECK-LABEL: func.func @elsewhere
// CHECK-COUNT-2: "onnx.rotary_embedding"
// CHECK: %[[NONE:.*]] = "onnx.no_value"
// CHECK: "onnx.ms_paged_attention"({{.*}}, %arg7, %{{.*}}, %{{.*}}, {{.*}}) {kv_num_heads
// CHECK-NOT: do_rotary
// AUTO-LABEL: func.func @elsewhere
// AUTO: do_rotary
func.func @elsewhere(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %none = "onnx.no_value"() : () -> none
  %cos = "plan.weight"() {name = "cos"} : () -> tensor<32x8xf16>
  %sin = "plan.weight"() {name = "sin"} : () -> tensor<32x8xf16>
  %pos = "onnx.neg"(%ids) : (tensor<?x?xi64>) -> tensor<?x?xi64>
  %qr = "plan.rope"(%q, %cos, %sin, %pos) {interleaved = 1 : i64, rotary_dim = 16 : i64} : (tensor<?x4x?x16xf16>, tensor<32x8xf16>, tensor<32x8xf16>, tensor<?x?xi64>) -> tensor<?x4x?x16xf16>
  %knr = "plan.rope"(%kn, %cos, %sin, %pos) {interleaved = 1 : i64, rotary_dim = 16 : i64} : (tensor<?x2x?x16xf16>, tensor<32x8xf16>, tensor<32x8xf16>, tensor<?x?xi64>) -> tensor<?x2x?x16xf16>
  %kw = "plan.write_slice"(%k, %knr, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %a = "plan.attention"(%qr, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

// All layers of a device share the lengths, and all layers the block table.
// CHECK: remark: 4 KV slots became pools of blocks
// CHECK-LABEL: func.func @two_layers
// CHECK-COUNT-1: onnx.cum_sum
// CHECK-NOT: onnx.cum_sum
// CHECK: %[[A:.*]]:3 = "onnx.ms_paged_attention"({{.*}}, %arg5, %arg6, %[[STARTS:.*]], %[[PAST:.*]], %arg9,
// CHECK: %[[B:.*]]:3 = "onnx.ms_paged_attention"({{.*}}, %arg7, %arg8, %[[STARTS]], %[[PAST]], %arg9,
// CHECK: return %{{.*}}, %[[A]]#1, %[[A]]#2, %[[B]]#1, %[[B]]#2
// AUTO-LABEL: func.func @two_layers
// AUTO-COUNT-2: "onnx.ms_group_query_attention"
func.func @two_layers(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %k1: tensor<?x2x?x16xf16> {plan.name = "past.1.key", plan.role = "kv", plan.which = "key", plan.layer = 1 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v1: tensor<?x2x?x16xf16> {plan.name = "past.1.value", plan.role = "kv", plan.which = "value", plan.layer = 1 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.1.key", plan.role = "kv", plan.which = "key", plan.layer = 1 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.1.value", plan.role = "kv", plan.which = "value", plan.layer = 1 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %b = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  %k1w = "plan.write_slice"(%k1, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %v1w = "plan.write_slice"(%v1, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %t = "onnx.transpose"(%b) {perm = array<i64: 0, 2, 1, 3>} : (tensor<?x?x4x16xf16>) -> tensor<?x4x?x16xf16>
  %a = "plan.attention"(%t, %k1w, %v1w, %at, %none) {layer = 1 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw, %k1w, %v1w : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}
