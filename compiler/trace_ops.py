"""The operations a traced program keeps whole: `planonce::kv_write`, `::attention`, `::experts`.

Each has a shape rule, so that it traces on the meta device, and a plain torch implementation, so that a
traced program can be run and held against the model it came from.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["attention", "experts", "kv_write"]


@torch.library.custom_op("planonce::kv_write", mutates_args=())
def kv_write(cache: Tensor, new: Tensor, write_offset: Tensor) -> Tensor:
    """Write `new` [B, H, S, D] into `cache` [B, H, C, D] at positions write_offset[b] .. + S (i64 [B])."""
    written = cache.clone()
    positions = write_offset[:, None] + torch.arange(new.shape[2], device=new.device)
    rows = torch.arange(cache.shape[0], device=new.device)[:, None]
    written[rows, :, positions] = new.transpose(1, 2).to(cache.dtype)
    return written


@kv_write.register_fake
def _(cache: Tensor, new: Tensor, write_offset: Tensor) -> Tensor:
    return torch.empty_like(cache)


@torch.library.custom_op("planonce::attention", mutates_args=())
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    write_offset: Tensor,
    sinks: Tensor | None,
    layer: int,
    scale: float,
    window: int,
    softcap: float,
) -> Tensor:
    """Causal attention of S new positions over a cache that already holds them.

    query [B, Hq, S, D], key [B, Hkv, C, D], value [B, Hkv, C, Dv], write_offset i64 [B], sinks [Hq] or None
    -> [B, S, Hq, Dv]. Query row s of sequence b stands at position write_offset[b] + s and sees positions up
    to its own; window > 0 limits that to the last `window` ones, itself included; softcap > 0 squashes the
    scores to softcap * tanh(x / softcap). Positions it does not see are never read.
    """
    groups = query.shape[1] // key.shape[1]
    capacity = key.shape[2]
    at = write_offset[:, None] + torch.arange(query.shape[2], device=query.device)
    slots = torch.arange(capacity, device=query.device)
    seen = slots <= at[:, :, None]
    if window > 0:
        seen &= slots > at[:, :, None] - window
    live = seen.any(dim=1)[:, None, :, None]
    key = torch.where(live, key, 0.0).repeat_interleave(groups, dim=1)
    value = torch.where(live, value, 0.0).repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(2, 3) * scale
    if softcap > 0:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~seen[:, None], float("-inf"))
    if sinks is not None:
        extra = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        scores = torch.cat([scores, extra], dim=-1)
    weights = torch.softmax(scores.float(), dim=-1).to(query.dtype)[..., :capacity]
    return (weights @ value).transpose(1, 2).contiguous()


@attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    write_offset: Tensor,
    sinks: Tensor | None,
    layer: int,
    scale: float,
    window: int,
    softcap: float,
) -> Tensor:
    return query.new_empty((query.shape[0], query.shape[2], query.shape[1], value.shape[3]))


@torch.library.custom_op("planonce::experts", mutates_args=())
def experts(
    hidden: Tensor,
    expert_index: Tensor,
    expert_weight: Tensor,
    gate_up: Tensor,
    down: Tensor,
    activation: str,
) -> Tensor:
    """Mixture of experts: hidden [T, H], expert_index i64 [T, K], expert_weight [T, K],
    gate_up [E, 2 I, H] (gate rows first), down [E, H, I] -> [T, H]."""
    act = {"silu": functional.silu, "gelu": functional.gelu}[activation]
    total = torch.zeros_like(hidden)
    for k in range(expert_index.shape[1]):
        chosen = expert_index[:, k]
        gate, up = torch.einsum("th,tih->ti", hidden, gate_up[chosen]).chunk(2, dim=-1)
        out = torch.einsum("ti,thi->th", act(gate) * up, down[chosen])
        total = total + out * expert_weight[:, k, None]
    return total


@experts.register_fake
def _(
    hidden: Tensor,
    expert_index: Tensor,
    expert_weight: Tensor,
    gate_up: Tensor,
    down: Tensor,
    activation: str,
) -> Tensor:
    return torch.empty_like(hidden)
