"""What a lowering works with: the builder, the sizes of every tensor, and small helpers over both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch_mlir import ir

from ..ir.builder import OnnxBuilder, dtype_of, rank_of, shape_of, tensor_type
from ..ir.tensors import DTYPES, ONNX_DTYPES
from .sizes import Size
from .table import NotLowered

__all__ = ["Lowering"]

_FLOATS = ("bf16", "f16", "f32", "f64")


class Lowering:
    """Builds one function. `sizes` knows the shape of every value made so far, symbols included;
    `homes` says which value and axis a symbol can be read from when the program runs."""

    def __init__(self, builder: OnnxBuilder) -> None:
        self.builder = builder
        self.homes: dict[str, tuple[ir.Value, int]] = {}
        self._sizes: dict[ir.Value, tuple[Size, ...]] = {}
        self._runtime: dict[Size, ir.Value] = {}
        # 2-D value -> the value of which it is the rows: x [.., K] viewed as [N, K].
        self.rows_of: dict[ir.Value, ir.Value] = {}

    # Sizes

    def set_sizes(self, value: ir.Value, sizes: Sequence[Size]) -> None:
        """Record a value's shape; a symbol seen for the first time gets its home here."""
        self._sizes[value] = tuple(sizes)
        for axis, size in enumerate(sizes):
            if size.symbol is not None:
                self.homes.setdefault(size.symbol, (value, axis))

    def sizes(self, value: ir.Value) -> tuple[Size, ...]:
        """A value's shape; dynamic dimensions that nothing is known about get symbols of their own."""
        if value not in self._sizes:
            fresh = f"v{len(self._sizes)}"
            found = [
                Size.of(f"{fresh}.{axis}" if size is None else size)
                for axis, size in enumerate(shape_of(value))
            ]
            self.set_sizes(value, found)
        return self._sizes[value]

    def runtime_size(self, size: Size) -> ir.Value:
        """An i64 [1] with the size's value, computed once: Shape of the symbol's home, then arithmetic."""
        if size not in self._runtime:
            self._runtime[size] = self._make_runtime_size(size)
        return self._runtime[size]

    def _make_runtime_size(self, size: Size) -> ir.Value:
        if size.constant is not None:
            return self.ints([size.constant])
        one = tensor_type([1], "i64")
        if size.symbol is not None:
            if size.symbol not in self.homes:
                raise NotLowered(f"a size ({size.symbol}) that no tensor has")
            value, axis = self.homes[size.symbol]
            return self.one("Shape", [value], one, {"start": axis, "end": axis + 1})
        total: ir.Value | None = None
        for symbols, coefficient in size.terms:
            factors = [self.runtime_size(Size.of(symbol)) for symbol in symbols]
            if coefficient != 1 or not factors:
                factors.append(self.ints([coefficient]))
            term = factors[0]
            for factor in factors[1:]:
                term = self.one("Mul", [term, factor], one)
            total = term if total is None else self.one("Add", [total, term], one)
        assert total is not None
        return total

    def shape_value(self, sizes: Sequence[Size]) -> ir.Value:
        """An i64 [rank] with these sizes: a constant when all are known."""
        constants = [size.constant for size in sizes]
        if all(value is not None for value in constants):
            return self.ints([value for value in constants if value is not None])
        parts: list[ir.Value] = []
        run: list[int] = []
        for size, value in zip(sizes, constants, strict=True):
            if value is not None:
                run.append(value)
                continue
            if run:
                parts.append(self.ints(run))
                run = []
            parts.append(self.runtime_size(size))
        if run:
            parts.append(self.ints(run))
        if len(parts) == 1:
            return parts[0]
        return self.one("Concat", parts, tensor_type([len(sizes)], "i64"), {"axis": 0})

    # Operations

    def one(
        self,
        op_type: str,
        operands: Sequence[ir.Value | None],
        result_type: ir.Type,
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> ir.Value:
        """One onnx operation with one result (see OnnxBuilder.one)."""
        return self.builder.one(op_type, operands, result_type, attributes, domain)

    def ints(self, values: Sequence[int]) -> ir.Value:
        """i64 [n] constant."""
        return self.builder.constant(np.array(values, dtype=np.int64))

    def scalar(self, value: float | int | bool, dtype: str) -> ir.Value:
        """Constant of rank 0."""
        return self.builder.constant(np.array(value, dtype=DTYPES[dtype]))

    def cast(self, value: ir.Value, dtype: str) -> ir.Value:
        """The value in another element type; itself when it has it."""
        if dtype_of(value) == dtype:
            return value
        result = self.one("Cast", [value], tensor_type(shape_of(value), dtype), {"to": ONNX_DTYPES[dtype]})
        self.set_sizes(result, self.sizes(value))
        return result

    def operand(self, value: Any, dtype: str) -> ir.Value:
        """A tensor, or a Python number or runtime size, as a value of that element type."""
        if isinstance(value, ir.Value):
            return self.cast(value, dtype)
        if isinstance(value, Size):
            if value.constant is not None:
                return self.scalar(value.constant, dtype)
            return self.cast(self.squeeze(self.runtime_size(value)), dtype)
        if isinstance(value, bool | int | float):
            return self.scalar(value, dtype)
        raise NotLowered(f"an operand of type {type(value).__name__}")

    def squeeze(self, value: ir.Value) -> ir.Value:
        """[1] -> rank 0."""
        return self.one("Squeeze", [value, self.ints([0])], tensor_type([], dtype_of(value)))

    def common_dtype(self, *values: Any) -> str:
        """torch's promotion for these operands: a Python float lifts an integer tensor, no more."""
        tensors = [dtype_of(v) for v in values if isinstance(v, ir.Value) and rank_of(v) > 0]
        tensors = tensors or [dtype_of(v) for v in values if isinstance(v, ir.Value)]
        floats = [dtype for dtype in tensors if dtype in _FLOATS]
        if floats:
            return max(floats, key=_FLOATS.index)
        if any(isinstance(v, float) for v in values):
            return "f32"
        return max(tensors, key=lambda dtype: DTYPES[dtype].itemsize, default="i64")

    def reshape(self, value: ir.Value, sizes: Sequence[Size], result_type: ir.Type) -> ir.Value:
        """The value with another shape of as many elements, without shape arithmetic where it can be done:
        a dimension that stays in its place is 0 in the target, one unknown may be -1."""
        old = self.sizes(value)
        if tuple(sizes) == old:
            return value
        target: list[int] = []
        unknown: list[int] = []
        for axis, size in enumerate(sizes):
            if size.constant is not None:
                target.append(size.constant)
            elif axis < len(old) and old[axis] == size:
                target.append(0)
            else:
                unknown.append(axis)
                target.append(-1)
        shape = self.ints(target) if len(unknown) <= 1 else self.shape_value(sizes)
        result = self.one("Reshape", [value, shape], result_type)
        self.set_sizes(result, sizes)
        return result
