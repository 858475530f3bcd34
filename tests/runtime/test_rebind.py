"""P6-P10: a re-bind is proved or refused by name, and a refusal changes nothing.

Each refusal has its control: with that one guard patched out, the session serves wrong logits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from handmade_plan import Tiny, build
from kv_support import (
    CLOSE,
    ELSEWHERE,
    HERE,
    OTHER,
    PROMPT,
    WRONG,
    Lender,
    Reference,
    bound_tensors,
    decode,
    distance,
    filled,
    greedy,
    position_major,
)

from planonce.runtime import (
    DecodeSession,
    Encoding,
    KvCache,
    KvRebindSource,
    Plan,
    RebindReason,
    RebindRefusal,
    Storage,
    StorageFingerprint,
    process_counters,
    rebind,
)
from planonce.runtime.errors import CapacityExceeded, PlanError
from planonce.runtime.kv_state import Guards
from planonce.runtime.ort import Tensor

NEXT = 23
LAST = (1, "value")


@pytest.fixture
def session(tiny_plan: Plan) -> DecodeSession:
    return tiny_plan.open(filled(tiny_plan, PROMPT))


@pytest.fixture(scope="module")
def reference(tiny: Tiny) -> Reference:
    return Reference(tiny)


@dataclass
class Case:
    """A source that must be refused, why, which guard sees it, and what its request would get."""

    source: Lender
    refusal: RebindRefusal
    guard: str
    truth: np.ndarray


Maker = Callable[[Plan, Reference], Case]


def empty_handles(lender: Lender) -> Lender:
    """The bytes are elsewhere: what can be reached from here is not what the request's context is."""
    for storage in lender.slots.values():
        assert storage is not None
        array = storage.tensor.host_array
        assert array is not None
        array[...] = 0
    return lender


def residency_unknown(plan: Plan, reference: Reference) -> Case:
    lender = empty_handles(Lender.copy_of(filled(plan, OTHER)))
    lender.location = None
    refusal = RebindRefusal(RebindReason.RESIDENCY_UNKNOWN)
    return Case(lender, refusal, "refuse_residency", reference([*OTHER, NEXT]))


def residency_differs(plan: Plan, reference: Reference) -> Case:
    lender = empty_handles(Lender.copy_of(filled(plan, OTHER)))
    lender.location = ELSEWHERE
    refusal = RebindRefusal(RebindReason.RESIDENCY_DIFFERS, baked=HERE, incoming=ELSEWHERE)
    return Case(lender, refusal, "refuse_residency", reference([*OTHER, NEXT]))


def slot_residency_unknown(plan: Plan, reference: Reference) -> Case:
    lender = Lender.copy_of(filled(plan, OTHER))
    lender.replace(*LAST, np.zeros((1, 2, 64, 16), np.float32), location=None)
    refusal = RebindRefusal(RebindReason.RESIDENCY_UNKNOWN, *LAST)
    return Case(lender, refusal, "refuse_storage", reference([*OTHER, NEXT]))


def slot_residency_differs(plan: Plan, reference: Reference) -> Case:
    lender = Lender.copy_of(filled(plan, OTHER))
    lender.replace(*LAST, np.zeros((1, 2, 64, 16), np.float32), location=ELSEWHERE)
    refusal = RebindRefusal(RebindReason.RESIDENCY_DIFFERS, *LAST, baked=HERE, incoming=ELSEWHERE)
    return Case(lender, refusal, "refuse_storage", reference([*OTHER, NEXT]))


def missing_slot(plan: Plan, reference: Reference) -> Case:
    lender = Lender.copy_of(filled(plan, OTHER))
    lender.slots[LAST] = None
    refusal = RebindRefusal(RebindReason.MISSING_SLOT, *LAST)
    return Case(lender, refusal, "refuse_presence", reference([*OTHER, NEXT]))


def _case_of(which: str, make: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, dict]]) -> Maker:
    """STORAGE_DIFFERS at the last slot: ``make(key, value)`` gives its buffer and how it is declared."""

    def case(plan: Plan, reference: Reference) -> Case:
        cache = filled(plan, OTHER)
        lender = Lender.copy_of(cache)
        baked = plan.open().cache
        assert baked is not None
        storage = baked.slot_storage(*LAST)
        assert storage is not None
        array, declared = make(cache.host_array(1, "key").copy(), cache.host_array(1, "value").copy())
        lender.replace(*LAST, array, **declared)
        offered = lender.slots[LAST]
        assert offered is not None
        refusal = RebindRefusal(
            RebindReason.STORAGE_DIFFERS, *LAST, baked=storage.fingerprint(), incoming=offered.fingerprint()
        )
        return Case(lender, refusal, "refuse_storage", reference([*OTHER, NEXT]))

    case.__name__ = which
    return case


