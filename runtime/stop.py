"""Stop strings that may arrive split over any number of pieces."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopMatcher"]


class StopMatcher:
    """Passes text through until a stop string completes; never lets part of one out.

    The outcome does not depend on how the text is cut into pieces: the stop string that completes
    first wins, and of several completing at the same character the one that began first.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, piece: str) -> str:
        """The text that is now safe to show. After a match (``matched`` is set) nothing more comes."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best):
                best = (start + len(stop), start)
        if best is not None:
            end, start = best
            self.matched = text[start:end]
            self._held = ""
            return text[:start]
        keep = self._pending(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back when the text ends with no stop string."""
        held, self._held = self._held, ""
        return held

    def _pending(self, text: str) -> int:
        """Length of the longest end of text that could still become a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
