"""Where the time of a long call went, by part."""

from __future__ import annotations

import time
from collections.abc import Mapping

__all__ = ["Laps"]


class Laps:
    """Seconds by name. Each :meth:`lap` takes the time since the one before it."""

    __slots__ = ("_last", "_seconds")

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> Mapping[str, float]:
        return self._seconds
