"""What passes tell people about their decisions, collected by the driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_mlir import ir

from .ir.locations import describe_location

__all__ = ["Remark", "Remarks"]


@dataclass(frozen=True, slots=True)
class Remark:
    """One decision and its reason. ``where`` is a source line, empty when it concerns the whole program."""

    pass_name: str
    message: str
    where: str = ""

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return f"{where}remark: {self.message} [{self.pass_name}]"


@dataclass(slots=True)
class Remarks:
    """The remarks of one run, in order. ``pass_name`` is kept current by the driver."""

    pass_name: str = ""
    items: list[Remark] = field(default_factory=list[Remark])

    def add(self, message: str, at: ir.Operation | ir.OpView | ir.Location | None = None) -> None:
        """Record a decision of the running pass, about an operation or location when one is given."""
        if at is None:
            where = ""
        else:
            where = describe_location(at if isinstance(at, ir.Location) else at.location)
        self.items.append(Remark(self.pass_name, message, where))
