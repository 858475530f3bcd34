"""P18: one function in a loop reuses, re-binds or rebuilds, says which, and never serves stale KV."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from handmade_plan import Tiny, build
from kv_support import CLOSE, OTHER, PROMPT, Reference, distance, filled

from planonce.runtime import (
    ForwardPath,
    InferenceContext,
    KvCache,
    Plan,
    RebindReason,
    RebindRefusal,
    forward_decode_step,
    process_counters,
)
from planonce.runtime.errors import CapacityExceeded, LayoutError, RequestError


@pytest.fixture
def context() -> InferenceContext:
    return InferenceContext()


@pytest.fixture(scope="module")
def reference(tiny: Tiny) -> Reference:
    return Reference(tiny)


def test_callers_loop_builds_once_and_then_reuses(
    tiny_plan: Plan, context: InferenceContext, reference: Reference
) -> None:
    cache = tiny_plan.new_cache()
    step = forward_decode_step(tiny_plan, PROMPT, cache, context)
    assert (step.path, step.refusal) == (ForwardPath.REBUILT, None)
    history = list(PROMPT)
    before = None
    for _ in range(20):
        token = int(step.logits.argmax())
        step = forward_decode_step(tiny_plan, token, cache, context)
        history.append(token)
        assert step.path is ForwardPath.REUSED
        assert distance(step.logits, reference(history)) < CLOSE
        session = context.take_session()
        assert session is not None
        context.put_session(session)
        made = (session.counters.bindings_made, session.counters.bind_calls, process_counters().ort_sessions)
        assert before in (None, made)
        before = made


def test_swapped_cache_is_rebound_and_each_gets_its_own(
    tiny_plan: Plan, context: InferenceContext, reference: Reference
) -> None:
    caches = [filled(tiny_plan, PROMPT), filled(tiny_plan, OTHER)]
    histories = [list(PROMPT), list(OTHER)]
    paths = []
    for i, which in enumerate([0, 0, 1, 0, 1, 1]):
        step = forward_decode_step(tiny_plan, np.array([i]), caches[which], context)
        histories[which].append(i)
        paths.append(step.path.value)
        assert distance(step.logits, reference(histories[which])) < CLOSE
    assert paths == ["rebuilt", "reused", "rebound", "rebound", "rebound", "reused"]


def test_what_cannot_be_rebound_is_rebuilt_with_the_reason(
    tiny_plan: Plan, context: InferenceContext, reference: Reference
) -> None:
    forward_decode_step(tiny_plan, PROMPT, tiny_plan.new_cache(), context)
    donor, caller = filled(tiny_plan, OTHER), tiny_plan.new_cache()
    for layer in range(2):
        caller.set_layer(layer, donor.host_array(layer, "key"), donor.host_array(layer, "value"))
    caller.extend_to(len(OTHER))
    step = forward_decode_step(tiny_plan, 4, caller, context)
    assert step.path is ForwardPath.REBUILT
    assert step.refusal == RebindRefusal(RebindReason.RESIDENCY_UNKNOWN)
    assert distance(step.logits, reference([*OTHER, 4])) < CLOSE
    assert forward_decode_step(tiny_plan, 4, caller, context).path is ForwardPath.REUSED
    smaller = tiny_plan.new_cache(32)  # another structure: a re-bind is not even tried
    step = forward_decode_step(tiny_plan, OTHER, smaller, context)
    assert (step.path, step.refusal) == (ForwardPath.REBUILT, None)
    assert distance(step.logits, reference(OTHER)) < CLOSE


def test_cleared_and_refilled_cache_is_not_served_from_the_old_buffers(
    tiny_plan: Plan, context: InferenceContext, reference: Reference
) -> None:
    cache, donor = tiny_plan.new_cache(), filled(tiny_plan, OTHER)
    forward_decode_step(tiny_plan, PROMPT, cache, context)
    cache.clear()
    for layer in range(2):
        arrays = donor.host_array(layer, "key"), donor.host_array(layer, "value")
        cache.set_layer(layer, *arrays, length=layer * len(OTHER))
    step = forward_decode_step(tiny_plan, 7, cache, context)
    assert step.path is ForwardPath.REBUILT
    assert distance(step.logits, reference([*OTHER, 7])) < CLOSE


def test_other_plan_is_rebuilt_even_when_the_cache_would_fit(
    tiny_plan: Plan, tiny_plan_dir: Path, context: InferenceContext, tmp_path: Path
) -> None:
    forward_decode_step(tiny_plan, PROMPT, tiny_plan.new_cache(), context)
    other = Plan.load(build(tmp_path / "other", Tiny(seed=1)), threads=1)
    step = forward_decode_step(other, OTHER, other.new_cache(), context)
    assert step.path is ForwardPath.REBUILT
    assert distance(step.logits, Reference(Tiny(seed=1))(OTHER)) < CLOSE
    twice = Plan.load(tiny_plan_dir, threads=1)
    cache = tiny_plan.new_cache()
    forward_decode_step(tiny_plan, PROMPT, cache, context)
    assert forward_decode_step(twice, 1, cache, context).path is ForwardPath.REBUILT


def test_refused_request_leaves_the_held_session_held(
    tiny_plan: Plan, context: InferenceContext, tmp_path: Path
) -> None:
    cache = tiny_plan.new_cache()
    forward_decode_step(tiny_plan, PROMPT, cache, context)
    other = filled(Plan.load(build(tmp_path / "other", Tiny(seed=1)), threads=1), OTHER)
    with pytest.raises(LayoutError, match="another model"):
        forward_decode_step(tiny_plan, 1, other, context)
    assert context.has_session()
    with pytest.raises(LayoutError, match="another device"):
        forward_decode_step(tiny_plan, 1, KvCache.with_capacity(2, 2, 16, 64, device="cpu:1"), context)
    for bad in (97, -1, [], [1, 97], "a"):
        with pytest.raises(RequestError):
            forward_decode_step(tiny_plan, bad, cache, context)  # type: ignore[arg-type]
    with pytest.raises(CapacityExceeded):
        forward_decode_step(tiny_plan, [1] * 60, cache, context)
    assert context.has_session()
    assert cache.length == len(PROMPT)
    assert forward_decode_step(tiny_plan, 1, cache, context).path is ForwardPath.REUSED


def test_cache_that_another_thread_writes_is_waited_for_not_served_half_written(
    tiny_plan: Plan, context: InferenceContext, reference: Reference
) -> None:
    forward_decode_step(tiny_plan, PROMPT, tiny_plan.new_cache(), context)
    cache, donor = tiny_plan.new_cache(), filled(tiny_plan, OTHER)
    taken = threading.Event()

    def write() -> None:
        with cache.state.lock:
            taken.set()
            threading.Event().wait(0.05)
            cache.import_(donor.export())

    writer = threading.Thread(target=write)
    writer.start()
    assert taken.wait(5)
    step = forward_decode_step(tiny_plan, 3, cache, context)
    writer.join()
    assert step.path is ForwardPath.REBOUND
    assert distance(step.logits, reference([*OTHER, 3])) < CLOSE


def test_cache_spread_over_devices_is_rebound_slot_by_slot(
    tmp_path: Path, context: InferenceContext, reference: Reference
) -> None:
    plan = Plan.load(build(tmp_path / "plan", Tiny(split=1)), threads=1)
    forward_decode_step(plan, PROMPT, plan.new_cache(), context)
    other = plan.new_cache()
    assert other.device_location is None
    for path, tokens, history in (
        (ForwardPath.REBOUND, OTHER, OTHER),
        (ForwardPath.REUSED, [1], [*OTHER, 1]),
    ):
        step = forward_decode_step(plan, tokens, other, context)
        assert step.path is path
        assert distance(step.logits, reference(history)) < CLOSE
