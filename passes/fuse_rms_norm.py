"""fuse-rms-norm: root-mean-square normalisation as one operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from .ir.builder import OnnxBuilder, dtype_of, rank_of, shape_of, tensor_type
from .ir.devices import device_of_op
from .ir.matching import (
    attribute,
    erase_if_dead,
    maker,
    operand_pairs,
    permutation,
    scalar,
    used_once,
    uses,
)  # fmt: skip
from .ir.roles import body_of, function_of
from .ir.tensors import constant_array
from .remarks import Remarks

__all__ = ["FuseRmsNorm"]


@dataclass(frozen=True, slots=True)
class FuseRmsNorm:
    """x / sqrt(mean(x * x) + epsilon) * weight over the last axis becomes SimplifiedLayerNormalization.

    ``weight`` is any value of the last axis' size: a weight as it is, or the 1 + weight of Gemma, which
    ONNX Runtime folds when it loads. 16-bit models that widen, normalise and narrow again before they apply
    the weight become one 16-bit operation, which computes in float32 inside; where the weight is applied
    before they narrow (Gemma), the operation is a float32 one between their two casts. A transpose ahead of
    it that leaves the last axis alone moves behind it, to where the attention arms expect it.
    """

    name: ClassVar[str] = "fuse-rms-norm"
    summary: ClassVar[str] = "RMSNorm written out becomes one operation"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when the module is not one function of one block."""
        body = body_of(function_of(module))
        means = [view.operation for view in body.operations if view.operation.name == "onnx.reduce_mean"]
        fused = 0
        for mean in means:
            squared = _square_of(mean)
            if squared is None:
                continue
            found = _Norm.of(mean, squared)
            if isinstance(found, str):
                remarks.add(f"an RMSNorm stays as it is: {found}", at=mean)
            else:
                found.fuse()
                fused += 1
        if fused:
            remarks.add(f"{fused} RMSNorms became one operation each")
        return fused > 0


def _square_of(mean: ir.Operation) -> ir.Value | None:
    """x when ``mean`` is that of x * x or x ** 2, else None."""
    square = maker(mean.operands[0], "onnx.mul", "onnx.pow")
    if square is None:
        return None
    left, right = square.operands
    same = left == right if square.name == "onnx.mul" else scalar(right) == 2
    return left if same else None


@dataclass(frozen=True, slots=True)
class _Norm:
    """``squared``: what the mean of squares is taken of; ``x``: what the operation takes, the same or the
    16-bit value that was widened to it."""

    squared: ir.Value
    x: ir.Value
    scale: ir.Value
    epsilon: float
    last: ir.Operation

    @staticmethod
    def of(mean: ir.Operation, x: ir.Value) -> _Norm | str:
        """The whole norm around a mean of squares, or why it is not one."""
        rank = rank_of(x)
        axes = None if len(mean.operands) < 2 else constant_array(mean.operands[1])
        if axes is None or [int(axis) % rank for axis in axes.reshape(-1)] != [rank - 1]:
            return "the mean is not over the last axis alone"
        if attribute(mean, "keepdims", 1) != 1:
            return "the mean drops its axis"
        if not used_once(mean.operands[0]):
            return "the square is read elsewhere too"
        walk = _Walk(mean)
        biased = walk.next("onnx.add")
        if biased is None:
            return walk.problem("epsilon is added")
        epsilon = next((e for value, other in operand_pairs(biased)
                        if value == mean.results[0] and (e := scalar(other)) is not None), None)  # fmt: skip
        if epsilon is None:
            return "epsilon is no constant"
        scaled = _scaled(walk, x)
        if isinstance(scaled, str):
            return scaled
        return _weighted(x, epsilon, scaled)

    def fuse(self) -> None:
        """Replace ``last``'s result. The transposed form swaps norm and transpose."""
        builder = OnnxBuilder(self.last.location, ir.InsertionPoint(self.last), device_of_op(self.last) or "")
        result = self.last.results[0]
        attributes = {"axis": -1, "epsilon": self.epsilon, "stash_type": 1}
        widened = maker(self.x, "onnx.cast")
        transpose = self._transpose_ahead(self.x if widened is None else widened.operands[0])
        if transpose is None:
            made = builder.one("SimplifiedLayerNormalization", [self.x, self.scale], result.type, attributes)
        else:
            source = transpose.operands[0]
            if widened is not None:
                source = _cast_like(builder, source, widened)
            type_ = tensor_type(shape_of(source), dtype_of(result))
            made = builder.one("SimplifiedLayerNormalization", [source, self.scale], type_, attributes)
            narrowed = uses(result)[0][0] if widened is not None and used_once(result) else None
            if narrowed is not None and narrowed.name == "onnx.cast":
                made = _cast_like(builder, made, narrowed)
                result = narrowed.results[0]
            made = builder.one("Transpose", [made], result.type, {"perm": permutation(transpose)})
        result.replace_all_uses_with(made)
        erase_if_dead(result)

    def _transpose_ahead(self, value: ir.Value) -> ir.Operation | None:
        """What transposes ``value``, when the norm is all that reads it, directly or widened: twice for the
        square, once scaled."""
        transpose = maker(value, "onnx.transpose")
        if transpose is None or not _keeps_last(transpose):
            return None
        readers = uses(self.squared)
        alone = len(readers) == 3 and len({reader for reader, _ in readers}) == 2
        return transpose if alone and (value == self.squared or used_once(value)) else None


