"""The portable arm: matrix products and a softmax over the live prefix of the caches."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch_mlir import ir

from ..ir.builder import OnnxBuilder, dtype_of, shape_of, tensor_type
from ..ir.op_schema import MS_DOMAIN
from ..ir.tensors import DTYPES, ONNX_DTYPES
from .call import AttentionCall
from .step_lengths import StepLengths

__all__ = ["PortableArm"]

_END = 2  # axis of positions in a cache


class PortableArm:
    """Any head_dim, dtype, offset and number of rows. It slices what is live first: a product over the
    whole cache would cost as much as its capacity. The softmax is in float32, as transformers has it for
    16-bit models too.

    Positions that no query may see are masked before the softmax, which hides K; a weight of zero does not
    hide a NaN in V, so V's positions beyond the shortest row are zeroed where they belong to no row. With
    one row there are none, and nothing is copied for it.
    """

    name: ClassVar[str] = "portable"
    reason: ClassVar[str] = "plain matrix products over the live prefix"

    @staticmethod
    def refusal(call: AttentionCall, device: str) -> str:
        del call, device
        return ""

    @staticmethod
    def lower(call: AttentionCall, builder: OnnxBuilder, lengths: StepLengths) -> None:
        make = _Portable(call, builder, lengths)
        weights = make.weights(make.scores())
        attended = make.attended(weights)
        batch, sequence = shape_of(call.q)[0], shape_of(call.q)[2]
        merged = tensor_type([batch, sequence, call.n_heads, call.v_head_dim], call.dtype)
        result = builder.one("Transpose", [attended], merged, {"perm": [0, 2, 1, 3]})
        call.op.results[0].replace_all_uses_with(result)
        call.op.erase()


class _Portable:
    def __init__(self, call: AttentionCall, builder: OnnxBuilder, lengths: StepLengths) -> None:
        self.call, self.builder, self.lengths = call, builder, lengths
        self.batch, _, self.sequence, _ = shape_of(call.q)
        self.softmax_dtype = "f32" if DTYPES[call.dtype].itemsize == 2 else call.dtype

    def scores(self) -> ir.Value:
        """[B, n_heads, S, T], -inf where a query may not look."""
        call = self.call
        q = self._to_groups(call.q, call.head_dim)
        start, end = self._start(), self.lengths.end(call.write_offset)
        keys = self._slice(call.k_cache, start, end)
        scores = self.builder.one(
            "FusedMatMul",
            [q, keys],
            self._type(call.n_kv_heads, None, None),
            {"alpha": call.scale, "transB": 1},
            MS_DOMAIN,
        )
        scores = self._cast(self._to_heads(scores, None), self.softmax_dtype)
        if call.softcap:
            cap = self._scalar(call.softcap, self.softmax_dtype)
            scores = self._one("Mul", [self._one("Tanh", [self._one("Div", [scores, cap])]), cap])
        mask = self.lengths.mask(call.write_offset, call.window)
        return self._one("Where", [mask, scores, self._scalar(-np.inf, self.softmax_dtype)])

    def weights(self, scores: ir.Value) -> ir.Value:
        """[B, n_heads, S, T]: the softmax, some of it given to the sinks where there are any."""
        call, dtype = self.call, self.softmax_dtype
        if call.sinks is None:
            return self._cast(self._one("Softmax", [scores], attributes={"axis": -1}), call.dtype)
        shape = self._ints(1, call.n_heads, 1, 1)
        column_type = tensor_type([self.batch, call.n_heads, self.sequence, 1], dtype)
        sinks = self.builder.one(
            "Reshape", [self._cast(call.sinks, dtype), shape], tensor_type([1, call.n_heads, 1, 1], dtype)
        )
        column = self.builder.one("Expand", [sinks, self._column_shape(scores)], column_type)
        joined = self._one("Concat", [scores, column], attributes={"axis": -1})
        softmax = self._one("Softmax", [joined], attributes={"axis": -1})
        sliced = self._one("Slice", [softmax, self._ints(0), self._ints(-1), self._ints(3)])
        return self._cast(sliced, call.dtype)

    def attended(self, weights: ir.Value) -> ir.Value:
        """[B, n_heads, S, v_head_dim]."""
        call, lengths = self.call, self.lengths
        grouped = self._to_groups(weights, None)
        parts = self.builder.op(
            "Split",
            [grouped, lengths.splits(call.write_offset, call.window)],
            [self._type(call.n_kv_heads, None, None)] * 2,
            {"axis": 3},
        )
        all_live, end = lengths.all_live(call.write_offset), lengths.end(call.write_offset)
        whole = self._slice(call.v_cache, self._start(), all_live)
        rest = self._slice(call.v_cache, all_live, end)
        clean = self.builder.one(
            "Where", [lengths.tail_is_live(call.write_offset), rest, self._scalar(0, call.dtype)], rest.type
        )
        product = self._type(call.n_kv_heads, None, call.v_head_dim)
        sums = [
            self.builder.one("MatMul", [p, v], product) for p, v in zip(parts, (whole, clean), strict=True)
        ]
        return self._to_heads(self.builder.one("Add", sums, product), call.v_head_dim)

    def _start(self) -> ir.Value:
        return self.lengths.start(self.call.write_offset, self.call.window)

    def _slice(self, cache: ir.Value, start: ir.Value, end: ir.Value) -> ir.Value:
        batch, heads, _, width = shape_of(cache)
        type_ = tensor_type([batch, heads, None, width], self.call.dtype)
        return self.builder.one("Slice", [cache, start, end, self._ints(_END)], type_)

    def _to_groups(self, value: ir.Value, last: int | None) -> ir.Value:
        """[B, n_heads, S, X] -> [B, n_kv_heads, group*S, X]: one KV head's queries, one below another."""
        if self.call.group == 1:
            return value
        target = self._ints(0, self.call.n_kv_heads, -1, 0 if last is None else last)
        return self.builder.one("Reshape", [value, target], self._type(self.call.n_kv_heads, None, last))

    def _to_heads(self, value: ir.Value, last: int | None) -> ir.Value:
        if self.call.group == 1:
            return value
        target = self._ints(0, self.call.n_heads, -1, 0 if last is None else last)
        return self.builder.one(
            "Reshape", [value, target], self._type(self.call.n_heads, self.sequence, last)
        )

    def _column_shape(self, scores: ir.Value) -> ir.Value:
        """The scores' shape with one position, i64 [4]."""
        three = self.builder.one("Shape", [scores], tensor_type([3], "i64"), {"start": 0, "end": 3})
        return self.builder.one("Concat", [three, self._ints(1)], tensor_type([4], "i64"), {"axis": 0})

    def _one(
        self, op_type: str, operands: list[ir.Value], attributes: dict[str, int] | None = None
    ) -> ir.Value:
        """An operation between scores and weights: of their shape, in the softmax's dtype."""
        type_ = tensor_type([self.batch, self.call.n_heads, self.sequence, None], self.softmax_dtype)
        return self.builder.one(op_type, operands, type_, attributes)

    def _type(self, heads: int, rows: int | None, columns: int | None) -> ir.RankedTensorType:
        return tensor_type([self.batch, heads, rows, columns], self.call.dtype)

    def _ints(self, *values: int) -> ir.Value:
        return self.builder.constant(np.array(values, dtype=np.int64))

    def _scalar(self, value: float, dtype: str) -> ir.Value:
        return self.builder.constant(np.array(value, dtype=DTYPES[dtype]))

    def _cast(self, value: ir.Value, dtype: str) -> ir.Value:
        """The value in another element type; itself when it has it."""
        if dtype_of(value) == dtype:
            return value
        return self.builder.one(
            "Cast", [value], tensor_type(shape_of(value), dtype), {"to": ONNX_DTYPES[dtype]}
        )
