"""From a checkpoint to a plan directory: the whole way, in order."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from planonce.runtime.errors import OutputError, UnsupportedPlan
from planonce.runtime.manifest import (
    CHAT_TEMPLATE_FILE,
    GENERATION_FILE,
    MANIFEST_NAME,
    TOKENIZER_FILE,
    Manifest,
)

from .compile_options import (
    ROUNDED,
    CompileOptions,
    CompileReport,
    choose_arithmetic,
    choose_dtype,
    choose_max_seq_len,
    refuse_without_kernels,
)
from .memory import peak_rss
from .package import PlanDirectory, check_target, open_plan_directory, require_free_space
from .packed_program import PACKED_PROGRAM, UnknownLayout, pack_weights, packed_bytes, refuse_folded
from .plan_file import PlanFile
from .progress import PhaseTimer, Progress, SilentProgress
from .weights_writer import WEIGHTS_FILE, Placement, WeightMode, place, write_tensors

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .emit import EmittedProgram
    from .structure import CompiledStructure

__all__ = ["compile_checkpoint", "refuse_paged"]


def compile_checkpoint(options: CompileOptions, progress: Progress | None = None) -> CompileReport:
    """Compile and publish a plan; whatever fails leaves ``options.output`` as it was.

    Raises CompileError (CheckpointError, UnsupportedModel, UnsupportedOp, OutputError), PassError.
    """
    options.check()
    check_target(options.output, force=options.force)
    timer = PhaseTimer(progress or SilentProgress())
    with timer.phase("open"):
        # The heavy imports: torch and transformers take seconds, and bad options should not.
        from .checkpoint import open_checkpoint
        from .shape_key import shape_key, weights_dtype
        from .structure import (
            choose_pipeline,
            compile_structure,
            for_scheme,
            with_compensation,
            with_greedy_head,
            without,
        )  # fmt: skip

        pipeline = choose_pipeline(options.pass_pipeline, options.attention, options.place)
        if options.dtype in ROUNDED:
            pipeline = for_scheme(pipeline, options.dtype, options.block_size, symmetric=options.is_symmetric)
        if options.compensates:
            pipeline = with_compensation(pipeline)
        if options.greedy_head:
            pipeline = with_greedy_head(pipeline)
        checkpoint = open_checkpoint(options.checkpoint)
        _refuse_own_checkpoint(options, checkpoint)
        max_seq_len = choose_max_seq_len(checkpoint.config, options.max_seq_len)
        arithmetic = choose_arithmetic(options.dtype, options.arithmetic)
        dtype = choose_dtype(checkpoint.weights, options.dtype, arithmetic)
        if options.pass_pipeline is None and dtype == arithmetic and _ready(checkpoint, dtype):
            # A merged linear would be a second copy of weights that can be used where they lie.
            pipeline = without(pipeline, "merge-linears")
    _hash(checkpoint, timer)
    structure = compile_structure(
        checkpoint.config,
        max_seq_len=max_seq_len,
        pipeline=pipeline,
        arithmetic=arithmetic,
        stored=checkpoint.weights.block_formats() if dtype == "keep" else {},
        dump_ir=options.dump_ir,
        example_cached_len=options.example_cached_len,
        timer=timer,
    )
    if not options.packed:
        structure = replace(structure, packed=None)
    refuse_paged(structure.program)
    refuse_folded(structure.program)
    refuse_without_kernels(arithmetic, (stage.stage.device for stage in structure.program.stages))
    key = shape_key(
        str(checkpoint.config.model_type),
        checkpoint.config.to_dict(),
        weight_identity=checkpoint.identity,
        dtype=weights_dtype(structure.program.tensors, arithmetic),
    )
    job = _Job(options, checkpoint, structure, max_seq_len, dtype, arithmetic, key, timer)
    return job.write()


@dataclass(frozen=True, slots=True)
class _Job:
    """Everything is decided; what is left is to write it."""

    options: CompileOptions
    checkpoint: Checkpoint
    structure: CompiledStructure
    max_seq_len: int
    dtype: str
    arithmetic: str
    shape_key: str
    timer: PhaseTimer

    def write(self) -> CompileReport:
        placement = self._place()
        with open_plan_directory(self.options.output, force=self.options.force) as plan:
            packed = self.structure.packed
            written = placement.written_bytes + (0 if packed is None else packed_bytes(packed))
            plan.needed = written + placement.linked_bytes
            require_free_space(plan.path, written)
            for stage in self.structure.program.stages:
                plan.write(stage.stage.program, stage.serialize(placement.locations))
            why_not = self._write_weights(plan, placement)
            plan.write("plan.mlir", self.structure.final_ir.encode())
            self._write_tokenizer(plan)
            manifest = self._manifest(plan, placement, why_not)
            plan.write(MANIFEST_NAME, manifest.to_json().encode())
            checked: dict[str, float] = {}
            if self.options.self_check:
                from .self_check import check_plan

                with self.timer.phase("self-check"):
                    checked = check_plan(plan.path)
        return self._report(manifest, placement, checked)

    def _place(self) -> Placement:
        program, packed = self.structure.program, self.structure.packed
        uses: dict[str, list[int]] = {}
        for index, stage in enumerate(program.stages):
            for use in stage.tensors:
                uses.setdefault(use.name, []).append(index)
        tensors = {use.name: use for use in program.tensors}
        # What only the packed program names lies where the portable one's tensors do.
        for use in () if packed is None else packed.tensors:
            tensors.setdefault(use.name, use)
            uses.setdefault(use.name, [0])
        return place(
            uses,
            tuple(tensors.values()),
            self.checkpoint.weights,
            self.options.weights,
            file_name=self.checkpoint.relative_name,
        )

    def _write_weights(self, plan: PlanDirectory, placement: Placement) -> str:
        """Returns why there is no packed program, if one was wanted."""
        digests = {self.checkpoint.file_paths[record.path]: record.sha256 for record in self.checkpoint.files}
        total = placement.written_bytes + placement.linked_bytes
        with self.timer.phase("weights", total, "bytes") as progress:
            for name, source in placement.links.items():
                plan.adopt(source, name, sha256=digests[source], on_copy_of=placement.written_bytes)
                progress.advance(source.stat().st_size, name)
            if placement.written:
                with plan.create(WEIGHTS_FILE) as file:
                    write_tensors(placement, self.checkpoint.weights, file, progress)
                    return self._write_packed(plan, placement, file)
        return ""

    def _write_packed(self, plan: PlanDirectory, placement: Placement, weights: PlanFile) -> str:
        packed = self.structure.packed
        if packed is None:
            return ""
        try:
            found = pack_weights(packed, placement.locations, weights)
        except UnknownLayout as error:
            return str(error)
        entries = {name: each.external_data for name, each in found.items()}
        plan.write(PACKED_PROGRAM, packed.serialize(placement.locations, entries))
        return ""

    def _write_tokenizer(self, plan: PlanDirectory) -> None:
        tokenizer, generation = self.checkpoint.tokenizer, self.checkpoint.generation
        if tokenizer is not None:
            plan.write(TOKENIZER_FILE, tokenizer.tokenizer_json)
            if tokenizer.chat_template is not None:
                plan.write(CHAT_TEMPLATE_FILE, tokenizer.chat_template.encode())
        # transformers' own keys, flat; the special tokens' text is what a chat template asks for.
        document = {
            **generation.sampling,
            "bos_token_id": generation.bos_token_id,
            "eos_token_id": list(generation.eos_token_ids),
            "bos_token": tokenizer.bos_token if tokenizer else None,
            "eos_token": tokenizer.eos_token if tokenizer else None,
        }
        text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        plan.write(GENERATION_FILE, text.encode())

    def _manifest(self, plan: PlanDirectory, placement: Placement, why_not: str) -> Manifest:
        from .manifest_writer import build_manifest, checkpoint_reference, model_facts, plain_remarks

        model = model_facts(self.checkpoint, self.structure, max_seq_len=self.max_seq_len)
        reference = checkpoint_reference(
            self.checkpoint,
            placement.references,
            by_reference=self.options.weights is WeightMode.REFERENCE and bool(placement.references),
        )
        manifest = build_manifest(
            self.structure,
            model,
            shape_key=self.shape_key,
            files=plan.files,
            tensors=placement.stored,
            checkpoint=reference,
            remarks=[*self.checkpoint.remarks, *plain_remarks(self.structure.report.remarks)],
        )
        if PACKED_PROGRAM in {record.path for record in plan.files}:
            from .packed_check import check_packed

            with self.timer.phase("packed program"):
                packed, why_not = check_packed(plan.path, PACKED_PROGRAM, manifest)
            if packed is not None:
                return replace(manifest, packed=packed)
            plan.remove(PACKED_PROGRAM)
            manifest = replace(manifest, files=plan.files)
        if why_not:
            remark = f"packed program: left out, {why_not}"
            manifest = replace(manifest, remarks=(*manifest.remarks, remark))
        return manifest

    def _report(self, manifest: Manifest, placement: Placement, checked: dict[str, float]) -> CompileReport:
        manifest_bytes = (self.options.output / MANIFEST_NAME).stat().st_size
        return CompileReport(
            path=self.options.output,
            family=manifest.model.family,
            architecture=manifest.model.architecture,
            n_layers=manifest.model.n_layers,
            dtype=self.dtype,
            arithmetic=self.arithmetic,
            max_seq_len=self.max_seq_len,
            shape_key=manifest.shape_key,
            seconds=dict(self.timer.seconds),
            written_bytes=placement.written_bytes,
            linked_bytes=placement.linked_bytes,
            referenced_bytes=sum(weight.nbytes for weight in placement.references),
            plan_bytes=sum(record.size for record in manifest.files) + manifest_bytes,
            n_nodes=sum(len(stage.model.graph.node) for stage in self.structure.program.stages),
            attention=manifest.attention,
            peak_rss=peak_rss(),
            weight_formats=manifest.model.weight_formats,
            remarks=manifest.remarks,
            self_check=checked,
        )


def refuse_paged(program: EmittedProgram) -> None:
    """Raises UnsupportedPlan for a program over block pools: a plan that nothing can run is not written."""
    if program.is_paged:
        raise UnsupportedPlan(
            "The runtime does not execute paged plans yet, so none is written.",
            found="select-attention{arm=paged} in the pipeline",
            expected="KV slots, which the fused and the portable arm use",
            todo="Compile with another arm; `planonce opt` shows the paged program.",
        )


def _ready(checkpoint: Checkpoint, dtype: str) -> bool:
    """Whether most of the weights, by size, are ``dtype`` values that a program can point at."""
    weights = checkpoint.weights
    ready = sum(weights[name].nbytes for name in weights if weights.raw_location(name, dtype))
    return 2 * ready > sum(weights[name].nbytes for name in weights)


def _hash(checkpoint: Checkpoint, timer: PhaseTimer) -> None:
    total = sum(path.stat().st_size for path in checkpoint.file_paths.values())
    done = 0
    with timer.phase("hash", total, "bytes") as progress:

        def report(name: str, so_far: int, _total: int) -> None:
            nonlocal done
            progress.advance(so_far - done, name)
            done = so_far

        checkpoint.hash_files(report)


def _refuse_own_checkpoint(options: CompileOptions, checkpoint: Checkpoint) -> None:
    """--force replaces a plan; it must not be one whose files are this compile's own input."""
    target = options.output.resolve()
    inside: list[Path] = [p for p in checkpoint.file_paths.values() if p.is_relative_to(target)]
    if inside:
        raise OutputError(
            "The output would replace the checkpoint it is made from.",
            found=str(inside[0]),
            where=str(target),
            todo="Choose another -o.",
        )
