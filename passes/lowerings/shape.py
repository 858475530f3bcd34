"""Views, permutations, joins and cuts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_mlir import ir

from ..ir.builder import dtype_of, rank_of, shape_of, tensor_type
from ..ir.op_schema import MAX_VARIADIC
from .sizes import Size, product
from .state import Lowering
from .table import Call, LoweringTable, NotLowered, as_list

__all__ = ["TABLE", "as_size", "axis_of"]

TABLE = LoweringTable("shape")


def as_size(value: Any) -> Size:
    """A Python integer or a Size as a Size."""
    return value if isinstance(value, Size) else Size.of(int(value))


def axis_of(axis: int, rank: int) -> int:
    """A torch dimension, which may count from the end."""
    return axis + rank if axis < 0 else axis


def _resolve(low: Lowering, value: ir.Value, wanted: Sequence[Any], type_: ir.Type) -> list[Size]:
    """The sizes asked for, with -1 replaced: by the type's static size, else by what is left over."""
    static = shape_of(type_)
    sizes = [as_size(want if known is None else known) for want, known in zip(wanted, static, strict=True)]
    if any(size.constant == -1 for size in sizes):
        inferred = [axis for axis, size in enumerate(sizes) if size.constant == -1]
        rest = product([size for size in sizes if size.constant != -1])
        whole = product(list(low.sizes(value)))
        sizes[inferred[0]] = whole.divided_by(rest) or Size.of(f"inferred {whole} / {rest}")
    return sizes


@TABLE.row("torch.aten.view", "torch.aten._unsafe_view", "torch.aten.reshape")
def _view(low: Lowering, call: Call) -> ir.Value:
    value, wanted = call.args
    sizes = _resolve(low, value, wanted, call.type)
    source = low.rows_of.get(value)
    if source is not None and tuple(sizes) == low.sizes(source):
        return source
    result = low.reshape(value, sizes, call.type)
    if len(sizes) == 2 and rank_of(value) > 2 and sizes[1] == low.sizes(value)[-1]:
        low.rows_of[result] = value
    return result


@TABLE.row("torch.aten.flatten.using_ints")
def _flatten(low: Lowering, call: Call) -> ir.Value:
    """Dimensions first to last become one; the others stay, known or not."""
    value, first, last = call.args
    old = low.sizes(value)
    if not old:
        return low.reshape(value, [Size.of(1)], call.type)
    first, last = axis_of(first, len(old)), axis_of(last, len(old))
    joined = product(list(old[first : last + 1]))
    return low.reshape(value, [*old[:first], joined, *old[last + 1 :]], call.type)


@TABLE.row("torch.aten.unflatten.int")
def _known_view(low: Lowering, call: Call) -> ir.Value:
    known = [-1 if size is None else size for size in shape_of(call.type)]
    if known.count(-1) > 1:
        raise NotLowered("more than one unknown size")
    return low.reshape(call.args[0], _resolve(low, call.args[0], known, call.type), call.type)


@TABLE.row("torch.aten.expand", "torch.aten.broadcast_to")
def _expand(low: Lowering, call: Call) -> ir.Value:
    value, wanted = call.args[0], call.args[1]
    old = low.sizes(value)
    offset = len(wanted) - len(old)
    sizes = [
        old[axis - offset] if as_size(want).constant == -1 else as_size(want)
        for axis, want in enumerate(wanted)
    ]
    if tuple(sizes) == old:
        return value
    # Expand keeps a dimension where its target says 1: what stays as it is needs no shape arithmetic.
    kept = [Size.of(1)] * offset + list(old)
    target = [Size.of(1) if size == before else size for size, before in zip(sizes, kept, strict=True)]
    result = low.one("Expand", [value, low.shape_value(target)], call.type)
    low.set_sizes(result, sizes)
    return result


