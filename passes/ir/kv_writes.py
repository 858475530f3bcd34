"""Which operations write a KV buffer in place, and through which operand and result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_mlir import ir

__all__ = ["KvWrite", "kv_write_of", "offset_of", "writes_into"]


@dataclass(frozen=True, slots=True)
class KvWrite:
    """``op`` writes operand ``cache`` and returns it as result ``result``; ``offset`` says where."""

    op: ir.Operation
    cache: int
    result: int
    offset: int


# op -> (cache operand, result, operand that says where it writes). For grouped-query attention that is
# seqlens_k: it writes the new positions just before that end. For paged attention it is past_seqlens: the
# block table says in which block a position lies.
_WRITERS: Mapping[str, tuple[tuple[int, int, int], ...]] = {
    "plan.write_slice": ((0, 0, 2),),
    "onnx.tensor_scatter": ((0, 0, 2),),
    "onnx.ms_group_query_attention": ((3, 1, 5), (4, 2, 5)),
    "onnx.ms_paged_attention": ((3, 1, 6), (4, 2, 6)),
}


def writes_into(op: ir.Operation | ir.OpView, operand: int) -> bool:
    """Whether the op overwrites that operand's buffer."""
    return any(cache == operand for cache, _, _ in _WRITERS.get(op.name, ()))


def kv_write_of(value: ir.Value) -> KvWrite | None:
    """The write that made ``value``, or None when it is an argument or another operation's result."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    number = ir.OpResult(value).result_number
    for cache, result, offset in _WRITERS.get(owner.name, ()):
        if result == number:
            return KvWrite(owner, cache, result, offset)
    return None


def offset_of(write: KvWrite) -> ir.Value:
    """The value that says where the write goes."""
    return write.op.operands[write.offset]
