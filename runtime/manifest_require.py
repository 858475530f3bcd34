"""How a check of the manifest refuses. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import PlanFormatError

__all__ = ["require", "unique"]


def require(condition: bool, message: str, where: str, found: object = "", expected: object = "") -> None:
    """Raises PlanFormatError, naming the place in the manifest, unless ``condition`` holds."""
    if not condition:
        raise PlanFormatError(
            message,
            where=where,
            found=str(found),
            expected=str(expected),
            todo="Compile the plan again.",
        )


def unique(names: Iterable[object], what: str, where: str) -> None:
    """Raises PlanFormatError at the first name that is there twice."""
    seen: set[object] = set()
    for name in names:
        require(name not in seen, f"The manifest names {what} twice.", where, found=name)
        seen.add(name)
