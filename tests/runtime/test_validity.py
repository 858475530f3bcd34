"""P5, P14: one comparison list says whether a held session may serve a cache; nothing stale is served."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from handmade_plan import Tiny, build
from kv_support import CLOSE, OTHER, PROMPT, WRONG, Lender, Reference, distance, filled

from planonce.runtime import (
    InferenceContext,
    KvCache,
    Plan,
    PlanValidity,
    StaleCache,
    decode_session,
    forward_decode_step,
    local_devices,
    topology,
    validity,
)
from planonce.runtime.errors import LayoutError, PlanError, TopologyChanged
from planonce.runtime.kv_alloc_id import KvAllocId

KEY = validity.PlanKey(1, 64, 2, "float32", "a", KvAllocId(7))
CHANGES = {
    "sequence": 2,
    "max_seq_len": 63,
    "n_layers": 3,
    "cache_dtype": "float16",
    "shape_key": "b",
    "alloc_id": KvAllocId(8),
}


def test_every_part_of_the_key_flips_validity_alone() -> None:
    assert {f.name for f in fields(validity.PlanKey)} == set(CHANGES)
    assert validity.compare(KEY, KEY) is PlanValidity.VALID
    for name, value in CHANGES.items():
        expected = PlanValidity.ALLOCATION_CHANGED if name == "alloc_id" else PlanValidity.STALE
        assert validity.compare(KEY, replace(KEY, **{name: value})) is expected
    for name in CHANGES:  # structure is asked before allocation
        if name != "alloc_id":
            both = replace(KEY, alloc_id=KvAllocId(8), **{name: CHANGES[name]})
            assert validity.compare(KEY, both) is PlanValidity.STALE


def test_validity_of_real_caches(tiny_plan: Plan, tmp_path: Path) -> None:
    session = tiny_plan.open()
    cache = session.cache
    assert cache is not None
    other_model = filled(Plan.load(build(tmp_path / "other", Tiny(seed=1)), threads=1), OTHER)
    cases = [
        (cache, {}, PlanValidity.VALID),
        (cache, {"sequence": 2}, PlanValidity.STALE),
        (cache, {"shape_key": "another"}, PlanValidity.STALE),
        (tiny_plan.new_cache(), {}, PlanValidity.ALLOCATION_CHANGED),
        (tiny_plan.new_cache(32), {}, PlanValidity.STALE),
        (KvCache.with_capacity(3, 2, 16, 64), {}, PlanValidity.STALE),
        (KvCache.with_capacity(2, 2, 16, 64, "float16"), {}, PlanValidity.STALE),
        (KvCache.with_dims(2, 2, 16), {}, PlanValidity.STALE),
        (other_model, {}, PlanValidity.STALE),
    ]
    for asked, options, expected in cases:
        assert session.validity_for(asked, **options) is expected
        assert session.is_valid_for(asked, **options) is (expected is PlanValidity.VALID)


@pytest.mark.parametrize("change", ["clear", "set_layer"])
def test_changed_buffers_are_never_served_and_would_be_without_the_guard(
    tiny_plan: Plan, tiny: Tiny, change: str, monkeypatch
) -> None:
    cache = filled(tiny_plan, PROMPT)
    donor = filled(tiny_plan, OTHER)
    session = tiny_plan.open(cache)

    def install() -> None:
        if change == "clear":
            cache.clear()
        for layer in range(2):
            arrays = (donor.host_array(layer, "key"), donor.host_array(layer, "value"))
            cache.set_layer(layer, *arrays, length=len(OTHER) if layer else 0)

    install()
    truth = Reference(tiny)([*OTHER, 9])
    with pytest.raises(StaleCache):
        session.realize_token(9)
    with pytest.raises(StaleCache):
        session.prefill([9, 9])
    assert cache.length == len(OTHER)
    assert session.validity_for(cache) is PlanValidity.ALLOCATION_CHANGED
    assert distance(tiny_plan.open(cache).realize_token(9), truth) < CLOSE
    cache.truncate_to(len(OTHER))
    monkeypatch.setattr(decode_session.DecodeSession, "_check_unchanged", lambda self: None)
    assert distance(session.realize_token(9), truth) > WRONG


def test_partly_replaced_cache_is_refused_by_held_and_new_sessions(tiny_plan: Plan) -> None:
    cache = filled(tiny_plan, PROMPT)
    session = tiny_plan.open(cache)
    cache.clear()
    array = np.zeros((1, 2, 64, 16), np.float32)
    cache.set_layer(0, array, array, length=0)
    with pytest.raises(StaleCache):
        session.realize_token(1)
    with pytest.raises(LayoutError, match="lacks a slot"):
        tiny_plan.open(cache)


def test_cache_handed_to_another_model_is_refused_by_the_first(tiny_plan: Plan, tmp_path: Path) -> None:
    other = Plan.load(build(tmp_path / "other", Tiny(seed=1)), threads=1)
    cache = filled(tiny_plan, PROMPT)
    first = tiny_plan.open(cache)
    with pytest.raises(LayoutError, match="another model"):
        other.open(cache)
    cache.truncate_to(0)
    second = other.open(cache)
    second.realize_token(5)
    with pytest.raises(LayoutError, match="another model"):
        first.realize_token(6)
    cache.truncate_to(0)
    assert distance(first.realize_token(6), Reference(Tiny())([6])) < CLOSE
    with pytest.raises(LayoutError, match="another model"):
        second.realize_token(6)


def test_a_third_partys_buffers_that_changed_are_stale(tiny_plan: Plan) -> None:
    session = tiny_plan.open()
    lender = Lender.copy_of(filled(tiny_plan, OTHER))
    assert session.rebind_kv(lender, length=len(OTHER)) is None
    session.realize_token(1)
    lender.id = KvAllocId(lender.id + 1_000_000)
    with pytest.raises(StaleCache):
        session.realize_token(1)


def test_comparison_that_always_agrees_serves_another_requests_context(
    tiny_plan: Plan, tiny: Tiny, monkeypatch
) -> None:
    """The mutation that must not survive: were the list always to agree, the wrong context is served."""
    context = InferenceContext()
    forward_decode_step(tiny_plan, PROMPT, tiny_plan.new_cache(), context)
    truth = Reference(tiny)([*OTHER, 4])
    right = forward_decode_step(tiny_plan, 4, filled(tiny_plan, OTHER), context)
    assert distance(right.logits, truth) < CLOSE
    monkeypatch.setattr(decode_session, "compare", lambda held, asked: PlanValidity.VALID)
    other = filled(tiny_plan, OTHER[::-1])
    wrong = forward_decode_step(tiny_plan, 4, other, context)
    assert distance(wrong.logits, Reference(tiny)([*OTHER[::-1], 4])) > WRONG


# --- topology -----------------------------------------------------------------------------------------


def _fail() -> None:
    raise RuntimeError("device lost")


def test_lost_device_is_topology_changed_and_the_session_never_serves_again(
    tmp_path: Path, monkeypatch
) -> None:
    plan = Plan.load(build(tmp_path / "plan", Tiny(split=1)), threads=1)
    context = InferenceContext()
    cache = plan.new_cache()
    forward_decode_step(plan, PROMPT, cache, context)
    session = context.take_session()
    assert session is not None
    context.put_session(session)
    for step in (session._step, *session._prefills.values()):
        step._runs = (_fail,)
    with pytest.raises(PlanError, match="ONNX Runtime failed") as caught:  # the devices are all there
        forward_decode_step(plan, 1, cache, context)
    assert not isinstance(caught.value, TopologyChanged)
    assert context.has_session()
    monkeypatch.setattr(topology, "local_devices", lambda: local_devices()[:1])
    with pytest.raises(TopologyChanged, match="cpu:1"):
        forward_decode_step(plan, 1, cache, context)
    assert not context.has_session()
    assert cache.length == len(PROMPT)
    monkeypatch.undo()  # the device is back; what was on it is not
    for call in (lambda: session.realize_token(1), lambda: session.rebind_kv(plan.new_cache())):
        with pytest.raises(TopologyChanged):
            call()
    rebuilt = Plan.load(plan.directory, threads=1).open()
    assert distance(rebuilt.prefill(PROMPT)[-1], Reference(Tiny())(PROMPT)) < CLOSE


def test_lost_provider_is_topology_changed(tiny_plan_dir: Path, monkeypatch) -> None:
    monkeypatch.setattr(topology.ort, "available_providers", lambda: ("AzureExecutionProvider",))
    with pytest.raises(TopologyChanged, match="provider"):
        Plan.load(tiny_plan_dir)


# --- what a session may be opened over -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, 2, 16, 64), "slot that the plan does not"),
        ((1, 2, 16, 64), "lacks a slot"),
        ((2, 4, 16, 64), "does not fit"),
        ((2, 2, 8, 64), "does not fit"),
        ((2, 4, 8, 64), "does not fit"),
        ((2, 2, 16, 64, "float16"), "does not fit"),
        ((2, 2, 16, 65), "larger than the plan"),
        ((2, 2, 16, 64, "float32", "cpu:1"), "another device"),
    ],
    ids=lambda a: str(a),
)
def test_cache_of_another_geometry_cannot_be_opened(tiny_plan: Plan, arguments: tuple, text: str) -> None:
    with pytest.raises(LayoutError, match=text):
        tiny_plan.open(KvCache.with_capacity(*arguments))


def test_layers_of_different_extent_cannot_be_opened(tiny_plan: Plan) -> None:
    cache = KvCache.with_dims(2, 2, 16)
    for layer, extent in enumerate((32, 48)):
        array = np.zeros((1, 2, extent, 16), np.float32)
        cache.set_layer(layer, array, array, length=0)
    assert cache.capacity == 32
    with pytest.raises(LayoutError, match="does not fit"):
        tiny_plan.open(cache)
