"""Sampling against a slow reading of transformers' definitions, and against transformers itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from planonce.runtime.errors import PlanError, RequestError
from planonce.runtime.generation_options import GenerationOptions
from planonce.runtime.sampling import Sampler, apply_repetition_penalty, candidates, log_probability

Array = NDArray[np.float32]

FILTERS = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 1.7, "top_k": 7},
    {"temperature": 1.0, "top_k": 10_000},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 1e-6},
    {"temperature": 0.7, "top_p": 0.999},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
]


def logits_of(seed: int, vocab: int = 997, scale: float = 3.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(vocab) * scale).astype(np.float32)


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def oracle(logits: Array, o: GenerationOptions) -> dict[int, float]:
    """Surviving tokens and their probabilities, one full-vocabulary mask after the other."""
    scores = logits.astype(np.float64) / o.temperature
    if o.top_k:
        scores[scores < np.sort(scores)[-min(o.top_k, scores.size)]] = -np.inf
    if o.top_p < 1:
        order = np.argsort(scores, kind="stable")
        drop = order[np.cumsum(softmax(scores)[order]) <= 1 - o.top_p]
        scores[[t for t in drop if t != order[-1]]] = -np.inf
    if o.min_p > 0:
        p = softmax(scores)
        scores[p < o.min_p * p.max()] = -np.inf
    p = softmax(scores)
    return {int(t): float(p[t]) for t in np.flatnonzero(np.isfinite(scores))}


@pytest.mark.parametrize("options", FILTERS, ids=str)
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_filters_keep_the_tokens_that_their_definitions_keep(options: dict[str, float], scale: float) -> None:
    chosen = GenerationOptions(**options)
    for seed in range(5):
        logits = logits_of(seed, scale=scale)
        expected = oracle(logits, chosen)
        ids, scores = candidates(logits, chosen)
        assert set(ids.tolist()) == set(expected)
        probabilities = softmax(scores.astype(np.float64))
        np.testing.assert_allclose(probabilities, [expected[int(t)] for t in ids], rtol=1e-4, atol=1e-7)
        assert (np.diff(scores) <= 0).all()


def test_filters_agree_with_transformers() -> None:
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as hf

    warpers = [hf.TemperatureLogitsWarper(0.8), hf.TopKLogitsWarper(40), hf.TopPLogitsWarper(0.9)]
    warpers.append(hf.MinPLogitsWarper(0.03))
    penalty = hf.RepetitionPenaltyLogitsProcessor(1.3)
    chosen = GenerationOptions(temperature=0.8, top_k=40, top_p=0.9, min_p=0.03)
    seen = np.array([3, 500, 996])
    for seed in range(10):
        logits = logits_of(seed)
        expected = penalty(torch.tensor(seen)[None], torch.tensor(logits)[None])
        np.testing.assert_array_equal(apply_repetition_penalty(logits, seen, 1.3), expected[0].numpy())
        for warper in warpers:
            expected = warper(torch.tensor(seen)[None], expected)
        kept = np.flatnonzero(np.isfinite(expected[0].numpy()))
        ids, scores = candidates(apply_repetition_penalty(logits, seen, 1.3), chosen)
        assert sorted(ids.tolist()) == kept.tolist()
        np.testing.assert_allclose(scores, expected[0].numpy()[ids], rtol=1e-6)


def test_ties_at_the_kth_place_are_all_kept() -> None:
    logits = np.array([1, 5, 3, 3, 3, 0], np.float32)
    ids, _ = candidates(logits, GenerationOptions(temperature=1.0, top_k=2))
    assert ids.tolist() == [1, 2, 3, 4]


def test_draws_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(GenerationOptions(temperature=1.0, seed=7))
    n = 20_000
    counts = np.bincount([sampler.choose(logits).token for _ in range(n)], minlength=4)
    expected = np.exp(logits) * n
    chi2 = float((np.square(counts - expected) / expected).sum())
    assert chi2 < 20  # three degrees of freedom: p = 0.0002
    # The control: the same test sees another temperature.
    other = np.exp(logits / 1.1) / np.exp(logits / 1.1).sum() * n
    assert float((np.square(counts - other) / other).sum()) > 20


def test_same_seed_same_tokens_and_another_seed_others() -> None:
    logits = [logits_of(i, 50) for i in range(30)]

    def tokens(seed: int | None) -> list[int]:
        sampler = Sampler(GenerationOptions(temperature=1.5, seed=seed))
        return [sampler.choose(row).token for row in logits]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)
    assert tokens(None) != tokens(None)


def test_greedy_ignores_filters_and_takes_the_lower_id_of_equals() -> None:
    logits = np.array([0, 2, 2, 1], np.float32)
    assert Sampler(GenerationOptions(top_k=1, top_p=0.1)).choose(logits).token == 1


def test_repetition_penalty_counts_history_and_own_picks_once() -> None:
    logits = np.array([4, 3.9, -1, 3.8], np.float32)
    before = logits.copy()
    sampler = Sampler(GenerationOptions(repetition_penalty=2.0), history=[0])
    assert [sampler.choose(logits).token for _ in range(4)] == [1, 3, 0, 0]
    np.testing.assert_array_equal(logits, before)  # it is the session's own array
    assert apply_repetition_penalty(logits, np.array([2]), 2.0)[2] == -2  # negative: multiplied


def test_penalty_over_more_tokens_than_the_first_buffer_holds() -> None:
    sampler = Sampler(GenerationOptions(repetition_penalty=1e6), history=range(200))
    assert sampler.choose(np.full(201, 1, np.float32)).token == 200


@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_anywhere_is_an_error_and_not_a_token(place: int, temperature: float) -> None:
    logits = np.arange(7, dtype=np.float32)
    Sampler(GenerationOptions(temperature=temperature, seed=0)).choose(logits)
    logits[place] = np.nan
    with pytest.raises(PlanError, match="NaN"):
        Sampler(GenerationOptions(temperature=temperature, seed=0)).choose(logits)


def test_infinite_logits_still_choose() -> None:
    masked = np.array([-np.inf, -np.inf, 0, -np.inf], np.float32)
    sure = np.array([0, np.inf, 0, 0], np.float32)
    for logits, token in ((masked, 2), (sure, 1)):
        assert Sampler(GenerationOptions(temperature=1.0, seed=0)).choose(logits).token == token


def test_logprob_is_the_models_own_before_penalty_and_temperature() -> None:
    logits = logits_of(3, 40)
    options = GenerationOptions(temperature=0.5, repetition_penalty=3.0, logprobs=True, seed=1)
    choice = Sampler(options, history=range(20)).choose(logits)
    expected = math.log(softmax(logits.astype(np.float64))[choice.token])
    assert choice.logprob == pytest.approx(expected, abs=1e-5)
    assert log_probability(logits, choice.token) == choice.logprob


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": True},
        {"max_new_tokens": 1.5},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_k": True},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0},
        {"seed": -1},
        {"stop": ("",)},
        {"stop": "text"},
        {"stop": ("x",) * 65},
        {"stop_token_ids": [1]},
        {"stop_token_ids": (-1,)},
    ],
    ids=str,
)
def test_option_out_of_range_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(RequestError) as caught:
        GenerationOptions(**wrong)  # type: ignore[arg-type]
    assert next(iter(wrong)) in str(caught.value)


def test_models_own_defaults_count_only_when_it_samples() -> None:
    defaults = {"temperature": 0.6, "top_p": 0.9, "eos_token_id": 2, "num_beams": 4}
    assert GenerationOptions.from_defaults(defaults).greedy
    sampling = GenerationOptions.from_defaults({**defaults, "do_sample": True})
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.9, 50)
    with pytest.raises(RequestError, match="top_p"):
        GenerationOptions.from_defaults({"do_sample": True, "top_p": "much"})


def test_unknown_option_is_refused_and_none_changes_nothing() -> None:
    options = GenerationOptions(top_k=5)
    assert options.updated(top_k=None) == options
    with pytest.raises(RequestError, match="topk"):
        options.updated(topk=3)
