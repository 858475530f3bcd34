"""One K or V buffer with its host mirror: who holds the newest bytes, and how to get them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kv_programs
from .kv_state import KvState
from .storage import Storage

__all__ = ["Authority", "KvSlot"]


class Authority(enum.Enum):
    """Where the newest bytes of a slot are."""

    HOST = "host"
    DEVICE = "device"
    BOTH = "both"


class KvSlot:
    """A storage plus versions. All methods expect the cache's lock to be held.

    The mirror is a snapshot array: it is replaced, never rewritten, so an array handed out stays what it was.
    """

    __slots__ = ("_axis", "_dirty", "_mirror", "_mirror_version", "_state", "_version", "flushes", "storage")

    def __init__(self, storage: Storage, state: KvState, axis: int = 2) -> None:
        self.storage = storage
        self.flushes = 0
        self._state = state
        self._axis = axis
        self._version = state.version_floor - state.steps
        self._mirror: NDArray[Any] | None = None
        self._mirror_version = -1
        self._dirty = False

    @property
    def version(self) -> int:
        """Rises with every write, by session, bytes or host; never falls."""
        return self._version + self._state.steps

    @property
    def authority(self) -> Authority:
        if self._dirty:
            return Authority.HOST
        fresh = self._mirror is not None and self._mirror_version == self.version
        return Authority.BOTH if fresh else Authority.DEVICE

    @property
    def extent(self) -> int:
        return self.storage.shape[self._axis]

    def bump(self) -> None:
        """Declare the device bytes changed by someone else; a host edit not yet sent is sent first."""
        self.upload()
        self._version += 1

    def host(self) -> NDArray[Any]:
        """The whole buffer on the host, read-only, newest bytes; one flush however often it is read."""
        if self._mirror is None or (not self._dirty and self._mirror_version != self.version):
            self._replace(self.read(0, self.extent))
            self.flushes += 1
        assert self._mirror is not None
        return self._mirror

    def edit_host(self, edit: Callable[[NDArray[Any]], None]) -> None:
        """Change the host's copy; the host then holds the newest bytes until they are uploaded."""
        changed = self.host().copy()
        edit(changed)
        self._version += 1
        self._replace(changed)
        self._dirty = True
        self._state.mark_dirty(self)

    def _replace(self, mirror: NDArray[Any]) -> None:
        mirror.flags.writeable = False
        self._mirror = mirror.view()  # of a read-only base: a caller cannot make it writeable again
        self._mirror_version = self.version

    def upload(self) -> bool:
        """Send a host edit to the device. True when there was one."""
        if not self._dirty:
            return False
        assert self._mirror is not None
        self._write(self._mirror, 0)
        self._dirty = False
        return True

    def read(self, start: int, count: int) -> NDArray[Any]:
        """A host copy of positions ``[start, start+count)`` from the device's bytes (carrier dtype)."""
        self.upload()
        device = kv_programs.storage_device(self.storage.location)
        return kv_programs.read_slice(self.storage.tensor, start, count, self._axis, device)

    def write(self, new: NDArray[Any], start: int) -> None:
        """Overwrite positions from ``start`` on the device, in place."""
        self.upload()
        self._write(np.ascontiguousarray(new), start)
        self._version += 1

    def _write(self, new: NDArray[Any], start: int) -> None:
        device = kv_programs.storage_device(self.storage.location)
        kv_programs.write_slice(self.storage.tensor, new, start, self._axis, device)
