"""M7: what one cache computed, another continues; what is damaged or another model's is refused by type."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from handmade_plan import Tiny, build
from kv_support import CLOSE, OTHER, PROMPT, WRONG, Reference, decode, distance, filled, greedy

from planonce.runtime import KvCache, KvImportError, Plan, kv_container
from planonce.runtime.errors import CapacityExceeded, LayoutError, OutputError
from planonce.runtime.kv_import_errors import (
    KvImportCorrupt,
    KvImportOtherModel,
    KvImportTruncated,
    KvImportVersion,
    KvImportWrongDtype,
    KvImportWrongGeometry,
)

DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8")


def scribbled(dtype: str = "float32", layers: int = 2, heads: int = 3, dim: int = 4) -> KvCache:
    """A cache that no plan knows, with other bytes in every position; 5 of 8 live."""
    cache = KvCache.with_capacity(layers, heads, dim, 8, dtype)
    rng = np.random.default_rng(1)
    for slot in cache.geometry.slots:
        data = rng.integers(0, 100, slot.nbytes(1, 8)).astype(np.uint8).tobytes()
        cache.write_bytes(slot.layer, slot.which, 0, 8, data)
    cache.extend_to(5)
    return cache


def contents(cache: KvCache, n: int | None = None) -> list[bytes]:
    n = cache.capacity if n is None else n
    return [cache.read_positions(s.layer, s.which, 0, n).tobytes() for s in cache.geometry.slots]


# --- export and import --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 5, None])
def test_import_gives_the_exported_positions_and_touches_no_other(dtype: str, n: int | None) -> None:
    source, target = scribbled(dtype), KvCache.with_capacity(2, 3, 4, 16, dtype)
    data = source.export(n)
    length = 5 if n is None else n
    assert source.export(n) == data  # equal content, equal bytes
    alloc, storage = target.alloc_id(), target.slot_storage(0, "key")
    target.import_(data)
    assert target.length == length
    assert contents(target, length) == contents(source, length)
    for slot in target.geometry.slots:
        assert not target.host_array(slot.layer, slot.which)[:, :, length:].any()
    assert (target.alloc_id(), target.slot_storage(0, "key")) == (alloc, storage)
    assert str(target.device_location) == "cpu:0"


def test_only_live_positions_can_be_exported() -> None:
    cache = scribbled()
    for n in (-1, 6, 8):
        with pytest.raises(CapacityExceeded, match="live"):
            cache.export(n)
    cache.clear()
    with pytest.raises(LayoutError, match="holds no storage"):
        cache.export()
    with pytest.raises(LayoutError, match="holds no storage"):
        cache.import_(scribbled().export())
    with pytest.raises(LayoutError, match="grow-by-replacement"):
        KvCache.with_dims(2, 3, 4).import_(scribbled().export())


def test_held_session_continues_after_an_import_without_a_rebind(tiny_plan: Plan, tiny: Tiny) -> None:
    session = tiny_plan.open(filled(tiny_plan, PROMPT))
    cache = session.cache
    assert cache is not None
    cache.import_(filled(tiny_plan, OTHER).export())
    assert session.is_valid_for(cache)
    assert distance(session.realize_token(9), Reference(tiny)([*OTHER, 9])) < CLOSE


def test_prefix_computed_once_serves_many_requests_without_recomputing(tiny_plan: Plan, tiny: Tiny) -> None:
    prefix = filled(tiny_plan, PROMPT).export()
    reference = Reference(tiny)
    for question in ([1], [2, 3], OTHER):
        session = tiny_plan.open()
        cache = session.cache
        assert cache is not None
        cache.import_(prefix)
        got = decode(session, question)
        assert session.counters.tokens == len(question)
        for i in range(len(question)):
            assert distance(got[i], reference([*PROMPT, *question[: i + 1]])) < CLOSE


CONTINUE = """
import json, sys
from planonce.runtime import Plan
plan = Plan.load(sys.argv[1], threads=1)
session = plan.open(capacity=int(sys.argv[3]))
session.cache.load(sys.argv[2])
token, made = int(sys.argv[4]), []
for _ in range(32):
    token = int(session.realize_token(token).argmax())
    made.append(token)
