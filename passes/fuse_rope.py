"""fuse-rope: rotary embeddings as one operation each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from torch_mlir import ir

from .ir.builder import OnnxBuilder, dtype_of, shape_of, tensor_type
from .ir.devices import device_of_op
from .ir.matching import (
    attribute,
    erase_if_dead,
    last_axis_slice,
    maker,
    operand_pairs,
    permutation,
    used_once,
    uses,
)  # fmt: skip
from .ir.roles import body_of, function_of
from .ir.tensors import constant_array
from .remarks import Remarks

__all__ = ["FuseRope"]

_SWAP_HEADS = [0, 2, 1, 3]


@dataclass(frozen=True, slots=True)
class FuseRope:
    """x * cos + turned(x) * sin becomes plan.rope, where cos and sin are looked up by position.

    ``turned`` swaps the halves of a head (Llama) or each two neighbours (interleaved: GPT-J, Cohere), the
    first of a pair taken from the second with its sign changed. A head may turn in its first part alone,
    the rest joined on behind (Phi, GPT-NeoX). Needs tabulate-positions before it. select-attention then
    lets the fused arm turn queries and keys itself, or makes a RotaryEmbedding of what is left.
    """

    name: ClassVar[str] = "fuse-rope"
    summary: ClassVar[str] = "rotary embeddings written out become one operation each"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when the module is not one function of one block."""
        body = body_of(function_of(module))
        adds = [view.operation for view in body.operations if view.operation.name == "onnx.add"]
        tables = _Tables(body)
        counts: dict[str, int] = {}
        for add in adds:
            found = _rotation(add)
            if found is None:
                continue
            if isinstance(found, str):
                remarks.add(f"a rotary embedding stays as it is: {found}", at=add)
                continue
            _fuse(found, tables)
            kind = "interleaved" if found.interleaved else "in halves"
            part = f"{found.width} of {shape_of(found.x)[3]} elements {kind}"
            counts[part] = counts.get(part, 0) + 1
        for part, count in counts.items():
            remarks.add(f"{count} rotary embeddings became one operation each: {part}")
        return bool(counts)


@dataclass(frozen=True, slots=True)
class _Rotation:
    """The first ``width`` elements of each head of x turn; ``result`` is the whole head again.
    cos and sin: one row a position, one column a pair. ``heads_first``: x is [B, H, S, D], else [B, S, H, D].
    """

    x: ir.Value
    cos: np.ndarray
    sin: np.ndarray
    positions: ir.Value
    width: int
    interleaved: bool
    heads_first: bool
    result: ir.Value


@dataclass(slots=True)
class _Tables:
    """Constants at the function's start, one for each content: all layers share them."""

    body: ir.Block
    made: dict[bytes, ir.Value] = field(default_factory=dict[bytes, ir.Value])

    def constant(self, table: np.ndarray, location: ir.Location) -> ir.Value:
        key = table.tobytes()
        if key not in self.made:
            builder = OnnxBuilder(location, ir.InsertionPoint.at_block_begin(self.body))
            self.made[key] = builder.constant(table)
        return self.made[key]


def _fuse(found: _Rotation, tables: _Tables) -> None:
    op = found.result.owner
    assert not isinstance(op, ir.Block)
    builder = OnnxBuilder(op.location, ir.InsertionPoint(op), device_of_op(op) or "")
    cos, sin = (tables.constant(table, op.location) for table in (found.cos, found.sin))
    x = found.x if found.heads_first else _swap(builder, found.x)
    made = builder.plan(
        "rope",
        [x, cos, sin, found.positions],
        [x.type],
        {"interleaved": int(found.interleaved), "rotary_dim": found.width},
    )[0]
    if not found.heads_first:
        # What follows is the swap that attention wants: it is made already.
        for reader, _ in uses(found.result):
            if reader.name == "onnx.transpose" and permutation(reader) == _SWAP_HEADS:
                reader.results[0].replace_all_uses_with(made)
                reader.erase()
        if uses(found.result):
            made = _swap(builder, made)
    found.result.replace_all_uses_with(made)
    erase_if_dead(found.result)


def _swap(builder: OnnxBuilder, value: ir.Value) -> ir.Value:
    batch, second, third, width = shape_of(value)
    type_ = tensor_type([batch, third, second, width], dtype_of(value))
    return builder.one("Transpose", [value], type_, {"perm": _SWAP_HEADS})


def _rotation(add: ir.Operation) -> _Rotation | str | None:
    """The rotary embedding that ends in ``add``, why it is not quite one, or None."""
    for plain, turned in operand_pairs(add):
        products = maker(plain, "onnx.mul"), maker(turned, "onnx.mul")
        if products[0] is None or products[1] is None:
            continue
        for value, sin in operand_pairs(products[1]):
            pair = _turned(value)
            if pair is None:
                continue
            x, interleaved = pair
            for other, cos in operand_pairs(products[0]):
                if other == x:
                    return _checked(add, x, cos, sin, value, interleaved)
    return None


def _turned(value: ir.Value) -> tuple[ir.Value, bool] | None:
    """(x, interleaved) when ``value`` is x with each pair's elements swapped, the new first one negated."""
    join = maker(value, "onnx.concat")
    if join is not None:
        x = _swapped_halves(join)
        return None if x is None else (x, False)
    flat = maker(value, "onnx.reshape")
    stacked = None if flat is None else maker(flat.operands[0], "onnx.concat")
    if stacked is None:
        return None
    x = _swapped_neighbours(stacked)
    return None if x is None or x.type != value.type else (x, True)


