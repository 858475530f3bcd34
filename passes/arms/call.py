"""One ``plan.attention`` with its two KV writes, read once, and what an arm is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch_mlir import ir

from planonce.runtime.errors import PassError

from ..ir.attributes import to_python
from ..ir.builder import OnnxBuilder, dtype_of, is_none, shape_of
from ..ir.devices import device_of_op
from .step_lengths import StepLengths

__all__ = ["AttentionArm", "AttentionCall"]


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """q [B, n_heads, S, head_dim]; caches [B, n_kv_heads, C, *] after this step's writes; sinks [n_heads].

    ``k_write`` and ``v_write``: the plan.write_slice behind each cache, None when another op made it.
    ``device``: where it runs; empty before placement.
    """

    op: ir.Operation
    layer: int
    scale: float
    window: int
    softcap: float
    q: ir.Value
    k_cache: ir.Value
    v_cache: ir.Value
    write_offset: ir.Value
    sinks: ir.Value | None
    k_write: ir.Operation | None
    v_write: ir.Operation | None
    n_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    device: str

    @staticmethod
    def of(op: ir.Operation) -> AttentionCall:
        """Read a plan.attention. Raises PassError when a number of heads or a head_dim is symbolic."""
        q, k_cache, v_cache, write_offset, sinks = op.operands
        sizes = (shape_of(q)[1], shape_of(k_cache)[1], shape_of(q)[3], shape_of(v_cache)[3])
        n_heads, n_kv_heads, head_dim, v_head_dim = (_static(size) for size in sizes)
        numbers = {name: to_python(op.attributes[name]) for name in ("layer", "scale", "window", "softcap")}
        return AttentionCall(
            op=op,
            layer=int(str(numbers["layer"])),
            scale=float(str(numbers["scale"])),
            window=int(str(numbers["window"])),
            softcap=float(str(numbers["softcap"])),
            q=q,
            k_cache=k_cache,
            v_cache=v_cache,
            write_offset=write_offset,
            sinks=None if is_none(sinks) else sinks,
            k_write=_write_slice(k_cache),
            v_write=_write_slice(v_cache),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            v_head_dim=v_head_dim,
            dtype=dtype_of(q),
            device=device_of_op(op) or "",
        )

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.n_heads // self.n_kv_heads


class AttentionArm(Protocol):
    """One way to compute attention. An arm holds nothing: it is a row in the table of select-attention."""

    name: ClassVar[str]
    reason: ClassVar[str]

    @staticmethod
    def refusal(call: AttentionCall, device: str) -> str:
        """Why this arm cannot take the call on the device (such as "cpu:0"); empty when it can."""
        ...

    @staticmethod
    def lower(call: AttentionCall, builder: OnnxBuilder, lengths: StepLengths) -> None:
        """Replace the call, and the KV writes that the arm does itself. ``builder`` inserts before it."""
        ...


def _static(size: int | None) -> int:
    if size is None:
        raise PassError("attention needs static heads and head_dim", found="a dynamic dimension")
    return size


def _write_slice(cache: ir.Value) -> ir.Operation | None:
    owner = cache.owner
    return None if isinstance(owner, ir.Block) or owner.name != "plan.write_slice" else owner
