"""fuse-skip-norm: a residual addition and the norm behind it as one operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from .ir.builder import OnnxBuilder, shape_of
from .ir.devices import device_of_op
from .ir.matching import attribute, erase_if_dead, maker, uses
from .ir.op_schema import MS_DOMAIN
from .ir.roles import body_of, function_of
from .remarks import Remarks

__all__ = ["FuseSkipNorm"]

_SKIP = {
    "onnx.simplified_layer_normalization": "SkipSimplifiedLayerNormalization",
    "onnx.layer_normalization": "SkipLayerNormalization",
}
_STORED = frozenset({"plan.weight", "onnx.constant", "onnx.no_value", "onnx.add", "onnx.cast"})


@dataclass(frozen=True, slots=True)
class FuseSkipNorm:
    """norm(a + b) becomes SkipSimplifiedLayerNormalization, or SkipLayerNormalization with a mean; the sum,
    which the next residual addition reads as well, is the operation's fourth result.

    Left out where a program is placed on several devices: the sum and the norm would both cross a split."""

    name: ClassVar[str] = "fuse-skip-norm"
    summary: ClassVar[str] = "a residual addition and the norm behind it become one operation"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when the module is not one function of one block."""
        body = body_of(function_of(module))
        norms = [view.operation for view in body.operations if view.operation.name in _SKIP]
        counts: dict[str, int] = {}
        for norm in norms:
            reason = _refusal(norm)
            if reason is None:
                kind = _fuse(norm)
                counts[kind] = counts.get(kind, 0) + 1
            elif reason:
                remarks.add(f"a norm stays apart from the addition before it: {reason}", at=norm)
        for kind, count in counts.items():
            remarks.add(f"{count} residual additions and norms became {kind}")
        return bool(counts)


def _refusal(norm: ir.Operation) -> str | None:
    """None when the norm can take in an addition; empty when there is none; else why it cannot."""
    add = maker(norm.operands[0], "onnx.add")
    if add is None:
        return ""
    left, right = add.operands
    if left.type != right.type or left.type != add.results[0].type or len(shape_of(left)) != 3:
        return "what is added is not two values [batch, sequence, width]"
    if attribute(norm, "axis", -1) not in (-1, 2) or attribute(norm, "stash_type", 1) != 1:
        return "it is not over the last axis alone, in float32"
    if not all(_is_stored(value) for value in list(norm.operands)[1:]):
        return "its weight is computed from something else than weights"
    if any(uses(result) for result in list(norm.results)[1:]):
        return "its statistics are read"
    return None


def _fuse(norm: ir.Operation) -> str:
    add = maker(norm.operands[0], "onnx.add")
    assert add is not None
    total, result = add.results[0], norm.results[0]
    # At the addition: whatever else reads the sum may lie between it and the norm.
    builder = OnnxBuilder(norm.location, ir.InsertionPoint(add), device_of_op(norm) or "")
    scale, *bias = list(norm.operands)[1:]
    between = _between(add, norm)
    for value in (scale, *bias):
        _hoist(value, add, between)
    kind = _SKIP[norm.name]
    made = builder.op(
        kind,
        [*add.operands, scale, *bias],
        [result.type, None, None, total.type],
        {"epsilon": attribute(norm, "epsilon", 1e-5)},
        MS_DOMAIN,
    )
    result.replace_all_uses_with(made[0])
    total.replace_all_uses_with(made[3])
    norm.erase()
    erase_if_dead(total)
    return kind


def _is_stored(value: ir.Value) -> bool:
    """Whether the value follows from weights and constants alone."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return False
    return owner.name in _STORED and all(_is_stored(operand) for operand in owner.operands)


def _hoist(value: ir.Value, before: ir.Operation, between: set[ir.Operation]) -> None:
    """Move what makes a stored value ahead of ``before`` if it lies ``between`` that and the norm."""
    op = maker(value, *_STORED)
    assert op is not None
    for operand in op.operands:
        _hoist(operand, before, between)
    if op in between:
        op.move_before(before)
        between.discard(op)


def _between(first: ir.Operation, last: ir.Operation) -> set[ir.Operation]:
    ops = [view.operation for view in first.block.operations]
    return set(ops[ops.index(first) : ops.index(last)])
