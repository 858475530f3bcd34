"""Bad input to ``planonce compile``: a typed error, an exit code, no traceback, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import planonce
from safetensors.numpy import load_file, save_file
from tiny_models import make_tiny_model
from traced_models import extra_config

from planonce.compiler import package
from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions
from planonce.compiler.structure import compile_structure
from planonce.passes import convert_torch_to_onnx
from planonce.passes.lowerings import lowering_table
from planonce.passes.lowerings.table import LoweringTable
from planonce.runtime import Plan
from planonce.runtime.errors import (
    CheckpointError,
    CompileError,
    OutputError,
    PassError,
    PlanIntegrityError,
    PlanonceError,
    UnsupportedModel,
    UnsupportedOp,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        "llama", tmp_path_factory.mktemp("tiny") / "model", max_shard_size="100KB"
    ).directory


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def _shard(directory: Path) -> Path:
    return sorted(directory.glob("*.safetensors"))[0]


def _config(**changes: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _truncate(directory: Path) -> None:
    with _shard(directory).open("r+b") as file:
        file.truncate(_shard(directory).stat().st_size - 100)


def _wrong_shape(directory: Path) -> None:
    tensors = load_file(_shard(directory))
    name = next(n for n, t in tensors.items() if t.ndim == 2)
    save_file(
        {**tensors, name: np.ascontiguousarray(tensors[name][:-1])}, _shard(directory), {"format": "pt"}
    )


FAULTS: dict[str, tuple[Callable[[Path], object], type[PlanonceError], str]] = {
    "missing shard": (lambda d: _shard(d).unlink(), CheckpointError, "safetensors"),
    "truncated shard": (_truncate, CheckpointError, "safetensors"),
    "wrong shape": (_wrong_shape, CheckpointError, "shape"),
    "unknown architecture": (_config(model_type="nonesuch"), UnsupportedModel, "nonesuch"),
    "not a checkpoint": (lambda d: (d / "config.json").unlink(), CheckpointError, "config.json"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_checkpoint_is_named_and_nothing_is_left(fault: str, model: Path, tmp_path: Path) -> None:
    damage, kind, word = FAULTS[fault]
    damage(model)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(kind) as caught:
        compile_checkpoint(CompileOptions(str(model), tmp_path / "plan"))
    assert word in str(caught.value) and caught.value.todo
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("length", [0, -1, 257, 10**12])
def test_max_seq_len_out_of_range(length: int, original: Path, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="maximum sequence length"):
        compile_checkpoint(CompileOptions(str(original), tmp_path / "plan", max_seq_len=length))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_moe"])
def test_an_op_without_a_lowering_is_named_with_its_line_in_the_model(family: str) -> None:
    with pytest.raises(UnsupportedOp, match=rf"planonce.experts \(x\d\) at \S*modeling_{family}.py:\d+"):
        compile_structure(extra_config(family), max_seq_len=64)


def test_every_op_without_a_lowering_is_listed(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = ("torch.aten.linear", "torch.aten.rsqrt", "torch.aten.silu")
    table = LoweringTable("some families")
    for name, lower in lowering_table().items():
        if name not in missing:
            table.add(name, lower)
    monkeypatch.setattr(convert_torch_to_onnx, "lowering_table", lambda: table)
    with pytest.raises(UnsupportedOp) as caught:
        compile_checkpoint(CompileOptions(str(original), tmp_path / "plan"))
    for name in missing:
        assert re.search(rf"{name} \(x\d+\) at \S*modeling_llama.py:\d+", str(caught.value)), str(
            caught.value
        )
    assert not list(tmp_path.iterdir())


def test_a_pipeline_that_cannot_make_a_plan_is_refused(original: Path, tmp_path: Path) -> None:
    for pipeline, kind in (("convert-torch-to-onnx", CompileError), ("nonesuch", PassError)):
        with pytest.raises(kind):
            compile_checkpoint(CompileOptions(str(original), tmp_path / "plan", pass_pipeline=pipeline))
    assert not list(tmp_path.iterdir())


def test_the_command_line_reports_without_a_traceback(tmp_path: Path) -> None:
    done = planonce("compile", tmp_path / "nowhere", "-o", tmp_path / "plan")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "no such checkpoint" in done.stderr
    done = planonce("compile", tmp_path / "nowhere", "-o", tmp_path / "plan", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == CheckpointError.code
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(original: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the write itself fails half way, for real."""
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from planonce.compiler.compile import compile_checkpoint\n"
        "from planonce.compiler.compile_options import CompileOptions\n"
        "from planonce.runtime.errors import OutputError\n"
        "from pathlib import Path\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    compile_checkpoint(CompileOptions(sys.argv[1], Path(sys.argv[2])))\n"
        "except OutputError as error:\n"
        "    print(error)\n"
        "    sys.exit(7)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(original), str(tmp_path / "plan")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "disk is full" in done.stdout
    assert not list(tmp_path.iterdir())
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096