def _bundle(key: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, dict]:
    both = np.concatenate([key, value], axis=2)[:, :, ::2].copy()  # K and V positions in one buffer
    return both, {"bundled": True}


def shared_buffer(plan: Plan, reference: Reference) -> Case:
    lender = Lender.copy_of(filled(plan, OTHER))
    lender.slots[LAST] = lender.slots[1, "key"]
    refusal = RebindRefusal(
        RebindReason.STORAGE_DIFFERS, *LAST, baked="memory of its own", incoming="memory of layer 1 key"
    )
    return Case(lender, refusal, "refuse_shared", reference([*OTHER, NEXT]))


CASES = [
    residency_unknown,
    residency_differs,
    slot_residency_unknown,
    slot_residency_differs,
    missing_slot,
    _case_of("other encoding", lambda k, v: (position_major(v), {"encoding": Encoding.BLOCK})),
    _case_of("bundled", _bundle),
    _case_of("other dtype", lambda k, v: (v.astype(np.float16), {})),
    _case_of("smaller extent", lambda k, v: (v[:, :, :32].copy(), {})),
    _case_of("equal bytes, other shape", lambda k, v: (v.reshape(1, 4, 32, 16).copy(), {})),
    shared_buffer,
]


@pytest.mark.parametrize("make", CASES, ids=lambda m: m.__name__)
def test_refusal_names_the_reason_and_leaves_binding_identity_and_next_logits_alone(
    tiny_plan: Plan, session: DecodeSession, reference: Reference, make: Maker
) -> None:
    case = make(tiny_plan, reference)
    assert isinstance(case.source, KvRebindSource)
    cache = session.cache
    assert cache is not None
    twin = tiny_plan.open(cache.fork())
    bound, alloc, counters = bound_tensors(session), cache.alloc_id(), session.counters.snapshot()
    assert session.rebind_kv(case.source, length=len(OTHER)) == case.refusal
    assert all(a is b for a, b in zip(bound_tensors(session), bound, strict=True))
    assert session.cache is cache
    assert cache.alloc_id() == alloc
    assert session.counters == counters
    assert np.array_equal(session.realize_token(NEXT), twin.realize_token(NEXT))
    assert case.refusal.reason.value in str(case.refusal)


@pytest.mark.parametrize("make", CASES, ids=lambda m: m.__name__)
def test_without_its_guard_each_refused_source_is_served_wrongly(
    tiny_plan: Plan, session: DecodeSession, reference: Reference, make: Maker, monkeypatch
) -> None:
    case = make(tiny_plan, reference)
    reached: list[object] = []
    guard = getattr(rebind, case.guard)

    def blind(*arguments: object) -> None:
        reached.append(guard(*arguments))

    monkeypatch.setattr(rebind, case.guard, blind)
    if make is missing_slot:  # nothing to bind there: what was bound before stays
        kv = dict(session._kv)
        bind = session._step.rebind_kv
        monkeypatch.setattr(type(session._step), "rebind_kv", lambda _, found: bind({**kv, **found}))
    assert session.rebind_kv(case.source, length=len(OTHER)) is None
    assert case.refusal in reached
    try:
        wrong = session.realize_token(NEXT)
        moved = distance(wrong, case.truth)
        if make.__name__ == "smaller extent":  # right for as long as the tokens fit, then not at all
            with pytest.raises(PlanError):
                decode(session, [1] * 40)
            return
    except PlanError:
        return
    assert moved > WRONG


def test_source_of_a_deeper_model_is_refused_and_would_be_served_wrongly(
    tiny_plan: Plan, session: DecodeSession, tmp_path: Path, monkeypatch
) -> None:
    deep = Tiny(head_dims=(16, 16, 16))
    lender = Lender.copy_of(filled(Plan.load(build(tmp_path / "deep", deep), threads=1), OTHER))
    refusal = RebindRefusal(RebindReason.UNBAKED_SLOT, 2, "key")
    assert session.rebind_kv(lender, length=len(OTHER)) == refusal
    monkeypatch.setattr(rebind, "refuse_presence", lambda *a: None)
    assert session.rebind_kv(lender, length=len(OTHER)) is None
    assert distance(session.realize_token(NEXT), Reference(deep)([*OTHER, NEXT])) > WRONG


