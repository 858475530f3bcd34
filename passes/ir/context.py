"""One place that makes MLIR contexts, reads modules and prints them."""

from __future__ import annotations

from pathlib import Path

from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect

from planonce.runtime.errors import PassError

from .locations import describe_diagnostics
from .onnx_dialect import load_onnx_dialect
from .plan_dialect import load_plan_dialect

__all__ = ["make_context", "parse_module", "print_module", "read_module"]

# Printed in full up to here; beyond, a constant is data that nobody reads.
_ELIDE_ABOVE = 64


def make_context() -> ir.Context:
    """A context that knows the torch, onnx, plan and builtin dialects, and nothing unregistered."""
    context = ir.Context()
    # Our verifiers are Python: MLIR's threads would only queue for the interpreter's lock.
    context.enable_multithreading(False)
    torch_dialect.register_dialect(context)
    load_onnx_dialect(context)
    load_plan_dialect(context)
    return context


def parse_module(text: str, context: ir.Context, *, source: str = "<string>") -> ir.Module:
    """Parse and verify MLIR text. Raises PassError with ``source``:line:column and MLIR's own message."""
    try:
        with context:
            return ir.Module.parse(text)
    except ir.MLIRError as error:
        message, where = describe_diagnostics(error)
        # MLIR calls text without a file "-".
        place = f"{source}{where.removeprefix('-')}" if where.startswith("-:") else where
        raise PassError(f"the IR does not parse: {message}", where=place) from None


def read_module(path: Path, context: ir.Context) -> ir.Module:
    """Like ``parse_module``, from a file; locations carry its name. Raises PassError when it is missing."""
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise PassError(f"cannot read {path}", found=error.strerror or str(error)) from None
    try:
        with context:
            return ir.Module.parseFile(str(path))
    except ir.MLIRError as error:
        message, where = describe_diagnostics(error)
        raise PassError(f"the IR does not parse: {message}", where=where) from None


def print_module(
    module: ir.Module, *, elide_large: bool = True, locations: bool = False, verified: bool = False
) -> str:
    """The module as text. With ``elide_large`` (not parseable then) long constants are abbreviated.

    MLIR verifies what it prints, unless the caller says that it has been ``verified``.
    """
    limit = _ELIDE_ABOVE if elide_large else None
    return module.operation.get_asm(
        large_elements_limit=limit,
        large_resource_limit=limit,
        enable_debug_info=locations,
        assume_verified=verified,
    )
