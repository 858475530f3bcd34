"""Bring a traced program into MLIR's torch dialect: weights by name, buffers by value, roles on arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch_mlir import ir
from torch_mlir.extras.fx_importer import FxImporter, FxImporterHooks, GraphNodeImporter, InputInfo

from planonce.runtime.errors import UnsupportedModel

from .trace import STEP_INPUTS, TracedModel

__all__ = ["MAX_LITERAL_ELEMENTS", "drop_assertions", "import_program"]

# A buffer that is in no checkpoint must be in the IR; a larger one would make it unreadable and slow.
MAX_LITERAL_ELEMENTS = 65536

# Checks of the exporter about metadata it has already proved; they compute nothing.
_ASSERTIONS = {
    "aten::_assert_tensor_metadata",
    "aten::_assert_scalar",
    "aten::_assert_async",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
}

_FLOATS = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_STEP_ROLES = {"input_ids": "token_ids", "write_offset": "write_offset", "logit_positions": "logit_positions"}


class _Weights(FxImporterHooks):
    """Parameters become `torch.planonce.weight` with their canonical name, buffers become literals."""

    def __init__(self, traced: TracedModel) -> None:
        self._traced = traced

    def resolve_input(self, gni: GraphNodeImporter, value: Any, info: InputInfo) -> ir.Value | None:
        name = self._traced.canonical_name(info.input_spec.target or "")
        if info.input_spec.kind is InputKind.BUFFER and name in self._traced.buffers:
            return _literal(gni, name, self._traced.buffers[name], info)
        # plan.weight has a builtin tensor type, which only exists after convert-torch-to-onnx.
        return ir.Operation.create(
            "torch.operator",
            results=[info.ir_type],
            attributes={
                "name": ir.StringAttr.get("torch.planonce.weight"),
                "plan.weight": ir.StringAttr.get(name),
            },
        ).result


def _literal(gni: GraphNodeImporter, name: str, value: torch.Tensor, info: InputInfo) -> ir.Value:
    if value.numel() > MAX_LITERAL_ELEMENTS:
        raise UnsupportedModel(
            "the model computes a large table at construction that is in no checkpoint",
            found=f"buffer {name}: {tuple(value.shape)}",
            expected=f"at most {MAX_LITERAL_ELEMENTS} elements",
            todo="this architecture cannot be compiled yet",
        )
    value = value.detach().contiguous()
    # numpy has no bfloat16; MLIR takes its bits.
    array = (value.view(torch.uint16) if value.dtype is torch.bfloat16 else value).numpy()
    dense = ir.DenseElementsAttr.get(
        array, type=_element_type(value.dtype), shape=list(value.shape) if array.ndim else []
    )
    return ir.Operation.create(
        "torch.vtensor.literal", results=[info.ir_type], attributes={"value": dense}
    ).result


def _element_type(dtype: torch.dtype) -> ir.Type:
    if dtype is torch.bool:
        return ir.IntegerType.get_signless(1)
    if dtype.is_floating_point:
        return ir.Type.parse(_FLOATS[dtype])
    return ir.IntegerType.get_signed(dtype.itemsize * 8)


def import_program(traced: TracedModel, context: ir.Context) -> ir.Module:
    """A module with `func.func @step` in the torch dialect; symbolic shapes are kept as
    torch.bind_symbolic_shape, argument and result roles as plan.* attributes, and the model's Python
    lines as locations. No weight value is read."""
    program = traced.exported_program
    drop_assertions(program)
    importer = FxImporter(context=context, hooks=_Weights(traced))
    with context:
        func = importer.import_program(program, func_name="step", import_symbolic_shape_expressions=True)
        arguments, results = _signature(traced)
        func.attributes["arg_attrs"] = ir.ArrayAttr.get([_attributes(each) for each in arguments])
        func.attributes["res_attrs"] = ir.ArrayAttr.get([_attributes(each) for each in results])
    return importer.module


def drop_assertions(program: ExportedProgram) -> None:
    """Remove the checks that torch.export leaves in a program."""
    for node in list(program.graph.nodes):
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and target._schema.name in _ASSERTIONS:
            program.graph.erase_node(node)


def _signature(traced: TracedModel) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    arguments: list[dict[str, Any]] = [
        {"name": name, "role": _STEP_ROLES[name], "dims": dims} for name, dims in STEP_INPUTS
    ]
    logits = {"name": "logits", "role": "logits", "dims": ("batch", "logits", str(traced.vocab_size))}
    results: list[dict[str, Any]] = [logits]
    for slot in traced.kv_slots:
        shared = {"role": "kv", "layer": slot.layer, "which": str(slot.which), "dims": slot.dims}
        arguments.append({"name": slot.argument_name, **shared})
        results.append({"name": slot.result_name, **shared})
    return arguments, results


def _attributes(fields: dict[str, Any]) -> ir.Attribute:
    return ir.DictAttr.get({f"plan.{key}": _attribute(value) for key, value in fields.items()})


def _attribute(value: str | int | tuple[str, ...]) -> ir.Attribute:
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    return ir.ArrayAttr.get([ir.StringAttr.get(each) for each in value])
