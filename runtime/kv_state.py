"""The part of a cache that a held session looks at on every token."""

from __future__ import annotations

import threading

from .kv_alloc_id import KvAllocId, next_alloc_id

__all__ = ["KvState"]


class KvState:
    """Live length, allocation identity and lock of one cache, shared with every session bound to it.

    ``lock`` guards everything below it and is held while a program runs over the buffers.
    ``steps`` counts device writes by sessions: it is part of every slot's version, so that a token need not
    touch sixty slots to make sixty host mirrors stale.
    ``host_dirty`` says that some slot's newest bytes are on the host and must be sent before a program runs.
    ``shape_key`` names the plan that filled the live positions; None while unknown.
    """

    __slots__ = ("alloc_id", "host_dirty", "length", "lock", "shape_key", "steps")

    def __init__(self) -> None:
        self.alloc_id: KvAllocId = next_alloc_id()
        self.length = 0
        self.steps = 0
        self.host_dirty = False
        self.shape_key: str | None = None
        self.lock = threading.RLock()

    def renew(self) -> None:
        """The buffers are other buffers from here on."""
        self.alloc_id = next_alloc_id()