def _cast_like(builder: OnnxBuilder, value: ir.Value, cast: ir.Operation) -> ir.Value:
    """``value`` in the element type that ``cast`` makes."""
    type_ = tensor_type(shape_of(value), dtype_of(cast.results[0]))
    return builder.one("Cast", [value], type_, {"to": attribute(cast, "to")})


def _keeps_last(transpose: ir.Operation) -> bool:
    perm = permutation(transpose)
    return bool(perm) and perm[-1] == len(perm) - 1


class _Walk:
    """From a value to its one reader, as long as there is only one."""

    def __init__(self, op: ir.Operation) -> None:
        self.op = op
        self.shared = False

    def next(self, *names: str) -> ir.Operation | None:
        readers = uses(self.op.results[0])
        self.shared = len(readers) != 1
        if self.shared or readers[0][0].name not in names:
            return None
        self.op = readers[0][0]
        return self.op

    def problem(self, expected: str) -> str:
        if self.shared:
            return "a value inside it is read elsewhere too"
        return f"what follows {self.op.name} is not where {expected}"


def _scaled(walk: _Walk, x: ir.Value) -> ir.Operation | str:
    """The operation that makes x / sqrt(mean + epsilon)."""
    if walk.next("onnx.sqrt") is None:
        return walk.problem("the root is taken")
    root = walk.op.results[0]
    if walk.next("onnx.reciprocal") is not None:
        factor = walk.op.results[0]
        product = walk.next("onnx.mul")
        if product is None:
            return walk.problem("x is multiplied")
        if not any(value == factor and other == x for value, other in operand_pairs(product)):
            return "what is multiplied is not what was squared"
        return product
    quotient = walk.next("onnx.div")
    if quotient is None:
        return walk.problem("x is divided")
    if quotient.operands[1] == root and quotient.operands[0] == x:
        return quotient
    if quotient.operands[1] == root and scalar(quotient.operands[0]) == 1:
        product = walk.next("onnx.mul")
        if product is not None and x in list(product.operands):
            return product
    return "what is divided is not what was squared"


def _weighted(x: ir.Value, epsilon: float, scaled: ir.Operation) -> _Norm | str:
    """Behind the division: the weight, after a narrowing cast in half precision."""
    walk = _Walk(scaled)
    source = x
    narrowed = walk.next("onnx.cast")
    if narrowed is not None:
        widened = maker(x, "onnx.cast")
        if widened is None or widened.operands[0].type != narrowed.results[0].type:
            return "it is narrowed to another type than it came from"
        source = widened.operands[0]
    elif walk.shared:
        return "the normalised value is read elsewhere too"
    value = walk.op.results[0]
    product = walk.next("onnx.mul")
    if product is None:
        return walk.problem("a weight is applied")
    for normed, scale in operand_pairs(product):
        if normed == value and shape_of(scale) == shape_of(x)[-1:]:
            return _Norm(x, source, scale, epsilon, product)
    return "what is multiplied in the end is no weight of the last axis' size"
