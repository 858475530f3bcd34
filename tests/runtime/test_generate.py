"""Generation over a real plan, held against logits recomputed from the whole history."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from handmade_plan import Tiny, build, reference_logits
from text_files import text_tiny

from planonce.runtime import Plan
from planonce.runtime.conversation import Conversation
from planonce.runtime.errors import CapacityExceeded, PlanError, RequestError
from planonce.runtime.generate import FinishReason, Generation, generate
from planonce.runtime.generation_options import GenerationOptions
from planonce.runtime.tokenizer import PlanTokenizer

PROMPT = [5, 17, 3, 96, 0, 44]


def greedy(tiny: Tiny, tokens: list[int], n: int) -> list[int]:
    history = list(tokens)
    for _ in range(n):
        history.append(int(reference_logits(tiny, history)[-1].argmax()))
    return history[len(tokens) :]


def test_greedy_tokens_are_the_references(tiny_plan: Plan, tiny: Tiny) -> None:
    result = generate(tiny_plan.open(), PROMPT, GenerationOptions(max_new_tokens=12)).run()
    assert list(result.tokens) == greedy(tiny, PROMPT, 12)
    assert result.finish_reason is FinishReason.LENGTH
    assert result.tokens_fed == len(PROMPT)
    assert result.text == ""  # no decoder
    assert len(result.times.steps) == 11  # the first token is the prefill's
    assert 0 <= result.times.host <= sum(result.times.steps)
    assert result.times.first_token >= result.times.prefill > 0


def test_last_token_picked_is_not_fed(tiny_plan: Plan) -> None:
    session = tiny_plan.open()
    generate(session, PROMPT, GenerationOptions(max_new_tokens=4)).run()
    assert session.position == len(PROMPT) + 3


def test_stop_token_ends_and_is_no_part_of_the_history(tiny_plan: Plan, tiny: Tiny) -> None:
    expected = greedy(tiny, PROMPT, 6)
    stop = expected[3]
    assert stop not in expected[:3]
    conversation = Conversation(tiny_plan.open())
    conversation.append(PROMPT)
    options = GenerationOptions(max_new_tokens=20, stop_token_ids=(stop,))
    result = Generation(conversation, options).run()
    assert result.finish_reason is FinishReason.STOP_TOKEN
    assert list(result.tokens) == expected[:4]
    assert list(conversation.tokens) == [*PROMPT, *expected[:3]]


def test_full_cache_ends_the_text_without_an_error(tiny_plan: Plan) -> None:
    session = tiny_plan.open(capacity=10)
    result = generate(session, PROMPT, GenerationOptions(max_new_tokens=50)).run()
    assert result.finish_reason is FinishReason.CAPACITY
    assert session.position == 10
    assert len(result.tokens) == 5  # the last one was picked from the last position's logits


def test_prompt_that_does_not_fit_is_refused_before_anything_runs(tiny_plan: Plan) -> None:
    session = tiny_plan.open(capacity=4)
    with pytest.raises(CapacityExceeded):
        generate(session, PROMPT)
    assert session.position == session.counters.runs == 0


def test_empty_prompt_is_refused(tiny_plan: Plan) -> None:
    with pytest.raises(RequestError, match="empty"):
        generate(tiny_plan.open(), []).run()


def test_nothing_runs_before_the_first_token_is_asked_for(tiny_plan: Plan) -> None:
    session = tiny_plan.open()
    generation = generate(session, PROMPT)
    assert session.counters.runs == 0
    next(generation)
    assert session.counters.runs == 1


def test_left_early_it_is_abandoned_and_tells_what_came(tiny_plan: Plan, tiny: Tiny) -> None:
    generation = generate(tiny_plan.open(), PROMPT, GenerationOptions(max_new_tokens=20))
    got = [next(generation).id for _ in range(3)]
    assert generation.result.finish_reason is FinishReason.ABANDONED
    assert list(generation.result.tokens) == got == greedy(tiny, PROMPT, 3)


def test_stop_string_needs_a_tokenizer(tiny_plan: Plan) -> None:
    with pytest.raises(RequestError, match="tokenizer"):
        generate(tiny_plan.open(), PROMPT, GenerationOptions(stop=("x",)))


@pytest.fixture(scope="module")
def tokenizer(text_plan: Plan) -> PlanTokenizer:
    return PlanTokenizer.load(text_plan.directory, text_plan.manifest)


def test_events_add_up_to_the_decoded_whole(text_plan: Plan, tokenizer: PlanTokenizer) -> None:
    options = GenerationOptions(max_new_tokens=80, temperature=1.0, seed=3)
    generation = generate(text_plan.open(), tokenizer.encode("hi"), options, decoder=tokenizer)
    events = list(generation)
    result = generation.result
    assert "".join(e.text for e in events) == result.text == tokenizer.decode(result.tokens)
    assert [e.id for e in events] == list(result.tokens)
    assert any(e.text == "" for e in events)  # half characters were held back


def test_stop_string_ends_before_it_is_shown(text_plan: Plan, tokenizer: PlanTokenizer) -> None:
    options = GenerationOptions(max_new_tokens=200, temperature=1.0, seed=3)
    prompt = tokenizer.encode("hi")
    whole = generate(text_plan.open(), prompt, options, decoder=tokenizer).run().text
    start = 20
    stop = whole[start : start + 3]
    assert whole.index(stop) == start
    options = options.updated(stop=(stop, "never said"))
    generation = generate(text_plan.open(), prompt, options, decoder=tokenizer)
    shown = "".join(event.text for event in generation)
    assert shown == whole[:start]
    assert generation.result.finish_reason is FinishReason.STOP_STRING
    assert generation.result.stop_string == stop


def test_logprobs_are_there_only_when_asked_for(tiny_plan: Plan, tiny: Tiny) -> None:
    options = GenerationOptions(max_new_tokens=3, logprobs=True)
    result = generate(tiny_plan.open(), PROMPT, options).run()
    history = list(PROMPT)
    for token, logprob in zip(result.tokens, result.logprobs, strict=True):
        row = reference_logits(tiny, history)[-1]
        expected = row[token] - row.max() - np.log(np.exp(row - row.max()).sum())
        assert logprob == pytest.approx(expected, abs=1e-3)
        history.append(token)
    assert generate(tiny_plan.open(), PROMPT, options.updated(logprobs=False)).run().logprobs == ()


def test_same_seed_says_the_same_on_another_session(tiny_plan: Plan) -> None:
    def tokens(seed: int) -> tuple[int, ...]:
        options = GenerationOptions(max_new_tokens=20, temperature=1.5, seed=seed)
        return generate(tiny_plan.open(), PROMPT, options).run().tokens

    assert tokens(4) == tokens(4) != tokens(5)


def test_weights_with_nan_are_an_error_that_names_the_way_to_find_them(tmp_path: Path) -> None:
    plan = Plan.load(build(tmp_path / "plan", text_tiny(poison=(("q0", 3, float("nan")),))), threads=1)
    with pytest.raises(PlanError, match="NaN") as caught:
        generate(plan.open(), [1, 2, 3]).run()
    assert "planonce inspect" in str(caught.value)


def test_nothing_is_bound_after_the_first_token(tiny_plan: Plan) -> None:
    session = tiny_plan.open()
    generation = generate(session, PROMPT, GenerationOptions(max_new_tokens=30))
    next(generation)
    before = session.counters.snapshot()
    generation.run()
    after = session.counters
    assert (after.bind_calls, after.bindings_made) == (before.bind_calls, before.bindings_made)
    assert after.runs - before.runs == 29
