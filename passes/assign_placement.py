"""assign-placement: every operation gets the device it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import func

from .base import option
from .ir.devices import check_device, device_of_op, is_placed
from .ir.model_ops import ModelOps, read_model_ops
from .ir.plan_dialect import DEVICE
from .ir.roles import body_of, function_of
from .model_parts import EMBED, STEP
from .placement_policy import Placement, parse_policy, plan_placement
from .remarks import Remarks

__all__ = ["AssignPlacement"]


@dataclass(frozen=True, slots=True)
class AssignPlacement:
    """Writes ``plan.device`` on every operation that has none; one that is written there already stays.

    ``place`` says which device holds what: ``layers[0:16]=cuda:0, layers[16:]=cuda:1, embed=cpu:0,
    kv=with-layer``; one device's name for everything; or ``auto, cuda:0=8GB, cpu:0=32GB`` by the bytes of
    weights and of KV (``positions=N`` of them) and the ``link=16GB/s``. By default the embedding goes with
    the first layer and the head with the last. ``kv=DEVICE`` moves the attention itself, which runs where its
    KV lies: place before select-attention, or only the operations that touch the KV slot move.

    An operation belongs to the layer whose weights or KV slot it takes, and otherwise to what it reads. What
    follows from the step's inputs alone, such as positions and masks, is computed on every device that reads
    it: it costs less than a copy. Constants and weights have no device: every program that reads one has it.
    Arguments live where they are read, which for a KV slot is where its layer's attention runs.
    """

    name: ClassVar[str] = "assign-placement"
    summary: ClassVar[str] = "give every operation the device it runs on"

    device: str = option("cpu:0", "device of what has none yet: cpu:N or cuda:N")
    place: str = option("", "which device holds which layers; empty: all on device")

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when a device's name, given or found, is none, and on an unusable ``place``."""
        function = function_of(module)
        body = body_of(function)
        check_device(self.device)
        changed = self._place_all(body) if not self.place else self._place_by_policy(function, body, remarks)
        placed: dict[str, int] = {}
        for op in body.operations:
            if is_placed(op):
                name = check_device(device_of_op(op) or self.device)
                placed[name] = placed.get(name, 0) + 1
        counts = ", ".join(f"{count} on {name}" for name, count in sorted(placed.items()))
        remarks.add(f"operations: {counts or 'none'}")
        return changed

    def _place_all(self, body: ir.Block) -> bool:
        changed = False
        for view in body.operations:
            if is_placed(view) and device_of_op(view) is None:
                _set_device(view.operation, self.device)
                changed = True
        return changed

    def _place_by_policy(self, function: func.FuncOp, body: ir.Block, remarks: Remarks) -> bool:
        policy = parse_policy(self.place)
        model = read_model_ops(function, body)
        placement = plan_placement(policy, model.cost())
        remarks.add(placement.summary())
        changed = False
        # Backwards, so that all readers of what belongs to no part have their device when it is its turn.
        for i in range(len(model.ops) - 1, -1, -1):
            op = model.ops[i]
            if device_of_op(op) is not None:
                continue
            if model.parts.of[i] == STEP:
                _place_where_read(op, placement.layers[0] if placement.layers else placement.head)
            else:
                _set_device(op, _device_of(model, i, placement))
            changed = True
        return changed


def _device_of(model: ModelOps, index: int, placement: Placement) -> str:
    kv_layer = model.kv_layers[index]
    if kv_layer is not None:
        return placement.kv[kv_layer]
    part = model.parts.of[index]
    if part == EMBED:
        return placement.embed
    return placement.head if part == model.parts.head else placement.layers[part]


def _place_where_read(op: ir.Operation, otherwise: str) -> None:
    """On the first device that reads it, and a clone on each other one."""
    uses = [use for result in op.results for use in result.uses]
    readers = [(use, device_of_op(use.owner.operation)) for use in uses]
    devices = list(dict.fromkeys(sorted(d for _, d in readers if d is not None))) or [otherwise]
    _set_device(op, devices[0])
    for device in devices[1:]:
        clone = op.clone(ip=ir.InsertionPoint.after(op)).operation
        _set_device(clone, device)
        for use, where in readers:
            if where == device:
                number = ir.OpResult(use.owner.operation.operands[use.operand_number]).result_number
                use.owner.operation.operands[use.operand_number] = clone.results[number]


def _set_device(op: ir.Operation, device: str) -> None:
    with op.context:
        op.attributes[DEVICE] = ir.StringAttr.get(device)
