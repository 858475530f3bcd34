"""Whether a plan's program for one machine may run here, and opening it."""

from __future__ import annotations

from pathlib import Path

from . import ort
from .errors import PlanError
from .manifest import Manifest, PackedProgram
from .ort import OrtProgram, ProgramOptions
from .probe import repeats
from .processor import processor_key

__all__ = ["open_packed"]


def open_packed(
    manifest: Manifest, directory: Path, options: ProgramOptions
) -> tuple[OrtProgram | None, str]:
    """(the packed program, "") or (None, why the portable one is to run instead; "" if there is no other).

    ONNX Runtime takes packed weights by a key of what they were packed from. Where it packs in another way it
    uses its own, without the offsets, and says nothing: every linear would be wrong. So the version and the
    processor must be those the weights were packed with, and the program must first give the logits that were
    noted then.
    """
    packed = manifest.packed
    if packed is None:
        return None, ""
    why = _other_machine(packed)
    if why:
        return None, why
    try:
        program = OrtProgram(directory / packed.program, options)
        same = repeats(program, manifest, packed.probe)
    except PlanError as error:
        return None, f"ONNX Runtime does not load it: {error.found}"
    if not same:
        return None, "it does not repeat the logits noted when it was made"
    return program, ""


def _other_machine(packed: PackedProgram) -> str:
    if packed.onnxruntime != ort.version():
        return f"made with ONNX Runtime {packed.onnxruntime}, this is {ort.version()}"
    here = processor_key()
    if packed.processor != here or not here:
        return f"made on another processor ({packed.processor}, this is {here or 'unknown'})"
    return ""
