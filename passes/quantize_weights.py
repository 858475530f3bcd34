"""quantize-weights: linears and the embedding read codes of 4 or 8 bits instead of floats."""

from __future__ import annotations

import enum
import fnmatch
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from planonce.runtime.errors import PassError

from .base import option
from .ir.builder import OnnxBuilder
from .ir.devices import device_of_op
from .ir.matching import attribute, erase_if_dead, maker
from .ir.nbits import BLOCKS, EXACT_FORMS, REQUANTISED, NBits
from .ir.nbits_ops import QuantisedWeight
from .ir.roles import Role, arguments, body_of, function_of, results
from .ir.stored_formats import stored_formats
from .ir.tensors import dtype_of, shape_of
from .ir.weights import WeightRef, weight_ref
from .remarks import Remarks

__all__ = ["QuantizeWeights", "Scheme"]


class Scheme(enum.Enum):
    """``keep`` leaves each weight in the blocks it is stored in; the others round to that many bits."""

    KEEP = "keep"
    INT8 = "int8"
    INT4 = "int4"


class _Use(enum.Enum):
    LINEAR = "linear"  # x [.., K], weight [N, K]
    TRANSPOSED = "transposed"  # x [.., K], weight [K, N]
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True)
class QuantizeWeights:
    """Linears become MatMulNBits; the token embedding becomes GatherBlockQuantized.

    No value is computed here: a ``plan.weight`` with ``format`` and ``form`` says which tensor of which
    format is meant, and the compiler writes it. A tied embedding and head name the same bytes.

    ``scheme=keep`` follows the module's ``plan.stored``: a GGUF block format is kept exactly where
    MatMulNBits has a form for it. A format with minima (``w = d*q + m``) becomes symmetric codes plus the
    sums of the input over blocks times an offset, because the kernel takes no zero point that is not a whole
    number at speed. A block format without an exact form is rounded again, to int8, with a remark.

    Rounding the inputs is what makes the kernel fast. The linears of queries, keys and values are a small
    part of the work, and what they get wrong stays in the cache: they have an accuracy level of their own.

    ``scheme=int8`` and ``int4`` round every weight to blocks of ``block``; ``symmetric=false`` keeps each
    block's minimum as well, in the same two terms. The embedding and the head get ``head-bits``: every token
    passes through them, and in 4 bits they alone would cost a small model a quarter of its agreement. Norms,
    biases, position tables and weights that are read in any other way stay as they are; what stayed, and why,
    is a remark.
    """

    name: ClassVar[str] = "quantize-weights"
    summary: ClassVar[str] = "keep linears' weights and the embedding in 4 or 8 bits"

    scheme: Scheme = option(Scheme.KEEP, "keep: as the checkpoint stores it; else bits to round to")
    block: int = option(32, "values with a common scale, for int8 and int4: 16, 32, 64, 128 or 256")
    symmetric: bool = option(True, "false: keep the minimum of each block, which is closer and slower")
    head_bits: int = option(8, "bits of the embedding and the head for int4: 4 or 8")
    accuracy_level: int = option(4, "of MatMulNBits; 4: inputs are rounded to int8, 0: they are not")
    attention_accuracy_level: int = option(
        -1, "the same for what queries, keys and values come from, in 4 bits; -1: 0 for keep, else the same"
    )
    skip: tuple[str, ...] = option((), "names of weights to leave as they are; * matches anything")

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError for an unknown block size or accuracy level."""
        if self.block not in BLOCKS:
            raise PassError(
                "no such block size", found=str(self.block), expected=", ".join(str(each) for each in BLOCKS)
            )
        for level in (self.accuracy_level, max(self.attention_accuracy_level, 0)):
            if level not in range(5):
                raise PassError("no such accuracy level", found=str(level), expected="0 to 4")
        if self.head_bits not in (4, 8):
            raise PassError("no such number of bits", found=str(self.head_bits), expected="4 or 8")
        function = function_of(module)
        body = body_of(function)
        tokens = {
            value
            for value, info in zip(body.arguments, arguments(function), strict=True)  # pyright: ignore[reportArgumentType]
            if info.role is Role.TOKEN_IDS
        }
        stored = stored_formats(module)
        vocabulary = next(
            (
                shape_of(type_)[-1]
                for type_, info in zip(function.type.results, results(function), strict=True)
                if info.role is Role.LOGITS
            ),
            None,
        )
        counts: Counter[str] = Counter()
        changed = False
        for op in [v.operation for v in body.operations if v.operation.name == "plan.weight"]:
            uses = _uses(op, tokens)
            if not uses:
                continue
            ref, kinds = weight_ref(op), set(uses.values())
            is_head = _Use.EMBEDDING in kinds or vocabulary in shape_of(op.results[0])
            found = self._decide(ref, op.results[0], kinds, stored, is_head=is_head)
            if isinstance(found, str):
                if found:
                    remarks.add(f"{ref.name} stays {dtype_of(op.results[0])}: {found}")
                continue
            format_, how = found
            counts[how] += len(ref.parts)
            n, k = (size or 0 for size in shape_of(op.results[0]))
            if format_.transposed:
                n, k = k, n
            with op.location:
                self._rewrite(uses, QuantisedWeight(ref, format_, n, k))
            erase_if_dead(op.results[0])
            changed = True
        for how, count in counts.items():
            remarks.add(f"{count} weight{'s' if count > 1 else ''} {how}")
        return changed

    def _decide(
        self,
        ref: WeightRef,
        value: ir.Value,
        kinds: set[_Use],
        stored: Mapping[str, str],
        *,
        is_head: bool,
    ) -> tuple[NBits, str] | str:
        """The format and what to say of it, or why there is none ("" when nobody expects one)."""
        skipped = any(fnmatch.fnmatchcase(part, pattern) for part in ref.parts for pattern in self.skip)
        if skipped:
            return "skip names it"
        if len(kinds) > 1 and _Use.TRANSPOSED in kinds:
            return "it is read both as it is and transposed"
        if self.scheme is Scheme.KEEP:
            return _kept(ref, kinds, stored, dtype_of(value))
        transposed = _Use.TRANSPOSED in kinds
        if transposed and ref.merged:
            return "a merged weight cannot be transposed"
        n, k = (size or 0 for size in shape_of(value))
        k = n if transposed else k
        if k < self.block or (_Use.EMBEDDING in kinds and k % self.block):
            return f"rows of {k} do not divide into blocks of {self.block}"
        bits = 8 if self.scheme is Scheme.INT8 else self.head_bits if is_head else 4
        # Sums over the blocks of an input need whole blocks. The head's 8 bits among 4 need no minima.
        offset = not self.symmetric and k % self.block == 0 and (bits == 4 or self.scheme is Scheme.INT8)
        format_ = NBits(bits, self.block, offset=offset, transposed=transposed)
        return format_, f"rounded to {format_}"

    def _attention_level(self) -> int:
        if self.attention_accuracy_level >= 0:
            return self.attention_accuracy_level
        # What is kept exactly is kept for its accuracy; next to rounded weights this rounding is lost.
        return 0 if self.scheme is Scheme.KEEP else self.accuracy_level

    def _rewrite(self, uses: Mapping[ir.Operation, _Use], weight: QuantisedWeight) -> None:
        for op, use in uses.items():
            builder = OnnxBuilder(op.location, ir.InsertionPoint(op), device_of_op(op) or "")
            result = op.results[0]
            if use is _Use.EMBEDDING:
                made = weight.rows(builder, op.operands[1], result.type)
            else:
                # In 8 bits the kernel knows one fast way only.
                careful = weight.format.bits == 4 and _reaches_attention(op)
                level = self._attention_level() if careful else self.accuracy_level
                made = weight.linear(builder, op.operands[0], result.type, level)
            result.replace_all_uses_with(made)
            op.erase()


def _kept(ref: WeightRef, kinds: set[_Use], stored: Mapping[str, str], dtype: str) -> tuple[NBits, str] | str:
    formats = [stored.get(part) for part in ref.parts]
    known = sorted({each for each in formats if each is not None})
    if not known:
        return ""
    if None in formats:
        return "only some of its parts are stored in blocks"
    if _Use.TRANSPOSED in kinds:
        return f"it is stored as {known[0]} but read transposed"
    inexact = [each for each in known if each not in EXACT_FORMS]
    if inexact:
        return (
            REQUANTISED,
            f"rounded again, from {', '.join(inexact)} to {REQUANTISED}, which has no exact form",
        )
    joined = EXACT_FORMS[known[0]]
    for each in known[1:]:
        joined = joined.joined(EXACT_FORMS[each])
    how = f"{', '.join(known)} as {joined}"
    if dtype == "f32" or (dtype == "f16" and _HALF_SCALES.issuperset(known)):
        return joined, f"kept exactly, {how}"
    return joined, f"kept, {how}, their codes as they are and their scales rounded to {dtype}"


def _uses(op: ir.Operation, tokens: set[ir.Value]) -> dict[ir.Operation, _Use]:
    """The operations that read a plain float matrix as a linear's weight or as the token embedding."""
    weight = op.results[0]
    if "form" in op.attributes or len(shape_of(weight)) != 2 or dtype_of(weight) not in _FLOATS:
        return {}
    found: dict[ir.Operation, _Use] = {}
    for use in weight.uses:
        reader, position = use.owner.operation, use.operand_number
        kind = _kind(reader, position, tokens)
        if kind is not None:
            found[reader] = kind
    return found


