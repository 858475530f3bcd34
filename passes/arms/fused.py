"""The fused arm: ONNX Runtime's GroupQueryAttention, which also writes the KV slots, in place."""

from __future__ import annotations

from typing import ClassVar

from ..ir.builder import OnnxBuilder, shape_of, tensor_type
from ..ir.matching import erase_if_dead
from ..ir.op_schema import MS_DOMAIN
from .call import AttentionCall
from .merged_heads import erase_writes, head_refusal, merge_heads, packed, replace_attended, write_refusal
from .rotary import shared_rope
from .step_lengths import StepLengths

__all__ = ["FusedArm"]

_DTYPES = {"cpu": ("f32", "f16"), "cuda": ("f16", "bf16")}


class FusedArm:
    """Its cost follows the live length, not the capacity. On the CPU it takes several new positions of
    several rows only when no row has any position yet; on CUDA never, for its bound is the capacity there and
    so does not tell an empty cache from another. On CUDA it is for 16-bit types."""

    name: ClassVar[str] = "fused"
    reason: ClassVar[str] = "one GroupQueryAttention reads the live prefix and writes in place"

    @staticmethod
    def refusal(call: AttentionCall, device: str) -> str:
        kind = device.partition(":")[0]
        if call.dtype not in _DTYPES.get(kind, ()):
            return f"no GroupQueryAttention for {call.dtype} on {kind}"
        return head_refusal(call, kind) or write_refusal(call)

    @staticmethod
    def lower(call: AttentionCall, builder: OnnxBuilder, lengths: StepLengths) -> None:
        assert call.k_write is not None and call.v_write is not None
        k_past, k_new, _ = call.k_write.operands
        v_past, v_new, _ = call.v_write.operands
        width = call.n_heads * call.head_dim
        q, rotary, interleaved = call.q, [None, None, None], None
        ropes = shared_rope(q, k_new, call.head_dim)
        if ropes is not None:
            q, k_new = ropes[0].x, ropes[1].x
            rope = ropes[0]
            rotary = [rope.cos, rope.sin, lengths.explicit_positions(rope.positions, call.write_offset)]
            interleaved = rope.interleaved
        operands = [
            *packed([merge_heads(builder, value) for value in (q, k_new, v_new)]),
            k_past,
            v_past,
            lengths.seqlens_k(call.write_offset),
            lengths.total_sequence_length(call.write_offset, k_past),
            *rotary,
            None,
            call.sinks,
        ]
        batch, _, sequence, _ = shape_of(call.q)
        attended, k_present, v_present = builder.op(
            "GroupQueryAttention",
            operands,
            [tensor_type([batch, sequence, width], call.dtype), k_past.type, v_past.type],
            {
                "num_heads": call.n_heads,
                "kv_num_heads": call.n_kv_heads,
                "scale": call.scale,
                "softcap": call.softcap or None,
                "local_window_size": call.window or None,
                "do_rotary": None if ropes is None else 1,
                "rotary_interleaved": interleaved,
            },
            MS_DOMAIN,
        )[:3]
        replace_attended(call.op, attended, builder)
        erase_writes(call, k_present, v_present)
        for rope in ropes or ():
            erase_if_dead(rope.op.results[0])
