"""K8: a cache moves to the host and back with the plan held; no write is lost and no stale byte is read."""

from __future__ import annotations

import numpy as np
import pytest
from handmade_plan import Tiny, build
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_support import CLOSE, ELSEWHERE, HERE, OTHER, PROMPT, WRONG, Reference, distance, filled

from planonce.runtime import KvCache, Plan, RebindReason, StaleCache, process_counters
from planonce.runtime.errors import LayoutError

NEXT = [23, 4, 90]
AWAY = Tiny(split=0, second_device="cpu:1")  # both layers on cpu:1, the embedding on cpu:0
SHAPE = (1, 2, 1, 16)


@pytest.fixture(scope="module")
def away_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return Plan.load(build(tmp_path_factory.mktemp("plans") / "away", AWAY), threads=1)


@pytest.mark.parametrize("layers", [None, [1], [0]])
def test_moved_to_the_host_and_back_the_next_tokens_are_the_same(
    away_plan: Plan, layers: list[int] | None
) -> None:
    cache = filled(away_plan, PROMPT)
    stayed = away_plan.open(cache.fork())
    session = away_plan.open(cache)
    sessions_made = process_counters().ort_sessions
    assert cache.device_location == ELSEWHERE
    assert cache.move_to(HERE, layers) == (4 if layers is None else 2)
    assert cache.device_location == (HERE if layers is None else None)
    assert cache.length == len(PROMPT)
    # Meanwhile the held session decodes another request.
    other = filled(away_plan, OTHER)
    assert session.rebind_kv(other) is None
    assert distance(session.realize_token(NEXT[0]), Reference(AWAY)([*OTHER, NEXT[0]])) < CLOSE
    cache.move_home(layers)
    assert cache.device_location == ELSEWHERE
    assert session.rebind_kv(cache) is None
    for token in NEXT:
        assert np.array_equal(session.realize_token(token), stayed.realize_token(token))
    assert process_counters().ort_sessions == sessions_made, "the plan was not held"


def test_a_session_refuses_its_cache_while_it_is_away(away_plan: Plan) -> None:
    cache = filled(away_plan, PROMPT)
    session = away_plan.open(cache)
    cache.move_to(HERE)
    with pytest.raises(StaleCache):
        session.realize_token(NEXT[0])
    refused = session.rebind_kv(cache)
    assert refused is not None and refused.reason is RebindReason.RESIDENCY_DIFFERS
    assert (refused.baked, refused.incoming) == (ELSEWHERE, HERE)
    cache.move_home()
    with pytest.raises(StaleCache):  # back, but in another buffer: only a re-bind sees it
        session.realize_token(NEXT[0])
    assert session.rebind_kv(cache) is None


def test_without_a_new_allocation_the_session_would_decode_what_was_left_behind(away_plan: Plan) -> None:
    cache = filled(away_plan, PROMPT)
    session = away_plan.open(cache)
    before = cache.alloc_id()
    cache.move_to(HERE)
    for layer in (0, 1):  # another context's bytes, written while it is away
        cache.write_bytes(layer, "value", 0, 4, np.ones((1, 2, 4, 16), np.float32).tobytes())
    cache.move_home()
    truth = away_plan.open(cache.fork()).realize_token(NEXT[0]).copy()
    cache.state.alloc_id = before  # the control
    assert distance(session.realize_token(NEXT[0]), truth.astype(np.float64)) > WRONG


def test_moving_what_is_there_already_changes_nothing(away_plan: Plan) -> None:
    cache = filled(away_plan, PROMPT)
    alloc, storage = cache.alloc_id(), cache.slot_storage(0, "key")
    assert cache.move_to(ELSEWHERE) == 0 and cache.move_home() == 0
    assert cache.alloc_id() == alloc and cache.slot_storage(0, "key") is storage


