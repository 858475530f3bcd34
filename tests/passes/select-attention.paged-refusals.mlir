// RUN: planonce opt %s --pass-pipeline='select-attention{arm=paged device=cuda:0}'

// Without attention there is nothing to page: the slot stays, and its write becomes a TensorScatter.
// CHECK-LABEL: func.func @no_attention
// CHECK-NOT: block_table
// CHECK: onnx.tensor_scatter
func.func @no_attention(
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x2x?x16xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  return %kw : tensor<?x2x?x16xf16>
}

// -----

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
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>) -> tensor<?x2x?x16xf32>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>) -> tensor<?x2x?x16xf32>
  // expected-error@below {{found: no PagedAttention for f32}}
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>, none) -> tensor<?x?x4x16xf32>
  return %a, %kw, %vw : tensor<?x?x4x16xf32>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>
}

// -----

// Placed on the CPU by hand, whatever the pass's own device.
func.func @on_the_cpu(
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
  // expected-error@below {{found: no PagedAttention on cpu: its kernels are for cuda}}
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32, plan.device = "cpu:0"}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

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
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x512xf16>, tensor<?x2x?x512xf16>, tensor<?xi64>) -> tensor<?x2x?x512xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x512xf16>, tensor<?x2x?x512xf16>, tensor<?xi64>) -> tensor<?x2x?x512xf16>
  // expected-error@below {{found: head_dim 512 is more than 256, the most of flash attention}}
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x512xf16>, tensor<?x2x?x512xf16>, tensor<?x2x?x512xf16>, tensor<?xi64>, none) -> tensor<?x?x4x512xf16>
  return %a, %kw, %vw : tensor<?x?x4x512xf16>, tensor<?x2x?x512xf16>, tensor<?x2x?x512xf16>
}

// -----

func.func @odd(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x20xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x20xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x20xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x20xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "20"]},
    %v: tensor<?x2x?x20xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "20"]})
    -> (tensor<?x?x4x20xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "20"]},
        tensor<?x2x?x20xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "20"]},
        tensor<?x2x?x20xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "20"]}) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x20xf16>, tensor<?x2x?x20xf16>, tensor<?xi64>) -> tensor<?x2x?x20xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x20xf16>, tensor<?x2x?x20xf16>, tensor<?xi64>) -> tensor<?x2x?x20xf16>
  // expected-error@below {{found: head_dim 20 is no multiple of 8}}
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x20xf16>, tensor<?x2x?x20xf16>, tensor<?x2x?x20xf16>, tensor<?xi64>, none) -> tensor<?x?x4x20xf16>
  return %a, %kw, %vw : tensor<?x?x4x20xf16>, tensor<?x2x?x20xf16>, tensor<?x2x?x20xf16>
}

// -----

func.func @uneven(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x32xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x32xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "32"]})
    -> (tensor<?x?x4x32xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "32"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x32xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "32"]}) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x32xf16>, tensor<?x2x?x32xf16>, tensor<?xi64>) -> tensor<?x2x?x32xf16>
  // expected-error@below {{found: keys have head_dim 16, values 32}}
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x32xf16>, tensor<?xi64>, none) -> tensor<?x?x4x32xf16>
  return %a, %kw, %vw : tensor<?x?x4x32xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x32xf16>
}

// -----

func.func @mixed_cache(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf32> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf32> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf32> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xf32> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xf32> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf32> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %none = "onnx.no_value"() : () -> none
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>) -> tensor<?x2x?x16xf32>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>) -> tensor<?x2x?x16xf32>
  // expected-error@below {{found: its cache holds f32, its queries f16}}
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>
}

// -----

