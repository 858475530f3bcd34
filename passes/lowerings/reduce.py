"""Reductions, normalisations, softmax and top-k."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch_mlir import ir

from ..ir.builder import dtype_of, rank_of, shape_of, tensor_type
from ..ir.tensors import DTYPES
from .shape import axis_of
from .state import Lowering
from .table import Call, LowerFunction, LoweringTable, NotLowered, as_list

__all__ = ["TABLE"]

TABLE = LoweringTable("reduce")

# torch.finfo(dtype).eps
_MACHINE_EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def _reduce(low: Lowering, op_type: str, value: ir.Value, axes: Any, keep: bool, type_: ir.Type) -> ir.Value:
    chosen = None
    if axes is not None:
        listed = as_list(axes)
        chosen = low.ints([axis_of(axis, rank_of(value)) for axis in listed]) if listed else None
    source = low.cast(value, dtype_of(type_))
    return low.one(op_type, [source, chosen], type_, {"keepdims": int(keep)})


@TABLE.row("torch.aten.mean.dim")
def _mean(low: Lowering, call: Call) -> ir.Value:
    value, axes, keep, _ = call.args
    return _reduce(low, "ReduceMean", value, axes, keep, call.type)


@TABLE.row("torch.aten.sum.dim_IntList")
def _sum(low: Lowering, call: Call) -> ir.Value:
    value, axes, keep, _ = call.args
    return _reduce(low, "ReduceSum", value, axes, keep, call.type)


@TABLE.row("torch.aten.sum")
def _sum_all(low: Lowering, call: Call) -> ir.Value:
    return _reduce(low, "ReduceSum", call.args[0], None, False, call.type)


def _extreme(op_type: str) -> LowerFunction:
    def lower(low: Lowering, call: Call) -> ir.Value:
        value, axes, keep = call.args
        return _reduce(low, op_type, value, axes, keep, call.type)

    return lower


TABLE.add("torch.aten.amax", _extreme("ReduceMax"))
TABLE.add("torch.aten.amin", _extreme("ReduceMin"))


@TABLE.row("torch.aten.max", "torch.aten.min")
def _extreme_of_all(low: Lowering, call: Call) -> ir.Value:
    op_type = "ReduceMax" if call.name.endswith("max") else "ReduceMin"
    return _reduce(low, op_type, call.args[0], None, False, call.type)


@TABLE.row("torch.aten.argmax")
def _argmax(low: Lowering, call: Call) -> ir.Value:
    value, axis, keep = call.args
    if axis is None:
        raise NotLowered("argmax over all dimensions")
    return low.one("ArgMax", [value], call.type, {"axis": axis, "keepdims": int(keep)})


@TABLE.row("torch.aten.cumsum")
def _cumsum(low: Lowering, call: Call) -> ir.Value:
    value, axis = call.args[0], call.args[1]
    return low.one("CumSum", [low.cast(value, dtype_of(call.type)), low.scalar(axis, "i64")], call.type)


@TABLE.row("torch.aten.softmax.int", "torch.aten._softmax")
def _softmax(low: Lowering, call: Call) -> ir.Value:
    """The third argument asks for an element type, or (in _softmax) whether half becomes float."""
    value, axis = call.args[0], call.args[1]
    return low.one("Softmax", [low.cast(value, dtype_of(call.type))], call.type, {"axis": axis})


@TABLE.row("torch.aten.layer_norm")
def _layer_norm(low: Lowering, call: Call) -> ir.Value:
    value, normalized, weight, bias, epsilon, _ = call.args
    return _native_layer_norm(low, value, normalized, weight, bias, epsilon, call.type)


@TABLE.row("torch.aten.native_layer_norm")
def _layer_norm_with_statistics(low: Lowering, call: Call) -> list[ir.Value | None]:
    value, normalized, weight, bias, epsilon = call.args
    return [_native_layer_norm(low, value, normalized, weight, bias, epsilon, call.type), None, None]


def _native_layer_norm(
    low: Lowering,
    value: ir.Value,
    normalized: list[int],
    weight: ir.Value | None,
    bias: ir.Value | None,
    epsilon: float,
    type_: ir.Type,
) -> ir.Value:
    scale = (
        weight if weight is not None else low.builder.constant(np.ones(normalized, DTYPES[dtype_of(type_)]))
    )
    attributes = {"axis": -len(normalized), "epsilon": epsilon}
    return low.one("LayerNormalization", [value, scale, bias], type_, attributes)


@TABLE.row("torch.aten.rms_norm")
def _rms_norm(low: Lowering, call: Call) -> ir.Value:
    value, normalized, weight, epsilon = call.args
    dtype = dtype_of(call.type)
    scale = (
        weight
        if weight is not None
        else low.builder.constant(np.ones(list(map(int, normalized)), DTYPES[dtype]))
    )
    epsilon = _MACHINE_EPSILON[dtype] if epsilon is None else epsilon
    return low.one(
        "RMSNormalization", [value, scale], call.type, {"axis": -len(normalized), "epsilon": epsilon}
    )


@TABLE.row("torch.aten.topk")
def _topk(low: Lowering, call: Call) -> list[ir.Value]:
    value, count, axis, largest, ordered = call.args
    attributes = {"axis": axis, "largest": int(largest), "sorted": int(ordered)}
    return low.builder.op("TopK", [value, low.ints([count])], list(call.result_types), attributes)


@TABLE.row("torch.aten.max.dim", "torch.aten.min.dim")
def _extreme_with_index(low: Lowering, call: Call) -> list[ir.Value]:
    value, axis, keep = call.args
    largest = call.name == "torch.aten.max.dim"
    axis = axis_of(axis, rank_of(value))
    kept = list(shape_of(value))
    kept[axis] = 1
    types = [tensor_type(kept, dtype_of(value)), tensor_type(kept, "i64")]
    found = low.builder.op("TopK", [value, low.ints([1])], types, {"axis": axis, "largest": int(largest)})
    if keep:
        return found
    return [
        low.one("Squeeze", [part, low.ints([axis])], type_)
        for part, type_ in zip(found, call.result_types, strict=True)
    ]
