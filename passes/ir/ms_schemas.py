"""Operators of ONNX Runtime that are not in the ONNX registry, as ONNX Runtime 1.31 declares them.

A hand table, because this room may not import onnxruntime; a test compares it with the installed one.
``?`` marks an optional input or output, ``!`` a required attribute.
"""

from __future__ import annotations

from .attributes import AttributeKind
from .op_schema import MS_DOMAIN, AttributeSpec, OpSchema, Parameter

__all__ = ["MS_SCHEMAS"]


def _parameters(names: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(name.rstrip("?"), optional=name.endswith("?")) for name in names.split())


def _schema(
    op_type: str, inputs: str, outputs: str, attributes: str = "", domain: str = MS_DOMAIN
) -> OpSchema:
    specs: dict[str, AttributeSpec] = {}
    for item in attributes.split():
        name, kind = item.split(":")
        specs[name] = AttributeSpec(AttributeKind(kind.rstrip("!")), required=kind.endswith("!"))
    return OpSchema(op_type, domain, _parameters(inputs), _parameters(outputs), specs)


MS_SCHEMAS: tuple[OpSchema, ...] = (
    _schema(
        "FusedMatMul",
        "A B",
        "Y",
        "alpha:float transA:int transB:int transBatchA:int transBatchB:int",
    ),
    _schema(
        "GroupQueryAttention",
        "query key? value? past_key? past_value? seqlens_k total_sequence_length cos_cache? "
        "sin_cache? position_ids? attention_bias? head_sink? k_scale? v_scale? q_norm_weight? "
        "k_norm_weight?",
        "output present_key? present_value? output_qk?",
        "causal:int do_rotary:int k_quant_type:string kv_cache_bit_width:int kv_num_heads:int! "
        "local_window_size:int num_heads:int! qk_norm_epsilon:float qk_output:int "
        "rotary_interleaved:int scale:float sliding_window_cache:int smooth_softmax:int "
        "softcap:float v_quant_type:string",
    ),
    _schema(
        "MatMulNBits",
        "A B scales zero_points? g_idx? bias?",
        "Y",
        "K:int! N:int! accuracy_level:int bits:int block_size:int! weight_prepacked:int",
    ),
    _schema(
        "GatherBlockQuantized",
        "data indices scales zero_points?",
        "output",
        "bits:int block_size:int gather_axis:int quantize_axis:int",
    ),
    _schema(
        "SkipSimplifiedLayerNormalization",
        "input skip gamma bias?",
        "output mean? inv_std_var? input_skip_bias_sum?",
        "epsilon:float",
    ),
    # ONNX Runtime registers this one in the default domain, outside any ONNX opset.
    _schema(
        "SimplifiedLayerNormalization",
        "X scale",
        "Y inv_std_var?",
        "axis:int epsilon:float stash_type:int",
        domain="",
    ),
    _schema(
        "SkipLayerNormalization",
        "input skip gamma beta? bias?",
        "output mean? inv_std_var? input_skip_bias_sum?",
        "epsilon:float",
    ),
    _schema(
        "RotaryEmbedding",
        "input position_ids cos_cache sin_cache",
        "output",
        "interleaved:int is_packed_batching:int num_heads:int rotary_embedding_dim:int scale:float",
    ),
    _schema(
        "QuickGelu",
        "X",
        "Y",
        "alpha:float",
    ),
    _schema(
        "FastGelu",
        "X bias?",
        "Y",
    ),
    _schema(
        "BiasGelu",
        "A B",
        "C",
    ),
    _schema(
        "Gelu",
        "X",
        "Y",
    ),
    _schema(
        "MultiHeadAttention",
        "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? "
        "past_sequence_length? cache_indirection?",
        "output present_key? present_value? qk?",
        "mask_filter_value:float num_heads:int! scale:float unidirectional:int",
    ),
    _schema(
        "PagedAttention",
        "query key? value? key_cache value_cache? cumulative_sequence_length past_seqlens "
        "block_table cos_cache? sin_cache? slot_mapping? head_sink? q_norm_weight? k_norm_weight? "
        "k_scale? v_scale? attention_metadata?",
        "output key_cache_out? value_cache_out?",
        "do_rotary:int is_causal:int k_cache_dtype:string k_quant_type:string "
        "kv_cache_layout:string kv_num_heads:int! local_window_size:int num_heads:int! "
        "qk_norm_epsilon:float rotary_interleaved:int rotary_offset:int scale:float softcap:float "
        "v_cache_dtype:string v_head_size:int v_quant_type:string",
    ),
    _schema(
        "MoE",
        "input router_probs fc1_experts_weights fc1_experts_bias? fc2_experts_weights "
        "fc2_experts_bias? fc3_experts_weights? fc3_experts_bias?",
        "output",
        "activation_alpha:float activation_beta:float activation_type:string k:int "
        "normalize_routing_weights:int swiglu_fusion:int swiglu_limit:float use_sparse_mixer:int",
    ),
    _schema(
        "QMoE",
        "input router_probs fc1_experts_weights fc1_scales? fc1_experts_bias? fc2_experts_weights "
        "fc2_scales? fc2_experts_bias? fc3_experts_weights? fc3_scales? fc3_experts_bias? "
        "fc1_zero_points? fc2_zero_points? fc3_zero_points? router_weights? fc1_global_scale? "
        "fc2_global_scale? fc1_act_scale? fc2_act_scale? fc1_act_block_scale? "
        "fc2_act_block_scale?",
        "output",
        "accuracy_level:int activation_alpha:float activation_beta:float activation_type:string "
        "block_size:int expert_weight_bits:int fc1_expert_weight_bits:int "
        "fc2_expert_weight_bits:int fc3_expert_weight_bits:int k:int "
        "normalize_routing_weights:int quant_type:string swiglu_fusion:int swiglu_limit:float "
        "use_sparse_mixer:int weights_prepacked:int",
    ),
)
