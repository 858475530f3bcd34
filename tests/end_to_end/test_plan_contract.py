"""What a plan promises: compiled once, the same bytes each time, nothing made per token."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from command_line import planonce
from tiny_models import TinyModel, make_tiny_model

from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions
from planonce.compiler.import_torch import import_program
from planonce.compiler.structure import choose_pipeline, for_length
from planonce.compiler.trace import trace
from planonce.passes.driver import run_pipeline
from planonce.passes.ir.context import make_context, print_module
from planonce.passes.ir.roles import body_of, function_of
from planonce.runtime import Plan, process_counters
from planonce.runtime.errors import CapacityExceeded


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model("llama", tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def plan(model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    output = tmp_path_factory.mktemp("plans") / "plan"
    compile_checkpoint(CompileOptions(str(model.directory), output))
    return Plan.load(output, threads=1)


def _bytes(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_compiling_twice_gives_the_same_bytes(model: TinyModel, plan: Plan, tmp_path: Path) -> None:
    compile_checkpoint(CompileOptions(str(model.directory), tmp_path / "again"))
    assert _bytes(tmp_path / "again") == _bytes(plan.directory)


@pytest.mark.parametrize("cached_len", [1, 31])
def test_the_example_s_cached_length_changes_nothing(
    cached_len: int, model: TinyModel, plan: Plan, tmp_path: Path
) -> None:
    options = CompileOptions(str(model.directory), tmp_path / "plan", example_cached_len=cached_len)
    compile_checkpoint(options)
    assert _bytes(tmp_path / "plan") == _bytes(plan.directory)


def test_another_option_does_change_the_bytes(model: TinyModel, plan: Plan, tmp_path: Path) -> None:
    """Negative control of the two tests above."""
    compile_checkpoint(CompileOptions(str(model.directory), tmp_path / "plan", attention="portable"))
    assert _bytes(tmp_path / "plan")["program.onnx"] != _bytes(plan.directory)["program.onnx"]


def test_from_the_second_token_on_nothing_is_made(plan: Plan) -> None:
    session = plan.open(capacity=64)
    session.prefill([1, 2, 3])
    session.realize_token(4)
    before, made = session.counters.snapshot(), process_counters()
    for token in range(32):
        session.realize_token(token)
    after = session.counters.snapshot()
    assert after.runs - before.runs == 32
    assert after.realize_count - before.realize_count == 32
    unchanged = ("traces", "pass_runs", "bindings_made", "bind_calls", "rebinds", "uploads")
    assert {name: getattr(after, name) - getattr(before, name) for name in unchanged} == dict.fromkeys(
        unchanged, 0
    )
    assert process_counters() == made


@pytest.mark.parametrize("arm", ["fused", "portable"])
def test_the_whole_pipeline_run_twice_equals_once(arm: str, model: TinyModel) -> None:
    module = import_program(trace(model.config, max_seq_len=64), make_context())
    pipeline = for_length(choose_pipeline(None, arm), 64)
    assert run_pipeline(module, pipeline, check_changed=True).changed
    once = print_module(module, elide_large=False)
    nodes = len(list(body_of(function_of(module)).operations))
    assert not run_pipeline(module, pipeline, check_changed=True).changed
    assert print_module(module, elide_large=False) == once
    assert len(list(body_of(function_of(module)).operations)) == nodes


def test_past_capacity_is_refused_and_the_cache_lives_on(plan: Plan) -> None:
    session = plan.open(capacity=8)
    with pytest.raises(CapacityExceeded):
        session.prefill(list(range(9)))
    assert session.position == 0
    session.prefill(list(range(8)))
    with pytest.raises(CapacityExceeded):
        session.realize_token(8)
    cache = session.cache
    assert cache is not None
    cache.truncate_to(5)
    fresh = plan.open(capacity=8)
    fresh.prefill(list(range(5)))
    np.testing.assert_array_equal(session.realize_token(9), fresh.realize_token(9))


def test_a_plan_by_reference_says_when_its_checkpoint_moved_or_changed(tmp_path: Path) -> None:
    from planonce.compiler.weights_writer import WeightMode
    from planonce.runtime.errors import PlanIntegrityError

    model = make_tiny_model("llama", tmp_path / "model", seed=2)
    output = tmp_path / "plan"
    compile_checkpoint(CompileOptions(str(model.directory), output, weights=WeightMode.REFERENCE))
    assert sum(path.stat().st_size for path in output.iterdir()) < 200_000
    session = Plan.load(output).open(capacity=8)
    expected = session.realize_token(3).copy()
    moved = model.directory.rename(tmp_path / "moved")
    with pytest.raises(PlanIntegrityError, match="checkpoint"):
        Plan.load(output)
    moved.rename(model.directory)
    np.testing.assert_array_equal(Plan.load(output).open(capacity=8).realize_token(3), expected)
    weights = model.directory / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(PlanIntegrityError, match="other contents"):
        Plan.load(output)


def test_an_embedded_plan_can_be_moved_and_outlives_its_checkpoint(tmp_path: Path) -> None:
    model = make_tiny_model("llama", tmp_path / "model", seed=2)
    compile_checkpoint(CompileOptions(str(model.directory), tmp_path / "plan"))
    expected = Plan.load(tmp_path / "plan").open(capacity=8).realize_token(3).copy()
    for path in model.directory.iterdir():
        path.unlink()
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "plan").rename(tmp_path / "elsewhere" / "plan")
    np.testing.assert_array_equal(Plan.load(moved).open(capacity=8).realize_token(3), expected)


def test_safetensors_are_linked_not_copied(tmp_path: Path) -> None:
    model = make_tiny_model("llama", tmp_path / "model", seed=2)
    report = compile_checkpoint(CompileOptions(str(model.directory), tmp_path / "plan"))
    linked = [p for p in (tmp_path / "plan").iterdir() if p.suffix == ".safetensors"]
    assert linked and all(p.samefile(model.directory / p.name) for p in linked)
    assert report.linked_bytes > 0


def test_what_a_compile_says_to_do_next_works_without_a_tokenizer(model: TinyModel, tmp_path: Path) -> None:
    done = planonce("compile", model.directory, "-o", tmp_path / "plan")
    assert done.returncode == 0, done.stderr
    (said,) = (
        line for line in (done.stdout + done.stderr).splitlines() if line.startswith("Next: planonce ")
    )
    command = shlex.split(said.removeprefix("Next: planonce ").partition("  (")[0])
    run = planonce(*command, "--max-new-tokens", "2")
    assert run.returncode == 0, run.stderr