@TABLE.row("torch.aten.unsqueeze")
def _unsqueeze(low: Lowering, call: Call) -> ir.Value:
    value, axis = call.args
    return low.one("Unsqueeze", [value, low.ints([axis_of(axis, rank_of(value) + 1)])], call.type)


@TABLE.row("torch.aten.squeeze.dim", "torch.aten.squeeze.dims", "torch.prims.squeeze")
def _squeeze(low: Lowering, call: Call) -> ir.Value:
    value, axes = call.args
    drop = [axis_of(axis, rank_of(value)) for axis in as_list(axes)]
    drop = [axis for axis in drop if shape_of(value)[axis] == 1]
    return low.one("Squeeze", [value, low.ints(drop)], call.type) if drop else value


def _transposed(low: Lowering, value: ir.Value, order: list[int], type_: ir.Type) -> ir.Value:
    if order == list(range(len(order))):
        return value
    result = low.one("Transpose", [value], type_, {"perm": order})
    low.set_sizes(result, [low.sizes(value)[axis] for axis in order])
    return result


@TABLE.row("torch.aten.transpose.int")
def _transpose(low: Lowering, call: Call) -> ir.Value:
    value, first, second = call.args
    rank = rank_of(value)
    order = list(range(rank))
    first, second = axis_of(first, rank), axis_of(second, rank)
    order[first], order[second] = order[second], order[first]
    return _transposed(low, value, order, call.type)


@TABLE.row("torch.aten.t")
def _t(low: Lowering, call: Call) -> ir.Value:
    rank = rank_of(call.args[0])
    return _transposed(low, call.args[0], list(reversed(range(rank))), call.type)


@TABLE.row("torch.aten.permute")
def _permute(low: Lowering, call: Call) -> ir.Value:
    value, order = call.args
    return _transposed(low, value, [axis_of(axis, rank_of(value)) for axis in order], call.type)


@TABLE.row("torch.aten.cat")
def _cat(low: Lowering, call: Call) -> ir.Value:
    values, axis = call.args
    dtype = dtype_of(call.type)
    parts = [low.cast(value, dtype) for value in values]
    axis = axis_of(axis, rank_of(call.type))
    while len(parts) > MAX_VARIADIC:
        shape = list(shape_of(call.type))
        shape[axis] = None
        head = low.one("Concat", parts[:MAX_VARIADIC], tensor_type(shape, dtype), {"axis": axis})
        parts = [head, *parts[MAX_VARIADIC:]]
    return parts[0] if len(parts) == 1 else low.one("Concat", parts, call.type, {"axis": axis})


@TABLE.row("torch.aten.stack")
def _stack(low: Lowering, call: Call) -> ir.Value:
    values, axis = call.args
    axis = axis_of(axis, rank_of(call.type))
    shape = list(shape_of(call.type))
    shape[axis] = 1
    dtype = dtype_of(call.type)
    parts = [
        low.one("Unsqueeze", [low.cast(value, dtype), low.ints([axis])], tensor_type(shape, dtype))
        for value in values
    ]
    if len(parts) > MAX_VARIADIC:
        raise NotLowered(f"a stack of more than {MAX_VARIADIC}")
    return low.one("Concat", parts, call.type, {"axis": axis})


@TABLE.row("torch.aten.split_with_sizes", "torch.aten.split.sizes")
def _split_with_sizes(low: Lowering, call: Call) -> list[ir.Value]:
    value, lengths, axis = call.args
    return _split(low, value, lengths, axis_of(axis, rank_of(value)))


@TABLE.row("torch.aten.split.Tensor")
def _split_evenly(low: Lowering, call: Call) -> list[ir.Value]:
    value, length, axis = call.args
    axis = axis_of(axis, rank_of(value))
    whole = shape_of(value)[axis]
    if whole is None:
        raise NotLowered("a split along a dynamic dimension")
    return _split(low, value, [min(length, whole - start) for start in range(0, whole, length)], axis)


