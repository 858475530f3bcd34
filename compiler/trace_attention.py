"""The attention and expert functions that transformers calls while a model is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from planonce.runtime.errors import UnsupportedModel

from . import trace_ops  # noqa: F401  (registers torch.ops.planonce.*)

__all__ = ["IMPLEMENTATION", "StepState", "register", "tracing"]

IMPLEMENTATION = "planonce"


@dataclass(slots=True)
class StepState:
    """The step being traced: its write offsets (i64 [B]) and the window each layer's attention asked for."""

    write_offset: Tensor
    windows: dict[int, int] = field(default_factory=dict)


_STEP: ContextVar[StepState | None] = ContextVar("planonce_step", default=None)


@contextlib.contextmanager
def tracing(state: StepState) -> Iterator[StepState]:
    """Attention calls inside this block belong to `state`."""
    token = _STEP.set(state)
    try:
        yield state
    finally:
        _STEP.reset(token)


def _refuse(module: nn.Module, found: str, expected: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{type(module).__name__} calls attention in a way that has no lowering",
        found=found,
        expected=expected,
        todo="this architecture cannot be compiled yet",
    )


# What transformers hands to every attention function and what does not change its result at inference.
_IGNORED = {"dropout", "position_ids", "use_cache", "cache", "is_causal", "position_embeddings"}


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface; query [B, Hq, S, D] -> ([B, S, Hq, Dv], no weights)."""
    state = _STEP.get()
    if state is None:
        raise RuntimeError("attention_implementation 'planonce' is for tracing only")
    if attention_mask is not None:
        raise _refuse(module, "an attention mask built by the model", "no mask: causality is the op's")
    if kwargs.get("is_causal", getattr(module, "is_causal", True)) is False:
        raise _refuse(module, "bidirectional attention", "causal self-attention")
    extra = sorted(k for k, v in kwargs.items() if v is not None and v is not False and k not in _IGNORED)
    if extra:
        raise _refuse(module, f"attention arguments {', '.join(extra)}", "scaling, window, softcap, sinks")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise _refuse(module, "an attention module without layer_idx", "a layer index")
    window = int(sliding_window or 0)
    state.windows[layer] = window
    output = torch.ops.planonce.attention(
        query,
        key,
        value,
        state.write_offset,
        s_aux,
        layer,
        float(scaling if scaling is not None else query.shape[-1] ** -0.5),
        window,
        float(softcap or 0.0),
    )
    return output, None


def experts_forward(
    module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """transformers' experts interface; hidden_states [T, H] -> [T, H]."""
    expected = {"has_gate": True, "has_bias": False, "is_transposed": False, "is_concatenated": True}
    found = {name: getattr(module, name, None) for name in expected}
    activation = getattr(getattr(module, "config", None), "hidden_act", None)
    if found != expected or activation not in ("silu", "gelu"):
        raise UnsupportedModel(
            f"{type(module).__name__}: a mixture of experts of a form that has no lowering",
            found=f"{found}, activation {activation}",
            expected=f"{expected}, activation silu or gelu",
            todo="this architecture cannot be compiled yet",
        )
    gate_up, down = module.gate_up_proj, module.down_proj
    return torch.ops.planonce.experts(hidden_states, top_k_index, top_k_weights, gate_up, down, activation)


def register() -> None:
    """Make `attn_implementation="planonce"` known. No mask function goes with it, so that transformers
    builds no mask at all (its masks would carry the example's lengths into the graph)."""
    ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, attention_forward)
    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, experts_forward)