def test_cache_filled_by_another_model_is_refused_and_would_be_served_wrongly(
    tiny_plan: Plan, session: DecodeSession, tmp_path: Path
) -> None:
    other = Tiny(seed=1)
    plan = Plan.load(build(tmp_path / "other", other), threads=1)
    cache = filled(plan, OTHER)
    bound = bound_tensors(session)
    refusal = session.rebind_kv(cache)
    assert refusal == RebindRefusal(
        RebindReason.OTHER_MODEL, baked=tiny_plan.shape_key, incoming=plan.shape_key
    )
    assert bound_tensors(session) == bound
    cache.state.shape_key = None  # the control: nobody remembers who filled it
    assert session.rebind_kv(cache) is None
    wrong = session.realize_token(NEXT)
    assert distance(wrong, Reference(other)([*OTHER, NEXT])) > WRONG
    assert distance(wrong, Reference(Tiny())([*OTHER, NEXT])) > WRONG


def test_empty_cache_of_another_model_may_change_hands(session: DecodeSession, tmp_path: Path) -> None:
    cache = Plan.load(build(tmp_path / "other", Tiny(seed=1)), threads=1).new_cache()
    assert session.rebind_kv(cache) is None
    assert distance(session.realize_token(NEXT), Reference(Tiny())([NEXT])) < CLOSE


def _in_thread(lock) -> tuple[threading.Thread, threading.Event]:
    """Another thread holds ``lock`` until the event is set."""
    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            release.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(10)
    return thread, release


@pytest.mark.parametrize("whose", ["session", "cache", "storage"])
def test_a_lock_that_is_taken_is_busy_and_nothing_waits_or_changes(
    tiny_plan: Plan, session: DecodeSession, whose: str
) -> None:
    cache = filled(tiny_plan, OTHER)
    lender = Lender.copy_of(cache)
    last = lender.slots[LAST]
    assert last is not None
    lock = {"session": session._lock, "cache": cache.state.lock, "storage": last.guard}[whose]
    source = lender if whose == "storage" else cache
    bound = bound_tensors(session)
    thread, release = _in_thread(lock)
    refused = session.rebind_kv(source, length=len(OTHER))
    assert bound_tensors(session) == bound
    release.set()
    thread.join()
    assert refused == RebindRefusal(RebindReason.BUSY)
    assert session.rebind_kv(source, length=len(OTHER)) is None


class Swapping(Lender):
    """Its owner swaps the buffers for another request's while they are being collected."""

    def __init__(self, first: Lender, second: Lender, honest: bool) -> None:
        super().__init__({})
        self._asked, self._first, self._second, self._honest = 0, first, second, honest

    def alloc_id(self):
        return self._second.id if self._honest and self._asked > 2 else self._first.id

    def rebind_slot(self, layer: int, which: str) -> Storage | None:
        self._asked += 1
        return (self._first if self._asked <= 2 else self._second).rebind_slot(layer, which)


def test_buffers_swapped_between_proof_and_lock_are_busy_and_would_mix_two_requests(
    tiny_plan: Plan, session: DecodeSession, reference: Reference
) -> None:
    def swapping(honest: bool) -> Swapping:
        lenders = [Lender.copy_of(filled(tiny_plan, t)) for t in (OTHER, OTHER[::-1])]
        return Swapping(lenders[0], lenders[1], honest)

    bound = bound_tensors(session)
    assert session.rebind_kv(swapping(True), length=len(OTHER)) == RebindRefusal(RebindReason.BUSY)
    assert bound_tensors(session) == bound
    assert (
        session.rebind_kv(swapping(False), length=len(OTHER)) is None
    )  # the control: an id that does not move
    got = session.realize_token(NEXT)
    assert distance(got, reference([*OTHER, NEXT])) > WRONG
    assert distance(got, reference([*OTHER[::-1], NEXT])) > WRONG


