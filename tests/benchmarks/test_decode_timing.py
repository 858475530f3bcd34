"""What a token costs beside the model's own arithmetic, and what it does not depend on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from planonce.runtime import DecodeSession, Plan
from planonce.runtime.generate import generate
from planonce.runtime.generation_options import GenerationOptions

pytestmark = [pytest.mark.bench, pytest.mark.real_model]

PROMPT = list(range(100, 132))
TOKENS = 128


class RunClock:
    """Seconds inside ONNX Runtime since :meth:`take` was last called."""

    def __init__(self, session: DecodeSession) -> None:
        self._inside = 0.0
        step = session._step
        step._runs = tuple(self._clocked(run) for run in step._runs)

    def _clocked(self, run: Callable[[], None]) -> Callable[[], None]:
        def clocked() -> None:
            begin = time.perf_counter()
            run()
            self._inside += time.perf_counter() - begin

        return clocked

    def take(self) -> float:
        inside, self._inside = self._inside, 0.0
        return inside


def host_shares(session: DecodeSession, work: Callable[[], None] | None = None) -> list[float]:
    """Of each token of a greedy generation, the share that is not spent in ``run``."""
    clock = RunClock(session)
    shares: list[float] = []
    last: float | None = None
    for _ in generate(session, PROMPT, GenerationOptions(temperature=0.0, max_new_tokens=TOKENS + 2)):
        if work is not None:
            work()
        now, inside = time.perf_counter(), clock.take()
        if last is not None and inside:
            shares.append(1 - inside / (now - last))
        last = now
    return shares[-TOKENS:]


def test_host_takes_at_most_three_percent_of_a_token(loaded: Callable[[str], Plan]) -> None:
    shares = host_shares(loaded("fused").open(capacity=512))
    assert len(shares) == TOKENS
    share = statistics.median(shares)
    print(f"\nhost time outside run, greedy generation: {share:.2%} of a token (median of {TOKENS})")
    assert share <= 0.03


def test_host_share_sees_host_work(loaded: Callable[[str], Plan]) -> None:
    slow = host_shares(loaded("fused").open(capacity=512), lambda: time.sleep(0.005))
    assert statistics.median(slow) > 0.03


def token_ratio(a: DecodeSession, b: DecodeSession, rounds: int = 12, tokens: int = 8) -> tuple[float, str]:
    """Median token time of ``b`` over that of ``a``, their tokens alternating; both stay where they are."""
    seconds: dict[int, list[float]] = {0: [], 1: []}
    starts = (a.position, b.position)
    for number in range(-1, rounds):  # the first round warms up
        for _ in range(tokens):
            for i, session in enumerate((a, b)):
                begin = time.perf_counter()
                session.realize_token(1000)
                if number >= 0:
                    seconds[i].append(time.perf_counter() - begin)
        for session, start in zip((a, b), starts, strict=True):
            assert session.cache is not None
            session.cache.truncate_to(start)
    medians = [statistics.median(seconds[i]) for i in (0, 1)]
    return medians[1] / medians[0], f"{medians[0] * 1e3:.2f} and {medians[1] * 1e3:.2f} ms"


@pytest.mark.parametrize("arm", ["fused", "portable"])
def test_token_time_does_not_follow_the_capacity(loaded: Callable[[str], Plan], arm: str) -> None:
    sessions = [loaded(arm).open(capacity=capacity) for capacity in (512, 8192)]
    for session in sessions:
        session.prefill(np.arange(100, 200))
    ratio, text = token_ratio(*sessions)
    print(f"\n{arm}, 100 live: capacity 512 and 8192 take {text} a token, ratio {ratio:.3f}")
    assert ratio <= 1.15


def test_token_time_follows_the_live_length(loaded: Callable[[str], Plan]) -> None:
    """Without this, the comparison of capacities could not tell attention from noise."""
    sessions = [loaded("fused").open(capacity=2048) for _ in range(2)]
    sessions[0].prefill(np.arange(100, 200))
    sessions[1].prefill(np.arange(100, 2000))
    ratio, text = token_ratio(*sessions, rounds=4)
    print(f"\n100 and 1900 live positions take {text} a token, ratio {ratio:.3f}")
    assert ratio > 1.15


def test_rebind_is_cheap_beside_loading_and_compiling(
    smollm_plans: Callable[[str], Any], stopwatch: Callable[[], Any]
) -> None:
    compiled = smollm_plans("fused")
    load = stopwatch()
    for _ in range(3):
        with load.timed():
            plan = Plan.load(compiled.path, threads=2)
    assert plan.model.n_layers == 30
    caches = [plan.new_cache(2048) for _ in range(2)]
    session = plan.open(caches[0])
    session.prefill(PROMPT)
    rebind = stopwatch()
    for number in range(200):
        target = caches[(number + 1) % 2]
        with rebind.timed():
            refusal = session.rebind_kv(target)
        assert refusal is None
        assert session.cache is target
    seconds = compiled.report["total_seconds"]
    print(
        f"\nre-bind {rebind}; Plan.load {load}, {load.median / rebind.median:.0f} times that;"
        f" compile {seconds:.1f} s, {seconds / rebind.median:.0f} times"
    )
    assert rebind.median < 0.0015
    assert load.median >= 100 * rebind.median
    assert seconds >= 10_000 * rebind.median
