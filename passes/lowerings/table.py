"""The lowering table: the name of a traced operation -> the function that writes it in onnx and plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch_mlir import ir

from planonce.runtime.errors import PassError

if TYPE_CHECKING:
    from .state import Lowering

__all__ = ["Call", "LowerFunction", "LoweringTable", "NotLowered", "as_list"]


class NotLowered(Exception):
    """A row meets a form of its operation that it has no lowering for; the text says which form."""


@dataclass(frozen=True, slots=True)
class Call:
    """One traced operation. args: tensors are ir.Value of builtin type, sizes are Size or int, lists are
    lists, the rest Python values; result_types: builtin tensor types; attributes: as in the IR."""

    name: str
    args: Sequence[Any]
    result_types: Sequence[ir.Type]
    attributes: Mapping[str, ir.Attribute]

    @property
    def type(self) -> ir.Type:
        return self.result_types[0]


def as_list(value: Any) -> list[Any]:
    """A list as it is, anything else as a list of one."""
    return cast("list[Any]", value) if isinstance(value, list) else [value]


LowerFunction = Callable[["Lowering", Call], Any]


class LoweringTable:
    """Rows of one family of operations. A name may have one row only, within and across families."""

    def __init__(self, family: str) -> None:
        self.family = family
        self._rows: dict[str, LowerFunction] = {}

    def row(self, *names: str) -> Callable[[LowerFunction], LowerFunction]:
        """Decorator: the function lowers these operations. It returns a value, or a list of results."""

        def add(function: LowerFunction) -> LowerFunction:
            for name in names:
                self.add(name, function)
            return function

        return add

    def add(self, name: str, function: LowerFunction) -> None:
        """Raises PassError when the name has a row already."""
        if name in self._rows:
            raise PassError("an operation has two lowerings", found=f"{name} twice in {self.family}")
        self._rows[name] = function

    def merge(self, other: LoweringTable) -> None:
        """Take over another family's rows. Raises PassError when one of them is here already."""
        for name, function in other.items():
            if name in self._rows:
                raise PassError(
                    "an operation has two lowerings", found=f"{name} in {self.family} and {other.family}"
                )
            self._rows[name] = function

    def find(self, name: str) -> LowerFunction | None:
        return self._rows.get(name)

    def items(self) -> Iterator[tuple[str, LowerFunction]]:
        return iter(self._rows.items())

    def __len__(self) -> int:
        return len(self._rows)
