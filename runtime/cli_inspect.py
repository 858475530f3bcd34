"""``planonce inspect``: what a plan is, and whether its files and weights are sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .plan_files import Verify

__all__ = ["inspect_command"]


def inspect_command(
    plan: Annotated[Path, typer.Argument(help="plan directory that `planonce compile` wrote")],
    verify: Annotated[Verify, typer.Option(help="how much of the plan's files to check")] = Verify.STANDARD,
    scan: Annotated[
        bool, typer.Option("--scan/--no-scan", help="read all weights and look for NaN and infinity")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as one JSON object")] = False,
) -> None:
    """Show what a plan is and check it. Exit code 1: its files or weights are not sound."""
    from .plan_report import PlanReport

    report = PlanReport.of(plan, verify=verify, scan=scan)
    if as_json:
        print(json.dumps(report.document(), ensure_ascii=False, indent=1))
    else:
        for line in report.lines():
            print(line)
    if not report.ok:
        raise typer.Exit(1)
