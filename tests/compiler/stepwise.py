"""Programs run step by step against transformers over the whole sequence at once."""

from __future__ import annotations

import numpy as np
from ir_interpreter import Interpreter
from traced_models import eager_logits, traced

__all__ = ["CAPACITY", "check_prefill_and_decode", "check_rows_at_different_offsets", "poisoned_kv"]

CAPACITY = 48


def poisoned_kv(family: str, batch: int) -> list[np.ndarray]:
    """Full of NaN: what is not written must never be read."""
    return [
        np.full((batch, slot.heads, CAPACITY, slot.head_dim), np.nan, np.float32)
        for slot in traced(family).kv_slots
    ]


def check_prefill_and_decode(step: Interpreter, family: str) -> None:
    """Chunks and single tokens in turn: all logits equal transformers' to 1e-5."""
    tokens = np.random.default_rng(0).integers(0, 250, (1, 40))
    expected = eager_logits(family, tokens)
    assert np.abs(expected).max() > 1
    kv, offset = poisoned_kv(family, 1), 0
    for length in [13, 1, 1, 7, 1, 1, 15, 1]:
        fed = tokens[:, offset : offset + length]
        logits, *kv = step([fed, np.array([offset]), np.arange(length), *kv])
        assert np.abs(logits - expected[:, offset : offset + length]).max() <= 1e-5
        offset += length


def check_rows_at_different_offsets(step: Interpreter, family: str) -> None:
    """Three rows of one batch; logit_positions chooses the last two of each, in the other order."""
    rng = np.random.default_rng(1)
    tokens, starts = rng.integers(0, 250, (3, 20)), [2, 9, 13]
    batch = poisoned_kv(family, 3)
    for row, start in enumerate(starts):
        fed = tokens[row : row + 1, :start]
        _, *single = step([fed, np.array([0]), np.array([0]), *poisoned_kv(family, 1)])
        for whole, part in zip(batch, single, strict=True):
            whole[row] = part[0]
    fed = np.stack([tokens[row, start : start + 3] for row, start in enumerate(starts)])
    logits, *_ = step([fed, np.array(starts), np.array([2, 1]), *batch])
    for row, start in enumerate(starts):
        expected = eager_logits(family, tokens[row : row + 1, : start + 3])[0, [start + 2, start + 1]]
        assert np.abs(logits[row] - expected).max() <= 1e-5
