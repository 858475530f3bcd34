"""A plan's manifest, its files' state and its weights' state: what ``planonce inspect`` tells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import cast

from . import strict_json
from .errors import PlanIntegrityError
from .kv_geometry import KvGeometry
from .manifest import KvSlotSpec, Manifest
from .plan_files import Verify, file_problems
from .run_stats import plan_facts, size_text
from .weight_scan import NonFinite, WeightScan, scan_weights

__all__ = ["PlanReport"]

_LAYER = re.compile(r"\blayer (\d+)\b")


@dataclass(frozen=True, slots=True)
class PlanReport:
    """``weights`` is None when they were not scanned."""

    path: Path
    manifest: Manifest
    verify: Verify
    problems: tuple[PlanIntegrityError, ...]
    weights: WeightScan | None

    @staticmethod
    def of(path: Path, *, verify: Verify, scan: bool) -> PlanReport:
        """Read the plan; nothing is loaded into ONNX Runtime, so any machine can inspect any plan.

        Raises PlanIntegrityError, PlanFormatError when there is no manifest to report on.
        """
        manifest = Manifest.load(path)
        problems = list(file_problems(manifest, path, verify))
        weights = None
        if scan:
            try:
                weights = scan_weights(manifest, path)
            except PlanIntegrityError as error:
                problems.append(error)
        return PlanReport(path, manifest, verify, tuple(problems), weights)

    @property
    def bad_weights(self) -> tuple[NonFinite, ...]:
        return tuple(w for w in self.weights.non_finite if w.bad) if self.weights else ()

    @property
    def ok(self) -> bool:
        return not self.problems and not self.bad_weights

    @property
    def default_capacity(self) -> int:
        from .plan import DEFAULT_CAPACITY

        return min(self.manifest.model.max_seq_len, DEFAULT_CAPACITY)

    def cache_bytes(self, capacity: int) -> int:
        """Bytes of a KV cache. Nothing is allocated."""
        return KvGeometry.of_specs(self.manifest.kv_slots).nbytes(capacity)

    def document(self) -> dict[str, object]:
        """For JSON: the whole manifest, and what was found out."""
        capacity = self.default_capacity
        weights = None
        if self.weights is not None:
            weights = {
                "tensors": self.weights.tensors,
                "bytes": self.weights.nbytes,
                "non_finite": [{**asdict(w), "bad": w.bad} for w in self.weights.non_finite],
            }
        return {
            "path": str(self.path.resolve()),
            "ok": self.ok,
            "verify": self.verify.value,
            "problems": [problem.document() for problem in self.problems],
            "weights": weights,
            "cache": {"default_capacity": capacity, "bytes": self.cache_bytes(capacity)},
            "manifest": cast("dict[str, object]", strict_json.encode(self.manifest)),
        }

    def lines(self) -> Iterator[str]:
        """For a person."""
        manifest, model = self.manifest, self.manifest.model
        ends = ", ".join(map(str, model.eos_token_ids)) or "none"
        begin = "none" if model.bos_token_id is None else str(model.bos_token_id)
        capacity = self.default_capacity
        yield from _table(
            [
                ("plan", str(self.path)),
                ("model", plan_facts(manifest)),
                ("sizes", f"vocabulary {model.vocab_size}, hidden {model.hidden_size}"),
                ("tokens", f"bos {begin}, eos {ends}"),
                ("positions", f"up to {model.max_seq_len}"),
                ("KV cache", f"{size_text(self.cache_bytes(capacity))} at the default {capacity} positions"),
                ("shape key", manifest.shape_key),
                ("pipeline", manifest.pipeline or "none"),
                ("made with", ", ".join(f"{name} {v}" for name, v in sorted(manifest.tool_versions.items()))),
                ("needs", f"ONNX Runtime >= {manifest.minimum_onnxruntime}"),
                ("packed for", _packed_for(manifest)),
            ]
        )
        yield ""
        yield "KV slots"
        yield from _table([("layers", "slots", "shape", "dtype", "device", "window"), *self._kv_rows()], "  ")
        yield "Attention"
        yield from _table(self._attention_rows(), "  ")
        yield "Stages"
        for i, stage in enumerate(manifest.stages):
            outputs = [a.name for a in stage.outputs if a.role.value != "kv"]
            inputs = [a.name for a in stage.inputs if a.role.value != "kv"]
            n_kv = len(stage.inputs) - len(inputs)
            yield (
                f"  {i} {stage.program} on {stage.device}: {', '.join(inputs)} and {n_kv} KV buffers"
                f" -> {', '.join(outputs)}"
            )
        yield "Copies"
        for edge in manifest.copies:
            target = "the host" if edge.target_stage is None else f"stage {edge.target_stage} {edge.target}"
            yield f"  stage {edge.source_stage} {edge.source} -> {target}"
        yield "Files"
        yield from _table([(f.path, size_text(f.size)) for f in manifest.files], "  ")
        if manifest.checkpoint.root is not None:
            yield f"Checkpoint {manifest.checkpoint.root}"
            yield from _table([(f.path, size_text(f.size)) for f in manifest.checkpoint.files], "  ")
        if manifest.remarks:
            yield "Remarks"
            yield from (f"  {remark}" for remark in _folded(manifest.remarks))
        yield ""
        yield from self._verdict()

    def _verdict(self) -> Iterator[str]:
        if self.problems:
            yield f"files: {len(self.problems)} wrong (--verify {self.verify.value})"
            for problem in self.problems:
                yield from (f"  {line}" for line in str(problem).splitlines())
        else:
            yield f"files: all as the manifest says (--verify {self.verify.value})"
        if self.weights is None:
            yield "weights: not scanned"
            return
        scanned = f"{self.weights.tensors} tensors, {size_text(self.weights.nbytes)} scanned"
        bad = self.bad_weights
        yield f"weights: {scanned}, {len(bad) or 'none'} with NaN or infinity"
        for weight in bad:
            yield (
                f"  {weight.name} in {weight.file}: {weight.n_nan} NaN, {weight.n_inf} infinite,"
                f" the first at {list(weight.first)}"
            )

    def _kv_rows(self) -> Iterator[tuple[str, ...]]:
        for layers, slots in _runs(self.manifest.kv_slots):
            names: dict[tuple[str, ...], list[str]] = {}
            for slot in slots:
                window = "all" if slot.window is None else str(slot.window)
                shape = f"[batch, {slot.n_kv_heads}, capacity, {slot.head_dim}]"
                names.setdefault((shape, slot.dtype, slot.device, window), []).append(slot.which)
            for facts, which in names.items():
                yield (layers, ", ".join(which), *facts)

    def _attention_rows(self) -> Iterator[tuple[str, ...]]:
        ordered = sorted(self.manifest.attention, key=lambda choice: choice.layer)
        for (arm, reason), run in groupby(ordered, key=lambda choice: (choice.arm, choice.reason)):
            yield (_span([choice.layer for choice in run]), arm, reason)


def _runs(slots: Iterable[KvSlotSpec]) -> Iterator[tuple[str, list[KvSlotSpec]]]:
    """Neighbouring layers whose slots are alike, with one layer's slots."""
    ordered = sorted(slots, key=lambda s: (s.layer, s.which))
    layers = [(layer, list(of_layer)) for layer, of_layer in groupby(ordered, key=lambda s: s.layer)]

    def facts(item: tuple[int, list[KvSlotSpec]]) -> list[tuple[object, ...]]:
        return [(s.which, s.n_kv_heads, s.head_dim, s.dtype, s.device, s.window) for s in item[1]]

    for _, run in groupby(layers, key=facts):
        alike = list(run)
        yield _span([layer for layer, _ in alike]), alike[0][1]


def _folded(remarks: Iterable[str]) -> Iterator[str]:
    """Neighbours that differ in nothing but their layer's number become one line."""
    for text, run in groupby(remarks, key=lambda remark: _LAYER.sub("layer #", remark, count=1)):
        alike = list(run)
        layers = [int(match[1]) for match in map(_LAYER.search, alike) if match]
        yield (
            text.replace("layer #", f"layers {_span(layers)}", 1)
            if len(alike) > 1 < len(layers)
            else alike[0]
        )


def _span(layers: Sequence[int]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"


def _packed_for(manifest: Manifest) -> str:
    packed = manifest.packed
    return "nothing" if packed is None else f"{packed.processor} with ONNX Runtime {packed.onnxruntime}"


def _table(rows: Iterable[tuple[str, ...]], indent: str = "") -> Iterator[str]:
    """Columns as wide as their longest cell; nothing is cut, so that a pipe gets all of it."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield (indent + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))).rstrip()
