"""Which values must be copied to which devices: over plain lists, so that an oracle can check it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["crossings"]


def crossings(homes: Sequence[str | None], uses: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """The (value, device) pairs that need a copy, each once, in the order of first need.

    ``homes``: by value its device, None where it lives wherever it is read. ``uses``: (value, device of
    the reader), in program order. The number of pairs is the least that any insertion can do with.
    """
    needed: dict[tuple[int, str], None] = {}
    for value, device in uses:
        if homes[value] is not None and homes[value] != device:
            needed[value, device] = None
    return list(needed)
