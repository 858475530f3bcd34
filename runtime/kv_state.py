"""The part of a cache that a held session looks at on every token."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol

from .errors import LayoutError
from .kv_alloc_id import KvAllocId, next_alloc_id

__all__ = ["Guards", "KvState", "Lock"]


class Lock(Protocol):
    """What guards a cache's buffers: an RLock, or several taken as one."""

    def acquire(self, blocking: bool = True) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> object: ...
    def __exit__(
        self, t: type[BaseException] | None, v: BaseException | None, tb: TracebackType | None, /
    ) -> None: ...


class Uploadable(Protocol):
    """A slot whose newest bytes may be on the host."""

    def upload(self) -> bool: ...


class KvState:
    """Live length, allocation identity and lock of one cache, shared with every session bound to it.

    ``lock`` guards everything below it and is held while a program runs over the buffers.
    ``steps`` counts device writes by sessions: it is part of every slot's version, so that a token need not
    touch sixty slots to make sixty host mirrors stale.
    ``host_dirty`` says that some slot's newest bytes are on the host and must be sent before a program runs.
    ``shape_key`` names the plan that filled the live positions; None while unknown.
    ``version_floor`` is where a newly installed slot's version begins, so that no slot's version ever falls.
    """

    __slots__ = (
        "_dirty",
        "alloc_id",
        "host_dirty",
        "length",
        "lock",
        "shape_key",
        "steps",
        "version_floor",
    )

    def __init__(self, lock: Lock | None = None) -> None:
        self.alloc_id: KvAllocId = next_alloc_id()
        self.length = 0
        self.steps = 0
        self.version_floor = 0
        self.host_dirty = False
        self.shape_key: str | None = None
        self.lock: Lock = threading.RLock() if lock is None else lock
        self._dirty: list[Uploadable] = []

    def renew(self) -> None:
        """The buffers are other buffers from here on."""
        self.alloc_id = next_alloc_id()

    def claim(self, shape_key: str) -> None:
        """Name the plan whose KV the cache holds; an empty one may change hands. Raises LayoutError."""
        if self.length and self.shape_key not in (None, shape_key):
            raise LayoutError(
                "The cache was filled by another model.",
                found=str(self.shape_key),
                expected=shape_key,
                todo="Use a cache of this plan, or truncate it to 0.",
            )
        self.shape_key = shape_key

    def mark_dirty(self, slot: Uploadable) -> None:
        """``slot`` has bytes on the host that its device does not have yet."""
        self._dirty.append(slot)
        self.host_dirty = True

    def upload(self) -> int:
        """Send every host edit to its device; how many slots had one. Expects the lock to be held."""
        sent = sum(slot.upload() for slot in self._dirty)
        self.forget_edits()
        return sent

    def forget_edits(self) -> None:
        """Drop host edits not sent: their buffers are gone."""
        self._dirty.clear()
        self.host_dirty = False


class Guards:
    """Several locks taken as one, always in the same order, so that two takers cannot wait for each other."""

    __slots__ = ("_locks",)

    def __init__(self, locks: list[Lock]) -> None:
        self._locks = [lock for _, lock in sorted({id(lock): lock for lock in locks}.items())]

    def acquire(self, blocking: bool = True) -> bool:
        """Take all, or none and say False."""
        with ExitStack() as taken:
            for lock in self._locks:
                if not lock.acquire(blocking):
                    return False
                taken.callback(lock.release)
            taken.pop_all()
        return True

    def release(self) -> None:
        for lock in reversed(self._locks):
            lock.release()

    def __enter__(self) -> object:
        return self.acquire()

    def __exit__(
        self, t: type[BaseException] | None, v: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        self.release()
