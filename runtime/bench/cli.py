"""``planonce bench``: a plan's speed, beside that of other engines on the same weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import RequestError

__all__ = ["bench_command"]


def bench_command(
    plan: Annotated[Path, typer.Argument(help="plan directory that `planonce compile` wrote")],
    against: Annotated[
        str, typer.Option(help="engines to compare with, by comma: genai, llama.cpp, transformers")
    ] = "",
    threads: Annotated[int, typer.Option(help="threads of every engine")] = 2,
    live: Annotated[
        str, typer.Option(help="positions in the cache when decoding starts, by comma")
    ] = "128,1024,4096",
    tokens: Annotated[int, typer.Option(help="tokens decoded at each of these in a round")] = 64,
    prefill: Annotated[int, typer.Option(help="tokens of the prompt")] = 512,
    rounds: Annotated[int, typer.Option(help="interleaved rounds after one to warm up")] = 7,
    loads: Annotated[int, typer.Option(help="fresh processes started to time loading; 0 is none")] = 5,
    peers: Annotated[
        Path, typer.Option(help="directory of the other engines, made by `make bench-peers`")
    ] = Path("build/peers"),
    peer_weights: Annotated[
        str | None, typer.Option(help="weight format of the others (default: the plan's, where they have it)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")] = False,
    markdown: Annotated[
        Path | None, typer.Option(help="also write the tables as Markdown", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="also draw a picture (.png, .svg)", show_default=False)
    ] = None,
) -> None:
    """Measure a plan: interleaved rounds, medians with spread."""
    # Not at the top: `planonce --help` needs neither numpy nor ONNX Runtime.
    from ..manifest import Manifest
    from .engines import find_engines, plan_weights
    from .measure import BenchOptions, run_bench
    from .plot import check_plotting, write_plot
    from .report import markdown as as_markdown
    from .report import text_tables

    lengths = tuple(sorted(set(_numbers(live))))
    for name, value, least in (
        ("threads", threads, 1),
        ("live", min(lengths), 3),
        ("tokens", tokens, 1),
        ("prefill", prefill, 1),
        ("rounds", rounds, 1),
        ("loads", loads, 0),
    ):
        if value < least:
            raise RequestError(f"--{name} is out of range.", found=str(value), expected=f">= {least}")
    options = BenchOptions(threads, rounds, lengths, tokens, prefill, loads)
    manifest = Manifest.load(plan)
    if options.capacity > manifest.model.max_seq_len:
        raise RequestError(
            "The plan's cache cannot be that long.",
            found=f"{options.capacity} positions for --live {live}, --tokens {tokens}, --prefill {prefill}",
            expected=f"<= {manifest.model.max_seq_len}",
            todo="Ask for less, or compile with a larger --max-seq-len.",
        )
    if plot is not None:
        check_plotting(plot)
    wanted = [name.strip() for name in against.split(",") if name.strip()]
    engines, missing = find_engines(plan, plan_weights(manifest), wanted, peers, peer_weights)
    result = run_bench(engines, missing, options, lambda text: print(text, file=sys.stderr, flush=True))
    if markdown is not None:
        markdown.write_text(as_markdown(result), encoding="utf-8")
    if plot is not None:
        write_plot(result, plot)
    print(json.dumps(result.document()) if as_json else text_tables(result))


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise RequestError(
            "--live cannot be read.", found=text, expected="numbers such as 128,1024"
        ) from None