func.func @other_offset(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %none = "onnx.no_value"() : () -> none
  %later = "onnx.add"(%at, %at) : (tensor<?xi64>, tensor<?xi64>) -> tensor<?xi64>
  %kw = "plan.write_slice"(%k, %kn, %later) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  // expected-error@below {{found: its K cache is written at another offset}}
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

func.func @read_elsewhere(
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
  %other = "onnx.neg"(%vw) : (tensor<?x2x?x16xf16>) -> tensor<?x2x?x16xf16>
  // expected-error@below {{found: its V cache is also read elsewhere}}
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

// A slot's old value has one reader, its write; even its shape would be another's.
func.func @shape_of_a_slot(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %none = "onnx.no_value"() : () -> none
  // expected-error@below {{'onnx.shape' op reads past.0.key, which becomes a pool of blocks, beside its write}}
  %c = "onnx.shape"(%k) {start = 2 : i64, end = 3 : i64} : (tensor<?x2x?x16xf16>) -> tensor<1xi64>
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

// A layer that cannot, and so none: the other is not changed first.
func.func @one_layer_of_two(
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
  %k1w = "plan.write_slice"(%k1, %kn, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %v1w = "plan.write_slice"(%v1, %vn, %at) {axis = 2 : i64, plan.device = "cpu:0"} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %t = "onnx.transpose"(%b) {perm = array<i64: 0, 2, 1, 3>} : (tensor<?x?x4x16xf16>) -> tensor<?x4x?x16xf16>
  // expected-error@below {{cannot be computed by the paged arm in layer 1}}
  %a = "plan.attention"(%t, %k1w, %v1w, %at, %none) {layer = 1 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32, plan.device = "cpu:0"}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw, %k1w, %v1w : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

// A slot that attention has no part in (here of a layer that only writes) cannot become a pool.
// expected-error@below {{has the KV slot past.1.key, which no attention takes: all become pools, or none}}
func.func @slot_without_attention(
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
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 0 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  %k1w = "plan.write_slice"(%k1, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %v1w = "plan.write_slice"(%v1, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  return %a, %kw, %vw, %k1w, %v1w : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

// The write of another layer's slot.
func.func @other_layer(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %k: tensor<?x2x?x16xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
    %v: tensor<?x2x?x16xf16> {plan.name = "past.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]})
    -> (tensor<?x?x4x16xf16> {plan.name = "a", plan.role = "logits", plan.dims = ["batch", "sequence", "4", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]},
        tensor<?x2x?x16xf16> {plan.name = "present.0.value", plan.role = "kv", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "16"]}) {
  %none = "onnx.no_value"() : () -> none
  // expected-error@below {{does not write the key slot of layer 3}}
  %kw = "plan.write_slice"(%k, %kn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %vw = "plan.write_slice"(%v, %vn, %at) {axis = 2 : i64} : (tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>) -> tensor<?x2x?x16xf16>
  %a = "plan.attention"(%q, %kw, %vw, %at, %none) {layer = 3 : i64, scale = 2.5e-01 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<?x4x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>, tensor<?xi64>, none) -> tensor<?x?x4x16xf16>
  return %a, %kw, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

// What is returned in a slot's place must be its write.
func.func @returned_otherwise(
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
  %other = "onnx.neg"(%kn) : (tensor<?x2x?x16xf16>) -> tensor<?x2x?x16xf16>
  // expected-error@below {{returns another value for present.0.key than its write}}
  return %a, %other, %vw : tensor<?x?x4x16xf16>, tensor<?x2x?x16xf16>, tensor<?x2x?x16xf16>
}

// -----

// The symbol path: the kernel reads each row's past length, so that attended_len would say nothing.
// expected-error@below {{takes its lengths as symbols}}
func.func @symbols(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %q: tensor<?x4x?x16xf16> {plan.name = "q", plan.role = "logit_positions", plan.dims = []}, %kn: tensor<?x2x?x16xf16> {plan.name = "kn", plan.role = "logit_positions", plan.dims = []}, %vn: tensor<?x2x?x16xf16> {plan.name = "vn", plan.role = "logit_positions", plan.dims = []},
    %length: tensor<i64> {plan.name = "attended_len", plan.role = "attended_len", plan.dims = []},
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
