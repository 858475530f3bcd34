"""K1-K8: what a cache is, where it lives, what it holds, and what it refuses."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from planonce.runtime import Authority, KvCache
from planonce.runtime.errors import CapacityExceeded, KvError, LayoutError
from planonce.runtime.ort import Tensor
from planonce.runtime.storage import KvMemoryError

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1}


def small(dtype: str = "float32", layers: int = 2, capacity: int = 8) -> KvCache:
    return KvCache.with_capacity(layers, 3, 4, capacity, dtype, "cpu:0")


@pytest.mark.parametrize("dtype", SIZES)
def test_every_buffer_is_zero_filled_head_major_and_of_the_right_extent(dtype: str) -> None:
    for _ in range(4):  # freed memory is handed out again, so a missing fill shows
        cache = small(dtype)
        for layer in range(2):
            for which in ("key", "value"):
                storage = cache.slot_storage(layer, which)
                assert storage is not None
                assert storage.shape == (1, 3, 8, 4)
                assert storage.nbytes == 3 * 8 * 4 * SIZES[dtype]
                assert not cache.host_array(layer, which).any()
                cache.write_bytes(layer, which, 0, 8, b"\x41" * storage.nbytes)
    assert str(cache.device_location) == "cpu:0"
    assert cache.length == 0
    assert cache.capacity == 8


@pytest.mark.parametrize(
    "arguments",
    [(0, 3, 4, 8), (2, 0, 4, 8), (2, 3, 0, 8), (2, 3, 4, 0), (2, 3, 4, -1), (2, 3, 4, True)],
)
def test_bad_geometry_is_refused(arguments: tuple[int, int, int, int]) -> None:
    with pytest.raises(LayoutError):
        KvCache.with_capacity(*arguments)


@pytest.mark.parametrize("device", ["cpu", "cpu:-1", "tpu:0", "cuda:00", "", "cuda:9999"])
def test_unknown_device_is_refused(device: str) -> None:
    with pytest.raises((LayoutError, KvMemoryError)):
        KvCache.with_capacity(1, 1, 4, 4, "float32", device)


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(LayoutError):
        small("float8")


@pytest.mark.parametrize("capacity", [1 << 33, 1 << 45])
def test_no_memory_is_a_typed_error_and_leaves_nothing_allocated(capacity: int) -> None:
    from planonce.runtime import process_counters

    before = process_counters().kv_allocations
    with pytest.raises(KvMemoryError):
        KvCache.with_capacity(64, 8, 128, capacity)
    assert process_counters().kv_allocations == before


def test_alloc_id_names_the_allocation_and_nothing_else() -> None:
    cache = small()
    first = cache.alloc_id()
    cache.write_bytes(0, "key", 0, 1, bytes(48))
    cache.extend_to(4)
    cache.truncate_to(2)
    cache.write_host(0, "key", 0, np.ones((1, 3, 2, 4), np.float32))
    cache.upload()
    assert cache.alloc_id() == first
    assert str(cache.device_location) == "cpu:0"
    array = np.zeros((1, 3, 8, 4), np.float32)
    cache.set_layer(0, array, array)
    second = cache.alloc_id()
    assert second != first
    assert cache.device_location is None
    cache.clear()
    assert cache.alloc_id() not in (first, second)
    assert cache.device_location is None
    assert cache.length == 0


def test_alloc_ids_are_never_reused_across_threads_or_after_a_free() -> None:
    seen: list[int] = []

    def make() -> None:
        for _ in range(300):
            cache = KvCache.with_dims(1, 1, 1)
            seen.append(cache.alloc_id())
            cache.clear()
            seen.append(cache.alloc_id())

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == len(seen) == 4 * 600


def test_truncate_never_grows_and_refuses_negative() -> None:
    cache = small()
    cache.extend_to(5)
    cache.truncate_to(7)
    assert cache.length == 5
    cache.truncate_to(3)
    assert cache.length == 3
    with pytest.raises(LayoutError):
        cache.truncate_to(-1)
    with pytest.raises(LayoutError):
        cache.extend_to(2)
    with pytest.raises(CapacityExceeded):
        cache.extend_to(9)


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize(("start", "n"), [(0, 8), (0, 1), (7, 1), (2, 3), (8, 0), (0, 0)])
def test_write_bytes_lands_exactly_there_and_nowhere_else(dtype: str, start: int, n: int) -> None:
    cache = small(dtype)
    size = SIZES[dtype]
    storage = cache.slot_storage(1, "value")
    data = np.random.default_rng(0).integers(1, 100, 3 * n * 4 * size).astype(np.uint8).tobytes()
    before = cache.version(1, "value")
    cache.write_bytes(1, "value", start, n, data)
    expected = np.zeros((1, 3, 8, 4 * size), np.uint8)
    expected[:, :, start : start + n] = np.frombuffer(data, np.uint8).reshape(1, 3, n, 4 * size)
    got = np.ascontiguousarray(cache.host_array(1, "value")).view(np.uint8).reshape(expected.shape)
    assert np.array_equal(got, expected)
    for layer, which in ((0, "key"), (0, "value"), (1, "key")):
        assert not cache.host_array(layer, which).any()
    assert cache.slot_storage(1, "value") is storage
    assert cache.version(1, "value") == before + (1 if n else 0)


def test_write_bytes_refusals_each_say_what_and_touch_nothing() -> None:
    cache = small()
    cases = {
        "No such KV slot": (2, "key", 0, 1, bytes(48)),
        "Unknown KV slot": (0, "keys", 0, 1, bytes(48)),
        "outside the cache": (0, "key", 8, 1, bytes(48)),
        "do not fill": (0, "key", 0, 1, bytes(47)),
    }
    messages = set()
    for text, arguments in cases.items():
        with pytest.raises((LayoutError, CapacityExceeded), match=text) as caught:
            cache.write_bytes(*arguments)
        messages.add(caught.value.message)
    for bad in ((0, "key", -1, 1, bytes(48)), (0, "key", 0, -1, b""), (0, "key", 0, 9, bytes(9 * 48))):
        with pytest.raises(CapacityExceeded):
            cache.write_bytes(*bad)
    assert cache.version(0, "key") == 0
    cache.clear()
    with pytest.raises(LayoutError, match="holds no storage") as caught:
        cache.write_bytes(0, "key", 0, 1, bytes(48))
    messages.add(caught.value.message)
    grown = KvCache.with_dims(2, 3, 4)
    with pytest.raises(LayoutError, match="grow-by-replacement") as caught:
        grown.write_bytes(0, "key", 0, 1, bytes(48))
    messages.add(caught.value.message)
    assert len(messages) == 6


def test_with_dims_starts_empty_and_takes_caller_storage() -> None:
    cache = KvCache.with_dims(2, 3, 4)
    assert cache.layer(0) is None
    assert cache.slot_storage(0, "key") is None
    assert cache.device_location is None
    assert cache.capacity == 0
    array = np.arange(3 * 5 * 4, dtype=np.float32).reshape(1, 3, 5, 4)
    cache.set_layer(0, array, array + 1)
    assert cache.length == 0  # layer 1 is still empty
    cache.set_layer(1, array, array)
    assert cache.length == cache.capacity == 5
    array[:] = -1  # the caller's array is the caller's
    assert cache.host_array(0, "key")[0, 0, 0, 1] == 1
    longer = np.zeros((1, 3, 6, 4), np.float32)
    cache.set_layer(0, longer, longer)
    cache.set_layer(1, longer, longer)
    assert cache.length == 6


def test_set_layer_refuses_before_anything_changes() -> None:
    cache = small()
    before = cache.alloc_id()
    good = np.zeros((1, 3, 8, 4), np.float32)
    for key, value in (
        (np.zeros((1, 3, 8, 5), np.float32), good),
        (good, np.zeros((1, 2, 8, 4), np.float32)),
        (np.zeros((1, 3, 7, 4), np.float32), np.zeros((1, 3, 7, 4), np.float32)),
        (good.astype(np.float64), good),
        (good, good[0]),
    ):
        with pytest.raises(LayoutError):
            cache.set_layer(0, key, value)
    shared = Tensor.over(good)
    with pytest.raises(LayoutError, match="share"):
        cache.set_layer(0, shared, shared)
    with pytest.raises(LayoutError):
        cache.set_layer(2, good, good)
    with pytest.raises(LayoutError):
        cache.set_layer(0, good, good, length=9)
    assert cache.alloc_id() == before
    assert cache.device_location is not None


def test_out_of_range_is_none_and_a_bump_there_does_nothing() -> None:
    cache = small()
    for layer, which in ((2, "key"), (-1, "key"), (0, "keys"), (0, "")):
        assert cache.slot_storage(layer, which) is None
        assert cache.version(layer, which) is None
        assert cache.authority(layer, which) is None
        cache.bump_version(layer, which)
    assert cache.layer(2) is None
    assert cache.slot_storage(0, "key") is cache.slot_storage(0, "key")
    cache.bump_version(0, "key")
    assert (cache.version(0, "key"), cache.version(0, "value")) == (1, 0)


def test_host_reads_flush_once_and_are_never_stale() -> None:
    cache = small()
    assert cache.authority(0, "key") is Authority.DEVICE
    first = cache.host_array(0, "key")
    assert cache.authority(0, "key") is Authority.BOTH
    assert cache.host_array(0, "key") is first
    assert cache.flushes(0, "key") == 1
    cache.write_bytes(0, "key", 2, 1, np.full(12, 7, np.float32).tobytes())
    assert cache.authority(0, "key") is Authority.DEVICE
    assert cache.host_array(0, "key")[0, 0, 2, 0] == 7
    assert first[0, 0, 2, 0] == 0  # what was handed out stays what it was
    assert cache.flushes(0, "key") == 2
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0, 0, 0] = 1


def test_host_writes_reach_the_device_before_it_is_read() -> None:
    cache = small()
    cache.write_host(0, "key", 3, np.full((1, 3, 2, 4), 5, np.float32))
    assert cache.authority(0, "key") is Authority.HOST
    assert cache.host_array(0, "key")[0, 2, 4, 3] == 5
    assert cache.flushes(0, "key") == 1  # the edit's own; reading the newest bytes flushes nothing
    assert cache.read_positions(0, "key", 3, 2).min() == 5
    assert cache.authority(0, "key") is Authority.BOTH
    cache.write_host(0, "value", 0, np.full((1, 3, 1, 4), 6, np.float32))
    storage = cache.slot_storage(0, "value")
    assert storage is not None
    assert storage.tensor.to_numpy()[0, 0, 0, 0] == 6
    with pytest.raises(LayoutError):
        cache.write_host(0, "key", 7, np.zeros((1, 3, 2, 4), np.float32))
    with pytest.raises(LayoutError):
        cache.write_host(0, "key", 0, np.zeros((1, 3, 2, 4), np.float64))


def test_all_refusals_are_kv_errors() -> None:
    assert issubclass(KvMemoryError, KvError)
