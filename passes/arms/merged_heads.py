"""Heads side by side, [B, S, H*D], as the kernels of whole attention take and give them; and what must hold
of a layer's two KV writes before such a kernel may do them itself."""

from __future__ import annotations

import numpy as np
from torch_mlir import ir

from ..ir.builder import OnnxBuilder, constant_array, dtype_of, rank_of, shape_of, tensor_type
from ..ir.matching import last_axis_slice, maker, permutation
from .call import AttentionCall

__all__ = [
    "erase_writes", "head_refusal", "merge_heads", "packed", "replace_attended", "write_refusal",
]  # fmt: skip

_SWAP_HEADS = [0, 2, 1, 3]
# Of flash attention. Beyond it ONNX Runtime takes other kernels there. Where heads share keys, those of
# GroupQueryAttention make room for the whole capacity for each query head in every step; those of
# PagedAttention copy all live blocks to every query head in a prefill.
_MOST_ON_CUDA = 256


def head_refusal(call: AttentionCall, kind: str) -> str:
    """Why heads of these sizes are not for one operation on a ``kind`` of device; empty when they are."""
    if call.head_dim != call.v_head_dim:
        return f"keys have head_dim {call.head_dim}, values {call.v_head_dim}"
    if call.head_dim % 8:
        return f"head_dim {call.head_dim} is no multiple of 8"
    if kind == "cuda" and call.head_dim > _MOST_ON_CUDA:
        return f"head_dim {call.head_dim} is more than {_MOST_ON_CUDA}, the most of flash attention"
    return ""


def write_refusal(call: AttentionCall) -> str:
    """Why one operation cannot take the layer's KV writes and its attention together; empty when it can."""
    for what, cache, write in (("K", call.k_cache, call.k_write), ("V", call.v_cache, call.v_write)):
        if write is None:
            return f"its {what} cache is not written in this layer"
        if write.operands[2] != call.write_offset:
            return f"its {what} cache is written at another offset"
        if not all(_may_read(use.owner.operation, call.op) for use in cache.uses):
            return f"its {what} cache is also read elsewhere"
    return ""


def erase_writes(call: AttentionCall, k_present: ir.Value, v_present: ir.Value) -> None:
    """Hand what the kernel wrote to the readers of the two KV writes, which it has done itself."""
    assert call.k_write is not None and call.v_write is not None
    call.k_write.results[0].replace_all_uses_with(k_present)
    call.v_write.results[0].replace_all_uses_with(v_present)
    for write in dict.fromkeys((call.k_write, call.v_write)):
        write.erase()


def packed(flat: list[ir.Value]) -> list[ir.Value | None]:
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


def merge_heads(builder: OnnxBuilder, value: ir.Value) -> ir.Value:
    """[B, H, S, D] -> [B, S, H*D], without the transpose and reshape that split the heads just before."""
    batch, heads, sequence, head_dim = shape_of(value)
    assert heads is not None and head_dim is not None
    transpose = maker(value, "onnx.transpose")
    if transpose is not None and permutation(transpose) == _SWAP_HEADS:
        return _merge(builder, transpose.operands[0], heads * head_dim)
    swapped = builder.one(
        "Transpose",
        [value],
        tensor_type([batch, sequence, heads, head_dim], dtype_of(value)),
        {"perm": _SWAP_HEADS},
    )
    return _merge(builder, swapped, heads * head_dim)


def replace_attended(op: ir.Operation, attended: ir.Value, builder: OnnxBuilder) -> None:
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


def _may_read(reader: ir.Operation, attention: ir.Operation) -> bool:
    return reader == attention or reader.name == "func.return"


def _merge(builder: OnnxBuilder, value: ir.Value, width: int) -> ir.Value:
    """[B, S, H, D] -> [B, S, H*D]."""
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
