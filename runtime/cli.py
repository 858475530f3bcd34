"""``planonce``: the runtime's own commands, and those that other rooms register as entry points.

The others are imported when they are called: ``planonce run`` loads no compiler, and ``planonce --help``
lists them whether or not what they need is installed.
"""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .cli_errors import ReportingCommand, deliberate_exits
from .cli_inspect import inspect_command
from .cli_run import run_command

__all__ = ["ENTRY_POINTS", "app", "main"]

ENTRY_POINTS = "planonce.commands"

# The first lines of the commands' own docstrings, which cannot be read without importing the compiler.
_SUMMARIES = {
    "compile": "Compile a checkpoint into a plan directory.",
    "opt": "Run passes on MLIR text and print the result.",
    "passes": "List the passes, what each does, and its options.",
    "verify": "Measure what a plan's rounding costs.",
    "bench": "Measure a plan: interleaved rounds, medians with spread.",
}


class _LazyCommand(ReportingCommand):
    """Stands in for an entry point's command until it is called."""

    def __init__(self, entry: importlib.metadata.EntryPoint) -> None:
        super().__init__(name=entry.name, help=_SUMMARIES.get(entry.name, f"(from {entry.value})"))
        self._entry = entry

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **more: Any) -> Any:
        with deliberate_exits():
            function = self._entry.load()
        alone = _typer()
        alone.command(self._entry.name, cls=ReportingCommand)(function)
        return typer.main.get_command(alone).make_context(info_name, args, *rest, **more)


class _Group(TyperGroup):
    """The commands of this room first, then every entry point's."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = list(self.commands)
        return [*own, *(name for name in sorted(_entry_points()) if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        entry = _entry_points().get(cmd_name)
        return None if entry is None else _LazyCommand(entry)


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _typer(**more: Any) -> typer.Typer:
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **more)


app = _typer(cls=_Group, no_args_is_help=True)
app.command("run", cls=ReportingCommand)(run_command)
app.command("inspect", cls=ReportingCommand)(inspect_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"planonce {importlib.metadata.version('planonce')}")
        raise typer.Exit


@app.callback()
def _planonce(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Compile a language model's decode step once; after that, a token is one run."""


def main() -> None:
    """The ``planonce`` script."""
    with deliberate_exits():
        # A terminal that cannot show a character shows a question mark, not a traceback.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # pyright: ignore
        app(prog_name="planonce")


if __name__ == "__main__":
    main()