@TABLE.row("torch.aten.chunk", "torch.aten.chunk.int")
def _chunk(low: Lowering, call: Call) -> list[ir.Value]:
    value, count, axis = call.args
    axis = axis_of(axis, rank_of(value))
    whole = shape_of(value)[axis]
    if whole is None:
        raise NotLowered("a chunk along a dynamic dimension")
    length = -(-whole // count)
    return _split(low, value, [min(length, whole - start) for start in range(0, whole, length)], axis)


def _split(low: Lowering, value: ir.Value, lengths: list[Any], axis: int) -> list[ir.Value]:
    if not all(isinstance(length, int) for length in lengths) or len(lengths) > MAX_VARIADIC:
        raise NotLowered("a split into unknown or very many parts")
    types: list[ir.Type] = []
    for length in lengths:
        shape = list(shape_of(value))
        shape[axis] = length
        types.append(tensor_type(shape, dtype_of(value)))
    parts = low.builder.op("Split", [value, low.ints(lengths)], types, {"axis": axis})
    for part, length in zip(parts, lengths, strict=True):
        sizes = list(low.sizes(value))
        sizes[axis] = Size.of(length)
        low.set_sizes(part, sizes)
    return parts


@TABLE.row("torch.aten.slice.Tensor")
def _slice(low: Lowering, call: Call) -> ir.Value:
    value, axis, start, end, step = call.args
    axis = axis_of(axis, rank_of(value))
    start = 0 if start is None else start
    end = 2**63 - 1 if end is None else end
    whole = low.sizes(value)[axis]
    begin, stop = as_size(start), as_size(end)
    past_end = stop.constant is not None and (whole.constant or 2**31) <= stop.constant
    if begin.constant == 0 and step == 1 and (past_end or stop == whole):
        return value
    ends = low.ints([2**63 - 1]) if past_end else low.runtime_size(stop)
    operands = [value, low.runtime_size(begin), ends, low.ints([axis])]
    if step != 1:
        operands.append(low.ints([step]))
    return low.one("Slice", operands, call.type)


@TABLE.row("torch.aten.select.int")
def _select(low: Lowering, call: Call) -> ir.Value:
    value, axis, index = call.args
    return low.one(
        "Gather", [value, low.operand(index, "i64")], call.type, {"axis": axis_of(axis, rank_of(value))}
    )


@TABLE.row("torch.aten.repeat_interleave.self_int")
def _repeat_interleave(low: Lowering, call: Call) -> ir.Value:
    """Each row `repeats` times: a new axis behind it, expanded, then merged into it."""
    value, repeats, axis = call.args[:3]
    if axis is None:
        raise NotLowered("no dimension given")
    axis = axis_of(axis, rank_of(value))
    old = list(low.sizes(value))
    dtype = dtype_of(value)
    shape = list(shape_of(value))
    wide = low.one(
        "Unsqueeze",
        [value, low.ints([axis + 1])],
        tensor_type([*shape[: axis + 1], 1, *shape[axis + 1 :]], dtype),
    )
    sizes = [*old[: axis + 1], Size.of(repeats), *old[axis + 1 :]]
    # Expand keeps a dimension where its target says 1.
    target = [repeats if at == axis + 1 else 1 for at in range(len(sizes))]
    expanded = low.one(
        "Expand",
        [wide, low.ints(target)],
        tensor_type([*shape[: axis + 1], repeats, *shape[axis + 1 :]], dtype),
    )
    low.set_sizes(expanded, sizes)
    return low.reshape(expanded, [*old[:axis], old[axis] * Size.of(repeats), *old[axis + 1 :]], call.type)


@TABLE.row("torch.aten.repeat", "torch.aten.tile")
def _repeat(low: Lowering, call: Call) -> ir.Value:
    value, repeats = call.args
    if len(repeats) != rank_of(value):
        raise NotLowered("a repeat that adds dimensions")
    return low.one("Tile", [value, low.shape_value([as_size(r) for r in repeats])], call.type)
