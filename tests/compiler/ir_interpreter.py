"""Runs converted IR one operation at a time: an ONNX op by ONNX Runtime as a graph of one node, a plan op by
the plain torch implementation of the traced op it came from. Slow, and shares no code with emit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import helper
from torch_mlir import ir

from planonce.compiler import trace_ops  # noqa: F401  (registers torch.ops.planonce.*)
from planonce.passes.ir.attributes import to_python
from planonce.passes.ir.onnx_schemas import OPSET, all_schemas
from planonce.passes.ir.roles import body_of, function_of
from planonce.passes.ir.tensors import constant_array
from planonce.passes.ir.weights import weight_ref

__all__ = ["Interpreter"]

_DOMAINS = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]


class Interpreter:
    """weights: array by canonical name. Sessions are kept, so that the second step is cheap."""

    def __init__(self, module: ir.Module, weights: Mapping[str, np.ndarray]) -> None:
        self.module = module  # MLIR frees the block with it
        self.block = body_of(function_of(module))
        self.weights = weights
        self._sessions: dict[tuple[Any, ...], onnxruntime.InferenceSession] = {}
        self._values: dict[ir.Value, np.ndarray | None] = {}

    def __call__(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        values: dict[ir.Value, np.ndarray | None] = dict(zip(self.block.arguments, arguments, strict=True))
        for view in self.block.operations:
            op = view.operation
            operands = [values[operand] for operand in op.operands]
            if op.name == "func.return":
                return [operand for operand in operands if operand is not None]
            for result, value in zip(op.results, self._run(op, operands), strict=True):
                values[result] = value
        raise AssertionError("no return")

    def _run(self, op: ir.Operation, operands: list[np.ndarray | None]) -> list[np.ndarray | None]:
        match op.name:
            case "onnx.no_value":
                return [None]
            case "onnx.constant":
                return [constant_array(op.results[0])]
            case "plan.weight":
                return [np.concatenate([self.weights[part] for part in weight_ref(op).parts])]
            case "plan.rope":
                return [_rope(op, *operands)]
            case "plan.copy":
                return operands
            case "plan.write_slice":
                tensors = [torch.from_numpy(value) for value in operands if value is not None]
                return [torch.ops.planonce.kv_write(*tensors).numpy()]
            case "plan.attention":
                tensors = [None if value is None else torch.from_numpy(value) for value in operands]
                named = {
                    name: to_python(op.attributes[name]) for name in ("layer", "scale", "window", "softcap")
                }
                return [torch.ops.planonce.attention(*tensors, **named).numpy()]
        return self._run_onnx(op, operands)

    def _run_onnx(self, op: ir.Operation, operands: list[np.ndarray | None]) -> list[np.ndarray | None]:
        schema = all_schemas()[op.name.removeprefix("onnx.")]
        attributes = {
            name: to_python(op.attributes[name])
            for name in op.attributes
            if name not in ("operandSegmentSizes", "resultSegmentSizes", "plan.device")
        }
        kinds = tuple(None if value is None else (str(value.dtype), value.ndim) for value in operands)
        wanted = [not isinstance(result.type, ir.NoneType) for result in op.results]
        key = (op.name, str(attributes), kinds, tuple(wanted))
        if key not in self._sessions:
            names = [f"i{n}" if kind else "" for n, kind in enumerate(kinds)]
            outputs = [f"o{n}" if want else "" for n, want in enumerate(wanted)]
            # ONNX Runtime crashes on a trailing absent output.
            node = helper.make_node(
                schema.op_type, _trimmed(names), _trimmed(outputs), domain=schema.domain, **attributes
            )
            infos = [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(np.dtype(kind[0])), [None] * kind[1]
                )
                for name, kind in zip(names, kinds, strict=True)
                if kind
            ]
            results = [
                helper.make_tensor_value_info(name, _element_type(result), None)
                for name, result in zip(outputs, op.results, strict=True)
                if name
            ]
            model = helper.make_model(
                helper.make_graph([node], op.name, infos, results), opset_imports=_DOMAINS, ir_version=12
            )
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            options.log_severity_level = 3
            self._sessions[key] = onnxruntime.InferenceSession(model.SerializeToString(), options)
        feeds = {f"i{n}": value for n, value in enumerate(operands) if value is not None}
        made = iter(self._sessions[key].run(None, feeds))
        found = [next(made) if want else None for want in wanted]
        for value, result in zip(found, op.results, strict=True):
            _check_type(op, value, result)
        return found


def _rope(
    op: ir.Operation, x: np.ndarray, cos: np.ndarray, sin: np.ndarray, positions: np.ndarray
) -> np.ndarray:
    width = to_python(op.attributes["rotary_dim"])
    c, s = (table[positions][:, None] for table in (cos, sin))
    step = (slice(0, width, 2), slice(1, width, 2))
    halves = (slice(0, width // 2), slice(width // 2, width))
    first, second = step if to_python(op.attributes["interleaved"]) else halves
    turned = x.copy()
    turned[..., first] = x[..., first] * c - x[..., second] * s
    turned[..., second] = x[..., second] * c + x[..., first] * s
    return turned


def _trimmed(names: list[str]) -> list[str]:
    while names and not names[-1]:
        names = names[:-1]
    return names


def _element_type(result: ir.Value) -> int:
    dtypes = {"f32": np.float32, "i64": np.int64, "i1": np.bool_, "i32": np.int32, "f64": np.float64}
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtypes[str(result.type.element_type)]))


def _check_type(op: ir.Operation, value: np.ndarray | None, result: ir.Value) -> None:
    """The IR's types must be true: later passes and emit rely on them."""
    if value is None:
        return
    type_ = ir.RankedTensorType(result.type)
    assert type_.rank == value.ndim, f"{op.name}: rank {value.ndim} is not {type_}"
    for axis, size in enumerate(value.shape):
        assert type_.is_dynamic_dim(axis) or type_.get_dim_size(axis) == size, (
            f"{op.name}: {value.shape} is not {type_}"
        )
