"""Greedy decoding through a session, with the logits kept."""

from __future__ import annotations

import numpy as np

from planonce.runtime import DecodeSession

__all__ = ["greedy"]


def greedy(session: DecodeSession, prompt: list[int], n: int) -> tuple[list[int], np.ndarray]:
    """The tokens, and the logits that each was picked from."""
    logits = [session.prefill(prompt, chunk=4)[-1]]
    tokens = [int(np.argmax(logits[0]))]
    while len(tokens) < n:
        logits.append(session.realize_token(tokens[-1]).copy())
        tokens.append(int(np.argmax(logits[-1])))
    return tokens, np.stack(logits)