def test_a_source_that_would_have_to_wait_is_busy(tiny_plan: Plan, session: DecodeSession) -> None:
    lender = Lender.copy_of(filled(tiny_plan, OTHER))
    lender.busy = True
    assert session.rebind_kv(lender) == RebindRefusal(RebindReason.BUSY)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float16"},
        {"encoding": Encoding.INT8_QUANTISED},
        {"encoding": Encoding.BLOCK},
        {"bundled": True},
        {"backend": "cuda"},
        {"nbytes": 1},
        {"shape": (1, 4, 32, 16)},
    ],
    ids=lambda c: "-".join(f"{k}" for k in c),
)
def test_each_part_of_the_fingerprint_alone_makes_storage_differ(
    tiny_plan: Plan, session: DecodeSession, change: dict
) -> None:
    lender = Lender.copy_of(filled(tiny_plan, OTHER))
    last = lender.slots[LAST]
    assert last is not None
    mine = last.fingerprint()
    fields = {name: getattr(mine, name) for name in StorageFingerprint.__dataclass_fields__}
    last._fingerprint = StorageFingerprint(**{**fields, **change})
    refusal = session.rebind_kv(lender, length=len(OTHER))
    assert refusal == RebindRefusal(
        RebindReason.STORAGE_DIFFERS, *LAST, baked=mine, incoming=last.fingerprint()
    )


def test_session_over_callers_storage_cannot_be_rebound_nor_can_a_session_take_it(
    tiny_plan: Plan, session: DecodeSession
) -> None:
    caller = tiny_plan.new_cache()
    arrays = [np.zeros((1, 2, 64, 16), np.float32) for _ in range(4)]
    caller.set_layer(0, arrays[0], arrays[1])
    caller.set_layer(1, arrays[2], arrays[3])
    unknown = RebindRefusal(RebindReason.RESIDENCY_UNKNOWN)
    assert session.rebind_kv(caller) == unknown
    assert tiny_plan.open(caller).rebind_kv(tiny_plan.new_cache()) == unknown


def test_cleared_cache_is_refused_by_its_residency(tiny_plan: Plan, session: DecodeSession) -> None:
    cache = tiny_plan.new_cache()
    cache.clear()
    assert session.rebind_kv(cache) == RebindRefusal(RebindReason.RESIDENCY_UNKNOWN)


def test_length_beyond_the_capacity_is_an_error_and_changes_nothing(
    tiny_plan: Plan, session: DecodeSession
) -> None:
    lender = Lender.copy_of(filled(tiny_plan, OTHER))
    bound = bound_tensors(session)
    for length in (-1, 65):
        with pytest.raises(CapacityExceeded):
            session.rebind_kv(lender, length=length)
    assert bound_tensors(session) == bound
    assert session.position == len(PROMPT)


@pytest.mark.parametrize("kind", ["KvCache", "third party"])
def test_rebound_sessions_next_64_tokens_are_a_fresh_sessions_bit_for_bit(tmp_path: Path, kind: str) -> None:
    plan = Plan.load(build(tmp_path / "plan", Tiny(max_seq_len=128)), threads=1)
    session = plan.open(filled(plan, PROMPT))
    session.prefill([1, 2, 3], chunk=2)  # holds prefill bindings over the first cache
    target = filled(plan, OTHER)
    fresh = plan.open(target.fork())
    source = target if kind == "KvCache" else Lender.copy_of(target)
    made, sessions = session.counters.bindings_made, process_counters().ort_sessions
    assert session.rebind_kv(source, length=len(OTHER)) is None
    assert session.counters.bindings_made == made
    assert process_counters().ort_sessions == sessions
    assert session.position == len(OTHER)
    for token in [NEXT, *greedy(plan.open(target.fork()), NEXT, 63)]:
        assert np.array_equal(session.realize_token(token), fresh.realize_token(token))
    more = [9, 8, 7, 6]
    assert np.array_equal(session.prefill(more, chunk=2), fresh.prefill(more, chunk=2))


def test_rebinding_back_and_forth_serves_each_its_own(tiny_plan: Plan, reference: Reference) -> None:
    caches = [filled(tiny_plan, PROMPT), filled(tiny_plan, OTHER)]
    histories = [list(PROMPT), list(OTHER)]
    session = tiny_plan.open(caches[0])
    for i in range(12):
        assert session.rebind_kv(caches[i % 2]) is None
        histories[i % 2].append(i)
        assert distance(session.realize_token(i), reference(histories[i % 2])) < CLOSE


