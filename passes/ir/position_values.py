"""Values that follow from a token's position and constants alone, and their data for every position."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch_mlir import ir

from .matching import attribute, scalar
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
    "onnx.div": lambda a: a[0] / a[1] if a[0].dtype.kind == "f" else a[0] // a[1],
    "onnx.neg": lambda a: -a[0],
    "onnx.reciprocal": lambda a: (1 / a[0]).astype(a[0].dtype),
    "onnx.sqrt": lambda a: np.sqrt(a[0]),
    "onnx.cos": _precise(np.cos),
    "onnx.sin": _precise(np.sin),
    "onnx.exp": _precise(np.exp),
    "onnx.log": _precise(np.log),
}
# What moves values without computing; a table of nothing but these would save nothing.
_MOVES = frozenset({
    "onnx.cast", "onnx.unsqueeze", "onnx.concat", "onnx.slice", "onnx.identity", "onnx.reshape",
    "onnx.expand", "onnx.tile",
})  # fmt: skip
_BATCH_AND_SEQUENCE = 2


class PositionValues:
    """Grown by ``add`` in program order from the positions, i64 [B, S]. Every value here is [B, S, ...] with
    static sizes behind S; its data is kept as [1, P, ...] for P positions."""

    def __init__(self, positions: ir.Value, every: np.ndarray) -> None:
        self._data: dict[ir.Value, np.ndarray] = {positions: every[None]}
        self._computed: set[ir.Value] = set()

    def __contains__(self, value: ir.Value) -> bool:
        return value in self._data

    def is_computed(self, value: ir.Value) -> bool:
        """Whether floating-point arithmetic went into it; integer positions are cheap as they are."""
        return value in self._computed and dtype_of(value).startswith(("f", "bf"))

    def table(self, value: ir.Value) -> np.ndarray:
        """The value at each position, [P, ...]."""
        return np.ascontiguousarray(self._data[value][0])

    def add(self, op: ir.Operation) -> None:
        """Take in the op's result when it follows from values that are here and from constants."""
        if op.name not in _ELEMENTWISE and op.name not in _MOVES:
            return
        result = op.results[0]
        operands = [value for value in op.operands if not is_none(value)]
        inside = [value for value in operands if value in self._data]
        if not inside or result in self._data or not self._fits(result):
            return
        arrays: list[np.ndarray] = []
        for value in operands:
            array = self._data.get(value)
            if array is None:
                array = constant_array(value)
            if array is None:
                return
            arrays.append(array)
        data = self._evaluate(op, arrays, [value in self._data for value in operands])
        if data is None:
            return
        every = next(iter(self._data.values())).shape[1]
        assert data.shape == (1, every, *(size or 0 for size in shape_of(result)[_BATCH_AND_SEQUENCE:]))
        self._data[result] = data
        if op.name in _ELEMENTWISE or any(value in self._computed for value in inside):
            self._computed.add(result)

    def _fits(self, value: ir.Value) -> bool:
        shape = shape_of(value)
        return (
            len(shape) >= _BATCH_AND_SEQUENCE
            and shape[:_BATCH_AND_SEQUENCE] == (None, None)
            and None not in shape[_BATCH_AND_SEQUENCE:]
            and dtype_of(value) in ("f32", "f64", "f16", "i64", "i32")
        )

    def _evaluate(self, op: ir.Operation, arrays: Arrays, inside: list[bool]) -> np.ndarray | None:
        rank = rank_of(op.results[0])
        if op.name in _ELEMENTWISE:
            for array, here in zip(arrays, inside, strict=True):
                # A constant, or a value of lower rank, must not spread over rows or positions.
                aligned = (1,) * (rank - array.ndim) + array.shape
                if (here and array.ndim != rank) or (not here and aligned[:2] != (1, 1)):
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
                whole = all(inside) and axis >= _BATCH_AND_SEQUENCE
                return np.concatenate(arrays, axis) if whole else None
            case "onnx.unsqueeze":
                axes = sorted(int(axis) % rank for axis in arrays[1].reshape(-1))
                return np.expand_dims(arrays[0], tuple(axes)) if axes[0] >= _BATCH_AND_SEQUENCE else None
            case "onnx.slice":
                return _slice(op, arrays)
            case "onnx.tile":
                return np.tile(arrays[0], arrays[1]) if arrays[1][:2].tolist() == [1, 1] else None
            case "onnx.expand":
                wanted = arrays[1].tolist()
                if len(wanted) != rank or wanted[:2] != [1, 1] or arrays[0].ndim != rank:
                    return None
                return np.broadcast_to(arrays[0], (*arrays[0].shape[:2], *wanted[2:])).copy()
            case "onnx.reshape":
                if arrays[1].tolist()[:2] != [0, 0]:
                    return None
                trailing = [size or 0 for size in shape_of(op.results[0])[_BATCH_AND_SEQUENCE:]]
                return arrays[0].reshape(*arrays[0].shape[:2], *trailing)
            case _:
                return None


def _slice(op: ir.Operation, arrays: Arrays) -> np.ndarray | None:
    starts, stops = arrays[1].tolist(), arrays[2].tolist()
    axes = arrays[3].tolist() if len(arrays) > 3 else list(range(len(starts)))
    steps = [1] * len(starts) if is_none(op.operands[4]) else [scalar(op.operands[4])]
    if len(axes) != 1 or len(steps) != 1 or not steps[0] or axes[0] % arrays[0].ndim < _BATCH_AND_SEQUENCE:
        return None
    index: list[slice] = [slice(None)] * arrays[0].ndim
    index[axes[0] % arrays[0].ndim] = slice(starts[0], stops[0], int(steps[0]))
    return arrays[0][tuple(index)]
