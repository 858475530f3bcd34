"""Lengths, bounds and masks of a step, computed in the program and shared by all layers.

All derive from two things: the write offset of each row and the length of token_ids. Every convention
(seqlens_k is total - 1, a window counts the query itself) is applied here and nowhere else, because an
off-by-one between two of them would run and be silently wrong.

On CUDA the host must not be asked for anything that is on the device, nor the other way round, or ONNX
Runtime puts a copy into the program and no graph of it can be captured. Shapes live on the host there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch_mlir import ir

from ..ir.builder import OnnxBuilder, tensor_type
from ..ir.positions import every_row, is_step_positions

__all__ = ["StepLengths"]

_ONE = (1,)


class StepLengths:
    """Values made on demand before the function's first operation, each once for a write offset.

    B rows, S new positions; a row's total is its write offset plus S. L: the longest total.
    """

    def __init__(
        self,
        builder: OnnxBuilder,
        token_ids: ir.Value,
        *,
        on_cuda: bool = False,
        attended_len: ir.Value | None = None,
    ) -> None:
        """``attended_len``: the i64 scalar that says every row's total, where the host binds it."""
        self._attended_len = attended_len
        self._builder = builder
        self._on_cuda = on_cuda
        self._token_ids = token_ids
        self._made: dict[tuple[str, ir.Value | None, int], ir.Value] = {}

    def sequence(self) -> ir.Value:
        """S, i64 [1]."""
        return self._once(
            "sequence",
            None,
            0,
            lambda: self._one("Shape", [self._token_ids], _ONE, "i64", {"start": 1, "end": 2}),
        )

    def _sequence_beside_offset(self) -> ir.Value:
        """S where the write offset is, i64 [1] or [B]. On CUDA a shape is on the host, so the tokens of each
        row are counted instead."""
        return self._rows_of_tokens() if self._on_cuda else self.sequence()

    def _rows_of_tokens(self) -> ir.Value:
        """S of each row, counted where the tokens are, i64 [B]: each token is equal to itself."""

        def make() -> ir.Value:
            return self._one(
                "ReduceSum", [self._each_token(), self._ints(1)], (None,), "i64", {"keepdims": 0}
            )

        return self._once("sequence on the device", None, 0, make)

    def _each_token(self) -> ir.Value:
        """1 for each token, i64 [B, S]."""

        def make() -> ir.Value:
            each = self._one("Equal", [self._token_ids] * 2, (None, None), "i1")
            return self._cast(each, (None, None), "i64", 7)

        return self._once("each token", None, 0, make)

    def totals(self, offset: ir.Value) -> ir.Value:
        """Live positions of each row after this step, i64 [B]."""
        attended = self._attended_len
        if attended is not None:
            return self._once("totals", None, 0, lambda: every_row(self._builder, attended, self._token_ids))
        return self._once(
            "totals",
            offset,
            0,
            lambda: self._one("Add", [offset, self._sequence_beside_offset()], (None,), "i64"),
        )

    def seqlens_k(self, offset: ir.Value) -> ir.Value:
        """GroupQueryAttention's lengths, i32 [B]: totals - 1."""

        def make() -> ir.Value:
            less = self._one("Sub", [self.totals(offset), self._ints(1)], (None,), "i64")
            return self._cast(less, (None,), "i32", 6)

        return self._once("seqlens_k", offset, 0, make)

    def total_sequence_length(self, offset: ir.Value, cache: ir.Value) -> ir.Value:
        """GroupQueryAttention's longest total, i32 scalar.

        Its kernel on CUDA reads it on the host, as an upper bound to plan with: there it is the capacity of
        ``cache``, for the live length is on the device only.
        """
        if self._on_cuda:
            return self._once("capacity", None, 0, lambda: self._capacity(cache))

        def make() -> ir.Value:
            longest = self._one("ReduceMax", [self.totals(offset)], (), "i64", {"keepdims": 0})
            return self._cast(longest, (), "i32", 6)

        return self._once("total_sequence_length", offset, 0, make)

    def past_seqlens(self, offset: ir.Value) -> ir.Value:
        """PagedAttention's lengths before the step, i32 [B]: the write offset."""
        return self._once("past_seqlens", offset, 0, lambda: self._cast(offset, (None,), "i32", 6))

    def cumulative_sequence_length(self) -> ir.Value:
        """Where each row's tokens begin when rows are packed one after another, and where the last ends,
        i32 [B + 1]: 0, S, 2 S ..."""

        def make() -> ir.Value:
            ends = self._one("CumSum", [self._rows_of_tokens(), self._scalar(0)], (None,), "i64")
            bounds = self._one("Concat", [self._ints(0), ends], (None,), "i64", {"axis": 0})
            return self._cast(bounds, (None,), "i32", 6)

        return self._once("cumulative_sequence_length", None, 0, make)

    def attention_metadata(self, block_table: ir.Value, block_size: int) -> ir.Value:
        """PagedAttention's bounds, i32 [2], read on the host: S, and as many positions as a row of the block
        table reaches. Without them the kernel would ask the device for the lengths, and wait."""

        def make() -> ir.Value:
            blocks = self._one("Shape", [block_table], _ONE, "i64", {"start": 1, "end": 2})
            reach = self._one("Mul", [blocks, self._ints(block_size)], _ONE, "i64")
            bounds = self._one("Concat", [self.sequence(), reach], (2,), "i64", {"axis": 0})
            return self._cast(bounds, (2,), "i32", 6)

        return self._once("attention_metadata", block_table, block_size, make)

    def merged_shape(self, width: int) -> ir.Value:
        """[B, S, width] as i64 [3], from the shape of the tokens."""

        def make() -> ir.Value:
            rows = self._one("Shape", [self._token_ids], (2,), "i64", {"start": 0, "end": 2})
            return self._one("Concat", [rows, self._ints(width)], (3,), "i64", {"axis": 0})

        return self._once("merged_shape", None, width, make)

    def positions(self, offset: ir.Value) -> ir.Value:
        """The position of each new token, i64 [B, S], counted where the tokens are: a range would be as long
        as their shape says, which on CUDA is on the host."""

        def make() -> ir.Value:
            counted = self._one("CumSum", [self._each_token(), self._scalar(1)], (None, None), "i64")
            before = self._one("Sub", [offset, self._ints(1)], (None,), "i64")
            column = self._one("Unsqueeze", [before, self._ints(1)], (None, 1), "i64")
            return self._one("Add", [column, counted], (None, None), "i64")

        return self._once("positions", offset, 0, make)

    def explicit_positions(self, positions: ir.Value, offset: ir.Value) -> ir.Value | None:
        """None when ``positions`` are the write offset and onwards, which GroupQueryAttention takes by itself
        (the live length before the step is the write offset); else what it has to be given."""
        return None if is_step_positions(positions, self._token_ids, offset) else positions

    def _capacity(self, cache: ir.Value) -> ir.Value:
        size = self._one("Shape", [cache], _ONE, "i64", {"start": 2, "end": 3})
        return self._cast(self._reshape(size, [], ()), (), "i32", 6)

    def end(self, offset: ir.Value) -> ir.Value:
        """L, where the live prefix of the longest row ends, i64 [1]."""
        return self._once(
            "end",
            offset,
            0,
            lambda: self._one("ReduceMax", [self.totals(offset)], _ONE, "i64", {"keepdims": 1}),
        )

    def all_live(self, offset: ir.Value) -> ir.Value:
        """Up to where every row is live, i64 [1]: the shortest total."""
        return self._once(
            "all_live",
            offset,
            0,
            lambda: self._one("ReduceMin", [self.totals(offset)], _ONE, "i64", {"keepdims": 1}),
        )

    def start(self, offset: ir.Value, window: int) -> ir.Value:
        """The first position that any query of the step may see, i64 [1]; 0 without a window."""

        def make() -> ir.Value:
            if window == 0:
                return self._ints(0)
            first = self._one("ReduceMin", [offset], _ONE, "i64", {"keepdims": 1})
            seen = self._one("Sub", [first, self._ints(window - 1)], _ONE, "i64")
            return self._one("Max", [seen, self._ints(0)], _ONE, "i64")

        return self._once("start", offset, window, make)

    def splits(self, offset: ir.Value, window: int) -> ir.Value:
        """How many positions from start on are live in all rows, and how many are not, i64 [2]."""

        def make() -> ir.Value:
            whole = self._one("Sub", [self.all_live(offset), self.start(offset, window)], _ONE, "i64")
            rest = self._one("Sub", [self.end(offset), self.all_live(offset)], _ONE, "i64")
            return self._one("Concat", [whole, rest], (2,), "i64", {"axis": 0})

        return self._once("splits", offset, window, make)

    def mask(self, offset: ir.Value, window: int) -> ir.Value:
        """Whether query s of a row may see position start + t, i1 [B, 1, S, T]."""

        def make() -> ir.Value:
            query = self._queries(offset)
            keys = self._range(self.start(offset, window), self.end(offset))
            shape = (None, 1, None, None)
            causal = self._one("LessOrEqual", [keys, query], shape, "i1")
            if window == 0:
                return causal
            before = self._one("Sub", [query, self._scalar(window)], (None, 1, None, 1), "i64")
            near = self._one("Greater", [keys, before], shape, "i1")
            return self._one("And", [causal, near], shape, "i1")

        return self._once("mask", offset, window, make)

    def tail_is_live(self, offset: ir.Value) -> ir.Value:
        """Which positions from all_live on belong to a row, i1 [B, 1, T, 1]."""

        def make() -> ir.Value:
            positions = self._range(self.all_live(offset), self.end(offset))
            column = self._reshape(positions, [1, 1, -1, 1], (1, 1, None, 1))
            totals = self._reshape(self.totals(offset), [-1, 1, 1, 1], (None, 1, 1, 1))
            return self._one("Less", [column, totals], (None, 1, None, 1), "i1")

        return self._once("tail_is_live", offset, 0, make)

    def _queries(self, offset: ir.Value) -> ir.Value:
        """The position of each query, i64 [B, 1, S, 1]."""

        def make() -> ir.Value:
            steps = self._reshape(self._range(self._ints(0), self.sequence()), [1, 1, -1, 1], (1, 1, None, 1))
            rows = self._reshape(offset, [-1, 1, 1, 1], (None, 1, 1, 1))
            return self._one("Add", [rows, steps], (None, 1, None, 1), "i64")

        return self._once("queries", offset, 0, make)

    def _range(self, start: ir.Value, end: ir.Value) -> ir.Value:
        scalars = [self._reshape(value, [], ()) for value in (start, end)]
        return self._one("Range", [*scalars, self._scalar(1)], (None,), "i64")

    def _once(
        self, what: str, offset: ir.Value | None, window: int, make: Callable[[], ir.Value]
    ) -> ir.Value:
        key = (what, offset, window)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _one(
        self,
        op_type: str,
        operands: list[ir.Value],
        shape: tuple[int | None, ...],
        dtype: str,
        attributes: dict[str, int] | None = None,
    ) -> ir.Value:
        return self._builder.one(op_type, operands, tensor_type(shape, dtype), attributes)

    def _cast(self, value: ir.Value, shape: tuple[int | None, ...], dtype: str, onnx_type: int) -> ir.Value:
        return self._one("Cast", [value], shape, dtype, {"to": onnx_type})

    def _reshape(self, value: ir.Value, target: list[int], shape: tuple[int | None, ...]) -> ir.Value:
        sizes = self._builder.constant(np.array(target, dtype=np.int64))
        return self._one("Reshape", [value, sizes], shape, "i64")

    def _ints(self, value: int) -> ir.Value:
        return self._builder.constant(np.array([value], dtype=np.int64))

    def _scalar(self, value: int) -> ir.Value:
        return self._builder.constant(np.array(value, dtype=np.int64))
