// RUN: planonce opt %s --pass-pipeline='select-attention' --remarks

// The fused arm: one operation attends and writes both slots; lengths come from token_ids and the write
// offset, seqlens_k being the total less one; what the return hands out is what was written.
// CHECK: remark: layer 0: fused: one GroupQueryAttention
// CHECK-LABEL: func.func @fused
// CHECK: %[[S:.*]] = "onnx.shape"(%arg0) {end = 2 : i64, start = 1 : i64}
// CHECK: %[[T:.*]] = "onnx.add"(%arg1, %[[S]])
// CHECK: %[[LESS:.*]] = "onnx.sub"(%[[T]], %{{.*}})
// CHECK: %[[LENS:.*]] = "onnx.cast"(%[[LESS]]) {to = 6 : i64}
// CHECK: %[[MAX:.*]] = "onnx.reduce_max"(%[[T]], %{{.*}}) {keepdims = 0 : i64}
// CHECK: %[[TOTAL:.*]] = "onnx.cast"(%[[MAX]]) {to = 6 : i64}
// CHECK: %[[A:.*]]:4 = "onnx.ms_group_query_attention"(%{{[^,]*}}, %{{[^,]*}}, %{{[^,]*}}, %arg5, %arg6, %[[LENS]], %[[TOTAL]],
// CHECK-SAME: kv_num_heads = 2 : i64, num_heads = 4 : i64, scale = 2.500000e-01 : f32
// CHECK-NOT: plan.
// CHECK: return %{{.*}}, %[[A]]#1, %[[A]]#2
func.func @fused(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
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

// Window, softcap and sinks go along.
// CHECK: remark: layer 0: fused
// CHECK-LABEL: func.func @with_all
// CHECK: "onnx.ms_group_query_attention"
// CHECK-SAME: %arg7,
// CHECK-SAME: local_window_size = 5 : i64
// CHECK-SAME: softcap = 3.000000e+01 : f32
func.func @with_all(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
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

// A head_dim that the kernel does not take: the portable arm, which reads slices of the written caches that
// end where the longest row ends.
// CHECK: remark: layer 0: portable: not fused: head_dim 12 is no multiple of 8; plain matrix products
// CHECK-LABEL: func.func @odd
// CHECK: %[[T:.*]] = "onnx.add"(%arg1, %{{.*}})
// CHECK: %[[END:.*]] = "onnx.reduce_max"(%[[T]], %{{.*}}) {keepdims = 1 : i64}
// CHECK: %[[K:.*]] = "onnx.tensor_scatter"(%arg5, %arg3, %arg1) {axis = 2 : i64}
// CHECK: %[[V:.*]] = "onnx.tensor_scatter"(%arg6, %arg4, %arg1) {axis = 2 : i64}
// CHECK: %[[LIVE:.*]] = "onnx.slice"(%[[K]], %{{.*}}, %[[END]], %{{.*}}
// CHECK: "onnx.ms_fused_mat_mul"(%{{.*}}, %[[LIVE]]) {alpha = 2.500000e-01 : f32, transB = 1 : i64}
// CHECK: "onnx.where"
// CHECK: "onnx.softmax"
// CHECK-NOT: group_query
// CHECK-NOT: plan.
// CHECK: return %{{.*}}, %[[K]], %[[V]]
func.func @odd(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x12xf32> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x12xf32> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []},
    %vn: tensor<?x2x?x12xf32> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []}, %k: tensor<?x2x?x12xf32> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "12"]}, %v: tensor<?x2x?x12xf32> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "12"]})
    -> (tensor<?x?x4x12xf32>, tensor<?x2x?x12xf32>, tensor<?x2x?x12xf32>) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x12xf32>, tensor<?x2x?x12xf32>, tensor<?xi64>) -> tensor<?x2x?x12xf32>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x12xf32>, tensor<?x2x?x12xf32>, tensor<?xi64>) -> tensor<?x2x?x12xf32>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.500000e-01 : f32, window = 0 : i64, softcap = 0.000000e+00 : f32}
    : (tensor<?x4x?x12xf32>, tensor<?x2x?x12xf32>, tensor<?x2x?x12xf32>, tensor<?xi64>, none) -> tensor<?x?x4x12xf32>
  return %a, %kw, %vw : tensor<?x?x4x12xf32>, tensor<?x2x?x12xf32>, tensor<?x2x?x12xf32>
}

// -----

// The fused arm writes the slots itself: a cache that something else reads too must stay a value.
// CHECK: remark: layer 0: portable: not fused: its K cache is also read elsewhere
// CHECK-LABEL: func.func @shared
// CHECK-NOT: group_query
func.func @shared(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf32> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf32> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []},
    %vn: tensor<?x2x?x16xf32> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []}, %k: tensor<?x2x?x16xf32> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}, %v: tensor<?x2x?x16xf32> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>) -> tensor<?x2x?x16xf32>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>) -> tensor<?x2x?x16xf32>
  %n = "onnx.neg"(%kw) : (tensor<?x2x?x16xf32>) -> tensor<?x2x?x16xf32>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.500000e-01 : f32, window = 0 : i64, softcap = 0.000000e+00 : f32}
    : (tensor<?x4x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>, none) -> tensor<?x?x4x16xf32>
  return %a, %n, %vw : tensor<?x?x4x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>
}

// -----

// Nothing to do: another program stays as it is.
// CHECK-LABEL: func.func @other
// CHECK-NEXT: %[[N:.*]] = "onnx.neg"(%arg0)
// CHECK-NEXT: return %[[N]]
func.func @other(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "onnx.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// expected-error@below {{has no token_ids argument}}
func.func @no_tokens(%ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "logit_positions", plan.dims = ["batch", "sequence"]}, %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
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
