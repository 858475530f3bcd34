"""The loop of ``planonce run --chat``: a line in, an answer out, only new tokens fed."""

from __future__ import annotations

import json
import sys

from .chat import Chat
from .cli_errors import error_text
from .errors import CapacityExceeded, PlanonceError, RequestError
from .generate import FinishReason, GenerationResult
from .text_run import TextRun, no_template, result_document, show

__all__ = ["talk"]

_ENDINGS = {
    FinishReason.LENGTH: "stopped after --max-new-tokens {n}",
    FinishReason.CAPACITY: "stopped: the KV cache is full; /reset, or start with a larger --capacity",
}


def talk(run: TextRun, *, system: str | None, as_json: bool) -> None:
    """Until /quit or the input's end. From a pipe, the first error ends it; a person may try again.

    Ctrl-C ends an answer when a person is typing, and the program otherwise. Raises RequestError without a
    chat template, and what the turns raise.
    """
    chat = run.chat(system)
    if chat is None:
        raise no_template()
    person = sys.stdin.isatty() and not as_json
    if person:
        print("/reset starts afresh, /quit ends, Ctrl-C cuts an answer short", file=sys.stderr)
    turns: list[dict[str, object]] = []
    while (line := _read_line(person)) is not None:
        text = line.strip()
        if text == "/quit":
            break
        if text == "/reset":
            chat.reset()
        elif text.startswith("/") and person:
            print(f"no command {text.split()[0]}; there are /reset and /quit", file=sys.stderr)
        elif text:
            result = _turn(run, chat, text, person=person, quiet=as_json)
            if result is not None:
                turns.append({"prompt": text, **result_document(result)})
    if as_json:
        print(json.dumps({"turns": turns, "stats": run.meter.stats().document()}))


def _turn(run: TextRun, chat: Chat, text: str, *, person: bool, quiet: bool) -> GenerationResult | None:
    def write(piece: str) -> None:
        if not quiet:
            sys.stdout.write(piece)
            sys.stdout.flush()

    try:
        generation = chat.send(text, run.options)
    except (CapacityExceeded, RequestError) as error:
        if not person:
            raise
        _explain(error)
        return None
    try:
        result = show(run, generation, write)
    except KeyboardInterrupt:
        if not person:
            raise
        print("[interrupted]", file=sys.stderr)
        return generation.result
    ending = _ENDINGS.get(result.finish_reason)
    if ending is not None and not quiet:
        print(f"[{ending.format(n=run.options.max_new_tokens)}]", file=sys.stderr)
    return result


def _explain(error: PlanonceError) -> None:
    print(error_text(error), file=sys.stderr)
    print("  (/reset starts afresh)", file=sys.stderr)


def _read_line(person: bool) -> str | None:
    """The next line; None at the end of the input."""
    try:
        if person:
            return input("> ")
        line = sys.stdin.readline()
    except EOFError:
        print()
        return None
    except UnicodeDecodeError as error:
        raise RequestError("standard input is not text", found=str(error), expected="UTF-8") from None
    return line or None
