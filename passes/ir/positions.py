"""The positions of a step's tokens as the traced model computes them: write_offset[:, None] + arange(S)."""

from __future__ import annotations

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import func

from .builder import OnnxBuilder, tensor_type
from .matching import attribute, maker, operand_pairs, scalar
from .roles import Role, arguments, body_of
from .tensors import constant_array, rank_of, shape_of

__all__ = ["argument_of_role", "every_row", "is_step_positions", "step_positions"]


def argument_of_role(function: func.FuncOp, role: Role) -> ir.Value | None:
    """The one argument with this role, None when there is none."""
    for info, value in zip(arguments(function), body_of(function).arguments, strict=True):
        if info.role is role:
            return value
    return None


def is_step_positions(value: ir.Value, token_ids: ir.Value, write_offset: ir.Value) -> bool:
    """Whether ``value``, i64 [B, S], is each row's write offset plus 0, 1 ... S - 1, S of token_ids."""
    add = maker(value, "onnx.add")
    if add is None or rank_of(value) != 2:
        return False
    return any(
        _is_column(column, write_offset) and _is_steps(steps, token_ids)
        for column, steps in operand_pairs(add)
    )


def step_positions(function: func.FuncOp) -> list[ir.Value]:
    """Every value of the function that is the step's positions."""
    token_ids = argument_of_role(function, Role.TOKEN_IDS)
    write_offset = argument_of_role(function, Role.WRITE_OFFSET)
    if token_ids is None or write_offset is None:
        return []
    adds = [view.operation for view in body_of(function).operations if view.operation.name == "onnx.add"]
    return [
        add.results[0]
        for add in adds
        if shape_of(add.results[0]) == (None, None)
        and is_step_positions(add.results[0], token_ids, write_offset)
    ]


def _is_column(value: ir.Value, write_offset: ir.Value) -> bool:
    """[B] -> [B, 1]."""
    op = maker(value, "onnx.unsqueeze", "onnx.reshape")
    return op is not None and op.operands[0] == write_offset and shape_of(value) in ((None, 1),)


def _is_steps(value: ir.Value, token_ids: ir.Value) -> bool:
    """0 ... S - 1 as [S] or [1, S]."""
    row = maker(value, "onnx.unsqueeze")
    if row is not None and shape_of(value) == (1, None):
        value = row.operands[0]
    steps = maker(value, "onnx.range")
    if steps is None or scalar(steps.operands[0]) != 0 or scalar(steps.operands[2]) != 1:
        return False
    limit = steps.operands[1]
    scalars = maker(limit, "onnx.squeeze", "onnx.reshape")
    if scalars is not None:
        limit = scalars.operands[0]
    shape = maker(limit, "onnx.shape")
    if shape is not None:
        bounds = (attribute(shape, "start", 0), attribute(shape, "end"))
        return shape.operands[0] == token_ids and bounds == (1, 2)
    gather = maker(limit, "onnx.gather")
    if gather is None:
        return False
    whole = maker(gather.operands[0], "onnx.shape")
    index = constant_array(gather.operands[1])
    return whole is not None and whole.operands[0] == token_ids and index is not None and index.tolist() == 1


def every_row(builder: OnnxBuilder, length: ir.Value, token_ids: ir.Value) -> ir.Value:
    """An i64 scalar as i64 [B]."""
    batch = builder.one("Shape", [token_ids], tensor_type([1], "i64"), {"start": 0, "end": 1})
    one = builder.constant(np.array([1], dtype=np.int64))
    column = builder.one("Reshape", [length, one], tensor_type([1], "i64"))
    return builder.one("Expand", [column, batch], tensor_type([None], "i64"))
