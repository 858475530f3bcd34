"""``planonce verify``: a plan beside transformers on the checkpoint it was made from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from planonce.runtime.errors import CompileError

from .cli import BarProgress, progress_bars
from .progress import SilentProgress
from .verify import DEFAULT_TEXT, DEFAULT_WINDOW, Comparison, verify_plan

__all__ = ["verify_command"]


def verify_command(
    plan: Annotated[Path, typer.Argument(help="plan directory that `planonce compile` wrote")],
    reference: Annotated[
        str,
        typer.Option(
            "--reference", help="checkpoint it was made from: directory, .gguf file or package:NAME"
        ),
    ],
    text: Annotated[
        Path | None,
        typer.Option(
            "--text", help="UTF-8 text to read; default: a chapter of Jane Austen", show_default=False
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="stop after so many tokens", min=2, show_default=False)
    ] = None,
    window: Annotated[int, typer.Option(help="tokens that are read in one context", min=2)] = DEFAULT_WINDOW,
    threads: Annotated[
        int | None,
        typer.Option(help="threads; default: all that this process may use", min=1, show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the figures as JSON")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bars")] = False,
) -> None:
    """Measure what a plan's rounding costs."""
    from .checkpoint import open_checkpoint

    read = _read(text or DEFAULT_TEXT)
    checkpoint = open_checkpoint(reference)
    more = {"window": window, "max_tokens": max_tokens, "threads": threads}
    if quiet or as_json:
        found = verify_plan(plan, checkpoint, read, progress=SilentProgress(), **more)
    else:
        with progress_bars(Console(stderr=True)) as bars:
            found = verify_plan(plan, checkpoint, read, progress=BarProgress(bars), **more)
    if as_json:
        print(json.dumps(dataclasses.asdict(found), indent=1))
    else:
        _print(Console(), found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CompileError("The text cannot be read.", found=str(error), where="--text") from None


def _print(console: Console, found: Comparison) -> None:
    rows = (
        ("positions", f"{found.positions:,} in windows of {found.window}"),
        ("same top-1", f"{found.top1_agreement:.2%}"),
        ("KL", f"mean {found.mean_kl:.2e}, max {found.max_kl:.2e} nats"),
        ("perplexity", f"{found.perplexity:.3f}, reference {found.reference_perplexity:.3f}"),
    )
    for name, text in rows:
        console.print(f"[bold]{name:<11}[/] {text}", highlight=False)
