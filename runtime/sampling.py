"""Choosing the next token from logits: pure functions over numpy arrays.

Filters run in transformers' order (repetition penalty, temperature, top-k, top-p, min-p) and keep the
same tokens. Where that library masks a whole vocabulary with -inf, a shrinking set of candidates is
carried here instead, so that a token costs one pass over the vocabulary and no full sort.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import PlanError
from .generation_options import GenerationOptions

__all__ = [
    "Choice", "Logits", "Sampler", "apply_repetition_penalty", "candidates", "likeliest", "log_probability",
]  # fmt: skip

Logits = NDArray[np.float32]
TokenIds = NDArray[np.int64]

_FIRST_NUCLEUS = 128  # tokens tried before widening: at usual temperatures top-p ends well inside it


def likeliest(logits: Logits) -> int:
    """The id of the largest of logits ``[vocab]``, the lowest id of equals. Raises PlanError on NaN."""
    # argmax puts NaN first, so this one look at the winner finds a NaN anywhere.
    token = int(logits.argmax())
    if np.isnan(logits[token]):
        raise PlanError(
            "the model produced NaN logits",
            found=f"NaN at token {token}",
            expected="finite numbers",
            todo="run `planonce inspect PLAN`: it reports weights that hold NaN or infinity",
        )
    return token


def apply_repetition_penalty(logits: Logits, seen: TokenIds, penalty: float) -> Logits:
    """A copy of logits ``[vocab]`` with tokens of ``seen`` made less likely (penalty > 1)."""
    out = logits.copy()
    scores = out[seen]
    out[seen] = np.where(scores < 0, scores * np.float32(penalty), scores / np.float32(penalty))
    return out


def candidates(logits: Logits, options: GenerationOptions) -> tuple[TokenIds, Logits]:
    """Token ids and scaled logits that survive the filters, most likely first (ties: lower id first)."""
    scores = logits / np.float32(options.temperature) if options.temperature != 1 else logits
    ids, scores = _top_k(scores, options.top_k)
    if options.top_p < 1:
        ids, scores = _top_p(ids, scores, options.top_p)
    if options.min_p > 0:
        ids, scores = _min_p(ids, scores, options.min_p)
    order = np.lexsort((ids, -scores))
    return ids[order], scores[order]


def log_probability(logits: Logits, token: int) -> float:
    """ln p(token) under the model's own distribution, before penalty and filters."""
    top = float(logits.max())
    return float(logits[token]) - top - float(np.log(np.exp(logits - np.float32(top)).sum(dtype=np.float64)))


def _top_k(scores: Logits, k: int) -> tuple[TokenIds, Logits]:
    if k == 0 or k >= scores.size:
        return np.arange(scores.size, dtype=np.int64), scores
    # Only the k-th value needs a place; ties with it are kept, as in transformers.
    threshold = np.partition(scores, scores.size - k)[scores.size - k]
    ids = np.flatnonzero(scores >= threshold).astype(np.int64)
    return ids, scores[ids]


def _top_p(ids: TokenIds, scores: Logits, p: float) -> tuple[TokenIds, Logits]:
    """The fewest most likely tokens whose probabilities reach p; the top token is always kept.

    A token goes when it and everything less likely sum to at most 1 - p, that is when everything more
    likely already sums to at least p.
    """
    weights = np.exp(scores - scores.max(), dtype=np.float64)
    total = float(weights.sum())
    width = min(_FIRST_NUCLEUS, scores.size)
    while True:
        if width < scores.size:
            head = np.argpartition(scores, scores.size - width)[scores.size - width :]
        else:
            head = np.arange(scores.size)
        head = head[np.lexsort((ids[head], -scores[head]))]
        before = np.cumsum(weights[head]) - weights[head]
        keep = before < p * total
        keep[0] = True
        if not keep[-1] or width == scores.size:
            kept = head[keep]
            return ids[kept], scores[kept]
        width = min(width * 8, scores.size)


def _min_p(ids: TokenIds, scores: Logits, p: float) -> tuple[TokenIds, Logits]:
    # p_i < p * p_max is a comparison of logits: no softmax is needed.
    keep = scores >= scores.max() + np.float32(np.log(p))
    keep[np.argmax(scores)] = True  # rounding must not drop the top token itself
    return ids[keep], scores[keep]


@dataclass(frozen=True, slots=True)
class Choice:
    """The token chosen, and its log-probability when asked for."""

    token: int
    logprob: float | None


class Sampler:
    """Options, a seeded generator and the tokens seen so far. One per generation; not thread-safe."""

    def __init__(self, options: GenerationOptions, history: Iterable[int] = ()) -> None:
        self._options = options
        self._random = np.random.default_rng(options.seed)
        self._penalised = options.repetition_penalty != 1
        self._seen = set[int]()
        # The unique ids as an array, grown by doubling: rebuilding it from the set each token would
        # make a token's cost follow the length of the text.
        self._ids = np.empty(64, np.int64)
        if self._penalised:
            for token in history:
                self._remember(token)

    def choose(self, logits: Logits) -> Choice:
        """Pick from logits ``[vocab]`` f32 (not modified). Raises PlanError when they hold NaN."""
        scores = logits
        if self._penalised and self._seen:
            scores = apply_repetition_penalty(
                logits, self._ids[: len(self._seen)], self._options.repetition_penalty
            )
        token = likeliest(scores)
        if not self._options.greedy and np.isfinite(scores[token]):
            token = self._draw(scores)
        if self._penalised:
            self._remember(token)
        return Choice(token, log_probability(logits, token) if self._options.logprobs else None)

    def _draw(self, scores: Logits) -> int:
        ids, kept = candidates(scores, self._options)
        cumulative = np.cumsum(np.exp(kept - kept[0], dtype=np.float64))
        drawn = self._random.random() * float(cumulative[-1])
        place = int(np.searchsorted(cumulative, drawn, side="right"))
        return int(ids[min(place, ids.size - 1)])

    def _remember(self, token: int) -> None:
        if token in self._seen:
            return
        if len(self._seen) == self._ids.size:
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
        self._ids[len(self._seen)] = token
        self._seen.add(token)
