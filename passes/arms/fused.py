"""The fused arm: ONNX Runtime's GroupQueryAttention, which also writes the KV slots, in place."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch_mlir import ir

from ..ir.builder import OnnxBuilder, constant_array, dtype_of, rank_of, shape_of, tensor_type
from ..ir.matching import erase_if_dead, last_axis_slice, maker, permutation
from ..ir.op_schema import MS_DOMAIN
from .call import AttentionCall
from .rotary import shared_rope
from .step_lengths import StepLengths

__all__ = ["FusedArm"]

_DTYPES = {"cpu": ("f32", "f16"), "cuda": ("f16", "bf16")}
_MOST_HEAD_DIM_ON_CUDA = 256  # of flash attention; ONNX Runtime refuses larger ones when it runs
_SWAP_HEADS = [0, 2, 1, 3]


class FusedArm:
    """Its cost follows the live length, not the capacity. On the CPU it takes several new positions of
    several rows only when no row has any position yet. On CUDA it is for 16-bit types."""

    name: ClassVar[str] = "fused"
    reason: ClassVar[str] = "one GroupQueryAttention reads the live prefix and writes in place"

    @staticmethod
    def refusal(call: AttentionCall, device: str) -> str:
        kind = device.partition(":")[0]
        if call.dtype not in _DTYPES.get(kind, ()):
            return f"no GroupQueryAttention for {call.dtype} on {kind}"
        if call.head_dim != call.v_head_dim:
            return f"keys have head_dim {call.head_dim}, values {call.v_head_dim}"
        if call.head_dim % 8:
            return f"head_dim {call.head_dim} is no multiple of 8"
        if kind == "cuda" and call.head_dim > _MOST_HEAD_DIM_ON_CUDA:
            return f"head_dim {call.head_dim} is more than {_MOST_HEAD_DIM_ON_CUDA}, the most on cuda"
        for what, cache, write in (("K", call.k_cache, call.k_write), ("V", call.v_cache, call.v_write)):
            if write is None:
                return f"its {what} cache is not written in this layer"
            if write.operands[2] != call.write_offset:
                return f"its {what} cache is written at another offset"
            if not all(_may_read(use.owner.operation, call.op) for use in cache.uses):
                return f"its {what} cache is also read elsewhere"
        return ""

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
            *_packed([_flat(builder, value) for value in (q, k_new, v_new)]),
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
        _replace_attended(call.op, attended, builder)
        call.k_write.results[0].replace_all_uses_with(k_present)
        call.v_write.results[0].replace_all_uses_with(v_present)
        for write in dict.fromkeys((call.k_write, call.v_write)):
            write.erase()
        for rope in ropes or ():
            erase_if_dead(rope.op.results[0])


def _packed(flat: list[ir.Value]) -> list[ir.Value | None]:
    """q, k and v [B, S, *] as one operand when they are the whole of one value, side by side in that order:
    the kernel reads them where they lie, and nothing has to be split."""
    sections = [last_axis_slice(value) for value in flat]
    source, end = None, 0
    for section in sections:
        if section is None or section[1] != end or section[3] != 1:
            return [*flat]
        if source is not None and section[0] != source:
            return [*flat]
        source, end = section[0], section[2]
    if source is None or shape_of(source)[-1] != end:
        return [*flat]
    return [source, None, None]


def _may_read(reader: ir.Operation, attention: ir.Operation) -> bool:
    return reader == attention or reader.name == "func.return"


def _flat(builder: OnnxBuilder, value: ir.Value) -> ir.Value:
    """[B, H, S, D] -> [B, S, H*D], without the transpose and reshape that split the heads just before."""
    batch, heads, sequence, head_dim = shape_of(value)
    assert heads is not None and head_dim is not None
    transpose = maker(value, "onnx.transpose")
    if transpose is not None and permutation(transpose) == _SWAP_HEADS:
        return _merge_heads(builder, transpose.operands[0], heads * head_dim)
    swapped = builder.one(
        "Transpose",
        [value],
        tensor_type([batch, sequence, heads, head_dim], dtype_of(value)),
        {"perm": _SWAP_HEADS},
    )
    return _merge_heads(builder, swapped, heads * head_dim)


def _merge_heads(builder: OnnxBuilder, value: ir.Value, width: int) -> ir.Value:
    reshape = maker(value, "onnx.reshape")
    if reshape is not None:
        source = reshape.operands[0]
        # A reshape keeps the row-major order: what already is [B, S, H*D] is the value wanted.
        if rank_of(source) == 3 and shape_of(source)[2] == width and _splits_last(reshape):
            return source
    batch, sequence = shape_of(value)[:2]
    target = builder.constant(np.array([0, 0, width], dtype=np.int64))
    return builder.one("Reshape", [value, target], tensor_type([batch, sequence, width], dtype_of(value)))


def _splits_last(reshape: ir.Operation) -> bool:
    """Whether a reshape keeps the first two dimensions as they are."""
    target = constant_array(reshape.operands[1])
    return target is not None and target.size == 4 and bool((target[:2] == 0).all())


def _replace_attended(op: ir.Operation, attended: ir.Value, builder: OnnxBuilder) -> None:
    """Hand [B, S, H*D] to the readers of the op's [B, S, H, D] result, most of which merge the heads."""
    result = op.results[0]
    heads, head_dim = shape_of(result)[2:]
    target = builder.constant(np.array([0, 0, heads, head_dim], dtype=np.int64))
    split = builder.one("Reshape", [attended, target], result.type)
    for use in list(result.uses):
        reader = use.owner.operation
        if reader.name == "onnx.reshape" and reader.results[0].type == attended.type:
            reader.results[0].replace_all_uses_with(attended)
    result.replace_all_uses_with(split)
    op.erase()
