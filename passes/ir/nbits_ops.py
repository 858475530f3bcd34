"""Operations on quantised weights: a linear, an embedding, and the offset term that some formats need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from .builder import OnnxBuilder
from .nbits import NBits, WeightForm
from .op_schema import MS_DOMAIN
from .tensors import dtype_of, shape_of, tensor_type
from .weights import WeightRef

__all__ = ["QuantisedWeight"]


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A weight ``[n, k]`` of the checkpoint, kept in ``format``. Its tensors are made where they are used."""

    ref: WeightRef
    format: NBits
    n: int
    k: int

    def linear(self, builder: OnnxBuilder, x: ir.Value, result: ir.Type, accuracy_level: int) -> ir.Value:
        """x ``[.., k]`` times the weight transposed: MatMulNBits, plus block sums of x times the offsets."""
        dtype = dtype_of(x)
        operands = [x, *(self._tensor(builder, form, dtype) for form in (WeightForm.DATA, WeightForm.SCALES))]
        attributes = {
            "K": self.k,
            "N": self.n,
            "bits": self.format.bits,
            "block_size": self.format.block,
            "accuracy_level": accuracy_level,
        }
        product = builder.one("MatMulNBits", operands, result, attributes, MS_DOMAIN)
        if not self.format.offset:
            return product
        offset = self._tensor(builder, WeightForm.OFFSET, dtype)
        term = builder.one(
            "FusedMatMul", [self._block_sums(builder, x), offset], result, {"transB": 1}, MS_DOMAIN
        )
        return builder.one("Add", [product, term], result)

    def rows(self, builder: OnnxBuilder, indices: ir.Value, result: ir.Type) -> ir.Value:
        """The rows at ``indices``, dequantised: GatherBlockQuantized, plus the rows' offsets."""
        dtype = dtype_of(result)
        scales = self._tensor(builder, WeightForm.SCALES, dtype)
        operands = [self._tensor(builder, WeightForm.ROWS, dtype), indices, scales]
        attributes = {
            "bits": self.format.bits,
            "block_size": self.format.block,
            "gather_axis": 0,
            "quantize_axis": 1,
        }
        rows = builder.one("GatherBlockQuantized", operands, result, attributes, MS_DOMAIN)
        if not self.format.offset:
            return rows
        lead, blocks = shape_of(indices), self.format.n_blocks(self.k)
        offset = self._tensor(builder, WeightForm.OFFSET, dtype)
        picked = builder.one("Gather", [offset, indices], tensor_type([*lead, blocks], dtype), {"axis": 0})
        last = builder.constant(np.array([len(lead) + 1]))
        spread = builder.one("Unsqueeze", [picked, last], tensor_type([*lead, blocks, 1], dtype))
        in_blocks = tensor_type([*lead, blocks, self.format.block], dtype)
        blocked = builder.one("Reshape", [rows, self._in_blocks(builder, len(lead))], in_blocks)
        moved = builder.one("Add", [blocked, spread], in_blocks)
        return builder.one("Reshape", [moved, builder.constant(np.array([0] * len(lead) + [-1]))], result)

    def _block_sums(self, builder: OnnxBuilder, x: ir.Value) -> ir.Value:
        """x ``[.., k]`` summed over each block: ``[.., blocks]``. Equal for all weights with this input."""
        lead, blocks = shape_of(x)[:-1], self.format.n_blocks(self.k)
        dtype = dtype_of(x)
        in_blocks = tensor_type([*lead, blocks, self.format.block], dtype)
        blocked = builder.one("Reshape", [x, self._in_blocks(builder, len(lead))], in_blocks)
        axes = builder.constant(np.array([len(lead) + 1]))
        return builder.one("ReduceSum", [blocked, axes], tensor_type([*lead, blocks], dtype), {"keepdims": 0})

    def _in_blocks(self, builder: OnnxBuilder, n_lead: int) -> ir.Value:
        shape = [*[0] * n_lead, self.format.n_blocks(self.k), self.format.block]
        return builder.constant(np.array(shape))

    def _tensor(self, builder: OnnxBuilder, form: WeightForm, dtype: str) -> ir.Value:
        """``dtype``: of scales and offsets."""
        dtype = dtype if form in (WeightForm.SCALES, WeightForm.OFFSET) else "ui8"
        type_ = tensor_type(self.format.shape(form, self.n, self.k), dtype)
        attributes = {
            "name": self.ref.name,
            "parts": list(self.ref.parts) if self.ref.merged else None,
            "format": str(self.format),
            "form": form.value,
        }
        # Every program that reads a weight has it: it is on no device.
        anywhere = OnnxBuilder(builder.location, builder.insertion_point)
        return anywhere.plan("weight", [], [type_], attributes)[0]
