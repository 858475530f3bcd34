"""The names of dynamic dimensions, followed from the arguments through the operations.

A value that crosses to another stage lands in a buffer made beforehand, so its every dimension has to be a
number or one that the step's inputs define (batch, sequence...). Shapes computed in the program are followed
too, as far as they are put together from ``Shape``, constants and indexing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch_mlir import ir

from planonce.passes.ir.attributes import to_python
from planonce.passes.ir.tensors import constant_array, shape_of

from .emit_graph import Graph, GraphOp

__all__ = ["symbolic_dims"]

Dim = int | str | None  # None: not known
Dims = tuple[Dim, ...]

_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min")
_COMPARISON = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_BROADCAST = frozenset({*_ARITHMETIC, *_COMPARISON, "Where", "And", "Or", "Xor"})
_UNKNOWN = "?"
_MOST_TRACKED = 8  # elements of a tensor that is followed by value: shapes, not data


def symbolic_dims(graph: Graph, names: Iterable[Sequence[str]]) -> dict[ir.Value, Dims]:
    """Dimensions of every value; ``names``: of each argument's, where a number is left to its type."""
    dims: dict[ir.Value, Dims] = {}
    for value, given in zip(graph.arguments, names, strict=True):
        dims[value] = _typed(value, [None if not n or n.isdecimal() else n for n in given])
    follow = _Follow(graph, dims)
    for op in graph.ops:
        if op.schema is not None:
            follow.op(op, op.schema.op_type)
    return dims


def _typed(value: ir.Value, dims: Sequence[Dim] | None) -> Dims:
    """What the type says, and ``dims`` where it says nothing."""
    if not isinstance(value.type, ir.RankedTensorType):
        return ()
    shape = shape_of(value)
    known: Sequence[Dim] = dims if dims is not None and len(dims) == len(shape) else [None] * len(shape)
    return tuple(known[i] if size is None else size for i, size in enumerate(shape))


