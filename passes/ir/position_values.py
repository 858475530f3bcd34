"""Values that follow from a token's position and constants alone, and their data for every position."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch_mlir import ir

from .matching import attribute, last_axis_slice, scalar
from .tensors import DTYPES, constant_array, dtype_of, is_none, rank_of, shape_of

__all__ = ["PositionValues"]

Arrays = list[np.ndarray]


def _precise(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], np.ndarray]:
    """Computed in double precision and rounded once: exact to half a unit in the last place."""
    return lambda arrays: function(arrays[0].astype(np.float64)).astype(arrays[0].dtype)


# Element by element: position p of the result follows from position p of the operands.
_ELEMENTWISE: Mapping[str, Callable[[Arrays], np.ndarray]] = {
    "onnx.add": lambda a: a[0] + a[1],
    "onnx.sub": lambda a: a[0] - a[1],
    "onnx.mul": lambda a: a[0] * a[1],
    "onnx.div": lambda a: a[0] // a[1] if a[0].dtype.kind in "iu" else a[0] / a[1],
    "onnx.neg": lambda a: -a[0],
    "onnx.reciprocal": lambda a: (1 / a[0]).astype(a[0].dtype),
    "onnx.sqrt": lambda a: np.sqrt(a[0]),
    "onnx.cos": _precise(np.cos),
    "onnx.sin": _precise(np.sin),
    "onnx.exp": _precise(np.exp),
    "onnx.log": _precise(np.log),
}
# What moves values without computing.
_MOVES = frozenset({
    "onnx.cast", "onnx.unsqueeze", "onnx.concat", "onnx.slice", "onnx.identity", "onnx.reshape",
    "onnx.expand", "onnx.tile",
})  # fmt: skip


class PositionValues:
    """Grown by ``add`` in program order from the positions, i64 [B, S].

    Every value here is [B, S, ...] or, spread over heads, [B, 1, S, ...], with static sizes behind S. Its
    data for P positions is kept in that shape, with B = 1 and S = P.
    """

    def __init__(self, positions: ir.Value, every: np.ndarray) -> None:
        self._positions = positions
        self._every = every
        self._data: dict[ir.Value, np.ndarray] = {positions: every[None]}
        self._worth: set[ir.Value] = set()
        self._spread: set[ir.Value] = set()

    def __contains__(self, value: ir.Value) -> bool:
        return value in self._data

    def is_worth_a_table(self, value: ir.Value) -> bool:
        """Whether it takes more than one lookup to make; integer positions are cheap as they are."""
        return value in self._worth and dtype_of(value).startswith(("f", "bf"))

    def is_spread(self, value: ir.Value) -> bool:
        """Whether the value is [B, 1, S, ...]."""
        return value in self._spread

    def table(self, value: ir.Value) -> np.ndarray:
        """The value at each position, [P, ...]."""
        data = self._data[value][0]
        return np.ascontiguousarray(data[0] if self.is_spread(value) else data)

    def add(self, op: ir.Operation) -> None:
        """Take in the op's results when they follow from values that are here and from constants."""
        if op.name == "onnx.split":
            return self._add_split(op)
        if op.name == "onnx.gather":
            return self._add_lookup(op)
        if op.name not in _ELEMENTWISE and op.name not in _MOVES:
            return None
        operands = [value for value in op.operands if not is_none(value)]
        inside = [value in self._data for value in operands]
        arrays = [
            self._data[v] if here else constant_array(v) for v, here in zip(operands, inside, strict=True)
        ]
        known = [array for array in arrays if array is not None]
        if not any(inside) or len(known) < len(arrays):
            return None
        first = operands[inside.index(True)]
        spread = {value in self._spread for value, here in zip(operands, inside, strict=True) if here}
        if len(spread) > 1:
            return None
        leading = 3 if spread == {True} else 2
        if op.name == "onnx.unsqueeze" and leading == 2 and known[1].reshape(-1).tolist() == [1]:
            data, leading = known[0][:, None], 3
        else:
            data = _evaluate(op, known, inside, leading)
        looked_up = first not in self._worth and first != self._positions
        worth = op.name in _ELEMENTWISE or first in self._worth
        self._keep(op.results[0], data, leading, worth or (looked_up and op.name != "onnx.unsqueeze"))
        return None

    def _add_split(self, op: ir.Operation) -> None:
        for result in op.results:
            part = last_axis_slice(result)
            if part is not None and part[0] in self._data and rank_of(result) > 2:
                data = self._data[part[0]][..., part[1] : part[2]]
                self._keep(result, data, 3 if part[0] in self._spread else 2, True)

    def _add_lookup(self, op: ir.Operation) -> None:
        """Rows of a constant table by position, when it has one for each."""
        table = constant_array(op.operands[0])
        if op.operands[1] != self._positions or table is None or attribute(op, "axis", 0) != 0:
            return
        if table.ndim and table.shape[0] >= self._every.size:
            self._keep(op.results[0], table[None, : self._every.size], 2, False)

    def _keep(self, value: ir.Value, data: np.ndarray | None, leading: int, worth: bool) -> None:
        if data is None or not _fits(value, leading):
            return
        shape = (*((1, 1) if leading == 3 else (1,)), self._every.size, *shape_of(value)[leading:])
        assert data.shape == shape, (data.shape, shape)
        self._data[value] = data
        if worth:
            self._worth.add(value)
        if leading == 3:
            self._spread.add(value)


