"""One token through a program, to see that it computes what it should: no session, no cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .device import DeviceLocation
from .errors import PlanError
from .manifest import ArgumentRole, Manifest, Probe
from .ort import OrtProgram, ProgramOptions, Tensor, carrier, version

__all__ = ["probe_logits", "probe_program", "repeats"]

_CAPACITY = 8
_ROLES = {
    ArgumentRole.WRITE_OFFSET: 0,
    ArgumentRole.LOGIT_POSITIONS: 0,
    ArgumentRole.CACHED_LEN: 0,
    ArgumentRole.ATTENDED_LEN: 1,
}


def probe_logits(program: OrtProgram, manifest: Manifest, token: int) -> NDArray[np.float32]:
    """Logits ``[vocab]`` of ``token`` at position 0, by a program that is the plan's whole step on the host.

    Raises PlanError.
    """
    (stage,) = manifest.stages
    slots = {slot.input: slot.output for slot in manifest.kv_slots}
    binding = program.binding()
    for argument in stage.inputs:
        if argument.role is ArgumentRole.KV:
            # Input and output over one buffer, as sessions have it.
            batch, heads, _, width = _sizes(argument.shape, 1)
            shape = (batch, heads, _CAPACITY, width)
            buffer = Tensor.over(np.zeros(shape, carrier(argument.dtype)), argument.dtype)
            binding.bind_in_place(argument.name, slots[argument.name], buffer)
            continue
        value = token if argument.role is ArgumentRole.TOKEN_IDS else _ROLES[argument.role]
        array = np.full(_sizes(argument.shape, 1), value, np.int64)
        binding.bind_input(argument.name, Tensor.over(array))
    logits = next(a for a in stage.outputs if a.role is ArgumentRole.LOGITS)
    made = Tensor.over(np.zeros(_sizes(logits.shape, 1), carrier(logits.dtype)), logits.dtype)
    binding.bind_output(logits.name, made)
    try:
        binding.run()
    except Exception as error:
        raise PlanError("ONNX Runtime failed while running a program.", found=str(error)[:400]) from None
    found = np.zeros(made.shape, np.float32)
    made.copy_to_float32(found)
    return found.reshape(-1)


def _sizes(shape: Sequence[int | str], size: int) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else size for dim in shape)


def repeats(program: OrtProgram, manifest: Manifest, probe: Probe) -> bool:
    """Whether the program gives the logits that were noted, NaN counting as not."""
    found = probe_logits(program, manifest, probe.token)[list(probe.ids)]
    return bool((np.abs(found - np.asarray(probe.logits, np.float32)) <= probe.tolerance).all())


def probe_program(path: Path, manifest: Manifest, token: int) -> tuple[NDArray[np.float32], str]:
    """(logits ``[vocab]``, ONNX Runtime's version) of a program of a plan of one stage, on one thread."""
    location = DeviceLocation.parse(manifest.stages[0].device)
    program = OrtProgram(path, ProgramOptions(location))
    return probe_logits(program, manifest, token), version()
