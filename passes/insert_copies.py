"""insert-copies: a plan.copy on every edge between devices, and those that bring results to the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import func

from .base import fail
from .copy_planning import crossings
from .ir.builder import OnnxBuilder
from .ir.devices import HOST, copy_target, device_of_op, device_of_value, is_placed
from .ir.kv_writes import writes_into
from .ir.roles import HOST_ROLES, Role, body_of, function_of, results
from .remarks import Remarks

__all__ = ["InsertCopies"]


@dataclass(frozen=True, slots=True)
class InsertCopies:
    """Makes every movement of a value visible, once, so that the runtime has none to decide.

    A value read on another device gets one ``plan.copy``, made where it is made and shared by all its
    readers there. The logits get a copy to the host, and so do the next tokens of a greedy head. An operation
    that overwrites a KV slot in place is never given a copy to write into: the slot would keep its old bytes.
    """

    name: ClassVar[str] = "insert-copies"
    summary: ClassVar[str] = "copy values across devices, and the logits to the host"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when an operation has no device or a KV write would cross one."""
        function = function_of(module)
        body = body_of(function)
        inserted = _copy_across_devices(body)
        returned = _copy_to_host(function, body)
        if inserted:
            remarks.add(f"{inserted} values cross to another device")
        if returned:
            remarks.add(f"the {' and the '.join(returned)} are copied to the host")
        return bool(inserted or returned)


def _copy_across_devices(body: ir.Block) -> int:
    values: list[ir.Value] = []
    index: dict[ir.Value, int] = {}
    uses: list[tuple[int, str]] = []
    readers: dict[tuple[int, str], list[tuple[ir.Operation, int]]] = {}
    for view in body.operations:
        op = view.operation
        if not is_placed(op):
            continue
        device = device_of_op(op)
        if device is None:
            raise fail(op, "has no device", expected="plan.device", todo="run assign-placement first")
        for position, value in enumerate(op.operands):
            if value not in index:
                index[value] = len(values)
                values.append(value)
            use = (index[value], device)
            uses.append(use)
            readers.setdefault(use, []).append((op, position))
    needed = crossings([_home(value) for value in values], uses)
    made = 0
    for number, device in needed:
        value = values[number]
        for op, position in readers[number, device]:
            if writes_into(op, position):
                raise fail(
                    op,
                    "would write a copy in place of the KV slot",
                    found=f"a value on {_home(value)}",
                    expected=f"a value on {device}",
                    todo="place the writes of one KV slot on one device",
                )
        copied = _existing_copy(value, device)
        if copied is None:
            copied = _copy_after(value, device)
            made += 1
        for op, position in readers[number, device]:
            op.operands[position] = copied
    return made


def _home(value: ir.Value) -> str | None:
    # A copy to the host is for the caller; on the device side the value is still where it came from.
    owner = value.owner
    if not isinstance(owner, ir.Block) and owner.name == "plan.copy" and copy_target(owner) == HOST:
        return _home(owner.operands[0])
    return device_of_value(value)


def _existing_copy(value: ir.Value, device: str) -> ir.Value | None:
    for use in value.uses:
        owner = use.owner.operation
        if owner.name == "plan.copy" and copy_target(owner) == device:
            return owner.results[0]
    return None


def _copy_after(value: ir.Value, device: str) -> ir.Value:
    owner = value.owner
    assert not isinstance(owner, ir.Block), "an argument is bound on every device that reads it"
    builder = OnnxBuilder(owner.location, ir.InsertionPoint.after(owner))
    return builder.plan("copy", [value], [value.type], {"to": device})[0]


def _copy_to_host(function: func.FuncOp, body: ir.Block) -> list[str]:
    """What the caller reads on the host and was not copied there yet, in words."""
    returned = list(body.operations)[-1].operation
    copied: list[str] = []
    for position, info in enumerate(results(function)):
        value = returned.operands[position]
        if info.role not in HOST_ROLES:
            continue
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.name == "plan.copy" and copy_target(owner) == HOST:
            continue
        builder = OnnxBuilder(returned.location, ir.InsertionPoint(returned))
        returned.operands[position] = builder.plan("copy", [value], [value.type], {"to": HOST})[0]
        copied.append("logits" if info.role is Role.LOGITS else "next tokens")
    return copied
