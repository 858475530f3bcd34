// RUN: planonce opt %s --pass-pipeline='verify-plan'

// Pools written once each, through the block table that the caller binds, at each row's past length.
// CHECK-LABEL: func.func @sound
// CHECK: onnx.ms_paged_attention
func.func @sound(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %k: tensor<?x16x2x8xf16> {plan.name = "past.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %v: tensor<?x16x2x8xf16> {plan.name = "past.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %table: tensor<?x?xi32> {plan.name = "block_table", plan.role = "block_table", plan.dims = ["batch", "blocks_per_row"]})
    -> (tensor<?x?x16xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "16"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.alias = 2 : i64, plan.dims = ["blocks", "16", "2", "8"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.alias = 3 : i64, plan.dims = ["blocks", "16", "2", "8"]}) {
  %none = "onnx.no_value"() : () -> none
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x16xf16>
  %x = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cuda:0"} : (tensor<9x16xf16>, tensor<?x?xi64>) -> tensor<?x?x16xf16>
  %flat = "onnx.constant"() {value = dense<[-1, 16]> : tensor<2xi64>} : () -> tensor<2xi64>
  %rows = "onnx.reshape"(%x, %flat) {plan.device = "cuda:0"} : (tensor<?x?x16xf16>, tensor<2xi64>) -> tensor<?x16xf16>
  %starts = "onnx.constant"() {value = dense<[0, 1]> : tensor<2xi32>} : () -> tensor<2xi32>
  %bounds = "onnx.constant"() {value = dense<[1, 64]> : tensor<2xi32>} : () -> tensor<2xi32>
  %past = "onnx.cast"(%at) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<?xi64>) -> tensor<?xi32>
  %a:3 = "onnx.ms_paged_attention"(%rows, %rows, %rows, %k, %v, %starts, %past, %table, %none, %none, %none, %none, %none, %none, %none, %none, %bounds) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>, tensor<2xi32>, tensor<?xi32>, tensor<?x?xi32>, none, none, none, none, none, none, none, none, tensor<2xi32>) -> (tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>)
  %out = "plan.copy"(%x) {to = "host"} : (tensor<?x?x16xf16>) -> tensor<?x?x16xf16>
  return %out, %a#1, %a#2 : tensor<?x?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>
}

// -----

// One slot beside a pool: what a caller binds would be of two kinds.
// expected-error@below {{keeps some of its KV in slots and some in pools of blocks}}
func.func @half_paged(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %k: tensor<?x2x?x8xf16> {plan.name = "past.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["batch", "2", "capacity", "8"]},
    %v: tensor<?x16x2x8xf16> {plan.name = "past.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %table: tensor<?x?xi32> {plan.name = "block_table", plan.role = "block_table", plan.dims = ["batch", "blocks_per_row"]})
    -> (tensor<?x?x16xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "16"]},
        tensor<?x2x?x8xf16> {plan.name = "present.0.key", plan.role = "kv", plan.which = "key", plan.layer = 0 : i64, plan.alias = 2 : i64, plan.dims = ["batch", "2", "capacity", "8"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.alias = 3 : i64, plan.dims = ["blocks", "16", "2", "8"]}) {
  %none = "onnx.no_value"() : () -> none
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x16xf16>
  %x = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cuda:0"} : (tensor<9x16xf16>, tensor<?x?xi64>) -> tensor<?x?x16xf16>
  %flat = "onnx.constant"() {value = dense<[-1, 16]> : tensor<2xi64>} : () -> tensor<2xi64>
  %rows = "onnx.reshape"(%x, %flat) {plan.device = "cuda:0"} : (tensor<?x?x16xf16>, tensor<2xi64>) -> tensor<?x16xf16>
  %starts = "onnx.constant"() {value = dense<[0, 1]> : tensor<2xi32>} : () -> tensor<2xi32>
  %bounds = "onnx.constant"() {value = dense<[1, 64]> : tensor<2xi32>} : () -> tensor<2xi32>
  %past = "onnx.cast"(%at) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<?xi64>) -> tensor<?xi32>
  %kp = "onnx.neg"(%v) {plan.device = "cuda:0"} : (tensor<?x16x2x8xf16>) -> tensor<?x16x2x8xf16>
  %kn = "onnx.constant"() {value = dense<0.0> : tensor<1x2x1x8xf16>} : () -> tensor<1x2x1x8xf16>
  %ks = "onnx.tensor_scatter"(%k, %kn, %at) {axis = 2 : i64, plan.device = "cuda:0"} : (tensor<?x2x?x8xf16>, tensor<1x2x1x8xf16>, tensor<?xi64>) -> tensor<?x2x?x8xf16>
  %a:3 = "onnx.ms_paged_attention"(%rows, %rows, %rows, %kp, %v, %starts, %past, %table, %none, %none, %none, %none, %none, %none, %none, %none, %bounds) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>, tensor<2xi32>, tensor<?xi32>, tensor<?x?xi32>, none, none, none, none, none, none, none, none, tensor<2xi32>) -> (tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>)
  %out = "plan.copy"(%x) {to = "host"} : (tensor<?x?x16xf16>) -> tensor<?x?x16xf16>
  return %out, %ks, %a#2 : tensor<?x?x16xf16>, tensor<?x2x?x8xf16>, tensor<?x16x2x8xf16>
}

