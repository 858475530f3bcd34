"""Symbols that the host binds for one pass: lengths, offsets and the names of dimensions. Write-once."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import SymbolError

__all__ = ["SymEnv"]


class SymEnv:
    """Name -> int. A bound symbol keeps its value: one name for two lengths is how a mask goes wrong unseen.

    ``SymEnv(cached_len=17, attended_len=18)``; binding the same value again is allowed.
    """

    __slots__ = ("_values",)

    def __init__(self, **values: int) -> None:
        """Raises SymbolError on a value that is not a non-negative int."""
        self._values: dict[str, int] = {}
        for name, value in values.items():
            self.bind(name, value)

    def bind(self, name: str, value: int, *, where: str = "") -> None:
        """Raises SymbolError when ``name`` has another value already, or ``value`` is no length."""
        if type(value) is not int or value < 0:
            raise SymbolError(
                f"The symbol {name!r} is bound to what is not a length.",
                found=repr(value),
                expected="a non-negative int",
                where=where,
            )
        held = self._values.setdefault(name, value)
        if held != value:
            raise SymbolError(
                f"The symbol {name!r} is bound twice.",
                found=str(value),
                expected=str(held),
                where=where,
                todo="Use a new SymEnv for each pass.",
            )

    def __getitem__(self, name: str) -> int:
        """Raises SymbolError when unbound."""
        if name not in self._values:
            raise SymbolError(
                f"The symbol {name!r} is unbound.",
                found=", ".join(self._values) or "no symbols",
                expected=name,
                todo=f"Bind it: SymEnv({name}=...).",
            )
        return self._values[name]

    def get(self, name: str) -> int | None:
        """None when unbound."""
        return self._values.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __len__(self) -> int:
        return len(self._values)

    def scope(self) -> SymEnv:
        """A copy: what is bound in it, such as the dimensions of one call's feeds, is not bound here."""
        copy = SymEnv()
        copy._values.update(self._values)
        return copy

    def as_dict(self) -> Mapping[str, int]:
        """A copy of the bindings."""
        return dict(self._values)

    def __repr__(self) -> str:
        return f"SymEnv({', '.join(f'{k}={v}' for k, v in self._values.items())})"
