"""SmolLM2 plans for timing, compiled once a session."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# importlib mode: the command line's helper is a neighbour's.
sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))

from command_line import CompiledPlan, smollm_by_arm

from planonce.runtime import Plan

THREADS = 2


@pytest.fixture(scope="session")
def smollm_plans(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CompiledPlan]:
    """SmolLM2-135M-Instruct in float32 by attention arm, compiled on first use."""
    return smollm_by_arm(tmp_path_factory.mktemp("plans"))


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
