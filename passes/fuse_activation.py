"""fuse-activation: activations written out become one operation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch_mlir import ir

from .ir.builder import OnnxBuilder
from .ir.devices import device_of_op
from .ir.matching import erase_if_dead, maker, operand_pairs, scalar, used_once
from .ir.op_schema import MS_DOMAIN
from .ir.roles import body_of, function_of
from .ir.tensors import constant_array
from .remarks import Remarks

__all__ = ["FuseActivation"]


@dataclass(frozen=True, slots=True)
class _Activation:
    """An activation of ``x`` that ends in ``last``; what is between is read by nothing else."""

    x: ir.Value
    last: ir.Operation
    op_type: str
    domain: str
    attributes: dict[str, float | str]


@dataclass(frozen=True, slots=True)
class FuseActivation:
    """x * sigmoid(a * x) becomes QuickGelu with that alpha (alpha 1 is SiLU); the two forms of GELU, with
    tanh and with erf, become Gelu. Constants must be those of the formulas to single precision, or in a
    16-bit program the nearest that its dtype has."""

    name: ClassVar[str] = "fuse-activation"
    summary: ClassVar[str] = "SiLU and GELU written out become one operation"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when the module is not one function of one block."""
        body = body_of(function_of(module))
        counts: dict[str, int] = {}
        for op in [view.operation for view in body.operations if view.operation.name in _CORES]:
            match, what = _CORES[op.name]
            found = match(op)
            if found is None:
                continue
            if isinstance(found, str):
                remarks.add(f"{what} stays as it is: {found}", at=op)
                continue
            _fuse(found)
            counts[found.op_type] = counts.get(found.op_type, 0) + 1
        for op_type, count in counts.items():
            remarks.add(f"{count} activations became {op_type}")
        return bool(counts)


def _fuse(found: _Activation) -> None:
    op = found.last
    builder = OnnxBuilder(op.location, ir.InsertionPoint(op), device_of_op(op) or "")
    made = builder.one(found.op_type, [found.x], op.results[0].type, found.attributes, found.domain)
    op.results[0].replace_all_uses_with(made)
    erase_if_dead(op.results[0])


def _reader(value: ir.Value) -> ir.Operation | None:
    return next(iter(value.uses)).owner.operation if used_once(value) else None


def _sigmoid(op: ir.Operation) -> _Activation | str | None:
    gate = op.results[0]
    x, alpha = op.operands[0], 1.0
    scaled = maker(x, "onnx.mul")
    if scaled is not None:
        for value, factor in operand_pairs(scaled):
            number = scalar(factor)
            if number is not None and used_once(x):
                x, alpha = value, number
                break
    product = _reader(gate)
    if product is None:
        return "the sigmoid is read elsewhere too"
    if product.name != "onnx.mul":
        return None
    if any(value == gate and other == x for value, other in operand_pairs(product)):
        return _Activation(x, product, "QuickGelu", MS_DOMAIN, {"alpha": alpha})
    return "the sigmoid multiplies something else than its own argument"


def _gelu_core(op: ir.Operation) -> tuple[ir.Operation, ir.Value] | str | None:
    """(last, x) when op's result t ends as 0.5 * x * (1 + t), in any order."""
    more = _reader(op.results[0])
    if more is None:
        return "a value inside it is read elsewhere too"
    if more.name != "onnx.add" or not any(scalar(value) == 1 for value in more.operands):
        return None
    product = _reader(more.results[0])
    if product is None or product.name != "onnx.mul":
        return None
    for one_more, other in operand_pairs(product):
        if one_more != more.results[0]:
            continue
        half = maker(other, "onnx.mul")
        if half is not None and used_once(other):
            for x, number in operand_pairs(half):
                if scalar(number) == 0.5:
                    return product, x
        last = _reader(product.results[0])
        if last is not None and last.name == "onnx.mul" and any(scalar(v) == 0.5 for v in last.operands):
            return last, other
    return None


def _is_number(value: ir.Value, wanted: float) -> bool:
    """Whether ``value`` is a constant of one element: ``wanted``, as near as its dtype comes."""
    array = constant_array(value)
    if array is None or array.size != 1:
        return False
    nearest = float(np.asarray(wanted).astype(array.dtype))
    return math.isclose(float(array.reshape(-1)[0]), nearest, rel_tol=1e-6)


def _tanh(op: ir.Operation) -> _Activation | str | None:
    core = _gelu_core(op)
    if core is None or isinstance(core, str):
        return None  # a tanh has many other uses: soft caps, for one
    last, x = core
    scaled = maker(op.operands[0], "onnx.mul")
    if scaled is None or not used_once(op.operands[0]):
        return "its argument is not sqrt(2 / pi) * (x + 0.044715 * x ** 3)"
    for inner, number in operand_pairs(scaled):
        if _is_number(number, math.sqrt(2 / math.pi)) and used_once(inner) and _is_cubic(inner, x):
            return _Activation(x, last, "Gelu", "", {"approximate": "tanh"})
    return "its argument is not sqrt(2 / pi) * (x + 0.044715 * x ** 3)"


def _is_cubic(value: ir.Value, x: ir.Value) -> bool:
    """x + 0.044715 * x ** 3."""
    total = maker(value, "onnx.add")
    if total is None:
        return False
    for left, cubic in operand_pairs(total):
        term = maker(cubic, "onnx.mul")
        if left == x and term is not None and used_once(cubic):
            for cube, number in operand_pairs(term):
                if _is_number(number, 0.044715) and used_once(cube) and _is_cube(cube, x):
                    return True
    return False


def _is_cube(value: ir.Value, x: ir.Value) -> bool:
    power = maker(value, "onnx.pow")
    if power is not None:
        return power.operands[0] == x and scalar(power.operands[1]) == 3
    product = maker(value, "onnx.mul")
    if product is None:
        return False
    for square, other in operand_pairs(product):
        inner = maker(square, "onnx.mul")
        if other == x and inner is not None and used_once(square) and list(inner.operands) == [x, x]:
            return True
    return False


def _erf(op: ir.Operation) -> _Activation | str | None:
    core = _gelu_core(op)
    if core is None or isinstance(core, str):
        return core
    last, x = core
    argument = maker(op.operands[0], "onnx.mul", "onnx.div")
    if argument is not None and used_once(op.operands[0]):
        wanted = math.sqrt(2) if argument.name == "onnx.div" else math.sqrt(0.5)
        if argument.operands[0] == x and _is_number(argument.operands[1], wanted):
            return _Activation(x, last, "Gelu", "", {"approximate": "none"})
    return "its argument is not x / sqrt(2)"


_CORES: dict[str, tuple[Callable[[ir.Operation], _Activation | str | None], str]] = {
    "onnx.sigmoid": (_sigmoid, "a gate"),
    "onnx.tanh": (_tanh, "a tanh"),
    "onnx.erf": (_erf, "an erf"),
}