def test_too_little_room_is_noticed_before_writing(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "_free_bytes", lambda directory: 1000)
    with pytest.raises(OutputError, match="not enough room"):
        compile_checkpoint(CompileOptions(str(original), tmp_path / "plan"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_while_writing_leaves_nothing_that_loads(
    number: signal.Signals, original: Path, tmp_path: Path
) -> None:
    target = tmp_path / "plan"
    process = subprocess.Popen(
        [sys.executable, "-m", "planonce.runtime.cli", "compile", str(original), "-o", str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    deadline = time.monotonic() + 300
    # The partial directory appears when writing begins, and stays through the self-check: seconds.
    while not list(tmp_path.glob(".plan.planonce-*")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    output = process.communicate(timeout=120)[0]
    assert process.returncode in (-number, 128 + number)
    assert "Traceback" not in output
    assert not target.exists()
    with pytest.raises(PlanIntegrityError):
        Plan.load(target)
    if number is not signal.SIGKILL:
        assert not list(tmp_path.iterdir())
    # What a SIGKILL left is removed by the next compile to the same place.
    compile_checkpoint(CompileOptions(str(original), target, self_check=False))
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def test_an_output_that_is_there_is_never_lost(original: Path, tmp_path: Path) -> None:
    target = tmp_path / "plan"
    target.mkdir()
    (target / "thesis.txt").write_text("years of work")
    for force in (False, True):
        with pytest.raises(OutputError, match="exists already"):
            compile_checkpoint(CompileOptions(str(original), target, force=force))
    assert (target / "thesis.txt").read_text() == "years of work"


def test_a_failing_compile_with_force_keeps_the_old_plan(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "plan"
    compile_checkpoint(CompileOptions(str(original), target, self_check=False))
    before = (target / "manifest.json").read_bytes()
    monkeypatch.setattr(package, "_free_bytes", lambda directory: 1000)
    with pytest.raises(OutputError):
        compile_checkpoint(CompileOptions(str(original), target, force=True, attention="portable"))
    assert (target / "manifest.json").read_bytes() == before
    monkeypatch.undo()
    compile_checkpoint(
        CompileOptions(str(original), target, force=True, attention="portable", self_check=False)
    )
    assert (target / "manifest.json").read_bytes() != before
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def test_nan_in_the_weights_is_reported_by_inspect(model: Path, tmp_path: Path) -> None:
    # In a projection, not in one row of the embedding, which two tokens of a self-check need not meet.
    name = "model.layers.0.mlp.down_proj.weight"
    shard = next(path for path in model.glob("*.safetensors") if name in load_file(path))
    tensors = load_file(shard)
    tensors[name][1, 2] = np.nan
    save_file(tensors, shard, {"format": "pt"})
    with pytest.raises(CompileError, match="not decode"):
        compile_checkpoint(CompileOptions(str(model), tmp_path / "plan"))
    compile_checkpoint(CompileOptions(str(model), tmp_path / "plan", self_check=False))
    done = planonce("inspect", tmp_path / "plan")
    assert done.returncode == 1
    assert name in done.stdout + done.stderr and "NaN" in done.stdout + done.stderr


def test_prompt_longer_than_the_capacity(original: Path, tmp_path: Path) -> None:
    compile_checkpoint(CompileOptions(str(original), tmp_path / "plan", self_check=False))
    done = planonce("run", tmp_path / "plan", "--raw", "--prompt", "x" * 40, "--capacity", "16")
    assert done.returncode == 1
    assert "16" in done.stderr and "40" in done.stderr and "Traceback" not in done.stderr