def _kind(reader: ir.Operation, position: int, tokens: set[ir.Value]) -> _Use | None:
    match reader.name, position:
        case "onnx.ms_fused_mat_mul", 1:
            given = {key: attribute(reader, key, default) for key, default in _PLAIN_PRODUCT.items()}
            return _Use.LINEAR if given == _PLAIN_PRODUCT and attribute(reader, "transB", 0) == 1 else None
        case "onnx.mat_mul", 1:
            return _Use.TRANSPOSED
        case "onnx.gather", 0:
            indices = reader.operands[1]
            cast = maker(indices, "onnx.cast")
            picked = indices if cast is None else cast.operands[0]
            return _Use.EMBEDDING if picked in tokens and attribute(reader, "axis", 0) == 0 else None
        case _:
            return None


def _reaches_attention(linear: ir.Operation) -> bool:
    """Whether its result goes into an attention or a KV cache with no other linear in between."""
    seen: set[ir.Operation] = set()
    todo = [linear]
    while todo:
        for result in todo.pop().results:
            for use in result.uses:
                reader = use.owner.operation
                if reader.name in _ATTENTION:
                    return True
                if reader not in seen and reader.name not in _LINEARS:
                    seen.add(reader)
                    todo.append(reader)
    return False


_ATTENTION = frozenset(
    {
        "plan.attention",
        "plan.latent_attention",
        "plan.write_slice",
        "plan.paged_write",
        "onnx.ms_group_query_attention",
    }
)
_FLOATS = frozenset({"f32", "f16", "bf16"})  # of MatMulNBits and GatherBlockQuantized
_LINEARS = frozenset({"onnx.ms_fused_mat_mul", "onnx.mat_mul", "onnx.ms_mat_mul_n_bits"})
# Block formats with one scale a block, a float16, and no minimum.
_HALF_SCALES = frozenset({"q4_0", "q5_0", "q8_0", "iq4_nl"})
_PLAIN_PRODUCT = {"transA": 0, "transBatchA": 0, "transBatchB": 0, "alpha": 1.0}
