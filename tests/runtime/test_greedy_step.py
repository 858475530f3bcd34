"""A plan with a greedy head: a token costs one run and one number, and follows the cache as logits do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from handmade_plan import Tiny, build
from kv_support import OTHER, PROMPT, Lender, bound_tensors, filled, greedy

from planonce.runtime import (
    DecodeSession,
    DeviceLocation,
    Plan,
    RebindReason,
    RebindRefusal,
    StaleCache,
    process_counters,
)
from planonce.runtime.bound_step import BoundStep
from planonce.runtime.conversation import Conversation
from planonce.runtime.errors import PlanError, RequestError
from planonce.runtime.generate import Generation, generate
from planonce.runtime.generation_options import GenerationOptions
from planonce.runtime.ort import Tensor

NEXT = 23
STEPS = 32
# Logits in float16 are widened on their way to the host: they travel, as from another device.
TRAVELLING = Tiny(greedy_head=True, logits_dtype="float16")


def load(directory: Path, tiny: Tiny) -> Plan:
    return Plan.load(build(directory / "plan", tiny), threads=1)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return load(tmp_path_factory.mktemp("greedy"), Tiny(greedy_head=True))


@pytest.fixture(scope="module")
def travelling(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return load(tmp_path_factory.mktemp("travelling"), TRAVELLING)


def picks(session: DecodeSession, token: int, n: int) -> list[int]:
    """As kv_support.greedy, the program picking."""
    made = []
    for _ in range(n):
        token = session.step_greedy(token)
        made.append(token)
    return made


@pytest.mark.parametrize(
    "tiny", [Tiny(greedy_head=True), Tiny(greedy_head=True, split=1), TRAVELLING], ids=["one", "two", "f16"]
)
def test_the_program_picks_what_the_host_picks(tmp_path: Path, tiny: Tiny) -> None:
    plan = load(tmp_path, tiny)
    expected = greedy(plan.open(filled(plan, PROMPT)), NEXT, STEPS)
    assert picks(plan.open(filled(plan, PROMPT)), NEXT, STEPS) == expected
    assert len(set(expected)) > 3


def test_a_pick_is_copied_out_of_memory_that_is_not_numpys(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a result on another device is: ONNX Runtime owns it."""

    def elsewhere(dtype: str, shape: tuple[int, ...], location: DeviceLocation) -> Tensor:
        return Tensor.empty(shape, dtype, location)

    expected = greedy(plan.open(filled(plan, PROMPT)), NEXT, STEPS)
    monkeypatch.setattr(BoundStep, "_buffer", staticmethod(elsewhere))
    session = plan.open(filled(plan, PROMPT))
    assert picks(session, NEXT, STEPS) == expected
    assert int(session.logits.argmax()) == expected[-1]


def test_both_kinds_of_step_take_turns(plan: Plan) -> None:
    expected = greedy(plan.open(filled(plan, PROMPT)), NEXT, STEPS)
    session, token, made = plan.open(filled(plan, PROMPT)), NEXT, []
    for step in range(STEPS):
        token = session.step_greedy(token) if step % 3 else int(session.realize_token(token).argmax())
        made.append(token)
    assert made == expected


def test_a_token_costs_a_run_and_nothing_else(travelling: Plan) -> None:
    session = travelling.open(filled(travelling, PROMPT))
    session.step_greedy(NEXT)
    before, made = session.counters.snapshot(), process_counters()
    picks(session, NEXT, STEPS)
    after = session.counters
    assert (after.runs - before.runs, after.tokens - before.tokens) == (STEPS, STEPS)
    assert after.host_copies == before.host_copies == 0
    assert (after.bind_calls, after.bindings_made) == (before.bind_calls, before.bindings_made)
    assert process_counters() == made


def test_logits_asked_for_afterwards_are_the_last_steps(travelling: Plan) -> None:
    session, twin = (travelling.open(filled(travelling, PROMPT)) for _ in range(2))
    session.step_greedy(NEXT)
    expected = twin.realize_token(NEXT).copy()
    assert np.array_equal(session.logits, expected) and np.array_equal(session.logits, expected)
    assert session.counters.host_copies == 1


