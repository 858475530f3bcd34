"""K5, K6, K8 under a session: rewinding, poisoned tails, bytes written below a held binding, host reads."""

from __future__ import annotations

import numpy as np
import pytest
from handmade_plan import Tiny
from kv_support import CLOSE, OTHER, PROMPT, WRONG, Reference, decode, distance, filled

from planonce.runtime import Authority, DecodeSession, KvCache, Plan
from planonce.runtime.errors import CapacityExceeded, LayoutError, PlanError


@pytest.fixture(scope="module")
def reference(tiny: Tiny) -> Reference:
    return Reference(tiny)


def opened(plan: Plan, tokens: list[int]) -> tuple[DecodeSession, KvCache]:
    cache = filled(plan, tokens)
    return plan.open(cache), cache


REWINDS = {"0": 0, "1": 1, "middle": len(PROMPT) // 2, "current": len(PROMPT)}


@pytest.mark.parametrize("k", REWINDS.values(), ids=REWINDS.keys())
@pytest.mark.parametrize("how", ["decode", "prefill"])
def test_truncate_then_other_tokens_equals_never_having_fed_the_dropped_ones(
    tiny_plan: Plan, reference: Reference, k: int, how: str
) -> None:
    session, cache = opened(tiny_plan, PROMPT)
    never, _ = opened(tiny_plan, PROMPT[:k])
    alloc = cache.alloc_id()
    cache.truncate_to(k)
    assert session.position == k
    if how == "decode":
        got, expected = decode(session, OTHER), decode(never, OTHER)
    else:
        got, expected = (s.prefill(OTHER, chunk=3, num_logits=len(OTHER)) for s in (session, never))
    assert np.array_equal(got, expected)
    for i in range(len(OTHER)):
        assert distance(got[i], reference([*PROMPT[:k], *OTHER[: i + 1]])) < CLOSE
    assert cache.alloc_id() == alloc
    assert session.counters.rebinds == 0


@pytest.mark.parametrize("k", [0, 1, 5])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_poisoned_stale_tail_is_never_read(
    tiny_plan: Plan, reference: Reference, k: int, poison: float
) -> None:
    session, cache = opened(tiny_plan, PROMPT)
    cache.truncate_to(k)
    for slot in cache.geometry.slots:
        data = np.full((1, 2, 64 - k, 16), poison, np.float32).tobytes()
        cache.write_bytes(slot.layer, slot.which, k, 64 - k, data)
    history = [*PROMPT[:k], *OTHER]
    assert distance(session.prefill(OTHER, chunk=4)[-1], reference(history)) < CLOSE
    for token in (3, 66):
        history.append(token)
        assert distance(session.realize_token(token), reference(history)) < CLOSE


def test_poison_one_position_earlier_is_read(tiny_plan: Plan) -> None:
    """The control: the poison test can fail."""
    session, cache = opened(tiny_plan, PROMPT)
    cache.write_bytes(1, "value", 4, 1, np.full((1, 2, 1, 16), np.nan, np.float32).tobytes())
    assert not np.isfinite(session.realize_token(1)).all()


def test_refused_step_at_a_full_cache_leaves_everything(tiny_plan: Plan, reference: Reference) -> None:
    session = tiny_plan.open(capacity=8)
    session.prefill(PROMPT[:8])
    cache = session.cache
    assert cache is not None
    before = [cache.host_array(s.layer, s.which).copy() for s in cache.geometry.slots]
    with pytest.raises(CapacityExceeded):
        session.realize_token(1)
    for slot, array in zip(cache.geometry.slots, before, strict=True):
        assert np.array_equal(cache.host_array(slot.layer, slot.which), array)
    cache.truncate_to(7)
    assert distance(session.realize_token(5), reference([*PROMPT[:7], 5])) < CLOSE


# --- bytes written under a held session ---------------------------------------------------------------


def test_written_bytes_are_seen_on_the_next_token_without_a_rebind(
    tiny_plan: Plan, reference: Reference
) -> None:
    session, cache = opened(tiny_plan, PROMPT)
    donor = filled(tiny_plan, OTHER)
    n = len(OTHER)
    alloc, calls = cache.alloc_id(), session.counters.bind_calls
    for slot in cache.geometry.slots:
        data = donor.read_positions(slot.layer, slot.which, 0, n).tobytes()
        cache.write_bytes(slot.layer, slot.which, 0, n, data)
    cache.truncate_to(n)
    assert distance(session.realize_token(8), reference([*OTHER, 8])) < CLOSE
    assert (cache.alloc_id(), session.counters.bind_calls) == (alloc, calls)
    assert session.is_valid_for(cache)


def test_a_single_slots_bytes_matter(tiny_plan: Plan, reference: Reference) -> None:
    """The control: leaving out any one slot of the injection is wrong."""
    donor = filled(tiny_plan, OTHER)
    for left_out in donor.geometry.slots:
        session, cache = opened(tiny_plan, PROMPT[: len(OTHER)])
        for slot in donor.geometry.slots:
            if slot is not left_out:
                data = donor.read_positions(slot.layer, slot.which, 0, len(OTHER)).tobytes()
                cache.write_bytes(slot.layer, slot.which, 0, len(OTHER), data)
        assert distance(session.realize_token(8), reference([*OTHER, 8])) > WRONG


def test_host_edit_reaches_the_device_before_the_next_token(tiny_plan: Plan, reference: Reference) -> None:
    session, cache = opened(tiny_plan, PROMPT[: len(OTHER)])
    donor = filled(tiny_plan, OTHER)
    for slot in cache.geometry.slots:
        cache.write_host(
            slot.layer, slot.which, 0, donor.host_array(slot.layer, slot.which)[:, :, : len(OTHER)]
        )
        assert cache.authority(slot.layer, slot.which) is Authority.HOST
    assert distance(session.realize_token(8), reference([*OTHER, 8])) < CLOSE
    assert session.counters.uploads == 4
    session.realize_token(9)
    assert session.counters.uploads == 4
    assert cache.authority(0, "key") is Authority.DEVICE


def test_host_edit_that_is_not_sent_would_be_missed(tiny_plan: Plan, reference: Reference) -> None:
    """The control: without the upload the session decodes over the bytes from before."""
    session, cache = opened(tiny_plan, PROMPT[: len(OTHER)])
    donor = filled(tiny_plan, OTHER)
    for slot in cache.geometry.slots:
        cache.write_host(
            slot.layer, slot.which, 0, donor.host_array(slot.layer, slot.which)[:, :, : len(OTHER)]
        )
    cache.state.host_dirty = False
    assert distance(session.realize_token(8), reference([*OTHER, 8])) > WRONG


# --- host reads after device steps --------------------------------------------------------------------


def test_host_read_after_a_step_is_fresh_and_flushes_once(tiny_plan: Plan) -> None:
    session, cache = opened(tiny_plan, PROMPT)
    n = len(PROMPT)
    stale = cache.host_array(0, "key")
    assert not stale[:, :, n].any()
    flushes, version = cache.flushes(0, "key"), cache.version(0, "key")
    session.realize_token(1)
    assert cache.authority(0, "key") is Authority.DEVICE
    assert cache.version(0, "key") == (version or 0) + 1
    fresh = cache.host_array(0, "key")
    assert fresh[:, :, n].any()
    assert cache.host_array(0, "key") is fresh
    assert cache.flushes(0, "key") == flushes + 1
    assert np.array_equal(fresh[:, :, : n + 1], cache.read_positions(0, "key", 0, n + 1))
    for step in (lambda: session.prefill([1, 2, 3]), lambda: session.realize_token(2)):
        step()
        assert np.array_equal(cache.host_array(0, "key"), cache.read_positions(0, "key", 0, 64))


def test_host_read_after_a_step_that_failed_is_fresh(tiny_plan: Plan, monkeypatch) -> None:
    """A step that fails half way may have written already."""
    session, cache = opened(tiny_plan, PROMPT)
    assert not cache.host_array(0, "key")[:, :, len(PROMPT)].any()
    run = session._step._runs[0]

    def fail() -> None:
        run()
        raise RuntimeError("late")

    session._step._runs = (fail,)
    with pytest.raises(PlanError):
        session.realize_token(1)
    assert cache.length == len(PROMPT)
    assert cache.host_array(0, "key")[:, :, len(PROMPT)].any()


def test_device_bytes_changed_by_another_are_seen_after_a_bump(tiny_plan: Plan) -> None:
    _, cache = opened(tiny_plan, PROMPT)
    storage = cache.slot_storage(0, "key")
    assert storage is not None
    before = cache.host_array(0, "key")
    from planonce.runtime.ort import Tensor

    storage.tensor.copy_from(Tensor.over(np.full(storage.shape, 7, np.float32)))
    assert cache.host_array(0, "key") is before
    cache.bump_version(0, "key")
    assert cache.host_array(0, "key").min() == 7


def test_versions_never_fall_even_across_replacement() -> None:
    cache = KvCache.with_capacity(2, 1, 2, 4)
    array = np.ones((1, 1, 4, 2), np.float32)
    seen = [cache.version(0, "key")]

    def check() -> None:
        version = cache.version(0, "key")
        assert version is not None
        assert all(v is None or v < version for v in seen)
        seen.append(version)

    for _ in range(3):
        cache.write_bytes(0, "key", 0, 4, array.tobytes())
        check()
        cache.set_layer(0, array, array)
        check()
        cache.clear()
        assert cache.version(0, "key") is None
        cache.set_layer(0, array, array)
        check()
    assert cache.version(1, "key") is None


def test_half_a_position_is_refused_not_rounded(tiny_plan: Plan) -> None:
    session, cache = opened(tiny_plan, PROMPT)
    array = np.zeros((1, 2, 1, 16), np.float32)
    for call in (
        lambda: cache.truncate_to(2.5),  # type: ignore[arg-type]
        lambda: cache.extend_to(20.5),  # type: ignore[arg-type]
        lambda: cache.write_bytes(0, "key", 0.5, 1, array.tobytes()),  # type: ignore[arg-type]
        lambda: cache.read_positions(0, "key", 0.5, 1),  # type: ignore[arg-type]
        lambda: cache.write_host(0, "key", 0.5, array),  # type: ignore[arg-type]
        lambda: cache.export(2.5),  # type: ignore[arg-type]
    ):
        with pytest.raises(LayoutError, match="whole number"):
            call()
    cache.truncate_to(np.int64(3))
    assert type(session.position) is int


def test_host_array_cannot_be_made_writeable(tiny_plan: Plan) -> None:
    _, cache = opened(tiny_plan, PROMPT)
    with pytest.raises(ValueError, match="WRITEABLE"):
        cache.host_array(0, "key").flags.writeable = True


def test_bytes_written_after_a_host_edit_are_not_overwritten_by_it() -> None:
    cache = KvCache.with_capacity(1, 1, 2, 4)
    one = np.ones((1, 1, 1, 2), np.float32)
    cache.write_host(0, "key", 0, one)
    cache.write_bytes(0, "key", 1, 1, (one * 2).tobytes())
    cache.write_host(0, "key", 2, one * 3)
    cache.bump_version(0, "key")  # the edit is sent first
    assert cache.authority(0, "key") is Authority.DEVICE
    cache.write_bytes(0, "key", 3, 1, (one * 4).tobytes())
    cache.upload()
    assert cache.read_positions(0, "key", 0, 4)[0, 0, :, 0].tolist() == [1, 2, 3, 4]
    assert cache.host_array(0, "key")[0, 0, :, 0].tolist() == [1, 2, 3, 4]


def test_cleared_cache_forgets_edits_and_whose_content_it_held(tiny_plan: Plan, reference: Reference) -> None:
    cache, donor = filled(tiny_plan, PROMPT), filled(tiny_plan, OTHER)
    cache.state.shape_key = "another model's"
    cache.write_host(0, "key", 0, np.zeros((1, 2, 1, 16), np.float32))
    cache.clear()
    for layer in range(2):
        arrays = donor.host_array(layer, "key"), donor.host_array(layer, "value")
        cache.set_layer(layer, *arrays, length=layer * len(OTHER))
    assert cache.upload() == 0
    assert distance(tiny_plan.open(cache).realize_token(1), reference([*OTHER, 1])) < CLOSE
