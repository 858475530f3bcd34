"""merge-linears: linears that share an input become one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch_mlir import ir

from .base import option
from .ir.builder import OnnxBuilder, dtype_of, shape_of, tensor_type
from .ir.devices import device_of_op
from .ir.matching import attribute, erase_if_dead, maker, operand_pairs, used_once, uses
from .ir.op_schema import MAX_VARIADIC, MS_DOMAIN
from .ir.roles import body_of, function_of
from .ir.stored_formats import stored_formats
from .ir.weights import joined_name, weight_of, weight_ref
from .remarks import Remarks

__all__ = ["MergeLinears"]

_FUSED = "onnx.ms_fused_mat_mul"
# What may lie between a projection and the attention that it feeds.
_TOWARDS_ATTENTION = (
    "onnx.transpose", "onnx.reshape", "onnx.add", "onnx.simplified_layer_normalization", "plan.rope",
    "plan.write_slice",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Linear:
    """x [.., K] times weight [N, K], transposed, plus bias [N]; ``result`` is what its readers read.
    ``at``: its place in the program."""

    op: ir.Operation
    at: int
    x: ir.Value
    parts: tuple[str, ...]
    rows: int
    bias: tuple[str, ...]
    result: ir.Value


@dataclass(frozen=True, slots=True)
class MergeLinears:
    """Joins the linears of one input: query, key and value, which one attention reads, in that order; and
    the rest, such as gate and up, in theirs. The merged weight is a plan.weight made of several tensors of
    the checkpoint; the product is split again, and the fused attention arm undoes the split.

    One product keeps the threads busy longer and is started once. A weight that something else reads as
    well (tied embeddings) stays alone, so that it is stored once.
    """

    name: ClassVar[str] = "merge-linears"
    summary: ClassVar[str] = "linears that share an input become one, with its result split"

    skip: tuple[str, ...] = option((), "weights whose linears stay alone, by name")

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when the module is not one function of one block."""
        body = body_of(function_of(module))
        linears = self._linears(body, remarks)
        formats = stored_formats(module)
        attended = _attended(body, linears)
        counts: dict[tuple[str, ...], int] = {}
        for group in _groups(linears, attended):
            if len(group) < 2:
                continue
            stored = [formats.get(part, "plain values") for linear in group for part in linear.parts]
            if len(set(stored)) > 1:
                names = ", ".join(part for linear in group for part in linear.parts)
                remarks.add(f"{names} stay alone: they are stored as {', '.join(stored)}")
                continue
            _merge(group)
            kinds = tuple(_kind(linear) for linear in group)
            counts[kinds] = counts.get(kinds, 0) + 1
        for kinds, count in counts.items():
            remarks.add(f"{count} x {' + '.join(kinds)} became one linear")
        return bool(counts)

    def _linears(self, body: ir.Block, remarks: Remarks) -> dict[ir.Operation, _Linear]:
        """Those that may be merged, in program order."""
        readers = _weight_readers(body)
        found: dict[ir.Operation, _Linear] = {}
        for at, view in enumerate(body.operations):
            linear = _linear(view.operation, at)
            if linear is None:
                continue
            name, *more = linear.parts
            if more:
                continue  # one made of several is already as merged as it gets
            if name in self.skip:
                remarks.add(f"the linear of {name} stays alone: asked for", at=linear.op)
            elif readers[name] > 1:
                remarks.add(
                    f"the linear of {name} stays alone: its weight is read elsewhere too", at=linear.op
                )
            else:
                found[linear.op] = linear
        return found


def _weight_readers(body: ir.Block) -> Counter[str]:
    """How many operands are each tensor of the checkpoint."""
    readers: Counter[str] = Counter()
    for view in body.operations:
        if view.operation.name == "plan.weight":
            for part in weight_ref(view.operation).parts:
                readers[part] += len(uses(view.operation.results[0]))
    return readers


