"""How the command line ends: an error as text or JSON, Ctrl-C, a closed pipe, a missing extra.

Exit codes: 0 done; 1 a PlanonceError; 2 a wrong command line; 130 Ctrl-C; 141 the reader of a pipe went away.
With ``--json`` an error is ``{"error": {...}}`` on standard output, where the result would have been;
without, it is text on standard error. Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator
from typing import Any

import typer
from typer.core import TyperCommand

from .errors import PlanonceError

__all__ = ["MissingExtra", "ReportingCommand", "deliberate_exits", "error_text"]

INTERRUPTED = 130  # 128 + SIGINT, as shells count
PIPE_CLOSED = 141  # 128 + SIGPIPE

# What only the [compiler] extra installs.
_COMPILER_MODULES = ("torch", "torch_mlir", "onnx", "transformers", "safetensors", "gguf")


class MissingExtra(PlanonceError):
    """The command belongs to a part of planonce that is not installed."""

    code = "missing-extra"


def error_text(error: PlanonceError) -> str:
    """The error and its notes for a person."""
    notes: list[str] = getattr(error, "__notes__", [])
    return "\n".join([f"error: {error}", *(f"  note: {note}" for note in notes)])


@contextlib.contextmanager
def deliberate_exits(*, as_json: bool = False) -> Generator[None]:
    """Turn what may end a command on purpose into its report and its exit code (SystemExit)."""
    try:
        try:
            yield
        except ImportError as error:
            missing = _missing_extra(error)
            if missing is None:
                raise
            _report(missing, as_json)
            raise SystemExit(missing.exit_code) from None
        except PlanonceError as error:
            _report(error, as_json)
            raise SystemExit(error.exit_code) from None
        finally:
            # Here and not at the interpreter's exit, where a closed pipe would be reported by Python.
            sys.stdout.flush()
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            print("\ninterrupted" if sys.stderr.isatty() else "interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        _drop_output()
        raise SystemExit(PIPE_CLOSED) from None


class ReportingCommand(TyperCommand):
    """A command whose errors are reported as its own ``--json`` asks."""

    def invoke(self, ctx: typer.Context) -> Any:  # pyright: ignore
        with deliberate_exits(as_json=ctx.params.get("as_json") is True):
            return super().invoke(ctx)  # pyright: ignore


def _report(error: PlanonceError, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": error.document()}, ensure_ascii=False))
    else:
        sys.stdout.flush()
        print(error_text(error), file=sys.stderr)


def _missing_extra(error: ImportError) -> MissingExtra | None:
    module = (error.name or "").partition(".")[0]
    if module not in _COMPILER_MODULES:
        return None
    return MissingExtra(
        "this command needs planonce's compiler, which is not installed",
        found=f"no module {error.name}",
        todo="pip install 'planonce[compiler]'",
    )


def _drop_output() -> None:
    """Point the streams whose reader is gone to nowhere, so that the last flush does not fail again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