class _Follow:
    def __init__(self, graph: Graph, dims: dict[ir.Value, Dims]) -> None:
        self.graph = graph
        self.dims = dims
        self.values: dict[ir.Value, Dims] = {}  # contents of small integer tensors, flat

    def op(self, op: GraphOp, kind: str) -> None:
        rules: Mapping[str, Callable[[GraphOp], Dims | None]] = {
            "MatMul": self._matmul, "FusedMatMul": self._matmul, "Gather": self._gather,
            "GatherBlockQuantized": self._gather, "Shape": self._shape, "Reshape": self._reshape,
            "Transpose": self._transpose, "Unsqueeze": self._unsqueeze, "Squeeze": self._squeeze,
            "Range": self._range, "Expand": self._expand, "Concat": self._concat, "Slice": self._slice,
        }  # fmt: skip
        if kind in _BROADCAST:
            first = self._broadcast([self.of(value) for value in op.operands])
        elif kind.startswith("Reduce"):
            first = self._reduce(op)
        elif kind in rules:
            first = rules[kind](op)
        else:
            first = self.of(op.operands[0]) if op.operands else None
            if kind == "Split" and first:
                axis = int(_attribute(op, "axis", 0)) % len(first)
                first = (*first[:axis], None, *first[axis + 1 :])
            if kind in ("Cast", "Identity"):
                self._pass_on(op)
        for i, value in enumerate(op.results):
            if not isinstance(value.type, ir.RankedTensorType):
                continue
            found = first
            if kind in ("GroupQueryAttention", "PagedAttention") and i in (1, 2):
                found = self.of(op.operands[2 + i])
            self.dims[value] = _typed(value, found)

    # --- what is known of an operand ----------------------------------------------------------------

    def of(self, value: ir.Value) -> Dims:
        root = self.graph.root(value)
        if root not in self.dims:
            self.dims[root] = () if self.graph.is_absent(root) else _typed(root, None)
        return self.dims[root]

    def content(self, value: ir.Value) -> Dims | None:
        root = self.graph.root(value)
        if root not in self.values and root in self.graph.constants:
            array = constant_array(root)
            if array is not None and array.dtype.kind in "iu" and array.size <= _MOST_TRACKED:
                self.values[root] = tuple(int(n) for n in array.reshape(-1))
        return self.values.get(root)

    def _ints(self, value: ir.Value) -> list[int] | None:
        known = self.content(value)
        if known is None or not all(isinstance(n, int) for n in known):
            return None
        return [n for n in known if isinstance(n, int)]

    def _given(self, op: GraphOp) -> dict[int, ir.Value]:
        """Operands by position, without the absent ones."""
        return {i: v for i, v in enumerate(op.operands) if not self.graph.is_absent(self.graph.root(v))}

    def _set(self, op: GraphOp, content: Dims | None) -> None:
        if content is not None and len(content) <= _MOST_TRACKED:
            self.values[op.results[0]] = content

    def _pass_on(self, op: GraphOp) -> None:
        self._set(op, self.content(op.operands[0]))

    # --- rules --------------------------------------------------------------------------------------

    @staticmethod
    def _broadcast(shapes: Sequence[Dims]) -> Dims:
        rank = max((len(s) for s in shapes), default=0)
        result: list[Dim] = []
        for i in range(rank):
            sizes = {s[i - rank] for s in shapes if len(s) >= rank - i} - {1}
            # A name beside a number is that number; two names, or an unknown one, are not decided here.
            numbers = [n for n in sizes if isinstance(n, int)]
            result.append(
                1 if not sizes else numbers[0] if numbers else sizes.pop() if len(sizes) == 1 else None
            )
        return tuple(result)

    def _matmul(self, op: GraphOp) -> Dims | None:
        a, b = list(self.of(op.operands[0])), list(self.of(op.operands[1]))
        if len(a) < 2 or len(b) < 2:
            return None
        for side, name in ((a, "transA"), (b, "transB")):
            if _attribute(op, name, 0):
                side[-1], side[-2] = side[-2], side[-1]
        return (*self._broadcast([tuple(a[:-2]), tuple(b[:-2])]), a[-2], b[-1])

    def _gather(self, op: GraphOp) -> Dims:
        data, indices = self.of(op.operands[0]), self.of(op.operands[1])
        known, picked = self.content(op.operands[0]), self._ints(op.operands[1])
        if known is not None and picked is not None:
            self._set(op, tuple(known[i] for i in picked))
        axis = int(_attribute(op, "axis", 0)) % max(len(data), 1)
        return (*data[:axis], *indices, *data[axis + 1 :])

    def _shape(self, op: GraphOp) -> Dims | None:
        dims = self.of(op.operands[0])
        start, end = int(_attribute(op, "start", 0)), int(_attribute(op, "end", len(dims)))
        self._set(op, dims[start:end])
        return None

    def _reshape(self, op: GraphOp) -> Dims | None:
        source, target = self.of(op.operands[0]), self.content(op.operands[1])
        if target is None:
            self._pass_on(op)
            return None
        self._pass_on(op)
        # A dimension that is not known is still itself: what is kept as it is cancels out.
        named = [f"{_UNKNOWN}{i}" if d is None else d for i, d in enumerate(source)]
        result: list[Dim] = [named[i] if n == 0 and i < len(named) else n for i, n in enumerate(target)]
        if -1 in result and None not in result:
            result[result.index(-1)] = _quotient(named, [d for d in result if d != -1])
        return tuple(None if d == -1 or _UNKNOWN in str(d) else d for d in result)

    def _transpose(self, op: GraphOp) -> Dims:
        source = self.of(op.operands[0])
        order = [int(i) for i in _attribute(op, "perm", list(reversed(range(len(source)))))]
        return tuple(source[i] for i in order)

    def _unsqueeze(self, op: GraphOp) -> Dims | None:
        self._pass_on(op)
        source, axes = list(self.of(op.operands[0])), self._ints(op.operands[1])
        if axes is None:
            return None
        rank = len(source) + len(axes)
        for axis in sorted(a % rank for a in axes):
            source.insert(axis, 1)
        return tuple(source)

    def _squeeze(self, op: GraphOp) -> Dims | None:
        self._pass_on(op)
        operands = self._given(op)
        source = self.of(operands[0])
        axes = self._ints(operands[1]) if 1 in operands else None
        if axes is None:
            return None
        gone = {a % len(source) for a in axes}
        return tuple(d for i, d in enumerate(source) if i not in gone)

    def _range(self, op: GraphOp) -> Dims:
        start, limit, step = (self.content(value) for value in op.operands)
        if start == (0,) and step == (1,) and limit is not None and len(limit) == 1:
            return limit
        return (None,)

    def _expand(self, op: GraphOp) -> Dims | None:
        target = self.content(op.operands[1])
        return None if target is None else self._broadcast([self.of(op.operands[0]), target])

    def _concat(self, op: GraphOp) -> Dims:
        operands = [value for value in op.operands if not self.graph.is_absent(self.graph.root(value))]
        contents = [self.content(value) for value in operands]
        if all(c is not None for c in contents):
            self._set(op, tuple(n for c in contents if c is not None for n in c))
        first = list(self.of(operands[0]))
        axis = int(_attribute(op, "axis", 0)) % max(len(first), 1)
        sizes = [self.of(value)[axis] for value in operands]
        numbers = [n for n in sizes if isinstance(n, int)]
        first[axis] = sum(numbers) if len(numbers) == len(sizes) else None
        return tuple(first)

    def _slice(self, op: GraphOp) -> Dims:
        operands = self._given(op)
        source, content = list(self.of(operands[0])), self.content(operands[0])
        start, end = self._ints(operands[1]), self._ints(operands[2])
        absent, plain = 3 not in operands, 4 not in operands
        axes = None if absent else self._ints(operands[3])
        if content is not None and start is not None and end is not None and len(start) == 1 and plain:
            self._set(op, content[start[0] : end[0]])
        if axes is None and not absent:
            return (None,) * len(source)  # which axis is cut is not known, so no dimension is
        for axis in range(len(source)) if axes is None else axes:
            source[axis] = None
        return tuple(source)

    def _reduce(self, op: GraphOp) -> Dims | None:
        operands = self._given(op)
        source, absent = self.of(operands[0]), 1 not in operands
        axes = None if absent else self._ints(operands[1])
        if axes is None and not absent:
            return None
        gone = set(range(len(source))) if axes is None else {a % len(source) for a in axes}
        if _attribute(op, "keepdims", 1):
            return tuple(1 if i in gone else d for i, d in enumerate(source))
        return tuple(d for i, d in enumerate(source) if i not in gone)


def _attribute(op: GraphOp, name: str, default: Any) -> Any:
    return to_python(op.attributes[name]) if name in op.attributes else default


def _quotient(whole: Iterable[Dim], part: Iterable[Dim]) -> Dim:
    """What ``part`` has to be multiplied by to give ``whole``: a number, a name, or ``4*sequence``."""
    number, names = _factors(whole)
    divisor, gone = _factors(part)
    for name in gone:
        if name not in names:
            return None
        names.remove(name)
    if divisor == 0 or number % divisor or len(names) > 1:
        return None
    number //= divisor
    return number if not names else names[0] if number == 1 else f"{number}*{names[0]}"


def _factors(dims: Iterable[Dim]) -> tuple[int, list[str]]:
    number, names = 1, list[str]()
    for dim in dims:
        if isinstance(dim, int):
            number *= dim
        elif dim is not None:
            times, _, name = dim.rpartition("*")
            number *= int(times or 1)
            names.append(name)
    return number, names
