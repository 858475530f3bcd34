"""The form of a linear whose input's rounding errors are multiplied too (compensate-rounding)."""

from __future__ import annotations

from torch_mlir import ir

from .matching import maker, used_once, uses

__all__ = ["compensated", "compensated_product"]


def compensated(linear: ir.Operation) -> ir.Value | None:
    """The input ``[batch, .., k]`` of a MatMulNBits that multiplies both it and what rounding left; None
    when it multiplies anything else."""
    both = maker(linear.operands[0], "onnx.concat")
    if both is None or len(both.operands) != 2:
        return None
    x, left_over = both.operands
    reshape = maker(left_over, "onnx.reshape")
    difference = None if reshape is None else maker(reshape.operands[0], "onnx.sub")
    if difference is None:
        return None
    blocked, rounded = (maker(v, n) for v, n in zip(difference.operands, _DIFFERENCE, strict=True))
    same = blocked is not None and rounded is not None and rounded.operands[0] == difference.operands[0]
    return x if same and blocked is not None and blocked.operands[0] == x else None


def compensated_product(total: ir.Value) -> tuple[ir.Operation, ir.Value] | None:
    """The MatMulNBits and its input when ``total`` is the sum of both halves and nothing else reads them."""
    add = maker(total, "onnx.add")
    if add is None:
        return None
    split = maker(add.operands[0], "onnx.split")
    if split is None or list(add.operands) != list(split.results):
        return None
    linear = maker(split.operands[0], "onnx.ms_mat_mul_n_bits")
    if linear is None or not used_once(split.operands[0]) or any(len(uses(r)) != 1 for r in split.results):
        return None
    x = compensated(linear)
    return None if x is None else (linear, x)


_DIFFERENCE = ("onnx.reshape", "onnx.ms_mat_mul_n_bits")
