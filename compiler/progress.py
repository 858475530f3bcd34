"""How a compile tells its caller where it is: phases, and steps or bytes within a phase."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["PhaseTimer", "Progress", "SilentProgress"]


class Progress(Protocol):
    """A listener. Calls come from the compiling thread, in order; phases do not nest."""

    def start(self, phase: str, total: int | None = None, unit: str = "steps") -> None:
        """A phase begins. ``total`` is in ``unit`` ("steps" or "bytes"); None: not known ahead."""
        ...

    def advance(self, amount: int, note: str = "") -> None:
        """``amount`` more units of the current phase are done; ``note`` says what is being worked on."""
        ...

    def finish(self) -> None:
        """The current phase ended well. Not called when it raises."""
        ...


class SilentProgress:
    """Listens to nothing."""

    def start(self, phase: str, total: int | None = None, unit: str = "steps") -> None:
        pass

    def advance(self, amount: int, note: str = "") -> None:
        pass

    def finish(self) -> None:
        pass


@dataclass(slots=True)
class PhaseTimer:
    """Reports phases to ``progress`` and keeps each one's wall-clock seconds, in order."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "steps") -> Generator[Progress]:
        self.progress.start(name, total, unit)
        begin = time.perf_counter()
        try:
            yield self.progress
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
        self.progress.finish()
