"""Tensor types and constant data: between MLIR and the names, shapes and arrays that passes use."""

from __future__ import annotations

import re
from collections.abc import Sequence

import ml_dtypes
import numpy as np
from torch_mlir import ir

from planonce.runtime.errors import PassError

__all__ = [
    "DTYPES",
    "ONNX_DTYPES",
    "constant_array",
    "dense_array",
    "dense_attribute",
    "dtype_of",
    "element_type",
    "is_none",
    "rank_of",
    "shape_of",
    "tensor_type",
]

# MLIR's spelling of an element type -> the numpy type that holds it.
DTYPES: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "ui64": np.dtype(np.uint64),
    "ui32": np.dtype(np.uint32),
    "ui16": np.dtype(np.uint16),
    "ui8": np.dtype(np.uint8),
    "i1": np.dtype(np.bool_),
    "i4": np.dtype(ml_dtypes.int4),
    "ui4": np.dtype(ml_dtypes.uint4),
}

# onnx.TensorProto.DataType of each element type.
ONNX_DTYPES: dict[str, int] = {
    "f32": 1,
    "ui8": 2,
    "i8": 3,
    "ui16": 4,
    "i16": 5,
    "i32": 6,
    "i64": 7,
    "i1": 9,
    "f16": 10,
    "f64": 11,
    "ui32": 12,
    "ui64": 13,
    "bf16": 16,
}


def element_type(dtype: str) -> ir.Type:
    """``"f32"``, ``"i64"``, ``"ui8"``, ``"i1"``... -> MLIR type. Raises PassError on an unknown name."""
    if dtype not in DTYPES:
        raise PassError("unknown element type", found=dtype, expected=", ".join(DTYPES))
    return ir.Type.parse(dtype)


def tensor_type(shape: Sequence[int | None], dtype: str) -> ir.RankedTensorType:
    """``tensor<1x?xf32>`` from ``[1, None], "f32"``. None is a dynamic dimension."""
    dynamic = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get(
        [dynamic if size is None else size for size in shape], element_type(dtype), loc=ir.Location.unknown()
    )


def _ranked(value: ir.Value | ir.Type) -> ir.RankedTensorType:
    type_ = value if isinstance(value, ir.Type) else value.type
    if not isinstance(type_, ir.RankedTensorType):
        where = "" if isinstance(value, ir.Type) else str(value)[:160]
        raise PassError("a ranked builtin tensor is needed here", found=str(type_), where=where)
    return type_


def shape_of(value: ir.Value | ir.Type) -> tuple[int | None, ...]:
    """Static sizes, None where dynamic. Raises PassError when the value is no ranked tensor."""
    type_ = _ranked(value)
    return tuple(None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank))


def rank_of(value: ir.Value | ir.Type) -> int:
    """Number of dimensions. Raises PassError when the value is no ranked tensor."""
    return _ranked(value).rank


def dtype_of(value: ir.Value | ir.Type) -> str:
    """Element type as MLIR spells it: ``f32``, ``i64``. Raises PassError when it is no ranked tensor."""
    return str(_ranked(value).element_type)


def is_none(value: ir.Value) -> bool:
    """Whether the value stands for an absent optional operand (``onnx.no_value``)."""
    return isinstance(value.type, ir.NoneType)


def dense_attribute(array: np.ndarray) -> ir.Attribute:
    """Dense elements attribute with the array's shape, dtype and data. Raises PassError on other dtypes."""
    array = np.asarray(array)
    name = next((n for n, dtype in DTYPES.items() if dtype == array.dtype), None)
    if name is None or name in ("i4", "ui4"):
        raise PassError(
            "constant of an unsupported dtype", found=str(array.dtype), expected=", ".join(DTYPES)
        )
    contiguous = np.require(array, requirements="C")
    if name == "i1":
        return ir.DenseElementsAttr.get(contiguous)
    if name == "bf16":
        contiguous = contiguous.view(np.uint16)
    return ir.DenseElementsAttr.get(contiguous, type=element_type(name), shape=list(array.shape))


def dense_array(attribute: ir.Attribute) -> np.ndarray:
    """A copy of a dense attribute's data, in its own dtype. Raises PassError for resources."""
    if not isinstance(attribute, ir.DenseElementsAttr):
        raise PassError("constant data cannot be read", found=str(attribute)[:80], expected="dense<...>")
    type_ = ir.ShapedType(attribute.type)
    name = str(type_.element_type)
    shape = [type_.get_dim_size(i) for i in range(type_.rank)]
    if name == "bf16":
        return _bfloat16(str(attribute), shape)
    array = np.array(attribute)
    return (
        array.view(DTYPES[name])
        if array.dtype.itemsize == DTYPES[name].itemsize
        else array.astype(DTYPES[name])
    )


def _bfloat16(text: str, shape: Sequence[int]) -> np.ndarray:
    """From the printed form: MLIR's Python bindings offer no buffer of this type.

    Six printed digits hold bfloat16's eight bits exactly; long constants are printed as hexadecimal bytes.
    """
    dtype = DTYPES["bf16"]
    body = text[: text.rindex(":")]
    packed = re.search(r'"0x([0-9A-Fa-f]*)"', body)
    if packed is not None:
        flat = np.frombuffer(bytes.fromhex(packed.group(1)), dtype)
    else:
        numbers = re.findall(r"0x[0-9A-Fa-f]+|-?\d+\.\d+(?:e[+-]?\d+)?", body, re.IGNORECASE)
        bits = [
            int(n, 16) if n.lower().startswith("0x") else int(np.array(float(n), dtype).view(np.uint16))
            for n in numbers
        ]
        flat = np.array(bits, np.uint16).view(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    return (np.repeat(flat, count) if flat.size == 1 else flat.copy()).reshape(shape)


def constant_array(value: ir.Value) -> np.ndarray | None:
    """The data of an ``onnx.constant``, or None when the value is made by anything else."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "onnx.constant":
        return None
    return dense_array(owner.attributes["value"])
