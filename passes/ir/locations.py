"""From an MLIR location or diagnostic to the line a person can open."""

from __future__ import annotations

import re
from pathlib import PurePath

from torch_mlir import ir

__all__ = ["describe_diagnostics", "describe_location", "source_line"]

_FRAME = re.compile(r'"([^"]+)":(\d+)(?::(\d+))?')
# Frames of the tracer itself say nothing about the model.
_TRACER = {"torch", "torch_mlir"}


def source_line(location: ir.Location | str) -> str | None:
    """``file.py:line`` of the innermost Python frame outside torch, or None when there is no such frame.

    The importer stores the traced call stack, innermost frame first.
    """
    frames = [(file, line) for file, line, _ in _FRAME.findall(str(location)) if file.endswith(".py")]
    ours = [frame for frame in frames if not _TRACER & set(PurePath(frame[0]).parts)]
    best = ours or frames
    return f"{best[0][0]}:{best[0][1]}" if best else None


def describe_location(location: ir.Location | str) -> str:
    """The model's source line when the location has one, else the location as ``file:line:column``."""
    text = str(location)
    found = source_line(text)
    if found is not None:
        return found
    frame = _FRAME.search(text)
    if frame is None:
        return "" if "unknown" in text else text
    return ":".join(part for part in frame.groups() if part)


def describe_diagnostics(error: ir.MLIRError) -> tuple[str, str]:
    """(all messages in order, where the first one points) of an MLIR error."""
    diagnostics = list(error.error_diagnostics)
    if not diagnostics:
        return str(error.message), ""
    messages: list[str] = []
    for diagnostic in diagnostics:
        messages.append(str(diagnostic.message))
        notes = [str(note.message) for note in diagnostic.notes]
        messages.extend(note for note in notes if "see current operation" not in note)
    return "; ".join(messages), describe_location(diagnostics[0].location)
