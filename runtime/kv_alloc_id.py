"""Identities of KV allocations: process-wide, never reused, safe across threads."""

from __future__ import annotations

import itertools
from typing import NewType

__all__ = ["NO_ALLOCATION", "KvAllocId", "next_alloc_id"]

KvAllocId = NewType("KvAllocId", int)
NO_ALLOCATION = KvAllocId(0)  # equal to no allocation's id

# Not id() and not an address: both come back after a free, and a reused identity would let a held plan
# decode one request over another's context. next() on itertools.count is one C call, atomic in CPython.
_ids = itertools.count(1)


def next_alloc_id() -> KvAllocId:
    """An id no other call in this process has returned or will return."""
    return KvAllocId(next(_ids))
