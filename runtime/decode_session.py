"""A held decode: bound once, then a token is two integers written and one run.

The way of a token, top to bottom: :meth:`DecodeSession.realize_token` checks that the cache is still the
one it is bound to, writes the token and its position into the bound arrays, runs, and the logits are on the
host. Nothing is bound, looked up or allocated.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .bound_step import BoundStep
from .counters import SessionCounters
from .errors import CapacityExceeded, RequestError, TopologyChanged
from .kv_alloc_id import NO_ALLOCATION, KvAllocId
from .kv_cache import KvCache
from .kv_geometry import KvWhich
from .kv_incoming import check_count
from .kv_owners import owners_of
from .kv_state import Guards, KvState
from .ort import Tensor
from .rebind import KvRebindSource, RebindBusy, RebindReason, RebindRefusal, collect, hold
from .sampling import likeliest
from .session_slots import slots_for
from .step_program import StepProgram, StepShape
from .storage import Storage
from .sym_env import SymEnv
from .token_input import Tokens, bad_token, one_token, prompt_ids
from .validity import PlanKey, PlanValidity, StaleCache, compare

__all__ = ["DecodeSession"]

_HELD_PREFILLS = 4
_HELD_LOGITS = 8  # a binding that returns more positions' logits is large: used once and dropped


class DecodeSession:
    """One request's decode over a plan and a cache. Calls from several threads take turns.

    Returned logits are a read-only view of a host array that the session owns and the next call overwrites;
    copy them to keep them.
    """

    __slots__ = (
        "_cache",
        "_foreign",
        "_held",
        "_kv",
        "_lock",
        "_lost",
        "_owners",
        "_prefills",
        "_program",
        "_row",
        "_shape_key",
        "_state",
        "_step",
        "_vocab",
        "counters",
    )

    def __init__(self, program: StepProgram, cache: KvCache) -> None:
        """Use :meth:`planonce.runtime.Plan.open`. Raises LayoutError when the cache does not fit the plan."""
        self._program = program
        self._lock = threading.RLock()
        self._shape_key = program.manifest.shape_key
        self._vocab = program.manifest.model.vocab_size
        self.counters = SessionCounters()
        with cache.state.lock:
            self._kv = slots_for(program, cache)
            self._cache: KvCache | None = cache
            self._foreign: KvRebindSource | None = None
            self._owners: list[KvState] = []  # caches whose memory a foreign source lends
            self._lost: TopologyChanged | None = None
            self._state = cache.state
            self._held = self._key_of(cache, 1)
            cache.state.claim(self._shape_key)
        self._step = BoundStep(program, self._shape(1, 1), self._kv, self.counters)
        self._row: NDArray[np.float32] = self._step.logits[0, 0]
        self._row = self._row.view()
        self._row.flags.writeable = False
        self._prefills: OrderedDict[tuple[int, int], BoundStep] = OrderedDict()

    # --- tokens -------------------------------------------------------------------------------------

    def realize_token(
        self, token: SupportsIndex | Tokens, symbols: SymEnv | None = None
    ) -> NDArray[np.float32]:
        """Feed one token at the cache's live length; its logits ``[vocab]``.

        ``symbols``: cached_len and attended_len of this pass for a plan on the symbol path; by default what
        follows from the live length. Inert on the device-offset path, which has no symbols. Raises
        RequestError (token), CapacityExceeded, StaleCache, SymbolError, all before anything is touched.
        """
        self._feed_one(token, symbols, self._step.run)
        return self._row

    def step_greedy(self, token: SupportsIndex | Tokens, symbols: SymEnv | None = None) -> int:
        """Feed one token as :meth:`realize_token`; the likeliest next one, the lowest id of equals.

        The program picks it, and the logits stay on their device until :attr:`logits` is asked for them.
        Raises as realize_token, RequestError on a plan without a greedy head, and PlanError on NaN logits,
        the token being fed by then.
        """
        if not self.has_greedy_head:
            raise RequestError(
                "This plan's program does not pick tokens.",
                expected="a plan with a greedy head",
                todo="Compile it with --greedy-head, or use realize_token.",
            )
        with self._lock:
            self._feed_one(token, symbols, self._step.execute)
            picked = self._step.next_token
            return picked if picked >= 0 else likeliest(self.logits)

    def _feed_one(
        self, token: SupportsIndex | Tokens, symbols: SymEnv | None, run: Callable[[], object]
    ) -> None:
        """``run``: of the decode step's binding, with or without bringing the logits to the host."""
        value = token if type(token) is int else one_token(token)
        if not 0 <= value < self._vocab:
            raise bad_token(value, self._vocab)
        with self._lock, self._state.lock:
            state = self._state
            if state.alloc_id != self._held.alloc_id or state.shape_key != self._shape_key or self._foreign:
                self._check_unchanged()
            position = state.length
            if position >= self._held.max_seq_len:
                raise self._full(1)
            if state.host_dirty:
                self._upload()
            step, counters = self._step, self.counters
            step.inputs.set_one(value, position, symbols)
            # Before the run: a step that fails half way has written too, and no host mirror may miss that.
            state.steps += 1
            try:
                run()
            except TopologyChanged as error:
                self._lose(error)
                raise
            # After the run: an interrupted or failed step leaves the length, and so the cache, as it was.
            state.length = position + 1
            counters.runs += len(step.bindings)
            counters.realize_count += 1
            counters.tokens += 1

    def prefill(self, tokens: Tokens, *, chunk: int = 512, num_logits: int = 1) -> NDArray[np.float32]:
        """Feed a prompt in chunks; logits of its last ``num_logits`` tokens, ``[num_logits, vocab]``, a copy.

        Raises RequestError, CapacityExceeded, StaleCache before anything is touched.
        """
        ids = prompt_ids(tokens, self._vocab)
        n = len(ids)
        if not 1 <= num_logits <= n or chunk < 1:
            raise RequestError(
                "num_logits or chunk is out of range.",
                found=f"{num_logits}, {chunk}",
                expected=f"1..{n}, >= 1",
            )
        result = np.empty((num_logits, self._vocab), dtype=np.float32)
        first_wanted = n - num_logits
        with self._lock, self._state.lock:
            state = self._state
            self._check_unchanged()
            if state.length + n > self._held.max_seq_len:
                raise self._full(n)
            if state.host_dirty:
                self._upload()
            for start in range(0, n, chunk):
                stop = min(start + chunk, n)
                logits_from = min(max(first_wanted, start), stop - 1)
                wanted = logits_from >= first_wanted
                logits = self._run_chunk(ids[start:stop], logits_from - start)
                if wanted:
                    result[logits_from - first_wanted : stop - first_wanted] = logits
        return result

    def _run_chunk(self, ids: NDArray[np.integer], logits_from: int) -> NDArray[np.float32]:
        state, counters = self._state, self.counters
        size = len(ids)
        step = self._bound(size, size - logits_from)
        step.inputs.set_chunk(ids, state.length, logits_from)
        state.steps += 1
        try:
            logits = step.run()[0]
        except TopologyChanged as error:
            self._lose(error)
            raise
        state.length += size
        counters.runs += len(step.bindings)
        counters.realize_count += 1
        counters.tokens += size
        return logits

    def _bound(self, size: int, logits: int) -> BoundStep:
        """The held binding for this shape, or a new one over the same buffers."""
        if (size, logits) == (1, 1):
            return self._step
        step = self._prefills.get((size, logits))
        if step is None:
            step = BoundStep(self._program, self._shape(size, logits), self._kv, self.counters)
            if logits > _HELD_LOGITS:
                return step
            self._prefills[size, logits] = step
            if len(self._prefills) > _HELD_PREFILLS:
                self._prefills.popitem(last=False)
        self._prefills.move_to_end((size, logits))
        return step

    # --- what it holds ------------------------------------------------------------------------------

    @property
    def program(self) -> StepProgram:
        """The loaded plan's step; one object for every session of one :class:`Plan`."""
        return self._program

    @property
    def cache(self) -> KvCache | None:
        """The cache it decodes into; None after a re-bind to another kind of source."""
        return self._cache

    @property
    def position(self) -> int:
        """Live positions, which is where the next token goes."""
        return self._state.length

    @property
    def capacity(self) -> int:
        return self._held.max_seq_len

    @property
    def logits(self) -> NDArray[np.float32]:
        """The last decoded token's logits ``[vocab]`` on the host, brought there if :meth:`step_greedy` left
        them on their device."""
        with self._lock:
            self._step.fetch_logits()
            return self._row

    @property
    def has_greedy_head(self) -> bool:
        """Whether the program picks the likeliest token itself, so that :meth:`step_greedy` may be called."""
        return self._program.next_tokens is not None

    def use_graph(self, graph_id: int | None, *, release: int | None = None) -> None:
        """For :class:`planonce.runtime.CapturedDecodeSession`: record and replay the decode step's runs."""
        with self._lock, self._state.lock:
            self._step.use_graph(graph_id, release)

    @property
    def effective_target(self) -> Tensor:
        """The last decoded token's logits ``[1, 1, vocab]`` on the program's device, before the copy."""
        return self._step.effective_target

    # --- validity and re-bind -----------------------------------------------------------------------

    def validity_for(
        self, cache: KvCache, *, sequence: int = 1, shape_key: str | None = None
    ) -> PlanValidity:
        """Whether this session may serve ``cache`` as it is, after a re-bind, or not at all.

        ``shape_key``: of the plan the caller wants run; by default whichever filled the cache.
        """
        with cache.state.lock:
            return compare(self._held, self._key_of(cache, sequence, shape_key))

    def is_valid_for(self, cache: KvCache, *, sequence: int = 1, shape_key: str | None = None) -> bool:
        """``validity_for(...) is PlanValidity.VALID``."""
        return self.validity_for(cache, sequence=sequence, shape_key=shape_key) is PlanValidity.VALID

    def rebind_kv(self, source: KvRebindSource, *, length: int = 0) -> RebindRefusal | None:
        """Decode into ``source`` from the next token on; None when done, else why not, nothing changed.

        A :class:`KvCache` brings its own live length; ``length`` is for other sources. Raises
        CapacityExceeded when it does not fit, TopologyChanged on a session that lost its device.
        """
        if not self._lock.acquire(blocking=False):
            return RebindRefusal(RebindReason.BUSY)
        try:
            if self._lost is not None:
                raise self._lost
            before = source.alloc_id()
            found = collect(self._kv, source, [w.value for w in KvWhich])
            if isinstance(found, RebindRefusal):
                return found
            held = hold(found.values())
            if held is None:
                return RebindRefusal(RebindReason.BUSY)
            with held:
                if source.alloc_id() != before:  # changed between the proof and the lock
                    return RebindRefusal(RebindReason.BUSY)
                return self._rebind(source, before, found, length)
        except RebindBusy:
            return RebindRefusal(RebindReason.BUSY)
        finally:
            self._lock.release()

    def _rebind(
        self, source: KvRebindSource, alloc_id: KvAllocId, found: dict[tuple[int, str], Storage], length: int
    ) -> RebindRefusal | None:
        cache = source if isinstance(source, KvCache) else None
        owners: list[KvState] = []
        if cache is not None:
            state = cache.state
            if state.length and state.shape_key not in (None, self._shape_key):
                return RebindRefusal(
                    RebindReason.OTHER_MODEL, baked=self._shape_key, incoming=state.shape_key
                )
        else:
            length = check_count("The live length", length)
            if not 0 <= length <= self._held.max_seq_len:
                raise CapacityExceeded(
                    "The live length does not fit.", found=str(length), expected=f"<= {self.capacity}"
                )
            # Memory on loan from a cache stays that cache's: its lock is held, its host edits are sent and
            # its versions rise, or it would read stale bytes afterwards.
            owners = owners_of(s.tensor for s in found.values())
            state = KvState(Guards([*(s.guard for s in found.values()), *(o.lock for o in owners)]))
            state.length, state.alloc_id = length, alloc_id
        try:
            self._step.rebind_kv(found)
        except BaseException:
            self._step.rebind_kv(self._kv)
            raise
        self._kv = found
        self._prefills.clear()  # they hold the old buffers
        self._cache, self._foreign, self._owners = cache, None if cache is not None else source, owners
        self._state = state
        state.claim(self._shape_key)
        self._held = replace(self._held, alloc_id=state.alloc_id)
        self.counters.rebinds += 1
        return None

    # --- helpers ------------------------------------------------------------------------------------

    def _shape(self, sequence: int, logits: int) -> StepShape:
        return StepShape(1, sequence, logits, self._held.max_seq_len)

    def _key_of(self, cache: KvCache, sequence: int, shape_key: str | None = None) -> PlanKey:
        state = cache.state
        filled_by = state.shape_key if state.length and state.shape_key else self._shape_key
        return PlanKey(
            sequence=sequence,
            max_seq_len=cache.capacity,
            n_layers=cache.n_layers,
            cache_dtype="+".join(cache.geometry.dtypes),
            shape_key=filled_by if shape_key is None else shape_key,
            alloc_id=state.alloc_id,
        )

    def _check_unchanged(self) -> None:
        """Raises StaleCache unless the cache is the one that is bound. The guard of every token."""
        if self._lost is not None:
            raise self._lost
        state = self._state
        current = state.alloc_id if self._foreign is None else self._foreign.alloc_id()
        if current != self._held.alloc_id:
            raise StaleCache(
                "The cache's buffers are not the ones this session is bound to.",
                found=f"allocation {current}",
                expected=f"allocation {self._held.alloc_id}",
                todo="Re-bind the session (rebind_kv), or open a new one over the cache.",
            )
        if state.shape_key != self._shape_key:
            state.claim(self._shape_key)
        for owner in self._owners:
            owner.steps += 1
            if owner.host_dirty:
                self.counters.uploads += owner.upload()

    def _upload(self) -> None:
        self.counters.uploads += self._state.upload()

    def _lose(self, error: TopologyChanged) -> None:
        """Serve nothing any more: a device that comes back does not come back with these buffers."""
        self._lost = error
        self._held = replace(self._held, alloc_id=NO_ALLOCATION)

    def _full(self, wanted: int) -> CapacityExceeded:
        return CapacityExceeded(
            "The cache is full.",
            found=f"{self._state.length} live positions and {wanted} more",
            expected=f"<= {self._held.max_seq_len}",
            todo="Truncate the cache, or open a session with a larger capacity.",
        )
