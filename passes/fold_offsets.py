"""fold-offsets: the offset term of a quantised linear goes into the weights that its kernel packs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from .ir.builder import OnnxBuilder
from .ir.compensation import compensated_product
from .ir.matching import attribute, erase_if_dead, maker, operand_pairs, used_once
from .ir.nbits import NBits, WeightForm
from .ir.roles import body_of, function_of
from .ir.tensors import dtype_of
from .ir.weights import weight_ref
from .remarks import Remarks

__all__ = ["FoldOffsets"]

# Where inputs are rounded to int8, the kernel multiplies the sums of their blocks by a number a block; at the
# other levels it packs no such numbers.
_LEVEL = 4


@dataclass(frozen=True, slots=True)
class FoldOffsets:
    """``MatMulNBits(x, data) + sums(x) * offset`` becomes ``MatMulNBits(x, folded)``.

    The kernel itself adds block sums of x times one float a block, which stand for the codes' zero. With the
    zero and the offset in one number the term costs nothing. ONNX has no input for that number: ``folded``
    names the same codes, and the compiler writes it into the kernel's packed form of them. A program with
    folded weights is right only where ONNX Runtime takes that form from the plan, which is why it stands
    beside the portable one and never replaces it. Not in the default pipeline: the compiler runs it on
    programs for the CPU once the portable one is emitted.
    """

    name: ClassVar[str] = "fold-offsets"
    summary: ClassVar[str] = "linears take their weights' offsets from the packed weights"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when the module is not one function of one block."""
        body = body_of(function_of(module))
        adds = [view.operation for view in body.operations if view.operation.name == "onnx.add"]
        folded, kept = 0, 0
        for add in adds:
            found = _linear_with_offset(add)
            if found is None:
                continue
            linear, product = found
            if attribute(linear, "accuracy_level", 0) != _LEVEL or dtype_of(linear.operands[0]) != "f32":
                kept += 1
                continue
            _fold(add, linear, product)
            folded += 1
        if folded:
            remarks.add(f"{folded} linears take their offsets from packed weights")
        if kept:
            remarks.add(f"{kept} linears add their offsets: their inputs are not rounded")
        return bool(folded)


def _linear_with_offset(add: ir.Operation) -> tuple[ir.Operation, ir.Value] | None:
    """The MatMulNBits, and its product, of a sum with the block sums of the same input times its weight's
    offsets. With compensated rounding the product is that of both its rows."""
    for product, term in operand_pairs(add):
        linear, x = _linear(product)
        times = maker(term, "onnx.ms_fused_mat_mul")
        if linear is None or times is None or not used_once(product):
            continue
        sums = maker(times.operands[0], "onnx.reduce_sum")
        blocks = None if sums is None else maker(sums.operands[0], "onnx.reshape")
        if blocks is None or blocks.operands[0] != x:
            continue
        data, offset = maker(linear.operands[1], "plan.weight"), maker(times.operands[1], "plan.weight")
        if data is None or offset is None or attribute(data, "form") != WeightForm.DATA.value:
            continue
        same = weight_ref(data).parts == weight_ref(offset).parts
        same = same and attribute(data, "format") == attribute(offset, "format")
        if same and attribute(offset, "form") == WeightForm.OFFSET.value:
            assert NBits.parse(str(attribute(data, "format"))).offset
            return linear, product
    return None


def _linear(product: ir.Value) -> tuple[ir.Operation | None, ir.Value | None]:
    linear = maker(product, "onnx.ms_mat_mul_n_bits")
    if linear is not None:
        return linear, linear.operands[0]
    return compensated_product(product) or (None, None)


def _fold(add: ir.Operation, linear: ir.Operation, product: ir.Value) -> None:
    data = maker(linear.operands[1], "plan.weight")
    assert data is not None
    term = next(value for value in add.operands if value != product)
    attributes = {
        "name": attribute(data, "name"),
        "parts": attribute(data, "parts"),
        "format": attribute(data, "format"),
        "form": WeightForm.FOLDED.value,
    }
    builder = OnnxBuilder(data.location, ir.InsertionPoint(data))
    (folded,) = builder.plan("weight", [], [data.results[0].type], attributes)
    linear.operands[1] = folded
    add.results[0].replace_all_uses_with(product)
    add.erase()
    erase_if_dead(term)
    erase_if_dead(data.results[0])
