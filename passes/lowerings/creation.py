"""Tensors made from nothing: ranges and constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch_mlir import ir

from ..ir.builder import dtype_of
from ..ir.tensors import DTYPES, dense_array
from .shape import as_size
from .sizes import Size
from .state import Lowering
from .table import Call, LowerFunction, LoweringTable, NotLowered

__all__ = ["TABLE"]

TABLE = LoweringTable("creation")


@TABLE.row("torch.aten.arange")
def _arange(low: Lowering, call: Call) -> ir.Value:
    return _range(low, 0, call.args[0], 1, call.type)


@TABLE.row("torch.aten.arange.start")
def _arange_start(low: Lowering, call: Call) -> ir.Value:
    return _range(low, call.args[0], call.args[1], 1, call.type)


@TABLE.row("torch.aten.arange.start_step")
def _arange_start_step(low: Lowering, call: Call) -> ir.Value:
    return _range(low, call.args[0], call.args[1], call.args[2], call.type)


def _range(low: Lowering, start: Any, end: Any, step: Any, type_: ir.Type) -> ir.Value:
    dtype = dtype_of(type_)
    return low.one("Range", [low.operand(bound, dtype) for bound in (start, end, step)], type_)


def _filled(low: Lowering, sizes: Sequence[Size], value: Any, type_: ir.Type) -> ir.Value:
    dtype = dtype_of(type_)
    constants = [size.constant for size in sizes]
    if isinstance(value, int | float) and all(size is not None for size in constants):
        return low.builder.constant(np.full(constants, value, dtype=DTYPES[dtype]))  # pyright: ignore
    result = low.one("Expand", [low.operand(value, dtype), low.shape_value(sizes)], type_)
    low.set_sizes(result, sizes)
    return result


def _constant_like(value: float) -> LowerFunction:
    def lower(low: Lowering, call: Call) -> ir.Value:
        return _filled(low, low.sizes(call.args[0]), value, call.type)

    return lower


def _constant_of(value: float, sizes_at: int) -> LowerFunction:
    def lower(low: Lowering, call: Call) -> ir.Value:
        return _filled(low, [as_size(size) for size in call.args[sizes_at]], value, call.type)

    return lower


TABLE.add("torch.aten.zeros_like", _constant_like(0))
TABLE.add("torch.aten.ones_like", _constant_like(1))
TABLE.add("torch.aten.zeros", _constant_of(0, 0))
TABLE.add("torch.aten.ones", _constant_of(1, 0))
# Memory that nobody may read before writing it.
TABLE.add("torch.aten.empty.memory_format", _constant_of(0, 0))
TABLE.add("torch.aten.empty_like", _constant_like(0))
TABLE.add("torch.aten.new_empty", _constant_of(0, 1))
TABLE.add("torch.aten.new_zeros", _constant_of(0, 1))
TABLE.add("torch.aten.new_ones", _constant_of(1, 1))


@TABLE.row("torch.aten.full")
def _full(low: Lowering, call: Call) -> ir.Value:
    return _filled(low, [as_size(size) for size in call.args[0]], call.args[1], call.type)


@TABLE.row("torch.aten.new_full")
def _new_full(low: Lowering, call: Call) -> ir.Value:
    return _filled(low, [as_size(size) for size in call.args[1]], call.args[2], call.type)


@TABLE.row("torch.aten.full_like")
def _full_like(low: Lowering, call: Call) -> ir.Value:
    return _filled(low, low.sizes(call.args[0]), call.args[1], call.type)


@TABLE.row("torch.aten.scalar_tensor")
def _scalar_tensor(low: Lowering, call: Call) -> ir.Value:
    return low.operand(call.args[0], dtype_of(call.type))


@TABLE.row("torch.vtensor.literal")
def _literal(low: Lowering, call: Call) -> ir.Value:
    attribute = call.attributes["value"]
    if isinstance(attribute, ir.DenseResourceElementsAttr):
        raise NotLowered("a literal kept as a resource")
    # Torch's integers are signed, ONNX's signless; the bytes are the same.
    array = dense_array(attribute) if str(attribute.type.element_type) in DTYPES else np.array(attribute)
    return low.builder.constant(np.asarray(array).astype(DTYPES[dtype_of(call.type)], copy=False))
