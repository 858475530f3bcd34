"""SmolLM2-135M against transformers on the same dequantised weights, both arms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planonce.runtime import DecodeSession, Plan
from planonce.runtime.tokenizer import PlanTokenizer

pytestmark = pytest.mark.real_model
ARMS = ("fused", "portable")
NEW_TOKENS = 64
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Explain in two sentences why the sky is blue.",
    "Once upon a time, in a village by the sea, there lived",
    "1, 1, 2, 3, 5, 8, 13,",
)
TEXT = (Path(__file__).parents[1] / "data" / "two_cities.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=ARMS)
def plan(request: pytest.FixtureRequest, smollm: Callable[[str], Any]) -> Plan:
    return Plan.load(smollm(request.param).path, threads=2)


def encode(plan: Plan, text: str) -> list[int]:
    tokenizer = PlanTokenizer.load(plan.directory, plan.manifest)
    return list(tokenizer.encode(text))


def greedy(session: DecodeSession, prompt: Sequence[int], n: int, *, chunk: int) -> list[int]:
    logits = session.prefill(prompt, chunk=chunk)[-1]
    tokens: list[int] = []
    while len(tokens) < n:
        tokens.append(int(np.argmax(logits)))
        logits = session.realize_token(tokens[-1])
    return tokens


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_equal_transformers_and_do_not_depend_on_how_the_prompt_is_fed(
    prompt: str, plan: Plan, smollm_reference: Callable[[list[int]], Any]
) -> None:
    ids = encode(plan, prompt)
    whole = greedy(plan.open(capacity=256), ids, NEW_TOKENS, chunk=len(ids))
    assert greedy(plan.open(capacity=256), ids, NEW_TOKENS, chunk=7) == whole
    assert greedy(plan.open(capacity=256), ids, NEW_TOKENS, chunk=1) == whole
    # By induction transformers picks the same: at every position its best token is the one that follows.
    expected = smollm_reference([*ids, *whole])[len(ids) - 1 : -1].argmax(-1)
    assert list(expected) == whole


def test_logits_over_300_tokens(plan: Plan, smollm_reference: Callable[[list[int]], Any]) -> None:
    ids = encode(plan, TEXT)[:300]
    assert len(ids) == 300
    expected = smollm_reference(ids)
    logits = plan.open(capacity=512).prefill(ids, chunk=64, num_logits=300)
    assert np.abs(logits - expected).max() <= 2e-4
    # The bound means something: one token changed early moves the last logits far past it.
    ids[3] += 1
    changed = plan.open(capacity=512).prefill(ids, chunk=64)
    assert np.abs(changed[-1] - expected[-1]).max() > 0.05


def test_some_or_all_logits_are_the_same_logits(plan: Plan) -> None:
    ids = encode(plan, PROMPTS[3])
    everything = plan.open(capacity=64).prefill(ids, num_logits=len(ids))
    for n in (1, 3):
        np.testing.assert_allclose(
            plan.open(capacity=64).prefill(ids, num_logits=n), everything[-n:], atol=2e-4
        )
