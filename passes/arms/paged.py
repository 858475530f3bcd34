"""The paged arm: ONNX Runtime's PagedAttention, which writes and reads blocks of a pool by a block table."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch_mlir import ir

from ..ir.builder import OnnxBuilder, dtype_of, shape_of, tensor_type
from ..ir.matching import erase_if_dead
from ..ir.op_schema import MS_DOMAIN
from .block_pools import block_table_of
from .call import AttentionCall
from .merged_heads import erase_writes, head_refusal, merge_heads, packed, replace_attended, write_refusal
from .rotary import Rope, shared_rope
from .step_lengths import StepLengths

__all__ = ["PagedArm"]

_DTYPES = ("f16", "bf16")


class PagedArm:
    """Sequences share pools of blocks and grow block by block; only on CUDA, and only in 16 bits.

    The rows of a step are packed, token after token: all have S new positions, so row b's begin at b * S.
    Where a token is written follows from its row's past length and the block table, inside the kernel.
    """

    name: ClassVar[str] = "paged"
    reason: ClassVar[str] = "one PagedAttention writes and reads blocks of a pool through a block table"

    @staticmethod
    def refusal(call: AttentionCall, device: str) -> str:
        kind = device.partition(":")[0]
        if kind != "cuda":
            return f"no PagedAttention on {kind}: its kernels are for cuda"
        if call.dtype not in _DTYPES:
            return f"no PagedAttention for {call.dtype}"
        if dtype_of(call.k_cache) != call.dtype or dtype_of(call.v_cache) != call.dtype:
            return f"its cache holds {dtype_of(call.k_cache)}, its queries {call.dtype}"
        return head_refusal(call, kind) or write_refusal(call)

    @staticmethod
    def lower(call: AttentionCall, builder: OnnxBuilder, lengths: StepLengths) -> None:
        assert call.k_write is not None and call.v_write is not None
        k_pool, k_new, _ = call.k_write.operands
        v_pool, v_new, _ = call.v_write.operands
        block_table, block_size = block_table_of(call.op), shape_of(k_pool)[1]
        assert block_size is not None, "to_block_pools fixes it"
        q, ropes = call.q, _own_ropes(call, k_new, lengths)
        if ropes:
            q, k_new = ropes[0].x, ropes[1].x
        merged = packed([merge_heads(builder, value) for value in (q, k_new, v_new)])
        operands = [
            *(None if value is None else _token_rows(builder, value) for value in merged),
            k_pool,
            v_pool,
            lengths.cumulative_sequence_length(),
            lengths.past_seqlens(call.write_offset),
            block_table,
            ropes[0].cos if ropes else None,
            ropes[0].sin if ropes else None,
            None,  # slot_mapping: it would be a second word on where a token goes
            call.sinks,
            *[None] * 4,
            lengths.attention_metadata(block_table, block_size),
        ]
        width = call.n_heads * call.head_dim
        rows, k_present, v_present = builder.op(
            "PagedAttention",
            operands,
            [tensor_type([None, width], call.dtype), k_pool.type, v_pool.type],
            {
                "num_heads": call.n_heads,
                "kv_num_heads": call.n_kv_heads,
                "scale": call.scale,
                "softcap": call.softcap or None,
                "local_window_size": call.window or None,
                "do_rotary": 1 if ropes else None,
                "rotary_interleaved": ropes[0].interleaved if ropes else None,
            },
            MS_DOMAIN,
        )[:3]
        attended = builder.one(
            "Reshape",
            [rows, lengths.merged_shape(width)],
            tensor_type([shape_of(call.q)[0], shape_of(call.q)[2], width], call.dtype),
        )
        replace_attended(call.op, attended, builder)
        erase_writes(call, k_present, v_present)
        for rope in ropes:
            erase_if_dead(rope.op.results[0])


def _own_ropes(call: AttentionCall, k_new: ir.Value, lengths: StepLengths) -> tuple[Rope, ...]:
    """The embeddings of q and k that the kernel applies itself, else none. It counts positions from each
    row's past length and can be given no others; its tables are of the queries' dtype."""
    ropes = shared_rope(call.q, k_new, call.head_dim)
    if ropes is None or lengths.explicit_positions(ropes[0].positions, call.write_offset) is not None:
        return ()
    return ropes if dtype_of(ropes[0].cos) == dtype_of(ropes[0].sin) == call.dtype else ()


def _token_rows(builder: OnnxBuilder, value: ir.Value) -> ir.Value:
    """[B, S, W] -> [B*S, W]."""
    width = shape_of(value)[2]
    assert width is not None
    target = builder.constant(np.array([-1, width], dtype=np.int64))
    return builder.one("Reshape", [value, target], tensor_type([None, width], dtype_of(value)))
