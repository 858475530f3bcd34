"""assign-placement: every operation gets the device it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from .base import option
from .ir.devices import check_device, device_of_op, is_placed
from .ir.plan_dialect import DEVICE
from .ir.roles import body_of, function_of
from .remarks import Remarks

__all__ = ["AssignPlacement"]


@dataclass(frozen=True, slots=True)
class AssignPlacement:
    """Writes ``plan.device`` on every operation that has none; one that is written there already stays.

    Constants and weights have no device: every program that reads one has it. Arguments live where they
    are read, which for a KV slot is where its layer's attention runs.
    """

    name: ClassVar[str] = "assign-placement"
    summary: ClassVar[str] = "give every operation the device it runs on"

    device: str = option("cpu:0", "device of what has none yet: cpu:N or cuda:N")

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when a device's name, given or found, is none."""
        device = ir.StringAttr.get(check_device(self.device))
        placed: dict[str, int] = {}
        changed = False
        for op in body_of(function_of(module)).operations:
            if not is_placed(op):
                continue
            found = device_of_op(op)
            if found is None:
                op.attributes[DEVICE] = device
                changed = True
            name = self.device if found is None else check_device(found)
            placed[name] = placed.get(name, 0) + 1
        counts = ", ".join(f"{count} on {name}" for name, count in sorted(placed.items()))
        remarks.add(f"operations: {counts or 'none'}")
        return changed