@pytest.mark.parametrize(
    ("device", "layers"), [("cpu:7", None), ("npu:0", None), (HERE, [0, 2]), (HERE, [-1])]
)
def test_a_move_that_cannot_be_made_leaves_everything_where_it_is(away_plan: Plan, device, layers) -> None:
    cache = filled(away_plan, PROMPT)
    alloc = cache.alloc_id()
    with pytest.raises(LayoutError):
        cache.move_to(device, layers)
    assert cache.alloc_id() == alloc and cache.device_location == ELSEWHERE


def test_no_memory_half_way_leaves_every_slot_where_it_is(away_plan: Plan, monkeypatch) -> None:
    from planonce.runtime import kv_move

    cache = filled(away_plan, PROMPT)
    alloc, bytes_before = cache.alloc_id(), cache.export()
    empty, calls = kv_move.Storage.empty, []

    def failing(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 3:
            raise MemoryError
        return empty(*arguments)

    monkeypatch.setattr(kv_move.Storage, "empty", staticmethod(failing))
    with pytest.raises(MemoryError):
        cache.move_to(HERE)
    assert (cache.alloc_id(), cache.device_location) == (alloc, ELSEWHERE)
    assert cache.export() == bytes_before


def test_a_host_edit_not_yet_sent_moves_along(away_plan: Plan) -> None:
    cache = filled(away_plan, PROMPT)
    cache.write_host(0, "key", 2, np.full(SHAPE, 7, np.float32))
    version = cache.version(0, "key")
    cache.move_to(HERE)
    assert (cache.read_positions(0, "key", 2, 1) == 7).all()
    after = cache.version(0, "key")
    assert version is not None and after is not None and after > version


class Offload(RuleBasedStateMachine):
    """A cache that moves about, against one that never moves and gets the same tokens and writes."""

    plan: Plan

    @initialize()
    def start(self) -> None:
        self.cache: KvCache = self.plan.new_cache(24)
        self.truth: KvCache = self.plan.new_cache(24)
        self.session = self.plan.open(self.cache)
        self.twin = self.plan.open(self.truth)

    @rule(layers=st.sampled_from([None, [0], [1], [0, 1]]), device=st.sampled_from([HERE, ELSEWHERE]))
    def move(self, layers: list[int] | None, device) -> None:
        self.cache.move_to(device, layers)

    @precondition(lambda self: self.cache.length < self.cache.capacity)
    @rule(token=st.integers(0, 96))
    def decode(self, token: int) -> None:
        try:
            got = self.session.realize_token(token)
        except StaleCache:
            self.cache.move_home()
            assert self.session.rebind_kv(self.cache) is None
            got = self.session.realize_token(token)
        assert np.array_equal(got, self.twin.realize_token(token))

    @precondition(lambda self: self.cache.length > 0)
    @rule(data=st.data(), on_host=st.booleans(), layer=st.integers(0, 1), value=st.floats(-2, 2, width=16))
    def write(self, data, on_host: bool, layer: int, value: float) -> None:
        position = data.draw(st.integers(0, self.cache.length - 1))
        new = np.full(SHAPE, value, np.float32)
        for cache in (self.cache, self.truth):
            if on_host:
                cache.write_host(layer, "value", position, new)
            else:
                cache.write_bytes(layer, "value", position, 1, new.tobytes())

    @rule(n=st.integers(0, 24))
    def truncate(self, n: int) -> None:
        self.cache.truncate_to(n)
        self.truth.truncate_to(n)

    @invariant()
    def every_read_is_the_newest(self) -> None:
        if hasattr(self, "cache"):
            n = self.cache.length
            for layer in (0, 1):
                for which in ("key", "value"):
                    want = self.truth.read_positions(layer, which, 0, n)
                    assert np.array_equal(self.cache.read_positions(layer, which, 0, n), want)
                    assert np.array_equal(self.cache.host_array(layer, which)[:, :, :n], want)


def test_no_write_is_lost_and_no_read_is_stale_in_any_order_of_moves(away_plan: Plan) -> None:
    Offload.plan = away_plan
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Offload,
        settings=settings(
            max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
