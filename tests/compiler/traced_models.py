"""Tiny models through trace, import and convert-torch-to-onnx, made once a test session."""

from __future__ import annotations

import copy
import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_models import FAMILIES, make_tiny_model, tiny_config
from torch_mlir import ir

from planonce.compiler.import_torch import import_program
from planonce.compiler.trace import TracedModel, trace
from planonce.passes.driver import run_pipeline
from planonce.passes.ir.context import make_context

__all__ = [
    "MAX_SEQ_LEN", "MORE_FAMILIES", "converted", "eager_logits", "extra_config", "tiny_weights", "traced",
]  # fmt: skip

MAX_SEQ_LEN = 128
# Compiled as well, beside those of tiny_models: their heads turn interleaved, in whole and in part.
MORE_FAMILIES = ("cohere", "glm", "gptj")
CONVERT = "convert-torch-to-onnx,canonicalize,cse"


def extra_config(family: str) -> Any:
    """Interleaved rotary embeddings; and configurations that trace, but are not all lowered yet."""
    import transformers as t

    sizes = {
        "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
    latent = {
        "n_routed_experts": 4, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 1,
    }  # fmt: skip
    make = {
        "qwen3_moe": lambda: t.Qwen3MoeConfig(**sizes, **experts, head_dim=16, num_experts=4),
        "deepseek_v2": lambda: t.DeepseekV2Config(**sizes, **experts, **latent, n_group=1),
        "deepseek_v3": lambda: t.DeepseekV3Config(**sizes, **experts, **latent, n_group=2),
        "cohere": lambda: t.CohereConfig(**sizes, logit_scale=1.0, pad_token_id=0),
        "glm": lambda: t.GlmConfig(**sizes, head_dim=32, pad_token_id=0),
        "gptj": lambda: t.GPTJConfig(
            vocab_size=320,
            n_positions=256,
            n_embd=64,
            n_layer=2,
            n_head=4,
            rotary_dim=8,
            bos_token_id=1,
            eos_token_id=2,
        ),
    }
    return make[family]()


@functools.cache
def traced(family: str) -> TracedModel:
    """The tiny configuration of a family, traced."""
    config = tiny_config(family) if family in FAMILIES else extra_config(family)
    return trace(config, max_seq_len=MAX_SEQ_LEN)


@functools.cache
def converted(family: str) -> ir.Module:
    """The traced model in the onnx and plan dialects."""
    module = import_program(traced(family), make_context())
    run_pipeline(module, CONVERT)
    return module


@functools.cache
def _tiny(family: str) -> Any:
    config = None if family in FAMILIES else extra_config(family)
    with tempfile.TemporaryDirectory() as directory:
        return make_tiny_model(family, Path(directory), tokenizer=False, config=config).model


def tiny_weights(family: str) -> dict[str, np.ndarray]:
    """The weights of the tiny model of a family, far from transformers' near-uniform initialisation."""
    return {name: value.detach().numpy() for name, value in _tiny(family).state_dict().items()}


def eager_logits(family: str, tokens: np.ndarray) -> np.ndarray:
    """Logits f32 [B, S, V] of transformers' eager attention over the whole sequence at once."""
    model = copy.deepcopy(_tiny(family))
    with torch.no_grad():
        return model(torch.from_numpy(tokens)).logits.numpy()