def _linear(op: ir.Operation, at: int) -> _Linear | None:
    if op.name != _FUSED or attribute(op, "transB", 0) != 1:
        return None
    plain = {"alpha": 1.0, "transA": 0, "transBatchA": 0, "transBatchB": 0}
    if any(attribute(op, name, value) != value for name, value in plain.items()):
        return None
    x, weight = op.operands
    ref, shape = weight_of(weight), shape_of(weight)
    if ref is None or ref.form or len(shape) != 2 or shape[0] is None:
        return None
    bias, result = _bias(op.results[0], shape[0])
    return _Linear(op, at, x, ref.parts, shape[0], bias, result)


def _bias(product: ir.Value, rows: int) -> tuple[tuple[str, ...], ir.Value]:
    """The weights of a bias added to the product, and the sum; none: the product itself."""
    if used_once(product):
        add = next(iter(product.uses)).owner.operation
        if add.name == "onnx.add":
            for value, other in operand_pairs(add):
                ref = weight_of(other)
                if value == product and ref is not None and shape_of(other) == (rows,):
                    return ref.parts, add.results[0]
    return (), product


def _attended(body: ir.Block, linears: dict[ir.Operation, _Linear]) -> list[list[_Linear]]:
    """For each attention whose query, key and value come straight from three linears: those, in order."""
    found: list[list[_Linear]] = []
    for view in body.operations:
        op = view.operation
        if op.name != "plan.attention":
            continue
        sources = [_source_linear(value, linears) for value in list(op.operands)[:3]]
        triple = [linear for linear in sources if linear is not None]
        if len({linear.op for linear in triple}) == 3 and len({linear.x for linear in triple}) == 1:
            found.append(triple)
    return found


def _source_linear(value: ir.Value, linears: dict[ir.Operation, _Linear]) -> _Linear | None:
    while True:
        op = maker(value, _FUSED, *_TOWARDS_ATTENTION)
        if op is None:
            return None
        if op.name == _FUSED:
            return linears.get(op)
        # A write's new values, a bias's other side; everything else has its data in front.
        index = 1 if op.name == "plan.write_slice" else 0
        if op.name == "onnx.add" and maker(op.operands[0], _FUSED) is None:
            index = 1
        value = op.operands[index]


def _groups(linears: dict[ir.Operation, _Linear], attended: list[list[_Linear]]) -> list[list[_Linear]]:
    taken = {linear.op for triple in attended for linear in triple}
    rest: dict[ir.Value, list[_Linear]] = {}
    for op, linear in linears.items():
        if op not in taken:
            rest.setdefault(linear.x, []).append(linear)
    pieces = [
        group[start : start + MAX_VARIADIC]
        for group in rest.values()
        for start in range(0, len(group), MAX_VARIADIC)
    ]
    return [*attended, *pieces]


def _merge(group: list[_Linear]) -> None:
    first = min(group, key=lambda linear: linear.at).op
    builder = OnnxBuilder(first.location, ir.InsertionPoint(first), device_of_op(first) or "")
    x, dtype = group[0].x, dtype_of(first.operands[1])
    rows, width = sum(linear.rows for linear in group), shape_of(first.operands[1])[1]
    leading = shape_of(first.results[0])[:-1]
    parts = [part for linear in group for part in linear.parts]
    weight = builder.weight(joined_name(parts), tensor_type([rows, width], dtype), parts)
    type_ = tensor_type([*leading, rows], dtype_of(first.results[0]))
    whole = builder.one("FusedMatMul", [x, weight], type_, {"transB": 1}, MS_DOMAIN)
    biased = all(linear.bias for linear in group)
    if biased:
        names = [part for linear in group for part in linear.bias]
        bias = builder.weight(joined_name(names), tensor_type([rows], dtype), names)
        whole = builder.one("Add", [whole, bias], type_)
    replaced = [linear.result if biased else linear.op.results[0] for linear in group]
    sizes = builder.constant(np.array([linear.rows for linear in group], dtype=np.int64))
    pieces = builder.op("Split", [whole, sizes], [value.type for value in replaced], {"axis": len(leading)})
    for value, piece in zip(replaced, pieces, strict=True):
        value.replace_all_uses_with(piece)
        erase_if_dead(value)


def _kind(linear: _Linear) -> str:
    """``q_proj`` of ``model.layers.3.self_attn.q_proj.weight``."""
    pieces = linear.parts[0].removesuffix(".weight").split(".")
    return pieces[-1]
