"""Looking for values that are not numbers in a checkpoint's weights, streamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .weights import WeightIndex

__all__ = ["NonFinite", "scan_non_finite"]


@dataclass(frozen=True, slots=True)
class NonFinite:
    """A weight with NaN or infinite values; ``first`` is the flat index of the first."""

    name: str
    n_nan: int
    n_inf: int
    first: int


def scan_non_finite(
    weights: WeightIndex, progress: Callable[[str, int, int], None] | None = None
) -> list[NonFinite]:
    """Every weight that holds a NaN or an infinity, in the index's order. Memory: one chunk.

    progress(name, weights done, weights in all). Raises CheckpointError for weights that cannot be read.
    """
    found: list[NonFinite] = []
    for done, name in enumerate(weights):
        n_nan = n_inf = position = 0
        first = -1
        for chunk in weights.chunks(name, "float32"):
            finite = np.isfinite(chunk)
            if not finite.all():
                if first < 0:
                    first = position + int(np.argmin(finite.reshape(-1)))
                n_nan += int(np.isnan(chunk).sum())
                n_inf += int(np.isinf(chunk).sum())
            position += chunk.size
        if first >= 0:
            found.append(NonFinite(name, n_nan, n_inf, first))
        if progress is not None:
            progress(name, done + 1, len(weights))
    return found
