"""K1, K9: what is allocated, for how many rows, and that a failure leaves nothing."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from planonce.runtime import KvCache, Plan, alloc_batched_kv, storage
from planonce.runtime.dtypes import ITEM_SIZE
from planonce.runtime.errors import LayoutError
from planonce.runtime.ort import Tensor
from planonce.runtime.storage import KvMemoryError


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_batched_buffers_have_k_zeroed_rows(k: int, dtype: str) -> None:
    cache = alloc_batched_kv(k, 2, 3, 4, 8, dtype)
    assert (cache.batch, cache.n_layers, cache.capacity, cache.length) == (k, 2, 8, 0)
    for slot in cache.geometry.slots:
        held = cache.slot_storage(slot.layer, slot.which)
        assert held is not None
        assert held.shape == (k, 3, 8, 4)
        assert not cache.host_array(slot.layer, slot.which).any()
    assert cache.nbytes == 4 * k * 3 * 8 * 4 * ITEM_SIZE[dtype]


def test_bytes_of_every_row_land_in_their_row() -> None:
    cache = alloc_batched_kv(2, 1, 1, 2, 4)
    rows = np.arange(2 * 1 * 1 * 2, dtype=np.float32).reshape(2, 1, 1, 2) + 1
    cache.write_bytes(0, "key", 2, 1, rows.tobytes())
    whole = np.zeros((2, 1, 4, 2), np.float32)
    whole[:, :, 2:3] = rows
    assert np.array_equal(cache.host_array(0, "key"), whole)
    copy = cache.fork()
    assert copy.batch == 2


@pytest.mark.parametrize("k", [0, -1, True, 1.0])
def test_bad_row_counts_are_refused(k: object) -> None:
    with pytest.raises(LayoutError, match="batch"):
        alloc_batched_kv(k, 2, 3, 4, 8)  # type: ignore[arg-type]


def test_decode_session_refuses_several_rows(tiny_plan: Plan) -> None:
    with pytest.raises(LayoutError, match="one row"):
        tiny_plan.open(alloc_batched_kv(2, 2, 2, 16, 64))


@pytest.mark.parametrize("make", [alloc_batched_kv, lambda k, *a: KvCache.with_capacity(*a)])
@pytest.mark.parametrize("device", ["cpu:2", "cpu:9999", "cuda:7"])
def test_a_device_that_is_not_there_is_refused(make, device: str) -> None:
    with pytest.raises(LayoutError, match="no such device"):
        make(1, 2, 3, 4, 8, "float32", device)


@pytest.mark.parametrize("last", [1, 5, 8])
@pytest.mark.parametrize("where", ["allocate", "zero-fill"])
def test_failure_at_any_buffer_frees_those_before_it(last: int, where: str, monkeypatch) -> None:
    made: list[weakref.ref[storage.Storage]] = []
    empty, fill = Tensor.empty, "planonce.runtime.kv_programs.zero_fill"
    register = "planonce.runtime.kv_slots.register"
    calls = []

    def count(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == last:
            raise MemoryError("no more") if where == "allocate" else KvMemoryError("no more")

    def allocate(*arguments: object) -> Tensor:
        count()
        return empty(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(register, lambda s: made.append(weakref.ref(s)))
    if where == "allocate":
        monkeypatch.setattr(Tensor, "empty", staticmethod(allocate))
    else:
        monkeypatch.setattr(fill, count)
    with pytest.raises(KvMemoryError):
        alloc_batched_kv(2, 4, 1, 2, 4)
    gc.collect()
    assert len(made) == last - 1
    assert all(ref() is None for ref in made)


def test_impossible_size_is_refused_whole() -> None:
    with pytest.raises(KvMemoryError):
        alloc_batched_kv(1 << 12, 64, 8, 128, 1 << 20)


def test_write_bytes_refuses_a_dtype_it_has_no_size_for(monkeypatch) -> None:
    cache = KvCache.with_capacity(1, 1, 2, 4)
    monkeypatch.delitem(ITEM_SIZE, "float32")
    with pytest.raises(LayoutError, match="dtype cannot be written"):
        cache.write_bytes(0, "key", 0, 1, bytes(8))
    monkeypatch.undo()
    assert not cache.host_array(0, "key").any()


@pytest.mark.parametrize("length", [None, 0, 2, 3])
def test_grow_by_replacement_takes_a_longer_layer_each_time(length: int | None) -> None:
    cache = KvCache.with_dims(1, 1, 2)
    ids = {cache.alloc_id()}
    for n in (3, 4, 7):
        array = np.full((1, 1, n, 2), n, np.float32)
        cache.set_layer(0, array, array, length=length)
        assert (cache.capacity, cache.length) == (n, n if length is None else length)
        ids.add(cache.alloc_id())
        assert cache.device_location is None
    assert len(ids) == 4
    with pytest.raises(LayoutError, match="differ in extent"):
        cache.set_layer(0, array, array[:, :, :1])
    with pytest.raises(LayoutError, match="wrong shape"):
        cache.set_layer(0, array[:, :, :0], array[:, :, :0])
