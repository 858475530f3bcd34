"""The only file that touches onnxruntime: typed tensors, sessions and bindings.

onnxruntime's Python layer is untyped and its ``OrtValue.numpy()`` view dies with the OrtValue, so nothing
outside this file sees either. A :class:`Tensor` owns its bytes and copies them out.
"""

# pyright: basic
from __future__ import annotations

import ctypes
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

__all__ = [
    "Binding", "HostNode", "OrtProgram", "ProgramOptions", "Tensor", "ValueInfo", "available_providers",
    "cuda_options", "version",
]  # fmt: skip

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
        """A copy on the host that outlives this tensor; bfloat16 as uint16."""
        return np.array(self._raw(), copy=True)

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
        if self.host_array is not None:
            return self.host_array
        host = np.empty(self.shape, dtype=np.uint16)
        if self.on_host:  # ONNX Runtime has no copy from the host to the host
            ctypes.memmove(host.ctypes.data, self.address, self.nbytes)
            return host
        ort.copy_tensors([self.ort_value], [Tensor.over(host, "bfloat16").ort_value])
        return host

    def copy_from(self, source: Tensor) -> None:
        """Overwrite this tensor with ``source`` of the same dtype and shape, across devices."""
        if (self.dtype, self.shape) != (source.dtype, source.shape):
            raise LayoutError(
                "A copy needs two tensors of one dtype and shape.",
                found=f"{source.dtype} {list(source.shape)}",
                expected=f"{self.dtype} {list(self.shape)}",
            )
        if self.on_host and source.on_host:
            ctypes.memmove(self.address, source.address, self.nbytes)
        elif self.on_host:
            raw = source._raw()
            ctypes.memmove(self.address, raw.ctypes.data, self.nbytes)
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
class HostNode:
    """A node of a device's program that ONNX Runtime runs on the host instead."""

    op_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.op_type} {self.name!r}"


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Where and how a program runs.

    ``stop_spinning``: idle threads stop as the run ends instead of waiting busily for the next, which would
    take the cores from another stage's threads. ``optimize`` off: ONNX Runtime leaves the graph as it is, so
    that results do not depend on what it could fuse. ``capture``: the device may record runs as one graph.
    """

    location: DeviceLocation = HOST
    threads: int = 1
    spin: bool = True
    stop_spinning: bool = False
    optimize: bool = True
    capture: bool = False


_TYPE_NAMES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(bool)": "bool",
}


class OrtProgram:
    """One ONNX Runtime session on one device. Thread-safe to run."""

    __slots__ = ("_captures", "_keep", "_session", "host_nodes", "inputs", "location", "outputs")

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
        if options.stop_spinning:
            settings.add_session_config_entry("session.force_spinning_stop", "1")
        if not options.optimize:
            settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if initializers:
            names = list(initializers)
            settings.add_external_initializers(names, [initializers[n].ort_value for n in names])
        wanted = location.kind.provider
        providers: list[Any] = [wanted]
        if location.kind is DeviceKind.CUDA:
            providers = [(wanted, cuda_options(options)), "CPUExecutionProvider"]
            settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
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
        self._captures = options.capture and location.kind is DeviceKind.CUDA
        self.location = location
        self.host_nodes = _nodes_elsewhere(session, wanted) if location.kind is DeviceKind.CUDA else ()
        self.inputs = tuple(_info(a) for a in session.get_inputs())
        self.outputs = tuple(_info(a) for a in session.get_outputs())

    @property
    def captures(self) -> bool:
        """Whether a run can be recorded and replayed (:meth:`Binding.use_graph`)."""
        return self._captures

    def binding(self) -> Binding:
        binding = Binding(self._session)
        if self._captures:
            binding.use_graph(None)
        return binding

    def release_graph(self, graph_id: int) -> None:
        """Forget a recorded graph; its buffers may be freed afterwards. Does nothing when there is none."""
        if self._captures:
            self._session.release_captured_graph(graph_id)


def cuda_options(options: ProgramOptions) -> dict[str, str]:
    """Provider options of a program on CUDA. The arena grows by what is asked for: KV buffers are large, and
    doubling would take half of the device's memory for nothing."""
    return {
        "device_id": str(options.location.index),
        "arena_extend_strategy": "kSameAsRequested",
        "enable_cuda_graph": "1" if options.capture else "0",
    }


def _nodes_elsewhere(session: Any, provider: str) -> tuple[HostNode, ...]:
    """What ONNX Runtime gave to another provider than the program's own."""
    return tuple(
        HostNode(str(node.op_type), str(node.name))
        for subgraph in session.get_provider_graph_assignment_info()
        if subgraph.ep_name != provider
        for node in subgraph.get_nodes()
    )


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
        held = self._binding._iobinding
        self._bind_input, self._bind_output = held.bind_ortvalue_input, held.bind_ortvalue_output
        self.run: Callable[[], None]
        self._use(None)

    def _use(self, options: Any) -> None:
        # The C functions directly: Python's wrappers re-check WebGPU capture on every call.
        run, held = self._session._sess.run_with_iobinding, self._binding._iobinding
        self.run = lambda: run(held, options)

    def use_graph(self, graph_id: int | None) -> None:
        """Record the next run under ``graph_id`` and replay it from then on; None: run node by node.

        For programs with ``captures``. ONNX Runtime takes a run without an id for graph 0, so not to record
        has to be said too.
        """
        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", "-1" if graph_id is None else str(graph_id))
        self._use(options)

    def bind_input(self, name: str, tensor: Tensor) -> None:
        self._bind_input(name, tensor.c_value)
        self._keep["in", name] = tensor
        self.bind_calls += 1

    def bind_output(self, name: str, tensor: Tensor) -> None:
        self._bind_output(name, tensor.c_value)
        self._keep["out", name] = tensor
        self.bind_calls += 1

    def bind_result(self, name: str, location: DeviceLocation) -> None:
        """Let ONNX Runtime allocate this result on ``location``; :meth:`results` has it after a run."""
        self._binding.bind_output(name, *location.ort_device)
        self._keep.pop(("out", name), None)
        self.bind_calls += 1

    def results(self) -> list[Tensor]:
        """Every result of the last run, in the order in which they were first bound."""
        return [Tensor(value) for value in self._binding.get_outputs()]

    def bind_in_place(self, source: str, result: str, tensor: Tensor) -> None:
        """One tensor as input and output. A different buffer of equal size would run, and silently copy."""
        self.bind_input(source, tensor)
        self.bind_output(result, tensor)

    def bound_input(self, name: str) -> Tensor | None:
        return self._keep.get(("in", name))

    def bound_output(self, name: str) -> Tensor | None:
        return self._keep.get(("out", name))
