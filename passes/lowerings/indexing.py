"""Lookups by index, and scattering."""

from __future__ import annotations

from torch_mlir import ir

from ..ir.builder import dtype_of, rank_of, shape_of, tensor_type
from .shape import as_size, axis_of
from .state import Lowering
from .table import Call, LoweringTable, NotLowered

__all__ = ["TABLE"]

TABLE = LoweringTable("indexing")


@TABLE.row("torch.aten.embedding")
def _embedding(low: Lowering, call: Call) -> ir.Value:
    weight, indices = call.args[:2]
    return low.one("Gather", [weight, indices], call.type, {"axis": 0})


@TABLE.row("torch.aten.index_select")
def _index_select(low: Lowering, call: Call) -> ir.Value:
    value, axis, indices = call.args
    return low.one("Gather", [value, indices], call.type, {"axis": axis_of(axis, rank_of(value))})


@TABLE.row("torch.aten.index.Tensor")
def _index(low: Lowering, call: Call) -> ir.Value:
    value, indices = call.args
    used = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(used) != 1:
        raise NotLowered(f"{len(used)} index tensors at once")
    axis, index = used[0]
    if dtype_of(index) == "i1":
        raise NotLowered("a boolean mask as index")
    return low.one("Gather", [value, index], call.type, {"axis": axis})


@TABLE.row("torch.aten.gather")
def _gather(low: Lowering, call: Call) -> ir.Value:
    value, axis, indices = call.args[:3]
    return low.one("GatherElements", [value, indices], call.type, {"axis": axis_of(axis, rank_of(value))})


@TABLE.row("torch.aten.scatter.src", "torch.aten.scatter.value")
def _scatter(low: Lowering, call: Call) -> ir.Value:
    value, axis, indices, source = call.args[:4]
    dtype = dtype_of(value)
    if not isinstance(source, ir.Value):
        type_ = tensor_type(shape_of(indices), dtype)
        shape = low.shape_value(low.sizes(indices))
        source = low.one("Expand", [low.scalar(source, dtype), shape], type_)
    return low.one(
        "ScatterElements", [value, indices, source], call.type, {"axis": axis_of(axis, rank_of(value))}
    )


@TABLE.row("torch.aten.slice_scatter")
def _slice_scatter(low: Lowering, call: Call) -> ir.Value:
    """Only the forms that need no scatter: the source replaces all, a head or a tail of the axis."""
    value, source, axis, start, end, step = call.args
    axis = axis_of(axis, rank_of(value))
    whole = low.sizes(value)[axis]
    begin = as_size(0 if start is None else start)
    stop = as_size(2**63 - 1 if end is None else end)
    to_end = stop == whole or (stop.constant is not None and stop.constant >= (whole.constant or 2**31))
    if step != 1 or begin.constant is None or begin.constant < 0:
        raise NotLowered("a strided or dynamic slice_scatter")
    if begin.constant == 0 and to_end:
        return low.cast(source, dtype_of(call.type))
    if not to_end and (stop.constant is None or stop.constant < 0):
        raise NotLowered("a dynamic slice_scatter")
    parts: list[ir.Value] = []
    if begin.constant > 0:
        parts.append(_cut(low, value, axis, 0, begin.constant))
    parts.append(low.cast(source, dtype_of(call.type)))
    if not to_end:
        assert stop.constant is not None
        parts.append(_cut(low, value, axis, stop.constant, 2**63 - 1))
    return low.one("Concat", parts, call.type, {"axis": axis})


def _cut(low: Lowering, value: ir.Value, axis: int, start: int, end: int) -> ir.Value:
    shape = list(shape_of(value))
    whole = shape[axis]
    shape[axis] = None if whole is None else min(end, whole) - start
    operands = [value, low.ints([start]), low.ints([end]), low.ints([axis])]
    return low.one("Slice", operands, tensor_type(shape, dtype_of(value)))
