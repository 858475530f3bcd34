"""The only file that touches onnxruntime: typed tensors, sessions and bindings.

onnxruntime's Python layer is untyped and its ``OrtValue.numpy()`` view dies with the OrtValue, so nothing
outside this file sees either. A :class:`Tensor` owns its bytes and copies them out.
"""

# pyright: basic
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from .counters import count_ort_session
from .device import HOST, DeviceKind, DeviceLocation
from .dtypes import ITEM_SIZE, ONNX_ELEMENT_TYPE
from .errors import LayoutError, PlanError, TopologyChanged

__all__ = ["Binding", "OrtProgram", "ProgramOptions", "Tensor", "ValueInfo", "available_providers", "version"]

_NAME_OF = {number: name for name, number in ONNX_ELEMENT_TYPE.items()}
_NUMPY = {name: np.dtype(name) for name in ITEM_SIZE if name != "bfloat16"}
_NUMPY["bfloat16"] = np.dtype("uint16")  # a carrier: numpy has no bfloat16


def version() -> str:
    return str(ort.__version__)


def available_providers() -> tuple[str, ...]:
    return tuple(ort.get_available_providers())


def carrier(dtype: str) -> np.dtype[Any]:
    """numpy's dtype for the bytes of ``dtype``; bfloat16 travels as uint16."""
    return _NUMPY[dtype]


class Tensor:
    """One OrtValue with its dtype's name, shape and size in bytes. ``ort_value`` stays alive with it."""

    __slots__ = (
        "_array",
        "address",
        "c_value",
        "device_type",
        "dtype",
        "nbytes",
        "on_host",
        "ort_value",
        "shape",
    )

    def __init__(self, ort_value: Any, array: NDArray[Any] | None = None) -> None:
        self.ort_value = ort_value
        self.c_value = ort_value._get_c_value()
        self.address = int(ort_value.data_ptr())
        self._array = array
        self.dtype = _NAME_OF.get(ort_value.element_type(), "")
        self.shape: tuple[int, ...] = tuple(ort_value.shape())
        self.nbytes = math.prod(self.shape) * ITEM_SIZE.get(self.dtype, 0)
        self.device_type = str(ort_value.device_name()).lower()
        self.on_host = self.device_type == "cpu"

    @staticmethod
    def empty(shape: Sequence[int], dtype: str, location: DeviceLocation) -> Tensor:
        """Uninitialised memory on ``location``. Raises MemoryError, or LayoutError without the device."""
        kind, index = location.ort_device
        try:
            value = ort.OrtValue.ortvalue_from_shape_and_type(
                list(shape), ONNX_ELEMENT_TYPE[dtype], kind, index
            )
        except MemoryError:
            raise
        except Exception as error:
            text = str(error)
            if "llocat" in text or "memory" in text.lower():
                raise MemoryError(text) from None
            raise LayoutError(
                "This device cannot be allocated on.",
                found=text.strip().splitlines()[-1][:200],
                where=str(location),
                todo="Use a device that planonce.runtime.local_devices() lists.",
            ) from None
        return Tensor(value)

    @staticmethod
    def over(array: NDArray[Any], dtype: str | None = None) -> Tensor:
        """A host tensor over ``array``'s own memory: writes to either are seen by both."""
        name = dtype or str(array.dtype)
        if not array.flags.c_contiguous or name not in _NUMPY or array.dtype != _NUMPY[name]:
            raise LayoutError("An array cannot be used as it lies.", found=f"{array.dtype}", expected=name)
        if name == "bfloat16":
            value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, ONNX_ELEMENT_TYPE[name])
        else:
            value = ort.OrtValue.ortvalue_from_numpy(array)
        return Tensor(value, array)

    @staticmethod
    def step_input(array: NDArray[Any], location: DeviceLocation) -> Tensor:
        """A tensor on ``location`` that :meth:`refresh` fills from ``array``; on the host it is the array."""
        if location.kind is DeviceKind.CPU:
            return Tensor.over(array)
        kind, index = location.ort_device
        return Tensor(ort.OrtValue.ortvalue_from_numpy(array, kind, index), array)

    @property
    def host_array(self) -> NDArray[Any] | None:
        """The numpy array that owns this tensor's memory, when one does."""
        return self._array if self.on_host else None

    def refresh(self) -> None:
        """Send the array given to :meth:`step_input` to the device, in place."""
        if not self.on_host:
            self.ort_value.update_inplace(self._array)

    def to_numpy(self) -> NDArray[Any]:
        """A copy on the host that outlives this tensor."""
        if self.dtype == "bfloat16":
            raise LayoutError("bfloat16 has no numpy array; read the slot through its cache.")
        return np.array(self.ort_value.numpy(), copy=True)

    def copy_to_float32(self, out: NDArray[np.float32]) -> None:
        """Copy to a host array of the same shape, widening 16-bit floats."""
        array = self._array if self.on_host and self._array is not None else self._raw()
        if self.dtype == "bfloat16":
            np.copyto(out, (array.astype(np.uint32) << 16).view(np.float32))
        else:
            np.copyto(out, array)

    def _raw(self) -> NDArray[Any]:
        if self.dtype != "bfloat16":
            return self.ort_value.numpy()
        host = np.empty(self.shape, dtype=np.uint16)
        ort.copy_tensors([self.ort_value], [Tensor.over(host, "bfloat16").ort_value])
        return host

    def copy_from(self, source: Tensor) -> None:
        """Overwrite this tensor with ``source`` of the same dtype and shape, across devices."""
        mine, theirs = self.host_array, source.host_array
        if mine is not None and theirs is not None:
            np.copyto(mine, theirs)
        elif mine is not None:
            np.copyto(mine, source.ort_value.numpy())
        elif source.on_host:
            self.ort_value.update_inplace(source.ort_value.numpy())
        else:
            ort.copy_tensors([source.ort_value], [self.ort_value])


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """A program's input or output as ONNX Runtime reports it."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Where and how a program runs."""

    location: DeviceLocation = HOST
    threads: int = 1
    spin: bool = True