def _fits(value: ir.Value, leading: int) -> bool:
    shape = shape_of(value)
    return (
        len(shape) >= leading
        and shape[:leading] == ((None, 1, None) if leading == 3 else (None, None))
        and None not in shape[leading:]
        and dtype_of(value) in ("f32", "f64", "f16", "bf16", "i64", "i32")
    )


def _evaluate(op: ir.Operation, arrays: Arrays, inside: list[bool], leading: int) -> np.ndarray | None:
    """The op's result when it keeps the first ``leading`` dimensions apart, else None."""
    rank = rank_of(op.results[0])
    if op.name in _ELEMENTWISE:
        for array, here in zip(arrays, inside, strict=True):
            # A constant, or a value of lower rank, must not spread over rows or positions.
            aligned = (1,) * (rank - array.ndim) + array.shape
            if (here and array.ndim != rank) or (not here and any(n != 1 for n in aligned[:leading])):
                return None
        with np.errstate(all="ignore"):
            return _ELEMENTWISE[op.name](arrays)
    match op.name:
        case "onnx.identity":
            return arrays[0]
        case "onnx.cast":
            return arrays[0].astype(DTYPES[dtype_of(op.results[0])])
        case "onnx.concat":
            axis = int(str(attribute(op, "axis"))) % rank
            return np.concatenate(arrays, axis) if all(inside) and axis >= leading else None
        case "onnx.unsqueeze":
            axes = sorted(int(axis) % rank for axis in arrays[1].reshape(-1))
            return np.expand_dims(arrays[0], tuple(axes)) if axes[0] >= leading else None
        case "onnx.slice":
            return _slice(op, arrays, leading)
        case "onnx.tile":
            return np.tile(arrays[0], arrays[1]) if arrays[1][:leading].tolist() == [1] * leading else None
        case "onnx.expand":
            wanted = arrays[1].tolist()
            if len(wanted) != rank or wanted[:leading] != [1] * leading or arrays[0].ndim != rank:
                return None
            return arrays[0] * np.ones(wanted, arrays[0].dtype)
        case "onnx.reshape":
            kept = [0, 0] if leading == 2 else [0, 1, 0]
            if arrays[1].tolist()[:leading] not in (kept, [0] * leading):
                return None
            trailing = [size or 0 for size in shape_of(op.results[0])[leading:]]
            return arrays[0].reshape(*arrays[0].shape[:leading], *trailing)
        case _:
            return None


def _slice(op: ir.Operation, arrays: Arrays, leading: int) -> np.ndarray | None:
    starts, stops = arrays[1].tolist(), arrays[2].tolist()
    axes = arrays[3].tolist() if len(arrays) > 3 else list(range(len(starts)))
    steps = [1] if is_none(op.operands[4]) else [scalar(op.operands[4])]
    if len(axes) != 1 or not steps[0] or axes[0] % arrays[0].ndim < leading:
        return None
    index: list[slice] = [slice(None)] * arrays[0].ndim
    index[axes[0] % arrays[0].ndim] = slice(starts[0], stops[0], int(steps[0]))
    return arrays[0][tuple(index)]