// -----

// expected-error@below {{needs one block table for its pools}}
func.func @no_table(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %k: tensor<?x16x2x8xf16> {plan.name = "past.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %v: tensor<?x16x2x8xf16> {plan.name = "past.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %table: tensor<?x?xi32> {plan.name = "block_table", plan.role = "logit_positions", plan.dims = ["batch", "blocks_per_row"]})
    -> (tensor<?x?x16xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "16"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.alias = 2 : i64, plan.dims = ["blocks", "16", "2", "8"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.alias = 3 : i64, plan.dims = ["blocks", "16", "2", "8"]}) {
  %none = "onnx.no_value"() : () -> none
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x16xf16>
  %x = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cuda:0"} : (tensor<9x16xf16>, tensor<?x?xi64>) -> tensor<?x?x16xf16>
  %flat = "onnx.constant"() {value = dense<[-1, 16]> : tensor<2xi64>} : () -> tensor<2xi64>
  %rows = "onnx.reshape"(%x, %flat) {plan.device = "cuda:0"} : (tensor<?x?x16xf16>, tensor<2xi64>) -> tensor<?x16xf16>
  %starts = "onnx.constant"() {value = dense<[0, 1]> : tensor<2xi32>} : () -> tensor<2xi32>
  %bounds = "onnx.constant"() {value = dense<[1, 64]> : tensor<2xi32>} : () -> tensor<2xi32>
  %past = "onnx.cast"(%at) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<?xi64>) -> tensor<?xi32>
  %a:3 = "onnx.ms_paged_attention"(%rows, %rows, %rows, %k, %v, %starts, %past, %table, %none, %none, %none, %none, %none, %none, %none, %none, %bounds) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>, tensor<2xi32>, tensor<?xi32>, tensor<?x?xi32>, none, none, none, none, none, none, none, none, tensor<2xi32>) -> (tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>)
  %out = "plan.copy"(%x) {to = "host"} : (tensor<?x?x16xf16>) -> tensor<?x?x16xf16>
  return %out, %a#1, %a#2 : tensor<?x?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>
}

// -----

