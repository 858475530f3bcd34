"""Element-wise arithmetic, comparisons, activations and casts."""

from __future__ import annotations

from typing import Any

from torch_mlir import ir

from ..ir.builder import dtype_of, rank_of, shape_of, tensor_type
from .sizes import Size
from .state import Lowering
from .table import Call, LowerFunction, LoweringTable, NotLowered

__all__ = ["TABLE"]

TABLE = LoweringTable("elementwise")

_UNARY = {
    "abs": "Abs", "ceil": "Ceil", "cos": "Cos", "erf": "Erf", "exp": "Exp", "floor": "Floor", "log": "Log",
    "neg": "Neg", "reciprocal": "Reciprocal", "relu": "Relu", "round": "Round", "sigmoid": "Sigmoid",
    "sin": "Sin", "softplus_": "Softplus", "sqrt": "Sqrt", "tanh": "Tanh",
    "bitwise_not": "Not", "logical_not": "Not",
}  # fmt: skip
_BINARY = {"mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min"}
_COMPARE = {"eq": "Equal", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less"}
_LOGICAL = {
    "torch.aten.bitwise_and.Tensor": "And",
    "torch.aten.bitwise_or.Tensor": "Or",
    "torch.aten.bitwise_xor.Tensor": "Xor",
    "torch.aten.__and__.Tensor": "And",
    "torch.aten.__or__.Tensor": "Or",
    "torch.aten.logical_and": "And",
    "torch.aten.logical_or": "Or",
}


def _unary(op_type: str) -> LowerFunction:
    def lower(low: Lowering, call: Call) -> ir.Value:
        value = call.args[0]
        if op_type == "Not" and dtype_of(value) != "i1":
            raise NotLowered(f"bitwise on {dtype_of(value)}")
        return low.one(op_type, [low.cast(value, dtype_of(call.type))], call.type)

    return lower


def _is_identity(op_type: str, other: Any) -> bool:
    neutral = {"Mul": 1, "Div": 1, "Add": 0, "Sub": 0}.get(op_type)
    if isinstance(other, Size):
        other = other.constant
    return neutral is not None and isinstance(other, int | float) and other == neutral


def _binary(low: Lowering, op_type: str, left: Any, right: Any, type_: ir.Type) -> ir.Value:
    """left and right in the result's element type; x * 1 and x + 0 are x."""
    dtype = dtype_of(type_)
    if isinstance(left, ir.Value) and _is_identity(op_type, right) and shape_of(left) == shape_of(type_):
        return low.cast(left, dtype)
    return low.one(op_type, [low.operand(left, dtype), low.operand(right, dtype)], type_)


def _plain_binary(op_type: str) -> LowerFunction:
    def lower(low: Lowering, call: Call) -> ir.Value:
        return _binary(low, op_type, call.args[0], call.args[1], call.type)

    return lower


def _comparison(op_type: str, *, negated: bool = False) -> LowerFunction:
    def lower(low: Lowering, call: Call) -> ir.Value:
        dtype = low.common_dtype(*call.args[:2])
        operands = [low.operand(arg, dtype) for arg in call.args[:2]]
        result = low.one(op_type, operands, call.type)
        return low.one("Not", [result], call.type) if negated else result

    return lower


def _logical(op_type: str) -> LowerFunction:
    def lower(low: Lowering, call: Call) -> ir.Value:
        if dtype_of(call.type) != "i1" or any(dtype_of(arg) != "i1" for arg in call.args[:2]):
            raise NotLowered(f"bitwise on {dtype_of(call.type)}")
        return low.one(op_type, list(call.args[:2]), call.type)

    return lower


for _name, _op in _UNARY.items():
    TABLE.add(f"torch.aten.{_name}", _unary(_op))
for _name, _op in _BINARY.items():
    for _form in ("Tensor", "Scalar") if _name in ("mul", "div") else ("",):
        TABLE.add(f"torch.aten.{_name}.{_form}".rstrip("."), _plain_binary(_op))
for _name, _op in _COMPARE.items():
    for _form in ("Tensor", "Scalar"):
        TABLE.add(f"torch.aten.{_name}.{_form}", _comparison(_op))
for _form in ("Tensor", "Scalar"):
    TABLE.add(f"torch.aten.ne.{_form}", _comparison("Equal", negated=True))
for _name, _op in _LOGICAL.items():
    TABLE.add(_name, _logical(_op))


def _scaled(low: Lowering, value: Any, alpha: Any, dtype: str) -> Any:
    if alpha == 1:
        return value
    if isinstance(value, int | float):
        return value * alpha
    return low.one(
        "Mul", [low.operand(value, dtype), low.scalar(alpha, dtype)], tensor_type(shape_of(value), dtype)
    )


@TABLE.row("torch.aten.add.Tensor", "torch.aten.add.Scalar")
def _add(low: Lowering, call: Call) -> ir.Value:
    left, right, alpha = call.args
    return _binary(low, "Add", left, _scaled(low, right, alpha, dtype_of(call.type)), call.type)


@TABLE.row("torch.aten.sub.Tensor", "torch.aten.sub.Scalar")
def _sub(low: Lowering, call: Call) -> ir.Value:
    left, right, alpha = call.args
    return _binary(low, "Sub", left, _scaled(low, right, alpha, dtype_of(call.type)), call.type)


@TABLE.row("torch.aten.rsub.Scalar")
def _rsub(low: Lowering, call: Call) -> ir.Value:
    left, right, alpha = call.args
    return _binary(low, "Sub", right, _scaled(low, left, alpha, dtype_of(call.type)), call.type)


@TABLE.row("torch.aten.pow.Tensor_Scalar")
def _pow_scalar(low: Lowering, call: Call) -> ir.Value:
    """Small integer powers are products: what torch computes, and faster than Pow."""
    base, exponent = low.cast(call.args[0], dtype_of(call.type)), call.args[1]
    if exponent in (2, 3):
        square = low.one("Mul", [base, base], call.type)
        return square if exponent == 2 else low.one("Mul", [square, base], call.type)
    return low.one("Pow", [base, low.operand(exponent, dtype_of(call.type))], call.type)


@TABLE.row("torch.aten.pow.Tensor_Tensor", "torch.aten.pow.Scalar")
def _pow(low: Lowering, call: Call) -> ir.Value:
    dtype = dtype_of(call.type)
    return low.one("Pow", [low.operand(arg, dtype) for arg in call.args[:2]], call.type)


@TABLE.row("torch.aten.remainder.Scalar")
def _remainder(low: Lowering, call: Call) -> ir.Value:
    """The sign of the divisor, in torch and (for integers) in ONNX."""
    dtype = dtype_of(call.type)
    if not dtype.startswith("i"):
        raise NotLowered(f"a remainder of {dtype}")
    return low.one("Mod", [call.args[0], low.operand(call.args[1], dtype)], call.type)


@TABLE.row("torch.aten.rsqrt")
def _rsqrt(low: Lowering, call: Call) -> ir.Value:
    root = low.one("Sqrt", [low.cast(call.args[0], dtype_of(call.type))], call.type)
    return low.one("Reciprocal", [root], call.type)


@TABLE.row("torch.aten.silu")
def _silu(low: Lowering, call: Call) -> ir.Value:
    value = call.args[0]
    return low.one("Mul", [value, low.one("Sigmoid", [value], call.type)], call.type)


@TABLE.row("torch.aten.gelu")
def _gelu(low: Lowering, call: Call) -> ir.Value:
    value, approximate = call.args
    return low.one("Gelu", [value], call.type, {"approximate": approximate})


@TABLE.row("torch.aten.clamp", "torch.aten.clamp.Tensor")
def _clamp(low: Lowering, call: Call) -> ir.Value:
    value, least, most = call.args
    dtype = dtype_of(call.type)
    result = low.cast(value, dtype)
    if least is not None:
        result = low.one("Max", [result, low.operand(least, dtype)], call.type)
    if most is not None:
        result = low.one("Min", [result, low.operand(most, dtype)], call.type)
    return result


@TABLE.row("torch.aten.where.self", "torch.aten.where.ScalarOther", "torch.aten.where.ScalarSelf")
def _where(low: Lowering, call: Call) -> ir.Value:
    condition, yes, no = call.args
    dtype = dtype_of(call.type)
    return low.one("Where", [condition, low.operand(yes, dtype), low.operand(no, dtype)], call.type)


@TABLE.row("torch.aten.masked_fill.Scalar", "torch.aten.masked_fill.Tensor")
def _masked_fill(low: Lowering, call: Call) -> ir.Value:
    value, mask, fill = call.args
    return low.one("Where", [mask, low.operand(fill, dtype_of(call.type)), value], call.type)


@TABLE.row(
    "torch.aten._to_copy",
    "torch.aten.to.dtype",
    "torch.aten.to.dtype_layout",
    "torch.aten.type_as",
    "torch.aten.to.other",
    "torch.aten.to.device",
    "torch.prims.convert_element_type",
)
def _convert(low: Lowering, call: Call) -> ir.Value:
    """Devices and layouts mean nothing here; only the element type does."""
    return low.cast(call.args[0], dtype_of(call.type))


@TABLE.row(
    "torch.aten.alias",
    "torch.aten.clone",
    "torch.aten.contiguous",
    "torch.aten.detach",
    "torch.aten.dropout",
    "torch.aten.lift_fresh_copy",
)
def _same(low: Lowering, call: Call) -> ir.Value:
    return call.args[0]


@TABLE.row("torch.aten.copy")
def _copy(low: Lowering, call: Call) -> ir.Value:
    """The source's values in the shape and element type of the (overwritten) destination."""
    destination, source = call.args[0], call.args[1]
    if low.sizes(destination) != low.sizes(source):
        raise NotLowered("a copy that broadcasts")
    return low.cast(source, dtype_of(call.type))


@TABLE.row("torch.prim.NumToTensor.Scalar")
def _number(low: Lowering, call: Call) -> ir.Value:
    assert rank_of(call.type) == 0
    return low.operand(call.args[0], dtype_of(call.type))