def test_memory_lent_by_a_cache_stays_that_caches(tiny_plan: Plan, session: DecodeSession) -> None:
    """A third party may wrap a cache's buffers: the cache must then see what is decoded into them."""
    cache = filled(tiny_plan, OTHER)
    slots = {}
    for layer in range(2):
        for which in ("key", "value"):
            storage = cache.slot_storage(layer, which)
            assert storage is not None
            slots[layer, which] = Storage(storage.tensor, location=HERE)  # a wrapper that forgets the owner
    lender = Lender(slots)
    assert not cache.host_array(0, "key")[:, :, len(OTHER)].any()
    assert session.rebind_kv(lender, length=len(OTHER)) is None
    session.realize_token(NEXT)
    assert cache.host_array(0, "key")[:, :, len(OTHER)].any()  # stale, were the versions not raised
    cache.write_host(0, "key", 0, np.zeros((1, 2, len(OTHER), 16), np.float32))
    before = session.counters.uploads
    session.realize_token(NEXT)
    assert session.counters.uploads == before + 1
    thread, release = _in_thread(cache.state.lock)
    finished = threading.Event()
    worker = threading.Thread(target=lambda: (session.realize_token(NEXT), finished.set()))
    worker.start()
    assert not finished.wait(0.05)  # the owner's lock is respected
    release.set()
    thread.join()
    worker.join(10)
    assert finished.is_set()


def test_third_partys_lock_is_held_while_its_buffers_are_decoded_into(
    tiny_plan: Plan, session: DecodeSession
) -> None:
    lender = Lender.copy_of(filled(tiny_plan, OTHER))
    assert session.rebind_kv(lender, length=len(OTHER)) is None
    for storage in lender.slots.values():
        assert storage is not None
        thread, release = _in_thread(storage.guard)
        finished = threading.Event()
        worker = threading.Thread(target=lambda to=finished: (session.realize_token(NEXT), to.set()))
        worker.start()
        assert not finished.wait(0.05)
        release.set()
        thread.join()
        worker.join(10)
        assert finished.is_set()


def test_guards_are_taken_all_or_none() -> None:
    locks = [threading.RLock() for _ in range(3)]
    guards = Guards([*locks, locks[0]])
    thread, release = _in_thread(guards._locks[1])
    assert not guards.acquire(blocking=False)
    for lock in (guards._locks[0], guards._locks[2]):
        other, done = _in_thread(lock)  # another thread can take it
        done.set()
        other.join()
    release.set()
    thread.join()
    with guards:
        pass
    assert guards.acquire(blocking=False)


def test_one_buffer_cannot_be_installed_in_two_caches(tiny_plan: Plan) -> None:
    from planonce.runtime.errors import LayoutError

    first, second = tiny_plan.new_cache(), tiny_plan.new_cache()
    layer = first.layer(0)
    assert layer is not None
    with pytest.raises(LayoutError, match="another cache"):
        second.set_layer(0, layer[0].tensor, layer[1].tensor)
    mine = second.layer(0)
    assert mine is not None
    second.set_layer(0, mine[0].tensor, mine[1].tensor)  # its own it may keep
    whole = np.zeros((2, 2, 64, 16), np.float32)
    with pytest.raises(LayoutError, match="share"):
        second.set_layer(0, Tensor.over(whole[:1]), Tensor.over(whole[:1]))
    flat = whole.reshape(-1)
    half = flat.size // 4
    halves = [flat[i : i + flat.size // 2].reshape(1, 2, 64, 16) for i in (0, half)]
    with pytest.raises(LayoutError, match="share"):  # in part is enough
        second.set_layer(0, Tensor.over(halves[0]), Tensor.over(halves[1]))
    grown = KvCache.with_dims(1, 2, 16)
    grown.set_layer(0, Tensor.over(whole[:1]), Tensor.over(whole[1:]))


@pytest.mark.bench
def test_rebinding_thirty_layers_takes_under_1500_us(tmp_path: Path) -> None:
    import time

    path = build(tmp_path / "plan", Tiny(head_dims=(16,) * 30))
    began = time.perf_counter()
    plan = Plan.load(path, threads=1)
    load = time.perf_counter() - began
    session, caches = plan.open(), [plan.new_cache() for _ in range(2)]
    times = []
    for i in range(200):
        began = time.perf_counter()
        assert session.rebind_kv(caches[i % 2]) is None
        times.append(time.perf_counter() - began)
    median = sorted(times)[100]
    print(f"re-bind of 30 layers: {median * 1e6:.0f} us; load {load * 1e3:.0f} ms")
    assert median < 1.5e-3
