"""Hand a held session other KV buffers, after proving them interchangeable, or refuse by name.

The proof compares the incoming storage with the storage *already bound*: what a cache says of itself
cannot show that the binding is of the same kind.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .device import DeviceLocation
from .fingerprint import StorageFingerprint
from .kv_alloc_id import KvAllocId
from .storage import Storage

__all__ = ["KvRebindSource", "RebindBusy", "RebindReason", "RebindRefusal", "collect", "hold"]


@runtime_checkable
class KvRebindSource(Protocol):
    """Anything whose buffers a session may be re-bound to."""

    def alloc_id(self) -> KvAllocId:
        """Names the allocation; changes whenever any buffer is another buffer."""
        ...

    def rebind_location(self) -> DeviceLocation | None:
        """Where all buffers live; None when that cannot be proved."""
        ...

    def rebind_slot(self, layer: int, which: str) -> Storage | None:
        """The buffer of one slot; None when there is none. May raise RebindBusy instead of waiting."""
        ...


class RebindBusy(Exception):
    """Raised by a source that would have to wait for a lock; becomes RebindReason.BUSY."""


class RebindReason(enum.Enum):
    """Why a re-bind was refused."""

    RESIDENCY_UNKNOWN = "residency-unknown"
    RESIDENCY_DIFFERS = "residency-differs"
    MISSING_SLOT = "missing-slot"
    UNBAKED_SLOT = "unbaked-slot"
    STORAGE_DIFFERS = "storage-differs"
    OTHER_MODEL = "other-model"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class RebindRefusal:
    """A refusal is a value. ``baked`` is what is bound, ``incoming`` what was offered; which of them, and
    of ``layer`` and ``which``, are set follows from the reason."""

    reason: RebindReason
    layer: int | None = None
    which: str | None = None
    baked: DeviceLocation | StorageFingerprint | str | None = None
    incoming: DeviceLocation | StorageFingerprint | str | None = None

    def __str__(self) -> str:
        where = "" if self.layer is None else f" at layer {self.layer} {self.which}"
        data = "" if self.baked is None else f": bound {self.baked}, offered {self.incoming}"
        return f"re-bind refused ({self.reason.value}){where}{data}"


Slots = Mapping[tuple[int, str], Storage]


def collect(
    bound: Slots, source: KvRebindSource, whiches: Iterable[str]
) -> dict[tuple[int, str], Storage] | RebindRefusal:
    """Every slot's incoming storage, or the first reason why not. Changes nothing."""
    incoming = source.rebind_location()
    if incoming is None or any(s.location is None for s in bound.values()):
        return RebindRefusal(RebindReason.RESIDENCY_UNKNOWN)
    for storage in bound.values():
        if storage.location != incoming:
            return RebindRefusal(RebindReason.RESIDENCY_DIFFERS, baked=storage.location, incoming=incoming)
    found: dict[tuple[int, str], Storage] = {}
    names = tuple(whiches)
    # One layer past the last: a source with more layers than the plan is another model's.
    for layer in range(max(i for i, _ in bound) + 2):
        for which in names:
            baked = bound.get((layer, which))
            offered = source.rebind_slot(layer, which)
            if baked is None and offered is None:
                continue
            if offered is None:
                return RebindRefusal(RebindReason.MISSING_SLOT, layer, which)
            if baked is None:
                return RebindRefusal(RebindReason.UNBAKED_SLOT, layer, which)
            refusal = _refuse_slot(layer, which, baked, offered)
            if refusal is not None:
                return refusal
            found[layer, which] = offered
    addresses = {s.tensor.address for s in found.values()}
    if len(addresses) != len(found):
        # Two slots in one buffer: each write would destroy the other's.
        return RebindRefusal(
            RebindReason.STORAGE_DIFFERS, baked="one buffer a slot", incoming="shared buffers"
        )
    return found


def _refuse_slot(layer: int, which: str, baked: Storage, offered: Storage) -> RebindRefusal | None:
    if offered.location is None:
        return RebindRefusal(RebindReason.RESIDENCY_UNKNOWN, layer, which)
    if offered.location != baked.location:
        return RebindRefusal(
            RebindReason.RESIDENCY_DIFFERS, layer, which, baked=baked.location, incoming=offered.location
        )
    mine, theirs = baked.fingerprint(), offered.fingerprint()
    if mine != theirs:
        return RebindRefusal(RebindReason.STORAGE_DIFFERS, layer, which, baked=mine, incoming=theirs)
    return None


def hold(storages: Iterable[Storage]) -> ExitStack | None:
    """Take every distinct guard without waiting. None, and nothing held, when one is taken."""
    stack = ExitStack()
    for guard in {id(s.guard): s.guard for s in storages}.values():
        if not guard.acquire(blocking=False):
            stack.close()
            return None
        stack.callback(guard.release)
    return stack
