"""What a pass is, and the words with which it reports: remarks for people, errors with a location."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from torch_mlir import ir

from planonce.runtime.errors import PassError

from .ir.locations import describe_location
from .remarks import Remarks

__all__ = ["Pass", "fail", "option"]


class Pass(Protocol):
    """A transformation or check of a whole module.

    A pass is a frozen, slotted dataclass whose fields are its options (bool, int, float, str, an Enum or
    ``tuple[str, ...]``), declared with ``option``; ``name`` and ``summary`` are class variables. It keeps
    no state between runs and no IR object. Its docstring is its page in the documentation.
    """

    @property
    def name(self) -> str:
        """Its name in pipelines and in the registry."""
        ...

    @property
    def summary(self) -> str:
        """One line for listings."""
        ...

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Change the module in place; True when anything changed. A second run must change nothing.

        Raises PassError (see ``fail``) when the module is not what the pass is for.
        """
        ...


def option(default: Any, help: str) -> Any:
    """A pass option: a dataclass field with a default and one line for the documentation."""
    return dataclasses.field(default=default, metadata={"help": help})


def fail(
    op: ir.Operation | ir.OpView,
    message: str,
    *,
    found: str = "",
    expected: str = "",
    todo: str = "",
    error: type[PassError] = PassError,
) -> PassError:
    """The error to raise about one operation: names it, and the model's source line it came from."""
    return error(
        f"'{op.name}' op {message}",
        found=found,
        expected=expected,
        todo=todo,
        where=describe_location(op.location),
    )
