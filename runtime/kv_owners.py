"""Which cache owns a piece of memory: found by address, so that wrapping a buffer does not hide its owner."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Sequence

from .kv_state import KvState
from .ort import Tensor
from .storage import Storage

__all__ = ["first_overlap", "owners_of", "register"]

_lock = threading.Lock()
_owned: weakref.WeakSet[Storage] = weakref.WeakSet()


def register(storage: Storage) -> None:
    """``storage`` belongs to a cache for as long as anything holds it."""
    with _lock:
        _owned.add(storage)


def owners_of(tensors: Iterable[Tensor]) -> list[KvState]:
    """The states of all caches that own any byte of ``tensors``, each once."""
    ranges = [(t.address, t.address + t.nbytes) for t in tensors]
    found: dict[int, KvState] = {}
    with _lock:
        for storage in _owned:
            start, stop = storage.tensor.address, storage.tensor.address + storage.nbytes
            if storage.owner is not None and any(a < stop and start < b for a, b in ranges):
                found[id(storage.owner)] = storage.owner
    return list(found.values())


def first_overlap(tensors: Sequence[Tensor]) -> tuple[int, int] | None:
    """Indices of two tensors that share memory, lower first; None when each has its own."""
    order = sorted(range(len(tensors)), key=lambda i: tensors[i].address)
    for a, b in itertools.pairwise(order):
        if tensors[a].address + tensors[a].nbytes > tensors[b].address:
            return min(a, b), max(a, b)
    return None
