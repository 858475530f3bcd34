"""Defining a dialect from a table: IRDL text for the shape of each op, one Python verifier for the rest."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import ext, irdl
from torch_mlir.dialects._ods_common import _cext

from planonce.runtime.errors import PlanonceError

__all__ = ["Arity", "OpShape", "load_dialect"]


@dataclass(frozen=True, slots=True)
class Arity:
    """``single`` values that must be there, then ``optional`` ones (segments carry how many are)."""

    single: int
    optional: int = 0


@dataclass(frozen=True, slots=True)
class OpShape:
    """What IRDL itself checks of an op. ``pure`` ops may be merged and dropped by cse and canonicalize."""

    name: str
    operands: Arity
    results: Arity
    pure: bool = True


def load_dialect(
    dialect: str, shapes: Iterable[OpShape], verify: Callable[[ir.OpView], None], context: ir.Context
) -> None:
    """Load the dialect into the context.

    ``verify`` is called for each op whenever MLIR verifies and raises PlanonceError to reject it; it
    runs before IRDL's own arity check, so it must not take the number of operands for granted.
    """
    shapes = list(shapes)
    text = "\n".join([f"irdl.dialect @{dialect} {{", *(_operation(shape) for shape in shapes), "}"])
    _announce(dialect)
    with context:
        irdl.load_dialects(ir.Module.parse(text))
        trait = _verifier(verify)
        for shape in shapes:
            name = f"{dialect}.{shape.name}"
            trait.attach(name)
            if shape.pure:
                ext.Pure.attach(name)


@functools.cache
def _announce(dialect: str) -> None:
    """Tell MLIR, once a process, that the dialect's Python module is there (and empty).

    Otherwise MLIR looks for a module of the dialect's name on disk each time it hands one of its
    operations to Python, which costs more than all verification.
    """
    prefix = f"{__name__}.views"
    sys.modules[f"{prefix}.{dialect}"] = types.ModuleType(f"{prefix}.{dialect}")
    _cext.globals.append_dialect_search_prefix(prefix)


def _operation(shape: OpShape) -> str:
    lines = [f"irdl.operation @{shape.name} {{"]
    counter = 0
    for keyword, prefix, arity in (("operands", "a", shape.operands), ("results", "r", shape.results)):
        fields: list[str] = []
        for index in range(arity.single + arity.optional):
            # One irdl.any for each: a shared one would demand equal types.
            lines.append(f"  %{counter} = irdl.any")
            optional = "optional " if index >= arity.single else ""
            fields.append(f"{prefix}{index}: {optional}%{counter}")
            counter += 1
        if fields:
            lines.append(f"  irdl.{keyword}({', '.join(fields)})")
    return "\n".join([*lines, "}"])


def _verifier(verify: Callable[[ir.OpView], None]) -> type[ir.DynamicOpTrait]:
    class Verifier(ir.DynamicOpTrait):
        @staticmethod
        def verify_invariants(op: ir.OpView) -> bool:
            # A Python exception that leaves here loses the op's location; a diagnostic keeps it.
            try:
                verify(op)
            except PlanonceError as error:
                op.location.emit_error(f"'{op.name}' op {_one_line(error)}")
                return False
            return True

    return Verifier


def _one_line(error: PlanonceError) -> str:
    parts: Sequence[tuple[str, str]] = (
        ("found", error.found),
        ("expected", error.expected),
        ("what to do", error.todo),
    )
    return "; ".join([error.message, *(f"{label}: {text}" for label, text in parts if text)])
