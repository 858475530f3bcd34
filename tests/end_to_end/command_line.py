"""``planonce`` in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CompiledPlan", "compile_plan", "planonce"]


@dataclass(frozen=True)
class CompiledPlan:
    """A plan directory and what ``planonce compile --json`` said of it."""

    path: Path
    report: dict[str, Any]


def planonce(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-P", "-m", "planonce.runtime.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def compile_plan(checkpoint: str | Path, output: Path, *options: str) -> CompiledPlan:
    done = planonce("compile", checkpoint, "-o", output, "--json", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return CompiledPlan(output, json.loads(done.stdout))
