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
from .kv_owners import first_overlap
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
    refusal = refuse_residency(bound, source.rebind_location())
    if refusal is not None:
        return refusal
    found: dict[tuple[int, str], Storage] = {}
    names = tuple(whiches)
    # One layer past the last: a source with more layers than the plan is another model's.
    for layer in range(max(i for i, _ in bound) + 2):
        for which in names:
            baked, offered = bound.get((layer, which)), source.rebind_slot(layer, which)
            refusal = refuse_presence(layer, which, baked, offered)
            if refusal is not None:
                return refusal
            if baked is None or offered is None:
                continue
            refusal = refuse_storage(layer, which, baked, offered)
            if refusal is not None:
                return refusal
            found[layer, which] = offered
    refusal = refuse_shared(found)
    return found if refusal is None else refusal


def refuse_residency(bound: Slots, incoming: DeviceLocation | None) -> RebindRefusal | None:
    """Both must be proved to be in one place: reading the other's address would read something else.

    A plan over several devices has no one place: there :func:`refuse_storage` asks each slot for its own.
    """
    homes = {s.location for s in bound.values()}
    if len(homes) > 1 and None not in homes:
        return None
    if incoming is None or None in homes:
        return RebindRefusal(RebindReason.RESIDENCY_UNKNOWN)
    for storage in bound.values():
        if storage.location != incoming:
            return RebindRefusal(RebindReason.RESIDENCY_DIFFERS, baked=storage.location, incoming=incoming)
    return None


def refuse_presence(
    layer: int, which: str, baked: Storage | None, offered: Storage | None
) -> RebindRefusal | None:
    """A slot bound and not offered would keep the other request's context; one offered and not bound says
    that the source is another model's."""
    if baked is not None and offered is None:
        return RebindRefusal(RebindReason.MISSING_SLOT, layer, which)
    if baked is None and offered is not None:
        return RebindRefusal(RebindReason.UNBAKED_SLOT, layer, which)
    return None


def refuse_storage(layer: int, which: str, baked: Storage, offered: Storage) -> RebindRefusal | None:
    """Same place, and a fingerprint equal to that of what is bound."""
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


def refuse_shared(found: Slots) -> RebindRefusal | None:
    """Two slots in one buffer: each write would destroy the other's."""
    places = list(found)
    shared = first_overlap([s.tensor for s in found.values()])
    if shared is None:
        return None
    (layer, which), (other, other_which) = places[shared[1]], places[shared[0]]
    return RebindRefusal(
        RebindReason.STORAGE_DIFFERS,
        layer,
        which,
        baked="memory of its own",
        incoming=f"memory of layer {other} {other_which}",
    )


def hold(storages: Iterable[Storage]) -> ExitStack | None:
    """Take every distinct guard without waiting. None, and nothing held, when one is taken."""
    stack = ExitStack()
    for guard in {id(s.guard): s.guard for s in storages}.values():
        if not guard.acquire(blocking=False):
            stack.close()
            return None
        stack.callback(guard.release)
    return stack