// A table that is computed, or a constant: the caller's would not be followed.
func.func @own_table(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %k: tensor<?x16x2x8xf16> {plan.name = "past.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %v: tensor<?x16x2x8xf16> {plan.name = "past.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %table: tensor<?x?xi32> {plan.name = "block_table", plan.role = "block_table", plan.dims = ["batch", "blocks_per_row"]})
    -> (tensor<?x?x16xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "16"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.alias = 2 : i64, plan.dims = ["blocks", "16", "2", "8"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.alias = 3 : i64, plan.dims = ["blocks", "16", "2", "8"]}) {
  %none = "onnx.no_value"() : () -> none
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x16xf16>
  %x = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cuda:0"} : (tensor<9x16xf16>, tensor<?x?xi64>) -> tensor<?x?x16xf16>
  %flat = "onnx.constant"() {value = dense<[-1, 16]> : tensor<2xi64>} : () -> tensor<2xi64>
  %rows = "onnx.reshape"(%x, %flat) {plan.device = "cuda:0"} : (tensor<?x?x16xf16>, tensor<2xi64>) -> tensor<?x16xf16>
  %starts = "onnx.constant"() {value = dense<[0, 1]> : tensor<2xi32>} : () -> tensor<2xi32>
  %bounds = "onnx.constant"() {value = dense<[1, 64]> : tensor<2xi32>} : () -> tensor<2xi32>
  %past = "onnx.cast"(%at) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<?xi64>) -> tensor<?xi32>
  %own = "onnx.constant"() {value = dense<0> : tensor<1x4xi32>} : () -> tensor<1x4xi32>
  %cast = "onnx.cast"(%own) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<1x4xi32>) -> tensor<?x?xi32>
  // expected-error@below {{writes past.0.key otherwise than through the argument block_table}}
  %a:3 = "onnx.ms_paged_attention"(%rows, %rows, %rows, %k, %v, %starts, %past, %cast, %none, %none, %none, %none, %none, %none, %none, %none, %bounds) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>, tensor<2xi32>, tensor<?xi32>, tensor<?x?xi32>, none, none, none, none, none, none, none, none, tensor<2xi32>) -> (tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>)
  %out = "plan.copy"(%x) {to = "host"} : (tensor<?x?x16xf16>) -> tensor<?x?x16xf16>
  return %out, %a#1, %a#2 : tensor<?x?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>
}

// -----

// A past length that is a constant is a cached length baked in.
func.func @baked(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %k: tensor<?x16x2x8xf16> {plan.name = "past.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %v: tensor<?x16x2x8xf16> {plan.name = "past.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %table: tensor<?x?xi32> {plan.name = "block_table", plan.role = "block_table", plan.dims = ["batch", "blocks_per_row"]})
    -> (tensor<?x?x16xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "16"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.alias = 2 : i64, plan.dims = ["blocks", "16", "2", "8"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.alias = 3 : i64, plan.dims = ["blocks", "16", "2", "8"]}) {
  %none = "onnx.no_value"() : () -> none
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x16xf16>
  %x = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cuda:0"} : (tensor<9x16xf16>, tensor<?x?xi64>) -> tensor<?x?x16xf16>
  %flat = "onnx.constant"() {value = dense<[-1, 16]> : tensor<2xi64>} : () -> tensor<2xi64>
  %rows = "onnx.reshape"(%x, %flat) {plan.device = "cuda:0"} : (tensor<?x?x16xf16>, tensor<2xi64>) -> tensor<?x16xf16>
  %starts = "onnx.constant"() {value = dense<[0, 1]> : tensor<2xi32>} : () -> tensor<2xi32>
  %bounds = "onnx.constant"() {value = dense<[1, 64]> : tensor<2xi32>} : () -> tensor<2xi32>
  %past = "onnx.cast"(%at) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<?xi64>) -> tensor<?xi32>
  %c = "onnx.constant"() {value = dense<7> : tensor<1xi32>} : () -> tensor<1xi32>
  %cp = "onnx.cast"(%c) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<1xi32>) -> tensor<?xi32>
  // expected-error@below {{writes past.0.key at a position that does not follow from the write offset}}
  %a:3 = "onnx.ms_paged_attention"(%rows, %rows, %rows, %k, %v, %starts, %cp, %table, %none, %none, %none, %none, %none, %none, %none, %none, %bounds) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>, tensor<2xi32>, tensor<?xi32>, tensor<?x?xi32>, none, none, none, none, none, none, none, none, tensor<2xi32>) -> (tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>)
  %out = "plan.copy"(%x) {to = "host"} : (tensor<?x?x16xf16>) -> tensor<?x?x16xf16>
  return %out, %a#1, %a#2 : tensor<?x?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>
}

// -----

