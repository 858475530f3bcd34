"""The shape key: one hash that says "the same computation" of two plans.

It covers the model family, every configuration value that can change the numbers, the identity of
the weights, and the arithmetic's dtype. It leaves out what is checked on its own when a KV cache is
rebound (capacity, cache dtype, device) and the attention arm, whose results are interchangeable.
A value that is wrongly included costs a rebuild; one that is wrongly left out decodes over another
model's cache. So configuration keys are dropped by name, and an unknown one stays in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from .tensor_use import TensorUse

__all__ = ["shape_key", "structural_config", "weights_dtype"]

SHAPE_KEY_VERSION = 1

# Names, provenance, training-time and output-format settings: none of them reaches a logit at decode.
_NOT_STRUCTURE = frozenset(
    {
        "name_or_path", "transformers_version", "architectures", "auto_map", "dtype", "torch_dtype",
        "quantization_config", "model_name", "tokenizer_class", "finetuning_task", "problem_type",
        "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
        "decoder_start_token_id", "id2label", "label2id", "num_labels", "task_specific_params",
        "use_cache", "return_dict", "output_attentions", "output_hidden_states", "torchscript",
        "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
        "embd_dropout", "resid_dropout", "attn_dropout", "classifier_dropout", "router_aux_loss_coef",
        "output_router_logits", "pretraining_tp", "is_encoder_decoder", "chunk_size_feed_forward",
        "attn_implementation", "experts_implementation", "summary_type", "summary_use_proj",
        "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
    }
)  # fmt: skip


def structural_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """``PretrainedConfig.to_dict()`` without what cannot change the computation, keys sorted."""
    kept: dict[str, Any] = {}
    for key in sorted(config):
        if key.startswith("_") or key in _NOT_STRUCTURE:
            continue
        value = config[key]
        kept[key] = structural_config(value) if isinstance(value, Mapping) else value
    return kept


def shape_key(family: str, config: Mapping[str, Any], *, weight_identity: str, dtype: str) -> str:
    """sha256 hex over (family, structure of ``config``, weight identity, dtype of arithmetic)."""
    document = {
        "version": SHAPE_KEY_VERSION,
        "family": family,
        "config": structural_config(config),
        "weights": weight_identity,
        "dtype": dtype,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()


def weights_dtype(tensors: Iterable[TensorUse], arithmetic: str) -> str:
    """What the weights are kept in, where it changes their values: ``arithmetic``, and after it each
    quantised weight's format. Merging weights changes nothing."""
    found = {f"{part}: {use.encoding.format}" for use in tensors if use.encoding for part in use.parts}
    return "\n".join([arithmetic, *sorted(found)])


def _plain(value: object) -> object:
    """JSON form of the few non-JSON values a configuration holds: sets, tuples and dtypes."""
    if isinstance(value, (set, frozenset)):
        return sorted(str(item) for item in value)
    if isinstance(value, tuple):
        return list(value)
    return str(value)
