"""Sizes of tensors as integers or polynomials over the program's symbols (batch, sequence, ...).

The importer writes the exporter's knowledge of every tensor's shape into torch.bind_symbolic_shape. With it
a reshape can be written with constants, and two sizes can be known to be equal, without any shape
arithmetic in the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_mlir import ir

__all__ = ["Size", "product", "sizes_from_map"]


@dataclass(frozen=True, slots=True)
class Size:
    """A sum of integer multiples of products of symbols; terms: sorted symbols -> coefficient, sorted."""

    terms: tuple[tuple[tuple[str, ...], int], ...]

    @classmethod
    def of(cls, value: int | str) -> Size:
        """A constant, or one symbol."""
        return cls._make({(): value} if isinstance(value, int) else {(value,): 1})

    @classmethod
    def _make(cls, terms: Mapping[tuple[str, ...], int]) -> Size:
        return cls(tuple(sorted((key, value) for key, value in terms.items() if value)))

    @property
    def constant(self) -> int | None:
        """The value when no symbol is in it."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def symbol(self) -> str | None:
        """The symbol when the size is that symbol alone."""
        if len(self.terms) == 1 and len(self.terms[0][0]) == 1 and self.terms[0][1] == 1:
            return self.terms[0][0][0]
        return None

    def __add__(self, other: Size) -> Size:
        total = dict(self.terms)
        for key, value in other.terms:
            total[key] = total.get(key, 0) + value
        return Size._make(total)

    def __neg__(self) -> Size:
        return Size(tuple((key, -value) for key, value in self.terms))

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __mul__(self, other: Size) -> Size:
        total: dict[tuple[str, ...], int] = {}
        for a, x in self.terms:
            for b, y in other.terms:
                key = tuple(sorted(a + b))
                total[key] = total.get(key, 0) + x * y
        return Size._make(total)

    def divided_by(self, other: Size) -> Size | None:
        """The quotient, when `other` is one product and divides every term exactly."""
        if len(other.terms) != 1:
            return None
        symbols, coefficient = other.terms[0]
        total: dict[tuple[str, ...], int] = {}
        for key, value in self.terms:
            left = list(key)
            for symbol in symbols:
                if symbol not in left:
                    return None
                left.remove(symbol)
            if value % coefficient:
                return None
            total[tuple(left)] = value // coefficient
        return Size._make(total)

    def __str__(self) -> str:
        parts = ["*".join([*([str(c)] if c != 1 or not key else []), *key]) for key, c in self.terms]
        return " + ".join(parts) or "0"


def product(sizes: list[Size]) -> Size:
    """Number of elements of a shape."""
    total = Size.of(1)
    for size in sizes:
        total = total * size
    return total


def sizes_from_map(shape: ir.AffineMap, symbols: list[str], fresh: str) -> tuple[Size, ...]:
    """The shape in a torch.bind_symbolic_shape. An expression that is no polynomial (a division) becomes
    a symbol of its own, named after `fresh` and the axis, so that it equals nothing else."""

    def read(expression: ir.AffineExpr) -> Size | None:
        match expression:
            case ir.AffineConstantExpr():
                return Size.of(int(expression.value))
            case ir.AffineSymbolExpr():
                return Size.of(symbols[int(expression.position)])
            case ir.AffineAddExpr() | ir.AffineMulExpr():
                left, right = read(expression.lhs), read(expression.rhs)
                if left is None or right is None:
                    return None
                return left + right if isinstance(expression, ir.AffineAddExpr) else left * right
            case _:
                return None

    found = [read(expression) for expression in shape.results]
    return tuple(Size.of(f"{fresh}.{axis}") if size is None else size for axis, size in enumerate(found))
