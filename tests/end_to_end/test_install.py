"""The base install alone runs a plan that was compiled elsewhere. Needs a package index: minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import make_tiny_model

from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_base_install_runs_a_plan_compiled_elsewhere(tmp_path: Path) -> None:
    model = make_tiny_model("llama", tmp_path / "model")
    compile_checkpoint(CompileOptions(str(model.directory), tmp_path / "plan"))
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(ROOT)],
        check=True,
    )
    command = [
        str(python.with_name("planonce")),
        "run",
        str(tmp_path / "plan"),
        "--prompt",
        "Hello",
        "--json",
    ]
    done = subprocess.run(
        [*command, "--greedy", "--max-new-tokens", "8"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["tokens"]) > 0
    done = subprocess.run(
        [str(python.with_name("planonce")), "compile", str(model.directory), "-o", str(tmp_path / "again")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "planonce[compiler]" in done.stderr
    for module in ("torch", "torch_mlir", "transformers", "onnx"):
        assert subprocess.run(
            [str(python), "-c", f"import {module}"], capture_output=True, check=False
        ).returncode
