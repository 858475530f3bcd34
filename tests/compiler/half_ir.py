"""Single-precision IR as 16-bit IR and back: the compiler emits none, and arms choose by dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from torch_mlir import ir

from planonce.passes.ir.roles import body_of, function_of
from planonce.passes.ir.tensors import dense_array, dense_attribute, dtype_of, shape_of, tensor_type

__all__ = ["as_half", "as_single"]

_NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
_ONNX = {"f32": 1, "f16": 10, "bf16": 16}
_KEPT = "test.single"  # the constant in single precision, so that the way back is exact


def as_half(module: ir.Module, dtype: str = "f16") -> ir.Module:
    """A copy whose f32 values are ``dtype``."""
    return _retyped(module, "f32", dtype)


def as_single(module: ir.Module, dtype: str = "f16") -> ir.Module:
    """A copy of what passes made of ``as_half``'s result, every ``dtype`` value f32 again."""
    return _retyped(module, dtype, "f32")


def _retyped(module: ir.Module, old: str, new: str) -> ir.Module:
    clone = module.operation.clone()
    function = function_of(clone)
    body = body_of(function)
    with clone.context, ir.Location.unknown():

        def changed(type_: ir.Type) -> ir.Type:
            if isinstance(type_, ir.RankedTensorType) and dtype_of(type_) == old:
                return tensor_type(shape_of(type_), new)
            return type_

        for value in body.arguments:
            value.set_type(changed(value.type))
        for view in body.operations:
            op = view.operation
            for result in op.results:
                result.set_type(changed(result.type))
            if op.name == "onnx.constant":
                _constant(op, old, new)
            if op.name == "onnx.cast" and ir.IntegerAttr(op.attributes["to"]).value == _ONNX[old]:
                op.attributes["to"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _ONNX[new])
        type_ = function.type
        both = ir.FunctionType.get([changed(t) for t in type_.inputs], [changed(t) for t in type_.results])
        function.attributes["function_type"] = ir.TypeAttr.get(both)
    assert clone.operation.verify()
    return clone


def _constant(op: ir.Operation, old: str, new: str) -> None:
    value = op.attributes["value"]
    if str(ir.ShapedType(value.type).element_type) != old:
        return
    if new == "f32":
        # An arm's own constants (a softcap, a mask's infinity) are made in the dtype of the call.
        op.attributes["value"] = (
            op.attributes[_KEPT]
            if _KEPT in op.attributes
            else dense_attribute(dense_array(value).astype(np.float32))
        )
    else:
        op.attributes[_KEPT] = value
        with np.errstate(over="ignore"):
            op.attributes["value"] = dense_attribute(dense_array(value).astype(_NUMPY[new]))
