"""Attribute kinds of the onnx and plan dialects, and the way between them and Python values."""

from __future__ import annotations

import enum
from typing import Any, cast

import numpy as np
from torch_mlir import ir

from planonce.runtime.errors import PassError

from .tensors import dense_array, dense_attribute

__all__ = ["AttributeKind", "kind_matches", "to_attribute", "to_python"]


class AttributeKind(enum.Enum):
    """What an attribute holds; the values are ONNX's own words for it."""

    INT = "int"
    INTS = "ints"
    FLOAT = "float"
    FLOATS = "floats"
    STRING = "string"
    STRINGS = "strings"
    TENSOR = "tensor"


def kind_matches(attribute: ir.Attribute, kind: AttributeKind) -> bool:
    """Whether an MLIR attribute is of that kind. INTS and FLOATS may be dense arrays or array attributes."""
    match kind:
        case AttributeKind.INT:
            return isinstance(attribute, ir.IntegerAttr) and attribute.type.width == 64
        case AttributeKind.FLOAT:
            return isinstance(attribute, ir.FloatAttr)
        case AttributeKind.STRING:
            return isinstance(attribute, ir.StringAttr)
        case AttributeKind.INTS:
            return isinstance(attribute, ir.DenseI64ArrayAttr) or _all(attribute, ir.IntegerAttr)
        case AttributeKind.FLOATS:
            return isinstance(attribute, ir.DenseF32ArrayAttr) or _all(attribute, ir.FloatAttr)
        case AttributeKind.STRINGS:
            return _all(attribute, ir.StringAttr)
        case AttributeKind.TENSOR:
            return isinstance(attribute, ir.DenseElementsAttr | ir.DenseResourceElementsAttr)


def to_attribute(value: Any, kind: AttributeKind, name: str = "") -> ir.Attribute:
    """Python value -> MLIR attribute of that kind (i64, f32, arrays of them). Needs a current context.

    An attribute is taken as it is when its kind matches. Raises PassError on any other type of value.
    """
    if isinstance(value, ir.Attribute):
        if kind_matches(value, kind):
            return value
        raise _mismatch(value, kind, name)
    try:
        match kind:
            case AttributeKind.INT:
                return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _integer(value))
            case AttributeKind.FLOAT:
                return ir.FloatAttr.get(ir.F32Type.get(), _real(value), loc=ir.Location.unknown())
            case AttributeKind.STRING:
                return ir.StringAttr.get(_text(value))
            case AttributeKind.INTS:
                return ir.DenseI64ArrayAttr.get([_integer(item) for item in value])
            case AttributeKind.FLOATS:
                return ir.DenseF32ArrayAttr.get([_real(item) for item in value])
            case AttributeKind.STRINGS:
                return ir.ArrayAttr.get([ir.StringAttr.get(_text(item)) for item in value])
            case AttributeKind.TENSOR:
                return dense_attribute(np.asarray(value))
    except (TypeError, ValueError):
        raise _mismatch(value, kind, name) from None


def to_python(attribute: ir.Attribute) -> int | float | str | list[Any] | np.ndarray:
    """MLIR attribute -> int, float, str, list of them, or an array (TENSOR). Raises PassError on others."""
    if isinstance(attribute, ir.BoolAttr | ir.IntegerAttr):
        return int(attribute.value)
    if isinstance(attribute, ir.FloatAttr):
        return float(attribute.value)
    if isinstance(attribute, ir.StringAttr):
        return str(attribute.value)
    if isinstance(attribute, ir.DenseI64ArrayAttr | ir.DenseI32ArrayAttr | ir.DenseF32ArrayAttr):
        return list(attribute)
    if isinstance(attribute, ir.ArrayAttr):
        return [to_python(item) for item in attribute]
    if isinstance(attribute, ir.DenseElementsAttr):
        return dense_array(attribute)
    raise PassError("an attribute has no Python value", found=str(attribute)[:120])


def _all(attribute: ir.Attribute, item: type) -> bool:
    return isinstance(attribute, ir.ArrayAttr) and all(isinstance(x, item) for x in attribute)


def _integer(value: Any) -> int:
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return int(cast("int", value))
    raise TypeError


def _real(value: Any) -> float:
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        return float(cast("float", value))
    raise TypeError


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError


def _mismatch(value: Any, kind: AttributeKind, name: str) -> PassError:
    shown = str(value)
    return PassError(
        f"attribute {name!r} has a value of the wrong kind",
        found=f"{type(value).__name__} {shown[:80]}",
        expected=kind.value,
    )
