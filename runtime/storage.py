"""One device buffer and what is known of it."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path

from .counters import count_allocation
from .device import DeviceKind, DeviceLocation
from .dtypes import ITEM_SIZE
from .errors import KvError
from .fingerprint import Encoding, StorageFingerprint
from .kv_state import KvState, Lock
from .ort import Tensor

__all__ = ["KvMemoryError", "Storage", "check_memory"]


class KvMemoryError(KvError):
    """There is not enough memory for the buffers asked for; nothing stays allocated."""

    code = "kv-memory"


class Storage:
    """A tensor, its encoding and its residency. ``location`` None means "cannot prove", never "CPU".

    ``guard`` is the lock of whoever decodes into this buffer; a re-bind takes it without waiting.
    ``owner`` is the state of the cache that the buffer belongs to, whose lock is then the guard.
    """

    __slots__ = ("__weakref__", "_fingerprint", "guard", "location", "owner", "tensor")

    def __init__(
        self,
        tensor: Tensor,
        *,
        location: DeviceLocation | None,
        guard: Lock | None = None,
        owner: KvState | None = None,
        encoding: Encoding = Encoding.PLAIN,
        bundled: bool = False,
    ) -> None:
        self.tensor = tensor
        self._fingerprint = StorageFingerprint(
            dtype=tensor.dtype,
            encoding=encoding,
            bundled=bundled,
            backend=tensor.device_type,
            nbytes=tensor.nbytes,
            shape=tensor.shape,
        )
        self.location = location
        self.owner = owner
        self.guard: Lock = owner.lock if owner is not None else guard or threading.RLock()

    @staticmethod
    def empty(
        shape: Sequence[int], dtype: str, location: DeviceLocation, owner: KvState | None = None
    ) -> Storage:
        """Uninitialised storage allocated by us on ``location``. Raises KvMemoryError, LayoutError."""
        try:
            tensor = Tensor.empty(shape, dtype, location)
        except MemoryError as error:
            raise no_memory(math.prod(shape) * ITEM_SIZE[dtype], location, str(error)) from None
        count_allocation()
        return Storage(tensor, location=location, owner=owner)

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    def fingerprint(self) -> StorageFingerprint:
        """What must be equal for another buffer to stand in for this one."""
        return self._fingerprint


def no_memory(wanted: int, location: DeviceLocation, found: str) -> KvMemoryError:
    return KvMemoryError(
        "There is not enough memory for these KV buffers.",
        found=found,
        expected=f"{wanted:,} bytes free",
        where=str(location),
        todo="Ask for a smaller capacity or fewer caches.",
    )


def check_memory(wanted: int, location: DeviceLocation) -> None:
    """Refuse an allocation that this machine cannot back. Raises KvMemoryError.

    Linux hands out more address space than it has pages, so an impossible malloc succeeds and the
    zero-fill is then killed by the kernel: no error anyone could catch.
    """
    if location.kind is not DeviceKind.CPU:
        return
    free = _free_host_bytes()
    if free is not None and wanted > free:
        raise no_memory(wanted, location, f"{free:,} bytes free")


def _free_host_bytes() -> int | None:
    free: int | None = None
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    group = Path("/sys/fs/cgroup")
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            left = int((group / limit_name).read_text()) - int((group / used_name).read_text())
        except (OSError, ValueError):  # "max": no limit
            continue
        # Usage counts page cache that the kernel would give back, so this alone must not refuse.
        try:
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            left += int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
        except (OSError, ValueError):
            pass
        free = left if free is None else min(free, left)
    return free
