"""The bench: its workers, its rounds, and what it says when an engine is not there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handmade_plan import build
from text_files import text_tiny

from planonce.runtime import Manifest, PlanonceError
from planonce.runtime.bench.bandwidth import Bandwidth
from planonce.runtime.bench.cli import bench_command
from planonce.runtime.bench.engines import DESCRIPTION, Engine, find_engines, plan_weights
from planonce.runtime.bench.measure import BenchOptions, run_bench
from planonce.runtime.bench.report import markdown, text_tables
from planonce.runtime.bench.results import BenchResult, Summary, ratio
from planonce.runtime.bench.worker import Worker, WorkerError
from planonce.runtime.errors import RequestError

SMALL = BenchOptions(threads=1, rounds=2, live=(4, 8), tokens=2, prefill=4, loads=1)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("bench") / "plan", text_tiny(external_weights=True))


def ours(plan: Path) -> Engine:
    (engine,), _ = find_engines(plan, "float32", (), plan)
    return engine


def quiet(_text: str) -> None:
    pass


@pytest.fixture(scope="module")
def result(plan: Path) -> BenchResult:
    """Our own plan as its own peer, and an engine whose process ends at once."""
    engine = ours(plan)
    broken = Engine("broken", (sys.executable, "-c", "raise SystemExit('no such library')"), plan, "float32")
    return run_bench([engine, replace(engine, name="twin"), broken], (), SMALL, quiet)


def test_every_engine_has_one_sample_a_round(result: BenchResult) -> None:
    assert [engine.name for engine in result.engines] == ["planonce", "twin"]
    for engine in result.engines:
        assert set(engine.decode) == {4, 8} and set(engine.prefill) == {4}
        summaries = [*engine.decode.values(), *engine.prefill.values(), engine.first_token]
        assert all(summary is not None and len(summary.samples) == SMALL.rounds for summary in summaries)
        assert engine.load is not None and len(engine.load.samples) == SMALL.loads
        assert engine.peak_memory is not None and engine.peak_memory > 10 << 20
        assert engine.weight_bytes > 0
    assert set(result.ratios()) == {"twin"}
    assert {"decode@4", "decode@8", "prefill@4", "load"} <= set(result.ratios()["twin"])


def test_an_engine_that_fails_is_reported_and_the_rest_runs(result: BenchResult) -> None:
    (gone,) = result.missing
    assert gone["name"] == "broken" and "no such library" in gone["why"]
    for text in (text_tables(result), markdown(result)):
        assert "decode at 8" in text and "broken is missing" in text


def test_result_is_json(result: BenchResult) -> None:
    document = json.loads(json.dumps(result.document()))
    assert document["engines"][0]["decode"]["4"]["median"] > 0
    assert document["machine"]["cores"] >= 1


def test_our_own_failure_ends_the_bench(plan: Path) -> None:
    engine = replace(ours(plan), model=plan / "nowhere")
    with pytest.raises(WorkerError):
        run_bench([engine], (), SMALL, quiet)


def test_worker_names_an_unknown_request_and_lives_on(plan: Path) -> None:
    with Worker("planonce", ours(plan).command) as worker:
        with pytest.raises(WorkerError, match="does not know nothing"):
            worker.ask("nothing")
        assert worker.ask("memory")["peak"] > 0


def test_decode_starts_where_it_is_told(plan: Path) -> None:
    """A worker that went on from the last measurement would time ever longer contexts as one."""
    with Worker("planonce", ours(plan).command) as worker:
        worker.ask("load", model=str(plan), threads=1, capacity=12)
        for _ in range(4):  # 8 + 4 positions fill the cache: a second run fits only from the same start
            worker.ask("decode", live=8, n=4)
        with pytest.raises(WorkerError, match="CapacityExceeded"):
            worker.ask("decode", live=8, n=5)


def test_peers_that_are_not_installed_are_missing_with_what_to_do(plan: Path, tmp_path: Path) -> None:
    engines, missing = find_engines(plan, "float32", ["genai", "llama.cpp"], tmp_path)
    assert [engine.name for engine in engines] == ["planonce"]
    assert [m.name for m in missing] == ["onnxruntime-genai", "llama.cpp"]
    assert all("make bench-peers" in m.todo for m in missing)
    with pytest.raises(RequestError, match="unknown engine"):
        find_engines(plan, "float32", ["ollama"], tmp_path)


@pytest.mark.parametrize(
    ("weights", "asked", "chosen"),
    [
        ("float32", None, "float32"),
        ("gguf", None, "int4"),
        ("int8", None, "int4"),
        ("int4", "float32", "float32"),
    ],
)
def test_peers_run_in_the_nearest_weight_format(
    plan: Path, tmp_path: Path, weights: str, asked: str | None, chosen: str
) -> None:
    for name in ("python", "a", "b"):
        (tmp_path / name).touch()
    described = {"genai": {"program": "python", "models": {"float32": "a", "int4": "b"}}}
    (tmp_path / DESCRIPTION).write_text(json.dumps(described), encoding="utf-8")
    engines, _ = find_engines(plan, weights, ["genai"], tmp_path, asked)
    assert engines[1].weights == chosen


def test_broken_description_is_an_error_of_ours(plan: Path, tmp_path: Path) -> None:
    (tmp_path / DESCRIPTION).write_text("{", encoding="utf-8")
    with pytest.raises(PlanonceError, match="cannot be read"):
        find_engines(plan, "float32", ["genai"], tmp_path)


def test_float_plan_is_called_float(plan: Path) -> None:
    assert plan_weights(Manifest.load(plan)) == "float32"


def test_ratio_pairs_rounds() -> None:
    """In the second round the machine was twice as slow for both: the ratio's spread must not show it."""
    a, b = Summary.of([1.0, 2.0, 1.0]), Summary.of([2.0, 4.0, 2.0])
    assert a is not None and b is not None
    found = ratio(a, b)
    assert (found.median, found.low, found.high) == (0.5, 0.5, 0.5)
    assert Summary.of([]) is None


def test_bandwidth_is_of_memory() -> None:
    bandwidth = Bandwidth(1, 64 << 20)
    try:
        assert 1e8 < bandwidth.measure() < 1e13
    finally:
        bandwidth.close()


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "planonce.runtime.cli", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_command_prints_json_and_writes_what_it_is_asked_for(plan: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    short = ("--live", "4", "--tokens", "2", "--prefill", "4", "--rounds", "1", "--loads", "0")
    files = ("--markdown", tmp_path / "table.md", "--plot", tmp_path / "plot.png")
    done = bench(plan, "--against", "genai", "--peers", tmp_path, "--json", *short, *files)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["missing"][0]["name"] == "onnxruntime-genai"
    assert document["engines"][0]["load"] is None
    assert (tmp_path / "table.md").read_text(encoding="utf-8").count("| decode at 4") == 2
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"live": "a"}, "--live cannot be read"),
        ({"live": "1"}, "--live is out of range"),
        ({"live": "5000"}, "cannot be that long"),
        ({"live": "8", "rounds": 0}, "--rounds is out of range"),
        ({"live": "8", "against": "ollama"}, "unknown engine"),
        ({"live": "8", "plot": Path("nowhere/plot.png")}, "directory does not exist"),
    ],
)
def test_command_refuses_before_it_measures(
    plan: Path, wrong: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "plot" in wrong:
        pytest.importorskip("matplotlib")
    with pytest.raises(PlanonceError, match=said):
        bench_command(plan, **wrong)
    assert capsys.readouterr().err == ""
