"""Where operations run and values live: the ``plan.device`` attribute and what follows from it."""

from __future__ import annotations

import re

from torch_mlir import ir

from planonce.runtime.errors import PassError

from .plan_dialect import DEVICE

__all__ = ["HOST", "check_device", "copy_target", "device_of_op", "device_of_value", "is_placed"]

# A plan.copy to it is not an edge between programs: it makes an array that the caller may read.
HOST = "host"
_DEVICE = re.compile(r"(?:cpu|cuda):\d+")
# Data and absence have no place of their own: each program that uses them has them.
_EVERYWHERE = frozenset({"onnx.constant", "onnx.no_value", "plan.weight", "plan.copy"})


def check_device(text: str) -> str:
    """``text`` when it is a device's name. Raises PassError."""
    if not _DEVICE.fullmatch(text):
        raise PassError(
            "not the name of a device", found=repr(text), expected="cpu:N or cuda:N, such as cpu:0"
        )
    return text


def is_placed(op: ir.Operation | ir.OpView) -> bool:
    """Whether the op runs on one device, so that it needs a ``plan.device``."""
    return op.name not in _EVERYWHERE and not op.name.startswith(("func.", "builtin."))


def device_of_op(op: ir.Operation | ir.OpView) -> str | None:
    """The op's device; None while it has none."""
    return ir.StringAttr(op.attributes[DEVICE]).value if DEVICE in op.attributes else None


def copy_target(op: ir.Operation | ir.OpView) -> str:
    """Where a ``plan.copy`` brings its operand."""
    return ir.StringAttr(op.attributes["to"]).value


def device_of_value(value: ir.Value) -> str | None:
    """Where a value lives; None for an argument, a constant or a weight: on whichever device reads it."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    if owner.name == "plan.copy":
        return copy_target(owner)
    return device_of_op(owner) if is_placed(owner) else None
