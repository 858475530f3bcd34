"""compensate-rounding: linears whose kernel rounds its input also multiply what the rounding left over."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from torch_mlir import ir

from .base import option
from .ir.builder import OnnxBuilder
from .ir.compensation import compensated
from .ir.devices import device_of_op
from .ir.matching import attribute, maker
from .ir.op_schema import MS_DOMAIN
from .ir.roles import body_of, function_of
from .ir.tensors import dtype_of, shape_of, tensor_type
from .ir.weights import weight_ref
from .remarks import Remarks

__all__ = ["CompensateRounding"]

_LINEAR = "onnx.ms_mat_mul_n_bits"
_ATTRIBUTES = ("K", "N", "bits", "block_size", "accuracy_level")
_LEVEL = 4  # the accuracy level at which the kernel rounds its input to int8
_ONE = 64  # the identity's code for 1: with a scale of 1/64 the kernel's products are exact
_ZERO = 128


@dataclass(frozen=True, slots=True)
class CompensateRounding:
    """``MatMulNBits(x, w)`` becomes ``MatMulNBits(x, w) + MatMulNBits(x - x', w)``, x' being x as rounded.

    At accuracy level 4 the kernel rounds each block of its input to 127 steps, which costs more agreement
    than weights of 8 bits do. What is left over is smaller by that factor, so rounding it too costs next to
    nothing: the sum is some 250 times closer to the product with the unrounded x. Both rows go through one
    MatMulNBits, which reads its weights once.

    x' is what the kernel itself makes of x: a product with the identity, block by block. Where a kernel
    rounds in another way than for that product, x' is still near x, and the sum no worse than the product
    was. Linears with one input share the two rows.

    A linear is left alone when its input is not rounded or not float32, or has no whole number of blocks.
    """

    name: ClassVar[str] = "compensate-rounding"
    summary: ClassVar[str] = "linears also multiply what rounding their input to int8 left over"

    bits: int = option(0, "of the weights whose linears it is for: 4, 8, or 0 for both")
    skip: tuple[str, ...] = option((), "names of weights whose linears stay as they are; * matches anything")

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when the module is not one function of one block."""
        body = body_of(function_of(module))
        rows = _Rows()
        done, left = 0, 0
        for linear in [view.operation for view in body.operations if view.operation.name == _LINEAR]:
            if not self._is_meant(linear):
                continue
            if dtype_of(linear.operands[0]) != "f32" or not _in_whole_blocks(linear):
                left += 1
                continue
            _compensate(linear, rows)
            done += 1
        if done:
            remarks.add(f"{done} linears multiply their inputs' rounding errors too: {len(rows.made)} inputs")
        if left:
            remarks.add(f"{left} linears keep their rounding errors: not float32, or no whole blocks")
        return bool(done)

    def _is_meant(self, linear: ir.Operation) -> bool:
        if self.bits not in (0, attribute(linear, "bits", 4)):
            return False
        if attribute(linear, "accuracy_level", 0) != _LEVEL or compensated(linear) is not None:
            return False
        weight = maker(linear.operands[1], "plan.weight")
        if weight is None:  # the identity of a compensation
            return False
        parts = weight_ref(weight).parts
        return not any(fnmatch.fnmatchcase(part, pattern) for part in parts for pattern in self.skip)


@dataclass(slots=True)
class _Rows:
    """Inputs with their left-overs below them, by input, block size and device."""

    made: dict[tuple[ir.Value, int, str], ir.Value] = field(
        default_factory=dict[tuple[ir.Value, int, str], ir.Value]
    )

    def of(self, linear: ir.Operation) -> ir.Value:
        """``[2 * batch, .., k]``: the linear's input, then what rounding leaves of it."""
        x, block = linear.operands[0], int(str(attribute(linear, "block_size")))
        device = device_of_op(linear) or ""
        key = (x, block, device)
        if key not in self.made:
            builder = OnnxBuilder(linear.location, ir.InsertionPoint(linear), device)
            self.made[key] = builder.one("Concat", [x, _left_over(builder, x, block)], _twice(x), {"axis": 0})
        return self.made[key]


def _compensate(linear: ir.Operation, rows: _Rows) -> None:
    both = rows.of(linear)
    result = linear.results[0]
    builder = OnnxBuilder(linear.location, ir.InsertionPoint(linear), device_of_op(linear) or "")
    attributes = {name: attribute(linear, name) for name in _ATTRIBUTES}
    operands = [both, *linear.operands[1:3]]
    products = builder.one("MatMulNBits", operands, _twice(result), attributes, MS_DOMAIN)
    halves = builder.op("Split", [products], [result.type, result.type], {"axis": 0, "num_outputs": 2})
    result.replace_all_uses_with(builder.one("Add", halves, result.type))
    linear.erase()


def _left_over(builder: OnnxBuilder, x: ir.Value, block: int) -> ir.Value:
    """x ``[.., k]`` less what the kernel rounds it to."""
    lead = shape_of(x)[:-1]
    blocks = (shape_of(x)[-1] or 0) // block
    blocked_type = tensor_type([*lead, blocks, block], "f32")
    in_blocks = builder.constant(np.array([*[0] * len(lead), blocks, block]))
    blocked = builder.one("Reshape", [x, in_blocks], blocked_type)
    codes = np.where(np.eye(block, dtype=bool), _ZERO + _ONE, _ZERO).astype(np.uint8)
    identity = builder.constant(codes.reshape(block, 1, block))
    scales = builder.constant(np.full((block, 1), 1 / _ONE, dtype=np.float32))
    attributes = {"K": block, "N": block, "bits": 8, "block_size": block, "accuracy_level": _LEVEL}
    rounded = builder.one("MatMulNBits", [blocked, identity, scales], blocked_type, attributes, MS_DOMAIN)
    left = builder.one("Sub", [blocked, rounded], blocked_type)
    return builder.one("Reshape", [left, builder.constant(np.array([*[0] * len(lead), -1]))], x.type)


def _twice(value: ir.Value) -> ir.Type:
    first, *others = shape_of(value)
    return tensor_type([None if first is None else 2 * first, *others], "f32")


def _in_whole_blocks(linear: ir.Operation) -> bool:
    shape = shape_of(linear.operands[0])
    width, block = shape[-1], int(str(attribute(linear, "block_size")))
    return len(shape) > 1 and width is not None and width % block == 0