def _swapped_halves(join: ir.Operation) -> ir.Value | None:
    if len(join.operands) != 2 or not _joins_last(join):
        return None
    negated = maker(join.operands[0], "onnx.neg")
    first, second = last_axis_slice(join.operands[1]), None
    if negated is not None:
        second = last_axis_slice(negated.operands[0])
    if first is None or second is None or first[0] != second[0]:
        return None
    width = shape_of(first[0])[-1]
    if width is None or first[1:] != (0, width // 2, 1) or second[1:] != (width // 2, width, 1):
        return None
    return first[0]


def _swapped_neighbours(stacked: ir.Operation) -> ir.Value | None:
    """Odd elements negated and even ones, stacked along a new last axis."""
    if len(stacked.operands) != 2 or not _joins_last(stacked):
        return None
    columns = [maker(operand, "onnx.unsqueeze") for operand in stacked.operands]
    if columns[0] is None or columns[1] is None:
        return None
    negated = maker(columns[0].operands[0], "onnx.neg")
    if negated is None:
        return None
    odd, even = last_axis_slice(negated.operands[0]), last_axis_slice(columns[1].operands[0])
    if odd is None or even is None or odd[0] != even[0] or shape_of(columns[0].results[0])[-1] != 1:
        return None
    width = shape_of(odd[0])[-1]
    if width is None or odd[1:] != (1, width, 2) or even[1:] != (0, width, 2):
        return None
    return odd[0]


def _joins_last(join: ir.Operation) -> bool:
    rank = len(shape_of(join.results[0]))
    return int(str(attribute(join, "axis"))) % rank == rank - 1


def _checked(
    add: ir.Operation, x: ir.Value, cos: ir.Value, sin: ir.Value, turned: ir.Value, interleaved: bool
) -> _Rotation | str:
    shape = shape_of(x)
    if len(shape) != 4 or shape[3] is None:
        return "it does not turn heads [batch, heads, sequence, head_dim]"
    inside = (turned, *add.operands)
    if not all(used_once(value) for value in inside):
        return "a value inside it is read elsewhere too"
    heads_first = shape_of(cos)[1] == 1
    spread_over = 1 if heads_first else 2
    cosine_rows, sine_rows = _looked_up(cos, spread_over), _looked_up(sin, spread_over)
    if cosine_rows is None or sine_rows is None:
        return "its cosines and sines are not looked up by position; run tabulate-positions before"
    (cosines, at), (sines, sines_at) = cosine_rows, sine_rows
    if at != sines_at:
        return "its cosines and sines are looked up at different positions"
    width = shape[3]
    if cosines.shape[1] != width or sines.shape[1] != width:
        return "its tables are not as wide as what turns"
    halves = [_one_of_each_pair(table, interleaved) for table in (cosines, sines)]
    if halves[0] is None or halves[1] is None:
        return "the two elements of a pair have different angles"
    whole = _whole_head(x, add.results[0])
    source, result = (x, add.results[0]) if whole is None else whole
    return _Rotation(source, halves[0], halves[1], at, width, interleaved, heads_first, result)


def _looked_up(value: ir.Value, axis: int) -> tuple[np.ndarray, ir.Value] | None:
    """(table, positions) when ``value`` is table[positions], with a 1 at ``axis`` for the heads."""
    shape = shape_of(value)
    if len(shape) != 4 or shape[axis] != 1:
        return None
    spread = maker(value, "onnx.unsqueeze")
    gather = maker(value if spread is None else spread.operands[0], "onnx.gather")
    if gather is None or attribute(gather, "axis", 0) != 0:
        return None
    table, positions = constant_array(gather.operands[0]), gather.operands[1]
    if table is None or len(shape_of(positions)) != 2:
        return None
    # Without an operation of its own, the heads' dimension is one of the table.
    if spread is None and table.ndim == 3 and table.shape[1] == 1:
        table = table[:, 0]
    return (table, positions) if table.ndim == 2 else None


def _one_of_each_pair(table: np.ndarray, interleaved: bool) -> np.ndarray | None:
    half = table.shape[1] // 2
    first, second = (table[:, 0::2], table[:, 1::2]) if interleaved else (table[:, :half], table[:, half:])
    return np.ascontiguousarray(first) if np.array_equal(first, second) else None


def _whole_head(x: ir.Value, turned: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """(head, result) when x is the first part of a head and ``turned`` is joined to the rest of it."""
    part = last_axis_slice(x)
    if part is None or part[1] != 0 or part[3] != 1 or not used_once(turned):
        return _padded_with_nothing(x, turned)
    join = next(iter(turned.uses)).owner.operation
    if join.name != "onnx.concat" or len(join.operands) != 2 or not _joins_last(join):
        return None
    rest = last_axis_slice(join.operands[1])
    head, stop = part[0], part[2]
    if join.operands[0] != turned or rest is None or rest[0] != head:
        return None
    return (head, join.results[0]) if rest[1:] == (stop, shape_of(head)[-1], 1) else None


def _padded_with_nothing(x: ir.Value, turned: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """A head that turns whole, joined to an empty rest."""
    if not used_once(turned):
        return None
    join = next(iter(turned.uses)).owner.operation
    if join.name != "onnx.concat" or join.results[0].type != x.type or join.operands[0] != turned:
        return None
    return (x, join.results[0]) if len(join.operands) == 2 else None