// A plain write knows nothing of blocks.
func.func @scattered(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %k: tensor<?x16x2x8xf16> {plan.name = "past.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %v: tensor<?x16x2x8xf16> {plan.name = "past.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %table: tensor<?x?xi32> {plan.name = "block_table", plan.role = "block_table", plan.dims = ["batch", "blocks_per_row"]})
    -> (tensor<?x?x16xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "16"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.alias = 2 : i64, plan.dims = ["blocks", "16", "2", "8"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.alias = 3 : i64, plan.dims = ["blocks", "16", "2", "8"]}) {
  %none = "onnx.no_value"() : () -> none
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x16xf16>
  %x = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cuda:0"} : (tensor<9x16xf16>, tensor<?x?xi64>) -> tensor<?x?x16xf16>
  %flat = "onnx.constant"() {value = dense<[-1, 16]> : tensor<2xi64>} : () -> tensor<2xi64>
  %rows = "onnx.reshape"(%x, %flat) {plan.device = "cuda:0"} : (tensor<?x?x16xf16>, tensor<2xi64>) -> tensor<?x16xf16>
  %starts = "onnx.constant"() {value = dense<[0, 1]> : tensor<2xi32>} : () -> tensor<2xi32>
  %bounds = "onnx.constant"() {value = dense<[1, 64]> : tensor<2xi32>} : () -> tensor<2xi32>
  %past = "onnx.cast"(%at) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<?xi64>) -> tensor<?xi32>
  %new = "onnx.constant"() {value = dense<0.0> : tensor<1x1x2x8xf16>} : () -> tensor<1x1x2x8xf16>
  // expected-error@below {{writes past.0.key otherwise than through the argument block_table}}
  %ks = "onnx.tensor_scatter"(%k, %new, %at) {axis = 1 : i64, plan.device = "cuda:0"} : (tensor<?x16x2x8xf16>, tensor<1x1x2x8xf16>, tensor<?xi64>) -> tensor<?x16x2x8xf16>
  %other = "onnx.neg"(%ks) {plan.device = "cuda:0"} : (tensor<?x16x2x8xf16>) -> tensor<?x16x2x8xf16>
  %a:3 = "onnx.ms_paged_attention"(%rows, %rows, %rows, %other, %v, %starts, %past, %table, %none, %none, %none, %none, %none, %none, %none, %none, %bounds) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>, tensor<2xi32>, tensor<?xi32>, tensor<?x?xi32>, none, none, none, none, none, none, none, none, tensor<2xi32>) -> (tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>)
  %out = "plan.copy"(%x) {to = "host"} : (tensor<?x?x16xf16>) -> tensor<?x?x16xf16>
  return %out, %ks, %a#2 : tensor<?x?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>
}

// -----

// Each pool is written exactly once.
func.func @twice(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %k: tensor<?x16x2x8xf16> {plan.name = "past.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %v: tensor<?x16x2x8xf16> {plan.name = "past.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %table: tensor<?x?xi32> {plan.name = "block_table", plan.role = "block_table", plan.dims = ["batch", "blocks_per_row"]})
    -> (tensor<?x?x16xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "16"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.alias = 2 : i64, plan.dims = ["blocks", "16", "2", "8"]},
        tensor<?x16x2x8xf16> {plan.name = "present.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.alias = 3 : i64, plan.dims = ["blocks", "16", "2", "8"]}) {
  %none = "onnx.no_value"() : () -> none
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x16xf16>
  %x = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cuda:0"} : (tensor<9x16xf16>, tensor<?x?xi64>) -> tensor<?x?x16xf16>
  %flat = "onnx.constant"() {value = dense<[-1, 16]> : tensor<2xi64>} : () -> tensor<2xi64>
  %rows = "onnx.reshape"(%x, %flat) {plan.device = "cuda:0"} : (tensor<?x?x16xf16>, tensor<2xi64>) -> tensor<?x16xf16>
  %starts = "onnx.constant"() {value = dense<[0, 1]> : tensor<2xi32>} : () -> tensor<2xi32>
  %bounds = "onnx.constant"() {value = dense<[1, 64]> : tensor<2xi32>} : () -> tensor<2xi32>
  %past = "onnx.cast"(%at) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<?xi64>) -> tensor<?xi32>
  %a:3 = "onnx.ms_paged_attention"(%rows, %rows, %rows, %k, %v, %starts, %past, %table, %none, %none, %none, %none, %none, %none, %none, %none, %bounds) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>, tensor<2xi32>, tensor<?xi32>, tensor<?x?xi32>, none, none, none, none, none, none, none, none, tensor<2xi32>) -> (tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>)
  // expected-error@below {{KV slot past.0.key is not written exactly once}}
  %b:3 = "onnx.ms_paged_attention"(%rows, %rows, %rows, %k, %a#2, %starts, %past, %table, %none, %none, %none, %none, %none, %none, %none, %none, %bounds) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>, tensor<2xi32>, tensor<?xi32>, tensor<?x?xi32>, none, none, none, none, none, none, none, none, tensor<2xi32>) -> (tensor<?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>)
  %out = "plan.copy"(%x) {to = "host"} : (tensor<?x?x16xf16>) -> tensor<?x?x16xf16>
  return %out, %a#1, %a#2 : tensor<?x?x16xf16>, tensor<?x16x2x8xf16>, tensor<?x16x2x8xf16>
}

