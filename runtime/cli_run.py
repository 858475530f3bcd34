"""``planonce run``: a plan answers a prompt, or talks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .errors import RequestError
from .plan_files import Verify

__all__ = ["run_command"]


def run_command(
    plan: Annotated[Path, typer.Argument(help="plan directory that `planonce compile` wrote")],
    prompt: Annotated[
        str | None, typer.Option(help="what to say to the model; - reads standard input")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="talk, a line a turn; /reset starts afresh, /quit ends")
    ] = False,
    tokens: Annotated[str | None, typer.Option(help="token ids instead of text, such as 1,2,3")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="feed the prompt as it is, without the model's chat template")
    ] = False,
    system: Annotated[str | None, typer.Option(help="system message")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="tokens to generate at most (default: 256)")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy; this and the next three default to the model's own")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="sample among the k most likely; 0 is off")] = None,
    top_p: Annotated[float | None, typer.Option(help="sample within this probability mass; 1 is off")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="drop tokens below this share of the likeliest; 0 is off")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="over 1 makes what was said less likely; 1 is off")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="same seed, same text")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="always the likeliest token")] = False,
    stop: Annotated[list[str] | None, typer.Option(help="end before this text; may be repeated")] = None,
    capacity: Annotated[
        int | None, typer.Option(help="positions of the KV cache (default: at most 2048)")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="threads (default: what this process may use)")] = None,
    device: Annotated[
        str | None, typer.Option(help="refuse a plan that is placed elsewhere: cpu, cuda, cpu:1, ...")
    ] = None,
    verify: Annotated[Verify, typer.Option(help="how much of the plan's files to check")] = Verify.STANDARD,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object at the end instead of text as it arrives")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="print speeds, and why, to standard error")] = False,
) -> None:
    """Generate text with a plan."""
    if [prompt is not None, chat, tokens is not None].count(True) != 1:
        raise typer.BadParameter("give exactly one of --prompt, --chat and --tokens")
    if (raw or tokens is not None) and (chat or system is not None):
        raise typer.BadParameter("--chat and --system need the chat template: no --raw, no --tokens")
    if greedy and temperature:
        raise typer.BadParameter("--greedy and --temperature contradict each other")
    given: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": 0.0 if greedy else temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "stop": tuple(stop) if stop else None,
    }
    _check_sizes(capacity, threads)
    # Not at the top: `planonce compile` and `--help` need no ONNX Runtime.
    from .run_stats import stats_lines
    from .text_run import TextRun, result_document, show

    run = TextRun.load(plan, given, capacity=capacity, threads=threads, verify=verify, device=device)
    try:
        if chat:
            from .cli_chat import talk

            talk(run, system=system, as_json=as_json)
            return
        if tokens is not None:
            generation = run.feed(_token_ids(tokens))
        else:
            assert prompt is not None
            text = _standard_input() if prompt == "-" else prompt
            generation = run.feed(run.need_tokenizer().encode(text)) if raw else run.ask(text, system)
        result = show(run, generation, _write_nothing if as_json else _write)
        if as_json:
            print(json.dumps({**result_document(result), "stats": run.meter.stats().document()}))
    finally:
        if stats:
            # Also after Ctrl-C: what was measured so far is still worth reading.
            sys.stdout.flush()
            print("\n".join(stats_lines(run.meter.stats(), run.plan.manifest)), file=sys.stderr)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_nothing(_text: str) -> None:
    pass


def _check_sizes(capacity: int | None, threads: int | None) -> None:
    for name, value in (("capacity", capacity), ("threads", threads)):
        if value is not None and value < 1:
            raise RequestError(f"--{name} is out of range", found=str(value), expected=">= 1")


def _token_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise RequestError("--tokens cannot be read", found=text, expected="numbers such as 1,2,3") from None


def _standard_input() -> str:
    """All of it, less the newline that ends the last line."""
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise RequestError("standard input is not text", found=str(error), expected="UTF-8") from None