print(json.dumps([made, session.counters.tokens]))
"""


@pytest.mark.parametrize("split", [None, 1])
def test_another_process_continues_from_the_file_with_the_same_32_tokens(
    tmp_path: Path, split: int | None
) -> None:
    path = build(tmp_path / "plan", Tiny(split=split))
    plan = Plan.load(path, threads=1)
    cache = filled(plan, PROMPT)
    cache.save(tmp_path / "prefix.kv")
    here = greedy(plan.open(cache), 3, 32)
    command = [sys.executable, "-c", CONTINUE, str(path), str(tmp_path / "prefix.kv"), "60", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    there, fed = json.loads(done.stdout)
    assert there == here
    assert fed == 32  # nothing was recomputed
    assert len(set(here)) > 3


def test_file_is_a_safetensors_file(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    cache = scribbled("float16")
    cache.save(tmp_path / "kv.safetensors", 4)
    tensors = load_file(tmp_path / "kv.safetensors")
    assert set(tensors) == {f"layers.{i}.{w}" for i in range(2) for w in ("key", "value")}
    for name, array in tensors.items():
        _, layer, which = name.split(".")
        assert array.dtype == np.float16
        assert array.tobytes() == cache.read_positions(int(layer), which, 0, 4).tobytes()


def test_saving_replaces_whole_files_or_leaves_them(tmp_path: Path, monkeypatch) -> None:
    cache, path = scribbled(), tmp_path / "kv"
    cache.save(path)
    before = path.read_bytes()
    cache.truncate_to(2)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OutputError, match="No space left"):
        cache.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["kv"]
    monkeypatch.undo()
    with pytest.raises(OutputError):
        cache.save(tmp_path / "missing" / "kv")
    cache.save(path)
    cache.load(path)
    assert cache.length == 2
    with pytest.raises(KvImportError, match="cannot be read"):
        cache.load(tmp_path / "missing")
    with pytest.raises(KvImportError, match="cannot be read"):
        cache.load(tmp_path)


# --- faults -------------------------------------------------------------------------------------------


def refused(cache: KvCache, data: bytes, kind: type[Exception], text: str | None = None) -> None:
    """``data`` is refused by exactly ``kind``, and the cache is as it was."""
    before = (cache.alloc_id(), cache.length, cache.state.shape_key, contents(cache))
    with pytest.raises(kind, match=text) as caught:
        cache.import_(data)
    assert type(caught.value) is kind
    assert (cache.alloc_id(), cache.length, cache.state.shape_key, contents(cache)) == before


def test_every_truncation_is_named_as_one() -> None:
    cache = scribbled(layers=1, heads=1)
    data = cache.export()
    for n in range(len(data)):
        with pytest.raises(KvImportTruncated):
            cache.import_(data[:n])
    refused(cache, data[:-1], KvImportTruncated)
    refused(cache, data + b"x", KvImportCorrupt, "no tensor")


def test_every_flipped_bit_is_refused(monkeypatch) -> None:
    source, target = scribbled("uint8", layers=1, heads=1), scribbled("uint8", layers=1, heads=1)
    data = source.export()
    before = contents(target)
    for i in range(len(data)):
        for bit in (0, 3, 7):
            changed = bytearray(data)
            changed[i] ^= 1 << bit
            with pytest.raises(KvImportError):
                target.import_(bytes(changed))
    assert contents(target) == before
    changed = bytearray(data)
    changed[-1] ^= 1
    refused(target, bytes(changed), KvImportCorrupt, "checksum")


def test_flipped_bit_would_change_the_tokens_without_the_checksum(
    tiny_plan: Plan, tiny: Tiny, monkeypatch
) -> None:
    data = bytearray(filled(tiny_plan, PROMPT).export())
    data[-1] ^= 0x40  # an exponent's bit of the last value
    cache = tiny_plan.new_cache()
    refused(cache, bytes(data), KvImportCorrupt, "checksum")
    (size,) = struct.unpack("<Q", data[:8])
    stated = json.loads(data[8 : 8 + size])["__metadata__"]["sha256"]
    monkeypatch.setattr(kv_container, "_digest", lambda parts: stated)
    cache.import_(bytes(data))
    assert distance(tiny_plan.open(cache).realize_token(1), Reference(tiny)([*PROMPT, 1])) > WRONG


def rewritten(data: bytes, monkeypatch, **metadata: str) -> bytes:
    """The export again with other metadata and a checksum that agrees."""
    found, entries = kv_container.unpack(data)
    version = int(metadata.pop("version", "1"))
    kept = {k: v for k, v in found.items() if k not in ("sha256", "format", "version")}
    monkeypatch.setattr(kv_container, "VERSION", version)
    made = kv_container.pack({**kept, **metadata}, entries)
    monkeypatch.undo()
    return made


def test_other_versions_are_named_before_the_checksum_is_looked_at(monkeypatch) -> None:
    cache = scribbled()
    for version in ("2", "999", "0"):
        data = rewritten(cache.export(), monkeypatch, version=version)
        refused(cache, data, KvImportVersion, version)
        refused(cache, data[:-1] + b"\0", KvImportVersion)


def test_other_model_is_refused_and_would_be_served_wrongly(tiny_plan: Plan, tmp_path: Path) -> None:
    plan = Plan.load(build(tmp_path / "other", Tiny(seed=1)), threads=1)
    data = filled(plan, OTHER).export()
    cache = filled(tiny_plan, PROMPT)
    refused(cache, data, KvImportOtherModel)
    refused(tiny_plan.new_cache(), data, KvImportOtherModel)  # an empty one too
    unknown = KvCache.with_capacity(2, 2, 16, 64)
    unknown.extend_to(3)
    refused(cache, unknown.export(), KvImportOtherModel, "unknown")
    cache.state.shape_key = None  # the control
    cache.import_(data)
    cache.state.shape_key = tiny_plan.shape_key
    assert distance(tiny_plan.open(cache).realize_token(9), Reference(Tiny(seed=1))([*OTHER, 9])) > WRONG


def test_import_into_a_cache_of_no_plan_remembers_the_model(tiny_plan: Plan, tmp_path: Path) -> None:
    cache = KvCache.with_capacity(2, 2, 16, 64)
    cache.import_(filled(tiny_plan, OTHER).export())
    other = Plan.load(build(tmp_path / "other", Tiny(seed=1)), threads=1)
    with pytest.raises(LayoutError, match="another model"):
        other.open(cache)
    assert distance(tiny_plan.open(cache).realize_token(9), Reference(Tiny())([*OTHER, 9])) < CLOSE


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float32"])
def test_wrong_dtype_is_named(dtype: str) -> None:
    """float16 and bfloat16 have equal sizes: only the tag can tell."""
    others = {"float16": "bfloat16", "bfloat16": "float16", "int8": "uint8", "float32": "float16"}
    refused(scribbled(others[dtype]), scribbled(dtype).export(), KvImportWrongDtype, dtype)


def test_other_encoding_is_named(monkeypatch) -> None:
    cache = scribbled("int8")
    data = rewritten(cache.export(), monkeypatch, encoding="int8-quantised")
    refused(cache, data, KvImportWrongDtype, "int8-quantised")


@pytest.mark.parametrize(
    "other", [{"heads": 2}, {"dim": 8}, {"layers": 1}, {"layers": 3}, {"heads": 4, "dim": 3}], ids=str
)
def test_wrong_geometry_is_named(other: dict) -> None:
    refused(scribbled(), scribbled(**other).export(), KvImportWrongGeometry)


def test_rows_are_geometry_and_length_is_capacity() -> None:
    rows = KvCache.for_geometry(scribbled().geometry, 8, batch=2)
    refused(scribbled(), rows.export(), KvImportWrongGeometry)
    refused(rows, scribbled().export(), KvImportWrongGeometry)
    refused(KvCache.with_capacity(2, 3, 4, 4), scribbled().export(), CapacityExceeded)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 4) + b"null",
        struct.pack("<Q", 3) + b"\xff{}",
        struct.pack("<Q", 1 << 63),
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        struct.pack("<Q", 40) + b'{"__metadata__":{"format":"planonce-kv"}}'[:40],
    ],
    ids=["empty header", "not an object", "not utf-8", "huge header", "another file", "cut json"],
)
def test_bytes_that_are_no_export_are_typed_errors(data: bytes) -> None:
    with pytest.raises((KvImportCorrupt, KvImportTruncated)):
        scribbled().import_(data)


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "F99"},
        {"shape": [1, 3, 5]},
        {"shape": [1, 3, -5, 4]},
        {"shape": [1, 3, 5, 4.0]},
        {"shape": None},
        {"data_offsets": [0, 1 << 60]},
        {"data_offsets": [4, 4]},
        {"data_offsets": [4, 244]},
        {"data_offsets": ["0", 4]},
        {"data_offsets": [0]},
    ],
    ids=str,
)
def test_header_that_lies_about_a_tensor_is_a_typed_error_even_with_a_right_checksum(fields: dict) -> None:
    data = scribbled().export()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header["layers.0.key"].update(fields)
    header["__metadata__"]["sha256"] = "0" * 64
    text = json.dumps(header, separators=(",", ":")).encode()
    content = data[8 + size :]
    digest = kv_container._digest([struct.pack("<Q", len(text)), text, content])
    text = text.replace(b"0" * 64, digest.encode())
    with pytest.raises((KvImportCorrupt, KvImportTruncated)):
        scribbled().import_(struct.pack("<Q", len(text)) + text + content)


def test_interrupted_import_leaves_an_empty_cache_not_a_mixed_one(monkeypatch) -> None:
    cache = scribbled()
    data = scribbled().export()
    calls = []

    def fail(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("planonce.runtime.kv_programs.write_slice", fail)
    with pytest.raises(KeyboardInterrupt):
        cache.import_(data)
    assert cache.length == 0


# --- fork ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, len(PROMPT)])
def test_fork_and_origin_go_their_own_ways(tiny_plan: Plan, tiny: Tiny, n: int) -> None:
    origin = filled(tiny_plan, PROMPT[:n])
    copy = origin.fork()
    assert copy.alloc_id() != origin.alloc_id()
    assert (copy.length, copy.capacity, copy.geometry) == (n, origin.capacity, origin.geometry)
    assert copy.device_location == origin.device_location
    for slot in origin.geometry.slots:
        mine, theirs = (c.slot_storage(slot.layer, slot.which) for c in (origin, copy))
        assert mine is not None
        assert theirs is not None
        assert mine.tensor.address != theirs.tensor.address
    reference = Reference(tiny)
    first, second = tiny_plan.open(origin), tiny_plan.open(copy)
    histories = [list(PROMPT[:n]), list(PROMPT[:n])]
    for token in (4, 90, 18, 2):
        for i, session in enumerate((first, second)):
            histories[i].append(token + i)
            assert distance(session.realize_token(token + i), reference(histories[i])) < CLOSE


def test_fork_sees_host_edits_and_keeps_the_models_name(tiny_plan: Plan) -> None:
    cache = filled(tiny_plan, PROMPT)
    cache.write_host(0, "key", 0, np.ones((1, 2, 3, 16), np.float32))
    copy = cache.fork()
    assert copy.read_positions(0, "key", 0, 3).min() == 1
    assert copy.state.shape_key == tiny_plan.shape_key


def test_fork_of_callers_storage_and_of_an_empty_cache() -> None:
    grown = KvCache.with_dims(1, 1, 2)
    with pytest.raises(LayoutError, match="holds no storage"):
        grown.fork()
    array = np.arange(6, dtype=np.float32).reshape(1, 1, 3, 2)
    grown.set_layer(0, array, -array, length=2)
    copy = grown.fork()
    assert (copy.length, copy.capacity, copy.device_location) == (2, 3, None)
    assert np.array_equal(copy.host_array(0, "value"), -array)
    fixed = KvCache.with_capacity(1, 1, 2, 3)
    fixed.set_layer(0, array, -array, length=2)
    assert fixed.fork().device_location is not None  # its buffers are our own again
    fixed.clear()
    with pytest.raises(LayoutError, match="holds no storage"):
        fixed.fork()
