"""Run a small program: its inputs found by name, its results on the host or left on the device.

An input comes from the call's feeds, else from the values that persist, else it is a symbol of the call's
:class:`SymEnv`. The sizes of what is bound bind the program's dimension names too, so that two inputs which
disagree are refused before ONNX Runtime sees them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .device import DeviceKind
from .errors import LayoutError, PlanError, RequestError
from .ort import OrtProgram, Tensor, ValueInfo, carrier
from .sym_env import SymEnv

__all__ = ["Feeds", "Prebuilt", "Realized"]

Feeds = Mapping[str, NDArray[Any]]
_SYMBOL_DTYPES = ("int64", "int32")


class Realized:
    """Results of one run, still on the device, in the order asked for."""

    __slots__ = ("names", "tensors")

    def __init__(self, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
        self.names = tuple(names)
        self.tensors = tuple(tensors)

    def to_host(self, n: int | None = None) -> list[NDArray[Any]]:
        """Host copies of the first ``n``."""
        return [t.to_numpy() for t in self.tensors[:n]]


class Prebuilt:
    """A program bound once for the shapes of its first feeds: a later run writes feeds and symbols in place.

    Persistent values stay bound as they lie. ``in_place`` names results that are written into the persistent
    value of an input (a KV slot). Results whose shape the program does not tell are allocated in each run.
    """

    __slots__ = (
        "_arrays",
        "_binding",
        "_env",
        "_lock",
        "_results",
        "_staged",
        "outputs",
        "persistent",
        "program",
    )

    def __init__(
        self,
        program: OrtProgram,
        feeds: Feeds,
        persistent: Mapping[str, Tensor],
        env: SymEnv,
        *,
        outputs: Sequence[str] | None = None,
        in_place: Mapping[str, str] | None = None,
    ) -> None:
        """Raises RequestError (names), LayoutError (dtype, rank, sizes), SymbolError."""
        self.program = program
        self.outputs = _chosen(program, outputs)
        self.persistent: dict[str, Tensor] = {}
        self._lock = threading.Lock()
        self._binding = program.binding()
        self._env = env.scope()
        self._arrays: dict[str, NDArray[Any]] = {}  # feeds and symbols, rewritten by each run
        self._staged: dict[str, Tensor] = {}
        known = {i.name for i in program.inputs}
        for name in feeds:
            if name not in known:
                raise RequestError(
                    "The program has no such input.", found=name, expected=", ".join(sorted(known))
                )
        symbols: list[ValueInfo] = []
        for info in program.inputs:
            if info.name in feeds:
                self._stage(info, _fed(info, feeds[info.name]))
            elif info.name in persistent:
                tensor = persistent[info.name]
                self._match(info, tensor.dtype, tensor.shape)
                self.persistent[info.name] = tensor
                self._binding.bind_input(info.name, tensor)
            elif info.dtype in _SYMBOL_DTYPES and len(info.shape) <= 1:
                symbols.append(info)
            else:
                raise RequestError(
                    "An input has no value.",
                    found=", ".join([*feeds, *persistent]) or "no values",
                    expected=info.name,
                    todo="Feed it, or insert it into the context.",
                )
        for info in symbols:  # last: the others' sizes say how many rows a symbol is given for
            value = self._env[info.name]
            shape = tuple(self._env[d] if isinstance(d, str) else d or 1 for d in info.shape)
            self._stage(info, np.full(shape, value, dtype=info.dtype))
        self._results = self._bind_results(in_place or {})

    def run(self, feeds: Feeds | None = None, env: SymEnv | None = None) -> Realized:
        """Run with other feeds and symbols of the same sizes; what is not given keeps its last value.

        Results with a known shape are this object's and the next run overwrites them. Raises as the
        constructor, before anything is written, and PlanError.
        """
        with self._lock:
            new = {name: self._refed(name, value) for name, value in (feeds or {}).items()}
            for name, value in env.as_dict().items() if env is not None else ():
                if name in self._staged and name not in new:
                    new[name] = np.full_like(self._arrays[name], value)
                elif name in self._env:
                    self._env.scope().bind(name, value, where="a size fixed by prebuild")
            for name, value in new.items():
                self._arrays[name][...] = value
                self._staged[name].refresh()
            for name, tensor in self._results.items():
                if tensor is None:
                    self._binding.bind_result(name, self.program.location)
            try:
                self._binding.run()
            except Exception as error:
                raise PlanError("A program failed.", found=str(error).strip()[:400]) from None
            tensors = dict(self._results)
            if None in tensors.values():
                made = zip(tensors, self._binding.results(), strict=True)
                tensors = {name: self._results[name] or tensor for name, tensor in made}
            return Realized(self.outputs, [t for n in self.outputs if (t := tensors[n]) is not None])

    def rebind(self, name: str, tensor: Tensor) -> None:
        """Bind another persistent value of the same dtype and shape. Raises LayoutError."""
        with self._lock:
            held = self.persistent[name]
            if (held.dtype, held.shape) != (tensor.dtype, tensor.shape):
                raise LayoutError(
                    "A persistent value was replaced by one of another layout.",
                    found=f"{tensor.dtype} {list(tensor.shape)}",
                    expected=f"{held.dtype} {list(held.shape)}",
                    where=name,
                    todo="Prebuild again.",
                )
            self.persistent[name] = tensor
            self._binding.bind_input(name, tensor)
            for result, bound in self._results.items():
                if bound is held:
                    self._binding.bind_output(result, tensor)
                    self._results[result] = tensor

    def _stage(self, info: ValueInfo, array: NDArray[Any]) -> None:
        self._match(info, info.dtype, array.shape)
        self._arrays[info.name] = array
        location = self.program.location
        if location.kind is DeviceKind.CPU:
            tensor = Tensor.over(array, info.dtype)
        else:
            tensor = Tensor.step_input(array, location)
        self._staged[info.name] = tensor
        self._binding.bind_input(info.name, tensor)

    def _refed(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        held = self._arrays.get(name)
        if held is None:
            raise RequestError(
                "This input was not fed when the program was prebuilt.",
                found=name,
                expected=", ".join(self._arrays) or "no feeds",
            )
        own = _fed(next(i for i in self.program.inputs if i.name == name), value)
        if own.shape != held.shape:
            raise LayoutError(
                "A feed's sizes are not those the program was prebuilt with.",
                found=str(list(own.shape)),
                expected=str(list(held.shape)),
                where=name,
                todo="Prebuild again.",
            )
        return own

    def _match(self, info: ValueInfo, dtype: str, shape: Sequence[int]) -> None:
        """Check a value against the input it is for and bind the input's dimension names to its sizes."""
        fixed = all(e == s for e, s in zip(info.shape, shape, strict=False) if isinstance(e, int))
        if dtype != info.dtype or len(shape) != len(info.shape) or not fixed:
            raise LayoutError(
                "A value does not fit the program's input.",
                found=f"{dtype} {list(shape)}",
                expected=f"{info.dtype} {list(info.shape)}",
                where=info.name,
            )
        for dim, size in zip(info.shape, shape, strict=True):
            if isinstance(dim, str):
                self._env.bind(dim, size, where=info.name)

    def _bind_results(self, in_place: Mapping[str, str]) -> dict[str, Tensor | None]:
        """Every result by name: its own memory, or None when ONNX Runtime has to allocate it."""
        results: dict[str, Tensor | None] = {}
        known = {o.name for o in self.program.outputs}
        for result, source in in_place.items():
            if result not in known or source not in self.persistent:
                raise RequestError(
                    "in_place ties a result to a persistent value.", found=f"{result} to {source}"
                )
        for info in self.program.outputs:
            if info.name in in_place:
                tensor = self.persistent[in_place[info.name]]
                self._binding.bind_in_place(in_place[info.name], info.name, tensor)
                results[info.name] = tensor
                continue
            tensor = self._allocated(info)
            results[info.name] = tensor
            if tensor is None:
                self._binding.bind_result(info.name, self.program.location)
            else:
                self._binding.bind_output(info.name, tensor)
        return results

    def _allocated(self, info: ValueInfo) -> Tensor | None:
        sizes = [self._env.get(d) if isinstance(d, str) else d for d in info.shape]
        if not sizes or any(s is None for s in sizes):
            return None
        shape = [s for s in sizes if s is not None]
        if self.program.location.kind is DeviceKind.CPU:
            return Tensor.over(np.zeros(shape, carrier(info.dtype)), info.dtype)
        return Tensor.empty(shape, info.dtype, self.program.location)


def _chosen(program: OrtProgram, outputs: Sequence[str] | None) -> tuple[str, ...]:
    known = tuple(o.name for o in program.outputs)
    for name in outputs or ():
        if name not in known:
            raise RequestError("The program has no such result.", found=name, expected=", ".join(known))
    return known if outputs is None else tuple(outputs)


def _fed(info: ValueInfo, value: NDArray[Any]) -> NDArray[Any]:
    """A copy of a feed in the input's dtype: the caller's array is the caller's. Raises LayoutError."""
    expected = carrier(info.dtype)
    if str(value.dtype) != info.dtype and value.dtype != expected:
        raise LayoutError(
            "A feed has the wrong dtype.", found=str(value.dtype), expected=info.dtype, where=info.name
        )
    return np.array(value, order="C", copy=True).view(expected)
