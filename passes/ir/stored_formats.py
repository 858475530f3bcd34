"""What the checkpoint stores its weights in, as far as the plan is to keep it: an attribute of the module.

``plan.stored = {q4_1 = ["model.layers.0.mlp.up_proj.weight", ...], q8_0 = [...]}``. On the module, because
operations are rewritten by many passes; absent when the weights are to become plain values.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch_mlir import ir

from planonce.runtime.errors import PassError

__all__ = ["STORED", "set_stored_formats", "stored_formats"]

STORED = "plan.stored"


def stored_formats(module: ir.Module) -> Mapping[str, str]:
    """Weight name -> block format ("q4_1"); a weight that is not in it is stored as plain values.

    Raises PassError when the attribute is malformed.
    """
    attributes = module.operation.attributes
    if STORED not in attributes:
        return {}
    found: dict[str, str] = {}
    try:
        for entry in ir.DictAttr(attributes[STORED]):
            for name in ir.ArrayAttr(entry.attr):
                found[ir.StringAttr(name).value] = entry.name
    except ValueError:
        shown = str(attributes[STORED])[:160]
        raise PassError(f"malformed {STORED}", found=shown, expected='{q4_1 = ["name", ...]}') from None
    return found


def set_stored_formats(module: ir.Module, formats: Mapping[str, str]) -> None:
    """Write the attribute; an empty mapping removes it."""
    attributes = module.operation.attributes
    if not formats:
        if STORED in attributes:
            del attributes[STORED]
        return
    by_format: dict[str, list[str]] = {}
    for name, block_format in sorted(formats.items()):
        by_format.setdefault(block_format, []).append(name)
    with module.context:
        attributes[STORED] = ir.DictAttr.get(
            {key: ir.ArrayAttr.get([ir.StringAttr.get(n) for n in names]) for key, names in by_format.items()}
        )
