"""What a caller hands over as tokens, checked before anything is touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .errors import RequestError

__all__ = ["Tokens", "bad_token", "one_token", "prompt_ids"]

Tokens = Sequence[int] | NDArray[np.integer]


def one_token(token: SupportsIndex | Tokens) -> int:
    """An int from whatever holds exactly one. Raises RequestError."""
    if isinstance(token, SupportsIndex) and not isinstance(token, np.ndarray):
        return int(token)
    flat = np.asarray(token).reshape(-1)
    if flat.size != 1 or flat.dtype.kind not in "iu":
        raise RequestError(
            "realize_token takes one token.",
            found=f"{flat.size} of {flat.dtype}",
            todo="Use prefill for more.",
        )
    return int(flat[0])


def prompt_ids(tokens: Tokens, vocab: int) -> NDArray[np.integer]:
    """A prompt's token ids ``[n]``, n >= 1, all below ``vocab``. Raises RequestError."""
    ids = np.asarray(tokens)
    if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
        raise RequestError(
            "A prompt must be a non-empty list of token ids.", found=f"{ids.dtype} {list(ids.shape)}"
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab:
        raise bad_token(low if low < 0 else high, vocab)
    return ids


def bad_token(token: int, vocab: int) -> RequestError:
    """The error for a token that a model with ``vocab`` tokens does not have."""
    return RequestError(
        "No such token in this model's vocabulary.", found=str(token), expected=f"0..{vocab - 1}"
    )
