"""The tool for compiler authors: run any pipeline on MLIR text, and list the passes."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch_mlir import ir

from planonce.runtime.errors import PassError, PlanonceError

from .driver import PipelineReport, run_pipeline
from .ir.context import make_context, parse_module, print_module, read_module
from .pipeline import Pipeline
from .registry import PASSES, pass_names, pass_options, pass_summary

__all__ = ["main", "opt_command", "passes_command"]


def opt_command(
    file: Annotated[str, typer.Argument(help="MLIR text to read; - for standard input")],
    pass_pipeline: Annotated[
        str, typer.Option(help="passes to run, such as 'alias-kv,canonicalize'; none: parse and verify only")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="file to write; default: print")
    ] = None,
    print_ir_after_all: Annotated[
        bool, typer.Option("--print-ir-after-all", help="print the IR after each pass, to standard error")
    ] = False,
    remarks: Annotated[
        bool, typer.Option("--remarks", help="print what the passes decided, to standard error")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--json", help="file for a report: passes, changes, seconds, remarks")
    ] = None,
    elide: Annotated[
        bool, typer.Option("--elide", help="abbreviate long constants; the output does not parse then")
    ] = False,
    locations: Annotated[bool, typer.Option("--locations", help="print the location of every op")] = False,
    check_changed: Annotated[
        bool, typer.Option("--check-changed", help="fail when a pass is wrong about having changed the IR")
    ] = False,
    reproducer_dir: Annotated[
        Path | None, typer.Option(help="where a reproducer goes when a pass breaks; default: temporary files")
    ] = None,
) -> None:
    """Run passes on MLIR text and print the result."""
    pipeline = Pipeline.parse(pass_pipeline)
    context = make_context()
    module = _read(file, context)
    result = run_pipeline(
        module,
        pipeline,
        print_ir_after_all=_to_stderr if print_ir_after_all else None,
        check_changed=check_changed,
        reproducer_dir=reproducer_dir,
    )
    text = print_module(module, elide_large=elide, locations=locations)
    if remarks:
        for remark in result.remarks:
            _to_stderr(str(remark))
    if report is not None:
        _write(report, _report_json(result))
    if output is None:
        sys.stdout.write(text)
    else:
        _write(output, text)


def passes_command(
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """List the passes, what each does, and its options."""
    rows = [
        {
            "name": name,
            "summary": pass_summary(name),
            "options": [dataclasses.asdict(option) for option in pass_options(name)],
        }
        for name in pass_names()
    ]
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    table = Table("pass", "what it does", "options (type, default)")
    for index, name in enumerate(pass_names()):
        options = "\n".join(
            f"{option.name} ({option.type}, {option.default or 'empty'}): {option.help}"
            for option in pass_options(name)
        )
        last_of_ours = index == len(PASSES) - 1
        table.add_row(escape(name), escape(pass_summary(name)), escape(options), end_section=last_of_ours)
    Console().print(table)


def main() -> None:
    """``planonce-opt``: ``opt_command`` by itself. A PlanonceError is a message and exit code 1."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(opt_command)
    try:
        app()
    except PlanonceError as error:
        _to_stderr("\n".join([f"error: {error}", *(f"  note: {n}" for n in getattr(error, "__notes__", ()))]))
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _read(file: str, context: ir.Context) -> ir.Module:
    if file == "-":
        return parse_module(sys.stdin.read(), context, source="<stdin>")
    return read_module(Path(file), context)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PassError(f"cannot write {path}", found=error.strerror or str(error)) from None


def _report_json(report: PipelineReport) -> str:
    value = {
        "pipeline": report.pipeline,
        "changed": report.changed,
        "seconds": report.seconds,
        "passes": [dataclasses.asdict(run) for run in report.passes],
        "remarks": [dataclasses.asdict(remark) for remark in report.remarks],
    }
    return json.dumps(value, indent=2) + "\n"


def _to_stderr(text: str) -> None:
    sys.stderr.write(text if text.endswith("\n") else f"{text}\n")
