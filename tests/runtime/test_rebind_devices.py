"""P6: residency is proved slot by slot on a plan over two devices, and refused with both locations."""

from __future__ import annotations

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
    distance,
    filled,
)

from planonce.runtime import DecodeSession, KvCache, Plan, RebindReason, RebindRefusal, rebind

NEXT = 23
SPLIT = Tiny(head_dims=(16, 16), split=1)


@pytest.fixture(scope="module")
def split_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return Plan.load(build(tmp_path_factory.mktemp("plans") / "split", SPLIT), threads=1)


@pytest.fixture
def session(split_plan: Plan) -> DecodeSession:
    return split_plan.open(filled(split_plan, PROMPT))


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(SPLIT)


def lent(cache: KvCache) -> Lender:
    """A third party's buffers, each where the plan wants it."""
    lender = Lender.copy_of(cache, location=None)
    for (layer, which), storage in list(lender.slots.items()):
        assert storage is not None and storage.tensor.host_array is not None
        lender.replace(layer, which, storage.tensor.host_array, location=ELSEWHERE if layer else HERE)
    return lender


def test_buffers_are_allocated_where_each_layer_runs(split_plan: Plan) -> None:
    cache = split_plan.new_cache(32)
    places = {
        (layer, which): cache.slot_storage(layer, which) for layer in (0, 1) for which in ("key", "value")
    }
    assert all(
        s is not None and s.location == (ELSEWHERE if layer else HERE) for (layer, _), s in places.items()
    )
    assert cache.device_location is None  # not one device, so none is claimed


def test_a_cache_over_the_same_devices_is_taken_and_decodes_as_a_fresh_session(
    split_plan: Plan, session: DecodeSession, reference: Reference
) -> None:
    cache = filled(split_plan, OTHER)
    fresh = split_plan.open(cache.fork()).realize_token(NEXT).copy()
    assert session.rebind_kv(cache) is None
    got = session.realize_token(NEXT)
    assert np.array_equal(got, fresh)
    assert distance(got, reference([*OTHER, NEXT])) < CLOSE
    assert session.rebind_kv(lent(filled(split_plan, PROMPT)), length=len(PROMPT)) is None
    assert distance(session.realize_token(NEXT), reference([*PROMPT, NEXT])) < CLOSE


@pytest.mark.parametrize(("layer", "baked", "incoming"), [(0, HERE, ELSEWHERE), (1, ELSEWHERE, HERE)])
def test_a_moved_layer_is_refused_with_both_locations_until_it_is_back(
    split_plan: Plan, session: DecodeSession, reference: Reference, layer: int, baked, incoming
) -> None:
    cache = filled(split_plan, OTHER)
    bound = bound_tensors(session)
    assert cache.move_to(incoming, [layer]) == 2
    refusal = RebindRefusal(RebindReason.RESIDENCY_DIFFERS, layer, "key", baked=baked, incoming=incoming)
    assert session.rebind_kv(cache) == refusal
    assert str(baked) in str(refusal) and str(incoming) in str(refusal)
    assert all(a is b for a, b in zip(bound_tensors(session), bound, strict=True))
    assert cache.move_home() == 2
    assert session.rebind_kv(cache) is None
    assert distance(session.realize_token(NEXT), reference([*OTHER, NEXT])) < CLOSE


def test_a_whole_cache_on_another_device_than_a_one_device_plan_is_refused(tiny_plan: Plan) -> None:
    session = tiny_plan.open(filled(tiny_plan, PROMPT))
    cache = filled(tiny_plan, OTHER)
    cache.move_to(ELSEWHERE)
    assert cache.device_location == ELSEWHERE
    refusal = RebindRefusal(RebindReason.RESIDENCY_DIFFERS, baked=HERE, incoming=ELSEWHERE)
    assert session.rebind_kv(cache) == refusal


def test_storage_of_unproven_residency_is_refused_at_its_slot(
    split_plan: Plan, session: DecodeSession
) -> None:
    cache = filled(split_plan, OTHER)
    cache.set_layer(1, cache.host_array(1, "key"), cache.host_array(1, "value"))
    assert session.rebind_kv(cache) == RebindRefusal(RebindReason.RESIDENCY_UNKNOWN, 1, "key")
    assert split_plan.open(cache).realize_token(NEXT) is not None  # opened anew, it may be used


@pytest.mark.parametrize("location", [HERE, None])
def test_without_the_guard_a_buffer_elsewhere_is_served_wrongly(
    split_plan: Plan, session: DecodeSession, reference: Reference, monkeypatch, location
) -> None:
    lender = lent(filled(split_plan, OTHER))
    # Elsewhere: what can be reached through this handle is not what the request's context is.
    lender.replace(1, "key", np.zeros((1, 2, 64, 16), np.float32), location=location)
    reason = RebindReason.RESIDENCY_UNKNOWN if location is None else RebindReason.RESIDENCY_DIFFERS
    refusal = session.rebind_kv(lender, length=len(OTHER))
    assert isinstance(refusal, RebindRefusal)
    assert (refusal.reason, refusal.layer, refusal.which) == (reason, 1, "key")
    reached = []
    guard = rebind.refuse_storage
    monkeypatch.setattr(rebind, "refuse_storage", lambda *a: reached.append(guard(*a)))
    assert session.rebind_kv(lender, length=len(OTHER)) is None
    assert refusal in reached
    assert distance(session.realize_token(NEXT), reference([*OTHER, NEXT])) > WRONG
