"""A conversation feeds only what is new, and what the cache holds is always exactly its history."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from handmade_plan import Tiny, reference_logits

from planonce.runtime import DecodeSession, Plan
from planonce.runtime.conversation import Conversation
from planonce.runtime.errors import CapacityExceeded, KvError, RequestError
from planonce.runtime.generate import FinishReason, Generation
from planonce.runtime.generation_options import GenerationOptions

TURNS = [[5, 17, 3], [96], [0, 44, 8, 8], [61], [30, 2, 9], [1], [7, 7], [12], [80, 81, 82], [4]]


def check(conversation: Conversation, tiny: Tiny) -> None:
    """The next logits are those of the whole history from nothing."""
    logits = conversation.feed()
    expected = reference_logits(tiny, list(conversation.tokens))[-1]
    np.testing.assert_allclose(logits, expected, rtol=2e-3, atol=2e-3)
    assert conversation.fed == len(conversation.tokens)


def test_ten_turns_feed_each_token_once_and_equal_one_long_prefill(tiny_plan: Plan, tiny: Tiny) -> None:
    session = tiny_plan.open()
    conversation = Conversation(session)
    history: list[int] = []
    for turn in TURNS:
        before = conversation.tokens_fed
        pending = conversation.pending
        conversation.append(turn)
        result = Generation(conversation, GenerationOptions(max_new_tokens=3)).run()
        history += [*turn, *result.tokens]
        assert result.tokens_fed == pending + len(turn)
        assert conversation.tokens_fed - before == pending + len(turn) + 2
    assert list(conversation.tokens) == history
    assert session.counters.tokens == conversation.tokens_fed == len(history) - 1  # the last pick is pending
    assert conversation.pending == 1
    check(conversation, tiny)
    # The control: another history has other logits, far outside check's tolerance.
    other = reference_logits(tiny, [history[0] + 1, *history[1:]])[-1]
    assert np.abs(other - reference_logits(tiny, history)[-1]).max() > 0.05


def _before(real: Callable[..., object], *args: object) -> object:
    raise KeyboardInterrupt


def _after(real: Callable[..., object], *args: object) -> object:
    real(*args)
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", [_before, _after], ids=["before the run", "after the run"])
@pytest.mark.parametrize("step", [1, 3])
def test_ctrl_c_in_a_step_leaves_cache_and_history_in_agreement(
    tiny_plan: Plan, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, moment: Callable[..., object], step: int
) -> None:
    conversation = Conversation(tiny_plan.open())
    conversation.append([5, 17, 3])
    calls = 0
    real = DecodeSession.realize_token

    def interrupted(session: DecodeSession, token: int) -> object:
        nonlocal calls
        calls += 1
        return moment(real, session, token) if calls == step else real(session, token)

    monkeypatch.setattr(DecodeSession, "realize_token", interrupted)
    generation = Generation(conversation, GenerationOptions(max_new_tokens=10))
    with pytest.raises(KeyboardInterrupt):
        generation.run()
    monkeypatch.undo()
    assert generation.result.finish_reason is FinishReason.ABANDONED
    assert list(conversation.tokens) == [5, 17, 3, *generation.result.tokens]
    conversation.append([9, 9])
    check(conversation, tiny)


def test_ctrl_c_between_chunks_of_a_prefill_keeps_the_chunks_that_are_in(
    tiny_plan: Plan, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = Conversation(tiny_plan.open(), prefill_chunk=4)
    conversation.append(list(range(10)))
    real = DecodeSession._run_chunk
    calls = 0

    def interrupted(session: DecodeSession, *args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(session, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(DecodeSession, "_run_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        conversation.feed()
    monkeypatch.undo()
    assert conversation.fed == 8
    before = conversation.tokens_fed
    check(conversation, tiny)
    assert conversation.tokens_fed - before == 2


def test_abandoned_generation_goes_on_where_it_was_left(tiny_plan: Plan, tiny: Tiny) -> None:
    conversation = Conversation(tiny_plan.open())
    conversation.append([5, 17])
    generation = Generation(conversation, GenerationOptions(max_new_tokens=10))
    said = [next(generation).id for _ in range(3)]
    conversation.append([33])
    assert list(conversation.tokens) == [5, 17, *said, 33]
    check(conversation, tiny)


def test_replace_keeps_what_is_common_and_rewinds_the_rest(tiny_plan: Plan, tiny: Tiny) -> None:
    conversation = Conversation(tiny_plan.open())
    conversation.append([5, 17, 3, 96, 0])
    conversation.feed()
    before = conversation.tokens_fed
    conversation.replace([5, 17, 3, 40, 41])
    check(conversation, tiny)
    assert conversation.tokens_fed - before == 2


@pytest.mark.parametrize("length", [0, 2, 5, 9, -1])
def test_truncate_equals_never_having_said_it(tiny_plan: Plan, tiny: Tiny, length: int) -> None:
    conversation = Conversation(tiny_plan.open())
    conversation.append([5, 17, 3, 96, 0])
    conversation.feed()
    conversation.truncate_to(length)
    assert len(conversation.tokens) == min(max(length, 0), 5)
    conversation.append([44])
    check(conversation, tiny)


def test_feeding_again_with_nothing_pending_gives_the_same_logits(tiny_plan: Plan) -> None:
    conversation = Conversation(tiny_plan.open())
    conversation.append([5, 17, 3])
    first = conversation.feed().copy()
    np.testing.assert_allclose(conversation.feed(), first, rtol=1e-4, atol=1e-4)
    assert conversation.session.position == 3


def test_what_does_not_fit_is_refused_with_nothing_changed(tiny_plan: Plan) -> None:
    conversation = Conversation(tiny_plan.open(capacity=4))
    conversation.append([1, 2, 3])
    for change in (conversation.append, conversation.replace):
        with pytest.raises(CapacityExceeded, match="capacity"):
            change([9, 9, 9, 9, 9])
    assert conversation.tokens == (1, 2, 3)


def test_positions_that_were_live_before_are_never_rewound(tiny_plan: Plan) -> None:
    session = tiny_plan.open()
    session.prefill([1, 2, 3])
    conversation = Conversation(session)
    conversation.append([4, 5])
    conversation.feed()
    conversation.truncate_to(0)
    assert session.position == 3
    assert session.cache is not None
    session.cache.truncate_to(1)
    with pytest.raises(KvError, match="below the start"):
        conversation.append([6])
        conversation.feed()


def test_nothing_to_feed_is_a_request_error(tiny_plan: Plan) -> None:
    with pytest.raises(RequestError, match="empty"):
        Conversation(tiny_plan.open()).feed()
