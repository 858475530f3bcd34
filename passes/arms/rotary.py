"""plan.rope for the arms: what the fused arm can turn itself, and RotaryEmbedding for the rest."""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir

from ..ir.attributes import to_python
from ..ir.builder import OnnxBuilder, shape_of
from ..ir.devices import device_of_op
from ..ir.matching import maker

__all__ = ["Rope", "lower_rope", "shared_rope"]


@dataclass(frozen=True, slots=True)
class Rope:
    """One plan.rope. Tables [positions, rotary_dim / 2]."""

    op: ir.Operation
    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    positions: ir.Value
    interleaved: int
    rotary_dim: int

    @staticmethod
    def of(op: ir.Operation) -> Rope:
        x, cos, sin, positions = op.operands
        numbers = [int(str(to_python(op.attributes[name]))) for name in ("interleaved", "rotary_dim")]
        return Rope(op, x, cos, sin, positions, *numbers)

    def turns_like(self, other: Rope) -> bool:
        return (self.cos, self.sin, self.positions, self.interleaved, self.rotary_dim) == (
            other.cos, other.sin, other.positions, other.interleaved, other.rotary_dim,
        )  # fmt: skip


def shared_rope(q: ir.Value, k: ir.Value, head_dim: int) -> tuple[Rope, Rope] | None:
    """The embeddings of q and k when they are alike and GroupQueryAttention can apply them, else None."""
    makers = maker(q, "plan.rope"), maker(k, "plan.rope")
    if makers[0] is None or makers[1] is None:
        return None
    ropes = Rope.of(makers[0]), Rope.of(makers[1])
    # Its rotary kernel refuses other sizes on the CPU.
    fits = head_dim % 16 == 0 and ropes[0].rotary_dim % 16 == 0
    return ropes if fits and ropes[0].turns_like(ropes[1]) else None


def lower_rope(op: ir.Operation) -> None:
    """Replace a plan.rope by ONNX's RotaryEmbedding on [B, H, S, D]."""
    rope = Rope.of(op)
    builder = OnnxBuilder(op.location, ir.InsertionPoint(op), device_of_op(op) or "")
    whole = rope.rotary_dim == shape_of(rope.x)[3]
    turned = builder.one(
        "RotaryEmbedding",
        [rope.x, rope.cos, rope.sin, rope.positions],
        op.results[0].type,
        {
            "interleaved": rope.interleaved,
            "rotary_embedding_dim": None if whole else rope.rotary_dim,
            "num_heads": None if whole else shape_of(rope.x)[1],
        },
    )
    op.results[0].replace_all_uses_with(turned)
    op.erase()
