"""What a service keeps between calls: device values by name, small programs, and at most one held session."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decode_session import DecodeSession
from .device import HOST, DeviceKind, DeviceLocation
from .errors import LayoutError, RequestError
from .ort import OrtProgram, ProgramOptions, Tensor, carrier
from .realize import Feeds, Prebuilt, Realized
from .sym_env import SymEnv

__all__ = ["InferenceContext"]


class InferenceContext:
    """A persistent map, programs over it, and one decode session that :func:`forward_decode_step` reuses.

    A program is any ONNX program with named inputs: one given to :meth:`define`, or a loaded stage of a plan.
    Thread-safe; values and results are on ``location``.
    """

    __slots__ = ("_lock", "_programs", "_session", "_values", "location", "threads", "uploads")

    def __init__(self, location: DeviceLocation = HOST, *, threads: int = 1) -> None:
        self.location = location
        self.threads = threads
        self.uploads = 0  # values sent to the device by insert; realizing never adds to it
        self._lock = threading.RLock()
        self._values: dict[str, Tensor] = {}
        self._programs: dict[str, OrtProgram] = {}
        self._session: DecodeSession | None = None

    # --- the persistent map -------------------------------------------------------------------------

    def insert(self, name: str, value: NDArray[Any] | Tensor, *, dtype: str | None = None) -> Tensor:
        """Keep ``value`` on the device under ``name``, in place of what was there; returns what is kept.

        An array is copied once; a tensor (a result left on the device) is kept as it is. ``dtype`` names
        what a uint16 array carries ("bfloat16"). Raises LayoutError.
        """
        if isinstance(value, Tensor):
            tensor, sent = value, 0
        else:
            tensor, sent = self._upload(value, dtype), 1
        with self._lock:
            self._values[name] = tensor
            self.uploads += sent
        return tensor

    def remove(self, name: str) -> Tensor | None:
        """Forget ``name``; what it held, or None."""
        with self._lock:
            return self._values.pop(name, None)

    def contains(self, name: str) -> bool:
        with self._lock:
            return name in self._values

    def get(self, name: str) -> Tensor | None:
        """The kept tensor, the same object each time; None when there is none."""
        with self._lock:
            return self._values.get(name)

    def len(self) -> int:
        """Values kept."""
        with self._lock:
            return len(self._values)

    __len__ = len
    __contains__ = contains

    def clear(self) -> None:
        """Forget every value. Programs and the held session stay."""
        with self._lock:
            self._values.clear()

    # --- programs -----------------------------------------------------------------------------------

    def define(self, name: str, model: Path | bytes) -> OrtProgram:
        """Load an ONNX program on the context's device under ``name``. Raises PlanError, TopologyChanged."""
        program = OrtProgram(model, ProgramOptions(self.location, self.threads, spin=False))
        with self._lock:
            self._programs[name] = program
        return program

    def realize_one(
        self, program: str | OrtProgram, feeds: Feeds | None = None, *, env: SymEnv | None = None
    ) -> NDArray[Any]:
        """The program's only result, on the host. Raises RequestError when there are more; as prebuild."""
        prebuilt = self.prebuild(program, feeds, env=env)
        if len(prebuilt.outputs) != 1:
            raise RequestError(
                "The program has more than one result.",
                found=", ".join(prebuilt.outputs),
                todo="Use realize_many, and name the results you want.",
            )
        return prebuilt.run().to_host()[0]

    def realize_many(
        self,
        program: str | OrtProgram,
        feeds: Feeds | None = None,
        *,
        env: SymEnv | None = None,
        outputs: Sequence[str] | None = None,
    ) -> list[NDArray[Any]]:
        """The named results (default: all) in order, on the host. Raises as prebuild."""
        return self.prebuild(program, feeds, env=env, outputs=outputs).run().to_host()

    def realize_split(
        self,
        program: str | OrtProgram,
        n_host: int,
        feeds: Feeds | None = None,
        *,
        env: SymEnv | None = None,
        outputs: Sequence[str] | None = None,
    ) -> tuple[list[NDArray[Any]], list[Tensor]]:
        """The first ``n_host`` results on the host, the rest left on the device, ready for :meth:`insert`.

        Raises RequestError when there are fewer than ``n_host``; else as prebuild.
        """
        prebuilt = self.prebuild(program, feeds, env=env, outputs=outputs)
        if not 0 <= n_host <= len(prebuilt.outputs):
            raise RequestError(
                "So many results cannot come to the host.",
                found=str(n_host),
                expected=f"0..{len(prebuilt.outputs)}",
            )
        realized = prebuilt.run()
        return realized.to_host(n_host), list(realized.tensors[n_host:])

    def prebuild(
        self,
        program: str | OrtProgram,
        feeds: Feeds | None = None,
        *,
        env: SymEnv | None = None,
        outputs: Sequence[str] | None = None,
        in_place: Mapping[str, str] | None = None,
    ) -> Prebuilt:
        """Bind a program to the kept values and to feeds of these sizes, without running it.

        Raises RequestError (names, no value), LayoutError (dtype, rank, size), SymbolError.
        """
        with self._lock:
            loaded = self._program(program)
            values = dict(self._values)
        return Prebuilt(
            loaded, feeds or {}, values, SymEnv() if env is None else env, outputs=outputs, in_place=in_place
        )

    def realize_prebuilt(
        self, prebuilt: Prebuilt, feeds: Feeds | None = None, *, env: SymEnv | None = None
    ) -> Realized:
        """Run it on the values kept *now*: one replaced since is bound anew, one removed is refused.

        Results stay on the device and the next run overwrites them (``to_host`` copies). Raises RequestError,
        LayoutError, SymbolError, PlanError.
        """
        for name, bound in list(prebuilt.persistent.items()):
            kept = self.get(name)
            if kept is None:
                raise RequestError(
                    "A value that the program was prebuilt with has been removed.",
                    expected=name,
                    todo="Insert it again, or prebuild again.",
                )
            if kept is not bound:
                prebuilt.rebind(name, kept)
        return prebuilt.run(feeds, env)

    # --- the held session ---------------------------------------------------------------------------

    def has_session(self) -> bool:
        with self._lock:
            return self._session is not None

    def take_session(self) -> DecodeSession | None:
        """The held session, which is the taker's from here on; None when none is held."""
        with self._lock:
            session, self._session = self._session, None
            return session

    def put_session(self, session: DecodeSession) -> None:
        """Hold ``session`` in place of any other."""
        with self._lock:
            self._session = session

    # --- helpers ------------------------------------------------------------------------------------

    def _program(self, program: str | OrtProgram) -> OrtProgram:
        if isinstance(program, OrtProgram):
            return program
        if program not in self._programs:
            raise RequestError(
                "The context has no such program.",
                found=program,
                expected=", ".join(self._programs) or "none",
                todo="define() it first.",
            )
        return self._programs[program]

    def _upload(self, value: NDArray[Any], dtype: str | None) -> Tensor:
        name = str(value.dtype) if dtype is None else dtype
        try:
            own = np.array(value, order="C", copy=True).view(carrier(name))
        except (KeyError, ValueError, TypeError):
            raise LayoutError("A value of this dtype cannot be kept.", found=str(value.dtype)) from None
        if own.shape != value.shape:
            raise LayoutError("The array does not carry this dtype.", found=str(value.dtype), expected=name)
        tensor = Tensor.over(own, name)
        if self.location.kind is DeviceKind.CPU:
            return tensor
        kept = Tensor.empty(tensor.shape, name, self.location)
        kept.copy_from(tensor)
        return kept
