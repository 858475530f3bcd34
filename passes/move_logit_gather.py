"""move-logit-gather: choose the positions whose logits are wanted before computing on them, not after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from .ir.builder import OnnxBuilder, shape_of
from .ir.devices import device_of_op
from .ir.matching import attribute, uses
from .ir.positions import argument_of_role
from .ir.roles import Role, body_of, function_of
from .ir.tensors import is_none
from .remarks import Remarks

__all__ = ["MoveLogitGather"]

_SEQUENCE = 1
_UNARY = frozenset({
    "onnx.cast", "onnx.erf", "onnx.gelu", "onnx.ms_quick_gelu", "onnx.neg", "onnx.relu", "onnx.sigmoid",
    "onnx.sqrt", "onnx.reciprocal", "onnx.tanh",
})  # fmt: skip
_BINARY = frozenset({"onnx.add", "onnx.sub", "onnx.mul", "onnx.div"})
_PRODUCTS = frozenset({"onnx.ms_fused_mat_mul", "onnx.mat_mul"})
_NORMS = frozenset({"onnx.simplified_layer_normalization", "onnx.layer_normalization"})


@dataclass(frozen=True, slots=True)
class MoveLogitGather:
    """Moves the gather of ``logit_positions`` from before the head towards the attention of the last layer,
    through every operation that treats each position by itself and whose result nothing else reads: the
    final norm, the last layer's feed-forward part and output projection. A prompt's other positions then
    cost nothing there."""

    name: ClassVar[str] = "move-logit-gather"
    summary: ClassVar[str] = "compute the last layer's tail only where logits are wanted"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when the module is not one function of one block."""
        function = function_of(module)
        wanted = argument_of_role(function, Role.LOGIT_POSITIONS)
        if wanted is None:
            return False
        changed = False
        for view in list(body_of(function).operations):
            op = view.operation
            if (
                op.name == "onnx.gather"
                and op.operands[1] == wanted
                and attribute(op, "axis", 0) == _SEQUENCE
            ):
                moved = _move(op)
                changed |= moved > 0
                if moved:
                    remarks.add(f"{moved} operations run only for the positions whose logits are wanted")
        return changed


def _move(gather: ir.Operation) -> int:
    """The number of operations that the gather has moved ahead of."""
    region = _region(gather)
    if not region:
        return 0
    made: dict[ir.Value, ir.Value] = {}
    for op in reversed(region):
        for number, value in enumerate(op.operands):
            if _has_positions(op, number) and not _made_in(value, region):
                if value not in made:
                    made[value] = _chosen(value, gather, op)
                op.operands[number] = made[value]
    gather.results[0].replace_all_uses_with(gather.operands[0])
    gather.erase()
    return len(region)


def _region(gather: ir.Operation) -> list[ir.Operation]:
    """Operations that only the gather reads, last one first: each after all its readers."""
    region: list[ir.Operation] = []
    inside: set[ir.Operation] = {gather}
    # Backwards in program order, so that all readers of an operation were decided before it.
    before = [view.operation for view in gather.block.operations]
    for op in reversed(before[: before.index(gather)]):
        readers = [use for result in op.results for use in uses(result)]
        if not readers or not _acts_on_positions_alone(op):
            continue
        if all(reader in inside and _passes_through(reader, number, gather) for reader, number in readers):
            inside.add(op)
            region.append(op)
    return region


def _passes_through(reader: ir.Operation, number: int, gather: ir.Operation) -> bool:
    return number == 0 if reader == gather else _has_positions(reader, number)


def _acts_on_positions_alone(op: ir.Operation) -> bool:
    """[B, S, ...] -> [B, S, ...], row by row of S."""
    result = shape_of(op.results[0]) if not is_none(op.results[0]) else ()
    if len(result) != 3 or result[_SEQUENCE] is not None:
        return False
    if op.name in _UNARY:
        return True
    if op.name in _BINARY:
        # Either operand has the positions, or is one row for all of them.
        return all(shape_of(v) == result or _is_row(v) for v in op.operands)
    if op.name in _PRODUCTS:
        turned = ("transA", "transBatchA", "transBatchB")
        return len(shape_of(op.operands[1])) == 2 and not any(attribute(op, name, 0) for name in turned)
    if op.name in _NORMS:
        return attribute(op, "axis", -1) in (-1, 2) and all(_is_row(v) for v in list(op.operands)[1:])
    if op.name == "onnx.split":
        return attribute(op, "axis", 0) in (-1, 2)
    return False


def _has_positions(op: ir.Operation, number: int) -> bool:
    """Whether operand ``number`` of an operation of the region is [B, S, ...]."""
    return len(shape_of(op.operands[number])) == 3 if op.name in _BINARY else number == 0


def _is_row(value: ir.Value) -> bool:
    if is_none(value):
        return True
    return len(shape_of(value)) <= 1


def _made_in(value: ir.Value, region: list[ir.Operation]) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.operation in region


def _chosen(value: ir.Value, gather: ir.Operation, reader: ir.Operation) -> ir.Value:
    """``value`` at the wanted positions, made ahead of its first reader in the region."""
    builder = OnnxBuilder(gather.location, ir.InsertionPoint(reader), device_of_op(gather) or "")
    return builder.one("Gather", [value, gather.operands[1]], value.type, {"axis": _SEQUENCE})
