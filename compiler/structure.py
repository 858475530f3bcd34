"""The part of a compile that reads no weight: trace, import, passes, emit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from planonce.passes.driver import PipelineReport, run_pipeline
from planonce.passes.ir.context import make_context, print_module
from planonce.passes.ir.stored_formats import set_stored_formats
from planonce.passes.pipeline import DEFAULT_PIPELINE, PassCall, Pipeline
from planonce.runtime.errors import OutputError

from .emit import EmittedProgram, EmittedStage, emit
from .import_torch import import_program
from .packed_program import emit_packed
from .progress import PhaseTimer, SilentProgress
from .trace import trace

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = [
    "CompiledStructure", "choose_pipeline", "compile_structure", "for_length", "for_scheme",
    "with_compensation", "with_greedy_head", "without",
]  # fmt: skip

_PASS_HEADER = re.compile(r"// -+ IR after (\S+) -+")


@dataclass(frozen=True, slots=True)
class CompiledStructure:
    """Programs without weights. ``final_ir``: text for people, long constants abbreviated.

    ``packed``: the same step for machines like this one (packed_program.py), where that is of use.
    """

    program: EmittedProgram
    report: PipelineReport
    final_ir: str
    family: str
    vocab_size: int
    arithmetic: str
    packed: EmittedStage | None = None


def choose_pipeline(text: str | None, attention: str, place: str = "") -> Pipeline:
    """The pipeline of a string, or the default one with its attention arm and placement set.

    A placement is also applied before select-attention, which picks an arm by device. With it residual sums
    and norms stay apart: one operation for both has two results, and both would cross a split.
    Raises PassError.
    """
    if text is not None:
        return Pipeline.parse(text)
    calls: list[PassCall] = []
    for call in Pipeline.parse(DEFAULT_PIPELINE).calls:
        if call.name == "fuse-skip-norm" and place:
            continue
        if call.name == "select-attention":
            call = PassCall(call.name, tuple((k, attention if k == "arm" else v) for k, v in call.options))
            if place:
                calls.append(PassCall("assign-placement", (("place", place),)))
        elif call.name == "assign-placement" and place:
            call = PassCall(call.name, (*call.options, ("place", place)))
        calls.append(call)
    return Pipeline(tuple(calls))


def for_scheme(pipeline: Pipeline, scheme: str, block_size: int, *, symmetric: bool = False) -> Pipeline:
    """The pipeline with every weight rounded: ``scheme`` of quantize-weights, which otherwise keeps them."""
    options = (("scheme", scheme), ("block", str(block_size)), ("symmetric", str(symmetric).lower()))
    return Pipeline(
        tuple(
            PassCall(call.name, options) if call.name == "quantize-weights" else call
            for call in pipeline.calls
        )
    )


def with_compensation(pipeline: Pipeline) -> Pipeline:
    """The pipeline with compensate-rounding after quantize-weights, for all linears whose kernels are fast:
    those of queries, keys and values too, which are otherwise spared the rounding where blocks are kept."""
    calls: list[PassCall] = []
    for call in pipeline.calls:
        if call.name != "quantize-weights":
            calls.append(call)
            continue
        calls.append(PassCall(call.name, (*call.options, ("attention-accuracy-level", "4"))))
        calls.append(PassCall("compensate-rounding"))
    return Pipeline(tuple(calls))


def with_greedy_head(pipeline: Pipeline) -> Pipeline:
    """The pipeline with append-greedy-head where it belongs: devices are known, copies are not made yet."""
    at = [call.name for call in pipeline.calls].index("insert-copies")
    return Pipeline((*pipeline.calls[:at], PassCall("append-greedy-head"), *pipeline.calls[at:]))


def without(pipeline: Pipeline, name: str) -> Pipeline:
    """The pipeline with one of its passes left out."""
    return Pipeline(tuple(call for call in pipeline.calls if call.name != name))


def for_length(pipeline: Pipeline, max_seq_len: int) -> Pipeline:
    """The pipeline with the plan's length filled in where a pass asks for it and the caller has not."""
    calls: list[PassCall] = []
    for call in pipeline.calls:
        if call.name == "tabulate-positions" and "max-seq-len" not in dict(call.options):
            call = PassCall(call.name, (*call.options, ("max-seq-len", str(max_seq_len))))
        calls.append(call)
    return Pipeline(tuple(calls))


def compile_structure(
    config: PretrainedConfig,
    *,
    max_seq_len: int,
    pipeline: Pipeline | None = None,
    arithmetic: str = "float32",
    stored: Mapping[str, str] | None = None,
    dump_ir: Path | None = None,
    example_cached_len: int = 8,
    timer: PhaseTimer | None = None,
) -> CompiledStructure:
    """Compile ``config``'s model without its weights.

    ``arithmetic``: float32, float16 or bfloat16, which the model computes and keeps its KV in.
    ``stored``: block formats of the checkpoint that the plan is to keep, by weight name.
    Raises UnsupportedModel, UnsupportedOp, PassError, CompileError, and OutputError for ``dump_ir``.
    """
    timer = timer or PhaseTimer(SilentProgress())
    pipeline = for_length(pipeline or choose_pipeline(None, "auto"), max_seq_len)
    pipeline.passes()  # an unknown pass is refused now, not after the trace
    dump = None if dump_ir is None else _IrDump(dump_ir)
    with timer.phase("trace"):
        traced = trace(
            config,
            max_seq_len=max_seq_len,
            dtype=getattr(torch, arithmetic),
            example_cached_len=example_cached_len,
        )
    windows = {slot.layer: slot.window for slot in traced.kv_slots}
    family, vocab_size = traced.family, traced.vocab_size
    with timer.phase("import"):
        module = import_program(traced, make_context())
        set_stored_formats(module, stored or {})
        del traced  # the exported graph is not needed again, and is most of what is in memory
    if dump is not None:
        dump.write("import", print_module(module))
    with timer.phase("passes", len(pipeline.calls)) as progress:
        report = run_pipeline(
            module,
            pipeline,
            on_pass=lambda name, _index, _total: progress.advance(1, name),
            print_ir_after_all=None if dump is None else dump.after_pass,
        )
    with timer.phase("emit"):
        program = emit(module, windows=windows)
        final_ir = print_module(module)
        packed = emit_packed(module, program)
    return CompiledStructure(program, report, final_ir, family, vocab_size, arithmetic, packed)


class _IrDump:
    """Writes ``00-import.mlir``, ``01-convert-torch-to-onnx.mlir``... into a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.count = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _dump_error(error, directory) from error

    def write(self, name: str, text: str) -> None:
        path = self.directory / f"{self.count:02d}-{name}.mlir"
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise _dump_error(error, path) from error
        self.count += 1

    def after_pass(self, text: str) -> None:
        header, _, body = text.partition("\n")
        match = _PASS_HEADER.match(header)
        self.write(match[1] if match else "pass", body if match else text)


def _dump_error(error: OSError, path: Path) -> OutputError:
    return OutputError(
        "The IR cannot be dumped.", found=error.strerror or str(error), where=str(path), todo="See --dump-ir."
    )
