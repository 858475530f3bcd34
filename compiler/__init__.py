"""planonce's compiler: a checkpoint becomes a plan directory. Needs the ``[compiler]`` extra."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .checkpoint import Checkpoint, open_checkpoint
    from .compile import compile_checkpoint
    from .compile_options import CompileOptions, CompileReport
    from .progress import Progress
    from .structure import CompiledStructure, compile_structure
    from .weights_writer import WeightMode

# Loaded on first use: `planonce compile --help` and the self-check's process need no torch.
_HOME = {
    "Checkpoint": "checkpoint",
    "CompileOptions": "compile_options",
    "CompileReport": "compile_options",
    "CompiledStructure": "structure",
    "Progress": "progress",
    "WeightMode": "weights_writer",
    "compile_checkpoint": "compile",
    "compile_structure": "structure",
    "open_checkpoint": "checkpoint",
}

__all__ = [
    "Checkpoint",
    "CompileOptions",
    "CompileReport",
    "CompiledStructure",
    "Progress",
    "WeightMode",
    "compile_checkpoint",
    "compile_structure",
    "open_checkpoint",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
