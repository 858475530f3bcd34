"""May a held session serve this cache? One comparison list answers; other answers are views of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .errors import KvError
from .kv_alloc_id import KvAllocId

__all__ = ["PlanKey", "PlanValidity", "StaleCache", "compare"]


class StaleCache(KvError):
    """The cache under a session is not the one it is bound to any more; nothing was run."""

    code = "stale-cache"


class PlanValidity(enum.Enum):
    """VALID: serve it. ALLOCATION_CHANGED: the same computation over other buffers; a re-bind may do.
    STALE: another computation; only opening a new session will do."""

    VALID = "valid"
    ALLOCATION_CHANGED = "allocation-changed"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Everything a held binding is welded to. ``alloc_id`` last: it alone asks about allocation."""

    sequence: int  # tokens a step
    max_seq_len: int  # the cache's capacity
    n_layers: int
    cache_dtype: str
    shape_key: str
    alloc_id: KvAllocId


def compare(held: PlanKey, asked: PlanKey) -> PlanValidity:
    """The comparison list. Structure first: buffers of another computation are never re-bound."""
    structure = (
        held.sequence == asked.sequence,
        held.max_seq_len == asked.max_seq_len,
        held.n_layers == asked.n_layers,
        held.cache_dtype == asked.cache_dtype,
        held.shape_key == asked.shape_key,
    )
    if not all(structure):
        return PlanValidity.STALE
    if held.alloc_id != asked.alloc_id:
        return PlanValidity.ALLOCATION_CHANGED
    return PlanValidity.VALID
