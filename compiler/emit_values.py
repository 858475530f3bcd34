"""Types, attributes and constant data on their way from MLIR to ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import AttributeProto, TensorProto, ValueInfoProto, helper
from torch_mlir import ir

from planonce.passes.ir.attributes import AttributeKind, to_python
from planonce.passes.ir.onnx_schemas import OpSchema
from planonce.passes.ir.tensors import DTYPES, dense_array, dtype_of, shape_of
from planonce.runtime.errors import CompileError

__all__ = [
    "attribute_protos",
    "dtype_name",
    "external_tensor",
    "inline_tensor",
    "onnx_element_type",
    "value_info",
    "value_shape",
]

_ONNX_TYPES = {
    "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int16": TensorProto.INT16,
    "int8": TensorProto.INT8,
    "uint64": TensorProto.UINT64,
    "uint32": TensorProto.UINT32,
    "uint16": TensorProto.UINT16,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}
_KINDS = {
    AttributeKind.INT: AttributeProto.INT,
    AttributeKind.INTS: AttributeProto.INTS,
    AttributeKind.FLOAT: AttributeProto.FLOAT,
    AttributeKind.FLOATS: AttributeProto.FLOATS,
    AttributeKind.STRING: AttributeProto.STRING,
    AttributeKind.STRINGS: AttributeProto.STRINGS,
    AttributeKind.TENSOR: AttributeProto.TENSOR,
}


def onnx_element_type(dtype: str) -> int:
    """ONNX's number for "float32", "int64"... Raises CompileError on another name."""
    if dtype not in _ONNX_TYPES:
        raise CompileError("A value has an element type that ONNX programs here cannot hold.", found=dtype)
    return _ONNX_TYPES[dtype]


def dtype_name(value: ir.Value | ir.Type) -> str:
    """ "float32", "int64", "bool"... of a ranked tensor."""
    return DTYPES[dtype_of(value)].name


def value_shape(value: ir.Value, dims: Sequence[str], name: str) -> tuple[int | str, ...]:
    """Static sizes as ints, dynamic ones by the name ``dims`` gives, or a name made from ``name``."""
    shape: list[int | str] = []
    for i, size in enumerate(shape_of(value)):
        named = dims[i] if i < len(dims) else ""
        if size is not None:
            shape.append(size)
        elif named and not named.isdecimal():
            shape.append(named)
        else:
            shape.append(f"{name}.dim{i}")
    return tuple(shape)


def value_info(name: str, dtype: str, shape: Sequence[int | str]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx_element_type(dtype), list(shape))


def inline_tensor(name: str, array: np.ndarray) -> TensorProto:
    """A TensorProto that carries its data: little-endian, C order."""
    tensor = TensorProto(name=name, data_type=onnx_element_type(array.dtype.name), dims=array.shape)
    tensor.raw_data = np.ascontiguousarray(array).tobytes()
    return tensor


def external_tensor(
    name: str, dtype: str, shape: Sequence[int], file: str, offset: int, nbytes: int
) -> TensorProto:
    """A TensorProto whose data is ``nbytes`` at ``offset`` of ``file`` beside the program."""
    tensor = TensorProto(name=name, data_type=onnx_element_type(dtype), dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", str(offset)), ("length", str(nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def attribute_protos(schema: OpSchema, attributes: Mapping[str, ir.Attribute]) -> list[AttributeProto]:
    """The attributes that ``schema`` declares, by name; what the passes keep for themselves is left out."""
    protos: list[AttributeProto] = []
    for name in sorted(attributes):
        spec = schema.attributes.get(name)
        if spec is None:
            continue
        attribute = attributes[name]
        if spec.kind is AttributeKind.TENSOR:
            value = inline_tensor("", dense_array(attribute))
        else:
            value = to_python(attribute)
        protos.append(helper.make_attribute(name, value, attr_type=_KINDS[spec.kind]))
    return protos
