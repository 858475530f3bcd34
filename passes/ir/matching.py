"""Reading patterns off the IR, from a value back to what made it, and cleaning up what a fusion leaves."""

from __future__ import annotations

import numpy as np
from torch_mlir import ir

from .attributes import to_python
from .tensors import constant_array, shape_of

__all__ = [
    "Use",
    "attribute",
    "erase_if_dead",
    "last_axis_slice",
    "maker",
    "operand_pairs",
    "permutation",
    "scalar",
    "used_once",
    "uses",
]

Use = tuple[ir.Operation, int]


def maker(value: ir.Value, *names: str) -> ir.Operation | None:
    """The operation that makes ``value`` when it has one of these names (``onnx.mul``), else None."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    return owner.operation if owner.name in names else None


def uses(value: ir.Value) -> list[Use]:
    """(reader, operand number) for every use."""
    return [(use.owner.operation, use.operand_number) for use in value.uses]


def used_once(value: ir.Value) -> bool:
    """Whether exactly one operand anywhere is this value."""
    return len(uses(value)) == 1


def operand_pairs(op: ir.Operation) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Both orders of a commutative operation's two operands."""
    left, right = op.operands
    return ((left, right), (right, left))


def scalar(value: ir.Value) -> float | None:
    """The number in a constant of one element, else None."""
    array = constant_array(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def attribute(op: ir.Operation, name: str, default: object = None) -> object:
    """A Python value of an attribute, ``default`` when it is left out."""
    return to_python(op.attributes[name]) if name in op.attributes else default


def permutation(op: ir.Operation) -> list[int]:
    """``perm`` of a transpose; empty when left out."""
    return [int(axis) for axis in op.attributes["perm"]] if "perm" in op.attributes else []


def last_axis_slice(value: ir.Value) -> tuple[ir.Value, int, int, int] | None:
    """(source, start, stop, step) when ``value`` is a slice of its source along the last axis alone.

    Both the slice operation and one result of a split count; stop is clipped to the axis.
    """
    split = maker(value, "onnx.split")
    if split is not None:
        return _split_section(split, ir.OpResult(value).result_number)
    op = maker(value, "onnx.slice")
    if op is None:
        return None
    source = op.operands[0]
    shape = shape_of(source)
    width = shape[-1]
    numbers = [_one_integer(operand) for operand in op.operands[1:4]]
    step = 1 if isinstance(op.operands[4].type, ir.NoneType) else _one_integer(op.operands[4])
    start, stop, axis = numbers
    if width is None or start is None or stop is None or axis is None or step is None or step < 1:
        return None
    if axis % len(shape) != len(shape) - 1:
        return None
    first, last, _ = slice(start, stop).indices(width)
    return source, first, max(first, last), step


def _split_section(split: ir.Operation, number: int) -> tuple[ir.Value, int, int, int] | None:
    source = split.operands[0]
    rank = len(shape_of(source))
    if int(str(attribute(split, "axis", 0))) % rank != rank - 1:
        return None
    widths = [shape_of(result)[-1] for result in split.results]
    start = 0
    for width in widths[:number]:
        if width is None:
            return None
        start += width
    width = widths[number]
    return None if width is None else (source, start, start + width, 1)


def _one_integer(value: ir.Value) -> int | None:
    array = constant_array(value)
    if array is None or array.size != 1 or not np.issubdtype(array.dtype, np.integer):
        return None
    return int(array.reshape(-1)[0])


def erase_if_dead(value: ir.Value) -> None:
    """Erase the operation that makes ``value`` if nothing reads it, and so on towards its operands.

    All onnx operations and the plan operations met here are free of effects.
    """
    # Each value once, and none of an erased operation: MLIR crashes on those.
    todo: dict[ir.Value, None] = {value: None}
    while todo:
        value, _ = todo.popitem()
        if isinstance(value.owner, ir.Block):
            continue
        owner = value.owner.operation
        if not owner.name.startswith(("onnx.", "plan.")) or any(uses(result) for result in owner.results):
            continue
        for result in owner.results:
            todo.pop(result, None)
        todo.update(dict.fromkeys(owner.operands))
        owner.erase()
