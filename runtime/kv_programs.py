"""The small ONNX programs that touch KV bytes: zero-fill, write-slice, read-slice.

The same three run on any device a provider serves, so that no buffer is ever reached by a raw pointer.
They ship in ``programs/`` (``tests/runtime/build_programs.py`` makes them); one session a program, dtype
and device is made on first use and kept.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .device import HOST, DeviceLocation
from .errors import KvError
from .ort import Binding, OrtProgram, ProgramOptions, Tensor, carrier

__all__ = ["read_slice", "write_slice", "zero_fill"]

_DIRECTORY = Path(__file__).parent / "programs"
_lock = threading.Lock()
_programs: dict[tuple[str, str, str], OrtProgram] = {}


def _program(name: str, dtype: str, location: DeviceLocation) -> OrtProgram:
    kind, index = location.ort_device
    key = (name, dtype, f"{kind}:{index}")
    with _lock:
        program = _programs.get(key)
        if program is None:
            path = _DIRECTORY / f"{name}.{dtype}.onnx"
            if not path.is_file():
                raise KvError("No such KV program.", found=path.name, todo="Install planonce again.")
            program = OrtProgram(path, ProgramOptions(location, threads=1, spin=False))
            _programs[key] = program
        return program


def _run(binding: Binding) -> None:
    try:
        binding.run()
    except Exception as error:
        raise KvError("A KV program failed.", found=str(error).strip()[:300]) from None


def _int64(*values: int) -> Tensor:
    return Tensor.over(np.array(values, dtype=np.int64))


def zero_fill(target: Tensor, location: DeviceLocation) -> None:
    """Set every byte of ``target`` to zero, in place."""
    binding = _program("zero_fill", target.dtype, location).binding()
    binding.bind_input("shape", _int64(*target.shape))
    binding.bind_output("out", target)
    _run(binding)


def write_slice(
    target: Tensor, new: NDArray[np.generic], start: int, axis: int, location: DeviceLocation
) -> None:
    """Write ``new`` (in the dtype's carrier) at ``[start, start+n)`` of ``axis`` (1 or 2), in place."""
    binding = _program(f"write_slice_{axis}", target.dtype, location).binding()
    binding.bind_in_place("past", "present", target)
    binding.bind_input("new", Tensor.over(np.ascontiguousarray(new), target.dtype))
    binding.bind_input("write_offset", _int64(*([start] * target.shape[0])))
    _run(binding)


def read_slice(
    source: Tensor, start: int, count: int, axis: int, location: DeviceLocation
) -> NDArray[np.generic]:
    """A host copy of ``[start, start+count)`` of ``axis``, in the dtype's carrier."""
    shape = (*source.shape[:axis], count, *source.shape[axis + 1 :])
    out = np.empty(shape, dtype=carrier(source.dtype))
    if out.size == 0:
        return out
    binding = _program("read_slice", source.dtype, location).binding()
    binding.bind_input("data", source)
    binding.bind_input("start", _int64(start))
    binding.bind_input("end", _int64(start + count))
    binding.bind_input("axis", _int64(axis))
    binding.bind_output("out", Tensor.over(out, source.dtype))
    _run(binding)
    return out


def storage_device(location: DeviceLocation | None) -> DeviceLocation:
    """Where to run a KV program; for a buffer of unproven residency the host, which ORT copies to."""
    return location if location is not None else HOST
