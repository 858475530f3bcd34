// RUN: planonce opt %s --pass-pipeline='select-attention' --remarks

// What the kernel cannot do on CUDA goes to the portable arm, with the reason.
// CHECK: remark: layer 0: portable: not fused: no GroupQueryAttention for f32 on cuda
// CHECK-LABEL: func.func @single
// CHECK-NOT: group_query
// CHECK: "onnx.tensor_scatter"{{.*}}plan.device = "cuda:0"
func.func @single(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf32> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf32> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf32> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf32> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xf32> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf32> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xf32> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf32> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64, plan.device = "cuda:0"} : (tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>) -> tensor<?x2x?x16xf32>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64, plan.device = "cuda:0"} : (tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>) -> tensor<?x2x?x16xf32>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32, plan.device = "cuda:0"}
    : (tensor<?x4x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>, none) -> tensor<?x?x4x16xf32>
  return %a, %kw, %vw : tensor<?x?x4x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>
}

// -----

// CHECK: remark: layer 0: portable: not fused: no GroupQueryAttention for bf16 on cpu
// CHECK-LABEL: func.func @brain_float_on_cpu
// CHECK-NOT: group_query
func.func @brain_float_on_cpu(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xbf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xbf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xbf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xbf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xbf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xbf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xbf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xbf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x16xbf16>, tensor<?x2x?x16xbf16>, tensor<?xi64>) -> tensor<?x2x?x16xbf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x16xbf16>, tensor<?x2x?x16xbf16>, tensor<?xi64>) -> tensor<?x2x?x16xbf16>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32, plan.device = "cpu:0"}
    : (tensor<?x4x?x16xbf16>, tensor<?x2x?x16xbf16>, tensor<?x2x?x16xbf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xbf16>
  return %a, %kw, %vw : tensor<?x?x4x16xbf16>, tensor<?x2x?x16xbf16>, tensor<?x2x?x16xbf16>
}

// -----

// CHECK: remark: layer 0: portable: not fused: head_dim 512 is more than 256, the most of flash attention
// CHECK-LABEL: func.func @wide
// CHECK-NOT: group_query
func.func @wide(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x512xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x512xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x512xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x512xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "512"]},
    %v: tensor<?x2x?x512xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "512"]})
    -> (tensor<?x?x4x512xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "512"]},
        tensor<?x2x?x512xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "512"]},
        tensor<?x2x?x512xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "512"]}) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64, plan.device = "cuda:0"} : (tensor<?x2x?x512xf16>, tensor<?x2x?x512xf16>, tensor<?xi64>) -> tensor<?x2x?x512xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64, plan.device = "cuda:0"} : (tensor<?x2x?x512xf16>, tensor<?x2x?x512xf16>, tensor<?xi64>) -> tensor<?x2x?x512xf16>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32, plan.device = "cuda:0"}
    : (tensor<?x4x?x512xf16>, tensor<?x2x?x512xf16>, tensor<?x2x?x512xf16>, tensor<?xi64>, none) -> tensor<?x?x4x512xf16>
  return %a, %kw, %vw : tensor<?x?x4x512xf16>, tensor<?x2x?x512xf16>, tensor<?x2x?x512xf16>
}