def test_logits_not_brought_to_the_host_would_be_an_earlier_steps(
    travelling: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test above."""
    session, twin = (travelling.open(filled(travelling, PROMPT)) for _ in range(2))
    session.step_greedy(NEXT)
    expected = twin.realize_token(NEXT)
    monkeypatch.setattr(BoundStep, "fetch_logits", lambda self: self.logits)
    assert not np.array_equal(session.logits, expected)


def test_after_a_rebind_the_picks_are_a_fresh_sessions(plan: Plan) -> None:
    session = plan.open(filled(plan, PROMPT))
    session.step_greedy(NEXT)
    target = filled(plan, OTHER)
    expected = greedy(plan.open(target.fork()), NEXT, STEPS)
    assert session.rebind_kv(target) is None
    assert picks(session, NEXT, STEPS) == expected


def test_picks_over_buffers_that_were_not_rebound_are_the_other_requests(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test above."""
    session = plan.open(filled(plan, PROMPT))
    target = filled(plan, OTHER)
    expected = greedy(plan.open(target.fork()), NEXT, STEPS)
    monkeypatch.setattr(BoundStep, "rebind_kv", lambda self, kv: None)
    assert session.rebind_kv(target) is None
    assert picks(session, NEXT, STEPS) != expected


def test_a_rebind_refused_at_the_last_slot_leaves_the_picks_alone(plan: Plan) -> None:
    session, twin = (plan.open(filled(plan, PROMPT)) for _ in range(2))
    lender = Lender.copy_of(filled(plan, OTHER))
    lender.slots[1, "value"] = None
    bound = bound_tensors(session)
    refusal = RebindRefusal(RebindReason.MISSING_SLOT, 1, "value")
    assert session.rebind_kv(lender, length=len(OTHER)) == refusal
    assert bound_tensors(session) == bound
    assert picks(session, NEXT, STEPS) == greedy(twin, NEXT, STEPS)


def test_a_fork_and_its_origin_pick_apart(plan: Plan) -> None:
    cache = filled(plan, PROMPT)
    fork = plan.open(cache.fork())
    fork.prefill(OTHER)
    expected = greedy(plan.open(cache.fork()), NEXT, STEPS)
    assert picks(plan.open(cache), NEXT, STEPS) == expected
    assert picks(fork, NEXT, STEPS) != expected


def test_a_cache_that_is_another_allocation_now_is_stale(plan: Plan) -> None:
    session = plan.open(filled(plan, PROMPT))
    assert session.cache is not None
    session.cache.clear()
    with pytest.raises(StaleCache):
        session.step_greedy(NEXT)
    assert session.counters.runs == 0


def test_a_plan_without_a_greedy_head_says_how_to_get_one_and_feeds_nothing(tiny_plan: Plan) -> None:
    session = tiny_plan.open()
    assert not session.has_greedy_head
    with pytest.raises(RequestError, match="--greedy-head"):
        session.step_greedy(NEXT)
    assert session.position == session.counters.runs == 0


@pytest.mark.parametrize("token", [-1, 97, [1, 2]])
def test_a_token_that_is_none_is_refused(plan: Plan, token: int | list[int]) -> None:
    session = plan.open()
    with pytest.raises(RequestError):
        session.step_greedy(token)
    assert session.position == 0


def every(column: int, value: float) -> tuple[tuple[str, int, float], ...]:
    """Poison for one token's column of the head."""
    return tuple(("head", row * 97 + column, value) for row in range(32))


NAN = (("head", 40, float("nan")),)  # of token 40 alone: the others' logits are numbers


def test_nan_logits_are_refused_as_on_the_host_with_the_token_fed(tmp_path: Path) -> None:
    plan = load(tmp_path, Tiny(greedy_head=True, poison=NAN))
    session = plan.open()
    with pytest.raises(PlanError, match="NaN logits") as caught:
        session.step_greedy(NEXT)
    assert session.position == 1
    conversation = Conversation(plan.open())
    conversation.append([1, 2])
    with pytest.raises(PlanError, match="NaN logits") as on_host:
        Generation(conversation, GenerationOptions()).run()
    assert str(caught.value) == str(on_host.value)


def test_a_conversation_knows_that_the_token_before_nan_was_fed(tmp_path: Path) -> None:
    conversation = Conversation(load(tmp_path, Tiny(greedy_head=True, poison=NAN)).open())
    conversation.accept(5)
    with pytest.raises(PlanError, match="NaN logits"):
        conversation.step_greedy(5)
    assert (conversation.fed, conversation.pending, conversation.tokens_fed) == (1, 0, 1)


def test_nan_that_the_host_does_not_look_for_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: what the operator takes for the largest where one is NaN."""
    session = load(tmp_path, Tiny(greedy_head=True, poison=NAN)).open()
    picked = "planonce.runtime.decode_session.likeliest"
    monkeypatch.setattr(picked, lambda logits: int(np.nanargmax(logits)))
    assert 0 <= session.step_greedy(NEXT) < 97


def test_infinities_that_cancel_are_left_to_the_host_which_takes_the_positive_one(tmp_path: Path) -> None:
    poison = (("head", 11, float("inf")), ("head", 12, float("-inf")))
    plan = load(tmp_path, Tiny(greedy_head=True, poison=poison))
    session, twin = plan.open(), plan.open()
    logits = twin.realize_token(NEXT)
    assert np.isinf(logits[[11, 12]]).all() and not np.isnan(logits).any()
    assert session.step_greedy(NEXT) == int(logits.argmax()) in (11, 12)
    assert session._step.next_token == -1  # it was left to the host


def test_of_equal_logits_both_take_the_first(tmp_path: Path) -> None:
    plan = load(tmp_path, Tiny(greedy_head=True, poison=(*every(60, 0.5), *every(31, 0.5), *every(90, 0.5))))
    session, twin, tied = plan.open(), plan.open(), 0
    for token in range(60):
        logits = twin.realize_token(token)
        largest = np.flatnonzero(logits == logits.max())
        tied += len(largest) > 1
        assert session.step_greedy(token) == largest[0]
    assert tied >= 3


def test_generation_lets_the_program_pick_where_that_is_all_it_takes(travelling: Plan) -> None:
    options = GenerationOptions(max_new_tokens=24)
    session = travelling.open()
    tokens = generate(session, PROMPT, options).run().tokens
    assert session.counters.host_copies == 1  # the prompt's
    on_host = generate(travelling.open(), PROMPT, options.updated(logprobs=True)).run()
    assert tokens == on_host.tokens and len(on_host.logprobs) == 24


@pytest.mark.parametrize(
    "more", [{"repetition_penalty": 1.8}, {"temperature": 1.5, "seed": 4}, {"logprobs": True}], ids=str
)
def test_generation_that_needs_the_logits_gets_them(
    travelling: Plan, tmp_path: Path, more: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = GenerationOptions(max_new_tokens=24, **more)
    without = load(tmp_path, Tiny(logits_dtype="float16"))
    expected = generate(without.open(), PROMPT, options).run()
    found = generate(travelling.open(), PROMPT, options).run()
    assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)
    # The control: with the program picking all the same, the options would be without effect.
    monkeypatch.setattr(GenerationOptions, "needs_logits", False)
    ignored = generate(travelling.open(), PROMPT, options).run()
    assert (ignored.tokens, ignored.logprobs) != (expected.tokens, expected.logprobs)
