"""Lowerings from the torch dialect, one file a family. A family counts only when it is listed here."""

from __future__ import annotations

from . import creation, elementwise, indexing, linear, planonce, reduce, shape
from .table import LoweringTable

__all__ = ["lowering_table"]


def lowering_table() -> LoweringTable:
    """All rows. Raises PassError when an operation has two."""
    table = LoweringTable("all families")
    for family in (elementwise, shape, reduce, linear, indexing, creation, planonce):
        table.merge(family.TABLE)
    return table
