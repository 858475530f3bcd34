"""Running a pipeline over a module: timing, verification, remarks, and what to keep when a pass breaks."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_mlir import ir

from planonce.runtime.errors import PassError, PlanonceError

from .base import Pass
from .ir.context import print_module
from .ir.locations import describe_diagnostics
from .pipeline import Pipeline
from .remarks import Remark, Remarks

__all__ = ["PassRun", "PipelineReport", "run_pipeline"]


@dataclass(frozen=True, slots=True)
class PassRun:
    """One pass of a finished run."""

    name: str
    changed: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """What a run did. ``pipeline`` is the string that was run, every option spelled out."""

    pipeline: str
    passes: tuple[PassRun, ...]
    remarks: tuple[Remark, ...]

    @property
    def changed(self) -> bool:
        """Whether any pass changed the module."""
        return any(run.changed for run in self.passes)

    @property
    def seconds(self) -> float:
        """Time in passes, verification not included."""
        return sum(run.seconds for run in self.passes)


def run_pipeline(
    module: ir.Module,
    pipeline: Pipeline | str | Sequence[Pass],
    *,
    print_ir_after_all: Callable[[str], None] | None = None,
    on_pass: Callable[[str, int, int], None] | None = None,
    verify: bool = True,
    check_changed: bool = False,
    reproducer_dir: Path | None = None,
) -> PipelineReport:
    """Run the passes in order, in place.

    ``print_ir_after_all`` is given the text after each pass; ``on_pass(name, index, total)`` is called
    before each. ``verify`` checks the module before the first pass and after each. ``check_changed``
    compares each pass's word with the text (for tests). Nothing runs when a name or option is unknown.

    Raises PassError when the module does not verify, naming pass, op and source line, and when a pass
    refuses. Any other exception of a pass is its bug: it passes through with a note that says where the
    reproducer lies (in ``reproducer_dir``, default the system's temporary directory).
    """
    passes = _passes(pipeline)
    expanded = Pipeline.of(passes)
    remarks = Remarks()
    runs: list[PassRun] = []
    if verify:
        _verify(module, "the input")
    for index, pass_ in enumerate(passes):
        if on_pass is not None:
            on_pass(pass_.name, index, len(passes))
        remarks.pass_name = pass_.name
        rest = Pipeline(expanded.calls[index:])
        before = _exact_text(module) if check_changed else ""
        started = time.perf_counter()
        changed = _run_one(pass_, module, remarks, rest, reproducer_dir)
        runs.append(PassRun(pass_.name, changed, time.perf_counter() - started))
        if verify:
            _verify(module, f"pass {pass_.name}")
        if check_changed and changed != (_exact_text(module) != before):
            raise PassError(
                f"pass {pass_.name} reports wrongly whether it changed the module",
                found=f"changed = {changed}",
                expected=f"changed = {not changed}",
            )
        if print_ir_after_all is not None:
            print_ir_after_all(f"// ----- IR after {pass_.name} -----\n{print_module(module)}")
    return PipelineReport(str(expanded), tuple(runs), tuple(remarks.items))


def _passes(pipeline: Pipeline | str | Sequence[Pass]) -> Sequence[Pass]:
    if isinstance(pipeline, str):
        pipeline = Pipeline.parse(pipeline)
    return pipeline.passes() if isinstance(pipeline, Pipeline) else pipeline


def _run_one(
    pass_: Pass, module: ir.Module, remarks: Remarks, rest: Pipeline, reproducer_dir: Path | None
) -> bool:
    # A clone shares all constant data with the module, so it costs little; text would not.
    before = module.operation.clone()
    try:
        with module.context, ir.Location.unknown():
            return pass_.run(module, remarks)
    except PlanonceError as error:
        error.add_note(f"in pass {pass_.name}")
        raise
    except Exception as error:
        path = _write_reproducer(before, rest, error, reproducer_dir)
        again = f"planonce opt {path} --pass-pipeline='{rest}'"
        error.add_note(f"pass {pass_.name} broke; to see it again: {again}")
        raise


def _verify(module: ir.Module, after: str) -> None:
    try:
        valid = module.operation.verify()
    except ir.MLIRError as error:
        message, where = describe_diagnostics(error)
        raise PassError(f"the module is invalid after {after}: {message}", where=where) from None
    if not valid:
        raise PassError(f"the module is invalid after {after}")


def _exact_text(module: ir.Module) -> str:
    return print_module(module, elide_large=False)


def _write_reproducer(before: ir.OpView, rest: Pipeline, error: Exception, directory: Path | None) -> Path:
    text = before.operation.get_asm(enable_debug_info=True)
    lines = [f"// RUN: planonce opt %s --pass-pipeline='{rest}'"]
    lines += [f"// {line}" for line in f"{type(error).__name__}: {error}".splitlines()]
    body = "\n".join([*lines, text])
    target = Path(tempfile.gettempdir()) if directory is None else directory
    target.mkdir(parents=True, exist_ok=True)
    # Named by content: the same failure twice leaves one file.
    path = target / f"planonce-reproducer-{hashlib.sha256(body.encode()).hexdigest()[:12]}.mlir"
    path.write_text(body, encoding="utf-8")
    return path
