"""P19: many sessions, one plan: the weights once, each its own context, in any order, on any thread."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from handmade_plan import Tiny, build
from kv_support import greedy

from planonce.runtime import DecodeSession, Plan, process_counters

N, STEPS = 16, 40


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(97) for _ in range(rng.randrange(1, 12))] for _ in range(N)]


def start(plan: Plan, prompt: list[int]) -> tuple[DecodeSession, int]:
    session = plan.open()
    return session, int(session.prefill(prompt)[-1].argmax())


@pytest.fixture(scope="module")
def alone(tiny_plan: Plan) -> list[list[int]]:
    """Each prompt's tokens, run by itself."""
    return [greedy(*start(tiny_plan, prompt), STEPS) for prompt in prompts()]


def test_interleaved_at_random_each_gives_the_tokens_it_gives_alone(
    tiny_plan: Plan, alone: list[list[int]]
) -> None:
    before = process_counters().ort_sessions
    opened = [start(tiny_plan, prompt) for prompt in prompts()]
    made: list[list[int]] = [[] for _ in range(N)]
    order = [i for i in range(N) for _ in range(STEPS)]
    random.Random(6).shuffle(order)
    for i in order:
        session, first = opened[i]
        made[i].append(int(session.realize_token(made[i][-1] if made[i] else first).argmax()))
    assert made == alone
    assert len({tuple(m) for m in made}) > N // 2  # the requests do differ
    assert process_counters().ort_sessions == before


def test_on_four_threads_each_gives_the_tokens_it_gives_alone(
    tiny_plan: Plan, alone: list[list[int]]
) -> None:
    opened = [start(tiny_plan, prompt) for prompt in prompts()]
    made: list[list[int]] = [[] for _ in range(N)]

    def work(mine: range) -> None:
        for _ in range(STEPS):
            for i in mine:
                session, first = opened[i]
                made[i].append(int(session.realize_token(made[i][-1] if made[i] else first).argmax()))

    threads = [threading.Thread(target=work, args=(range(t, N, 4),)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == alone


def test_threads_that_share_one_session_take_turns_and_lose_no_token(tiny_plan: Plan) -> None:
    session = tiny_plan.open()
    threads = [
        threading.Thread(target=lambda t=t: [session.realize_token(t) for _ in range(10)]) for t in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.position == session.counters.tokens == 40


def test_rebinding_on_many_threads_never_serves_another_threads_context(tiny_plan: Plan, tiny: Tiny) -> None:
    """Four threads swap sessions among eight caches; a busy one is tried again."""
    from kv_support import CLOSE, Reference, distance, filled

    reference = Reference(tiny)
    caches = [filled(tiny_plan, prompt) for prompt in prompts()[:8]]
    histories = [list(prompt) for prompt in prompts()[:8]]
    owners = [threading.Lock() for _ in caches]
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng, session = random.Random(seed), tiny_plan.open()
        for _ in range(40):
            i = rng.randrange(8)
            with owners[i]:
                if caches[i].length > 50:
                    continue
                refusal = session.rebind_kv(caches[i])
                if refusal is not None:
                    wrong.append(str(refusal))
                    continue
                token = rng.randrange(97)
                logits = session.realize_token(token).copy()
                histories[i].append(token)
                if distance(logits, reference(histories[i])) > CLOSE:
                    wrong.append(f"cache {i}")

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


MEMORY = """
import gc, json, sys
from planonce.runtime import Plan
def resident():
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmRSS"))
Plan.load(sys.argv[1], threads=1).open().realize_token(1)  # ONNX Runtime's own start-up
gc.collect()
before = resident()
plan = Plan.load(sys.argv[2], threads=1, verify="size")
sessions = [plan.open() for _ in range(16)]
for session in sessions:
    session.prefill([1, 2, 3])
    session.realize_token(4)
print(json.dumps([resident() - before, sum(s.cache.nbytes for s in sessions)]))
"""


@pytest.mark.parametrize("external", [False, True], ids=["in the program", "beside it"])
def test_sixteen_sessions_hold_the_weights_once(tmp_path: Path, tiny_plan_dir: Path, external: bool) -> None:
    tiny = Tiny(
        vocab=12_000, hidden=512, heads=8, kv_heads=8, head_dims=(64, 64), max_seq_len=512,
        external_weights=external,
    )  # fmt: skip
    path = build(tmp_path / "plan", tiny)
    once = sum(f.stat().st_size for f in path.iterdir())
    command = [sys.executable, "-c", MEMORY, str(tiny_plan_dir), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, kv = json.loads(done.stdout)
    assert kv == 16 * 2 * 2 * 8 * 512 * 64 * 4
    assert once > (once + kv) * 0.1  # so that a second copy would show
    assert grown <= (once + kv) * 1.1
