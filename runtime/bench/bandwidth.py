"""How fast this machine reads memory now: the floor under a token that reads every weight once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bandwidth"]

_BYTES = 512 << 20  # larger than any last-level cache


class Bandwidth:
    """Sequential reads of a private buffer by ``threads`` threads, each its own slice."""

    def __init__(self, threads: int, nbytes: int = _BYTES) -> None:
        self._buffer = np.ones(nbytes // 8, dtype=np.uint64)
        self._slices: list[NDArray[np.uint64]] = np.array_split(self._buffer, threads)
        self._pool = ThreadPoolExecutor(threads)

    def measure(self, repeats: int = 3) -> float:
        """Bytes a second, best of ``repeats`` sweeps: one that was disturbed says nothing of memory."""
        return max(self._sweep() for _ in range(repeats))

    def _sweep(self) -> float:
        begin = time.perf_counter()
        # A bitwise reduction needs one vector instruction a load, so that memory is what it waits for;
        # numpy gives up the interpreter's lock for it.
        list(self._pool.map(np.bitwise_or.reduce, self._slices))
        return self._buffer.nbytes / (time.perf_counter() - begin)

    def close(self) -> None:
        self._pool.shutdown()