// -----

// How many blocks there are is the runtime's to decide.
// expected-error@below {{fixes dimension 0 of past.0.key}}
func.func @fixed_pool(
    %ids: tensor<?x?xi64> {plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]},
    %at: tensor<?xi64> {plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]},
    %k: tensor<12x16x2x8xf16> {plan.name = "past.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %v: tensor<12x16x2x8xf16> {plan.name = "past.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.dims = ["blocks", "16", "2", "8"]},
    %table: tensor<?x?xi32> {plan.name = "block_table", plan.role = "block_table", plan.dims = ["batch", "blocks_per_row"]})
    -> (tensor<?x?x16xf16> {plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "sequence", "16"]},
        tensor<12x16x2x8xf16> {plan.name = "present.0.key", plan.role = "kv_pool", plan.which = "key", plan.layer = 0 : i64, plan.alias = 2 : i64, plan.dims = ["blocks", "16", "2", "8"]},
        tensor<12x16x2x8xf16> {plan.name = "present.0.value", plan.role = "kv_pool", plan.which = "value", plan.layer = 0 : i64, plan.alias = 3 : i64, plan.dims = ["blocks", "16", "2", "8"]}) {
  %none = "onnx.no_value"() : () -> none
  %w = "plan.weight"() {name = "w"} : () -> tensor<9x16xf16>
  %x = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cuda:0"} : (tensor<9x16xf16>, tensor<?x?xi64>) -> tensor<?x?x16xf16>
  %flat = "onnx.constant"() {value = dense<[-1, 16]> : tensor<2xi64>} : () -> tensor<2xi64>
  %rows = "onnx.reshape"(%x, %flat) {plan.device = "cuda:0"} : (tensor<?x?x16xf16>, tensor<2xi64>) -> tensor<?x16xf16>
  %starts = "onnx.constant"() {value = dense<[0, 1]> : tensor<2xi32>} : () -> tensor<2xi32>
  %bounds = "onnx.constant"() {value = dense<[1, 64]> : tensor<2xi32>} : () -> tensor<2xi32>
  %past = "onnx.cast"(%at) {to = 6 : i64, plan.device = "cuda:0"} : (tensor<?xi64>) -> tensor<?xi32>
  %a:3 = "onnx.ms_paged_attention"(%rows, %rows, %rows, %k, %v, %starts, %past, %table, %none, %none, %none, %none, %none, %none, %none, %none, %bounds) {kv_num_heads = 2 : i64, num_heads = 2 : i64, plan.device = "cuda:0"}
    : (tensor<?x16xf16>, tensor<?x16xf16>, tensor<?x16xf16>, tensor<12x16x2x8xf16>, tensor<12x16x2x8xf16>, tensor<2xi32>, tensor<?xi32>, tensor<?x?xi32>, none, none, none, none, none, none, none, none, tensor<2xi32>) -> (tensor<?x16xf16>, tensor<12x16x2x8xf16>, tensor<12x16x2x8xf16>)
  %out = "plan.copy"(%x) {to = "host"} : (tensor<?x?x16xf16>) -> tensor<?x?x16xf16>
  return %out, %a#1, %a#2 : tensor<?x?x16xf16>, tensor<12x16x2x8xf16>, tensor<12x16x2x8xf16>
}