_TYPE_NAMES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(bool)": "bool",
}


class OrtProgram:
    """One ONNX Runtime session on one device. Thread-safe to run."""

    __slots__ = ("_keep", "_session", "inputs", "location", "outputs")

    def __init__(
        self,
        model: Path | bytes,
        options: ProgramOptions,
        initializers: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Raises TopologyChanged when the device's provider is not the one that runs it, else PlanError."""
        location = options.location
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = options.threads
        settings.inter_op_num_threads = 1
        settings.log_severity_level = 3
        if not options.spin:
            settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if initializers:
            names = list(initializers)
            settings.add_external_initializers(names, [initializers[n].ort_value for n in names])
        wanted = location.kind.provider
        providers: list[Any] = [wanted]
        if location.kind is DeviceKind.CUDA:
            providers = [(wanted, {"device_id": str(location.index)}), "CPUExecutionProvider"]
        source = str(model) if isinstance(model, Path) else model
        try:
            session = ort.InferenceSession(source, settings, providers=providers)
        except Exception as error:
            raise PlanError(
                "ONNX Runtime cannot load a program of this plan.",
                found=str(error).strip()[:400],
                where=str(model) if isinstance(model, Path) else "a program in memory",
                todo="Compile the plan again with this machine's ONNX Runtime version.",
            ) from None
        session.disable_fallback()
        count_ort_session()
        active = session.get_providers()
        if not active or active[0] != wanted:
            # ONNX Runtime falls back to the CPU with only a log line; every buffer would be misplaced.
            raise TopologyChanged(
                "ONNX Runtime fell back to another provider.",
                found=", ".join(active) or "none",
                expected=wanted,
                where=str(location),
                todo="Install the provider's libraries, or compile the plan for a device that is there.",
            )
        self._session = session
        self._keep = initializers  # ONNX Runtime reads the mapped arrays for as long as the session lives
        self.location = location
        self.inputs = tuple(_info(a) for a in session.get_inputs())
        self.outputs = tuple(_info(a) for a in session.get_outputs())

    def binding(self) -> Binding:
        return Binding(self._session)


def _info(argument: Any) -> ValueInfo:
    kind = str(argument.type)
    dtype = _TYPE_NAMES.get(kind, kind.removeprefix("tensor(").removesuffix(")"))
    return ValueInfo(str(argument.name), dtype, tuple(argument.shape))


class Binding:
    """Tensors held against a program's names; ``run()`` is one C call with nothing looked up."""

    __slots__ = ("_bind_input", "_bind_output", "_binding", "_keep", "_session", "bind_calls", "run")

    def __init__(self, session: Any) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._keep: dict[tuple[str, str], Tensor] = {}
        self.bind_calls = 0
        run, held = session._sess.run_with_iobinding, self._binding._iobinding
        self._bind_input, self._bind_output = held.bind_ortvalue_input, held.bind_ortvalue_output
        # The C functions directly: Python's wrappers re-check WebGPU capture on every call.
        self.run: Callable[[], None] = lambda: run(held, None)

    def bind_input(self, name: str, tensor: Tensor) -> None:
        self._bind_input(name, tensor.c_value)
        self._keep["in", name] = tensor
        self.bind_calls += 1

    def bind_output(self, name: str, tensor: Tensor) -> None:
        self._bind_output(name, tensor.c_value)
        self._keep["out", name] = tensor
        self.bind_calls += 1

    def bind_in_place(self, source: str, result: str, tensor: Tensor) -> None:
        """One tensor as input and output. A different buffer of equal size would run, and silently copy."""
        self.bind_input(source, tensor)
        self.bind_output(result, tensor)

    def bound_input(self, name: str) -> Tensor | None:
        return self._keep.get(("in", name))

    def bound_output(self, name: str) -> Tensor | None:
        return self._keep.get(("out", name))
