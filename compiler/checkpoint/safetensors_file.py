"""The header of a .safetensors file, checked field by field before any of it is believed.

Layout: 8 bytes little-endian header length, that many bytes of JSON
``{name: {dtype, shape, data_offsets: [begin, end]}}``, then the data, which the tensors cover
exactly: no hole, no overlap, nothing after the last one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from planonce.runtime.errors import CheckpointError

from .stored import StoredTensor

__all__ = ["read_safetensors_header"]

# The format's own limit; a length beyond it is garbage, and would be allocated if believed.
MAX_HEADER_BYTES = 100_000_000

# name in the header -> (our name, bits an element). Formats we cannot read are indexed too, so that a
# model which does not use such a tensor still compiles.
FORMATS: dict[str, tuple[str, int]] = {
    "F64": ("float64", 64),
    "F32": ("float32", 32),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "I64": ("int64", 64),
    "I32": ("int32", 32),
    "I16": ("int16", 16),
    "I8": ("int8", 8),
    "U8": ("uint8", 8),
    "BOOL": ("bool", 8),
    "U64": ("uint64", 64),
    "U32": ("uint32", 32),
    "U16": ("uint16", 16),
    "C64": ("complex64", 64),
    "F8_E4M3": ("float8_e4m3", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E8M0": ("float8_e8m0", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F6_E2M3": ("float6_e2m3", 6),
    "F6_E3M2": ("float6_e3m2", 6),
    "F4": ("float4", 4),
}


def read_safetensors_header(path: Path) -> dict[str, StoredTensor]:
    """Tensor name to its place in ``path``. Reads the header only. Raises CheckpointError."""
    size = _file_size(path)
    if size < 8:
        _damaged(path, "too short to be a safetensors file", f"{size} bytes", "at least 8 bytes")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            _damaged(
                path,
                "not a safetensors file: the header's length makes no sense",
                f"a header of {length} bytes",
                f"at most {MAX_HEADER_BYTES}",
            )
        if length > size - 8:
            _damaged(path, "truncated inside its header", f"{size} bytes", f"at least {8 + length} bytes")
        raw = file.read(length)
    entries = _parse_json(path, raw)
    entries.pop("__metadata__", None)
    tensors = [_entry(path, name, entry, 8 + length) for name, entry in entries.items()]
    _check_coverage(path, tensors, 8 + length, size)
    return {tensor.name: tensor for tensor in tensors}


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path.name}: {error.strerror or error}",
            where=str(path),
            todo="check the path and its permissions",
        ) from error


def _parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    def reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1}) if len(names) < 5000 else []
            _damaged(path, "the header names a tensor twice", ", ".join(twice), "each name once")
        return dict(pairs)

    try:
        parsed = json.loads(raw.decode("utf-8"), object_pairs_hook=reject_duplicates)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name}: the header is not JSON",
            found=str(error)[:200],
            expected="a JSON object of tensor entries",
            where=str(path),
            todo="the file is damaged or not a safetensors file; fetch it again",
        ) from error
    if not isinstance(parsed, dict):
        _damaged(path, "the header is not a JSON object", type(parsed).__name__, "an object")
    return parsed


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _entry(path: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    if not isinstance(entry, dict):
        _damaged(path, f"the header's entry {name!r} is not an object", repr(entry)[:80], "an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in FORMATS:
        _damaged(path, f"tensor {name!r} has an unknown dtype", repr(dtype)[:80], ", ".join(FORMATS))
    if not isinstance(shape, list) or not all(_is_count(n) for n in shape):
        _damaged(path, f"tensor {name!r} has a malformed shape", repr(shape)[:80], "a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(n) for n in offsets):
        _damaged(path, f"tensor {name!r} has malformed offsets", repr(offsets)[:80], "[begin, end]")
    begin, end = offsets
    our_name, bits = FORMATS[dtype]
    elements = 1
    for extent in shape:
        elements *= extent
    if elements * bits != (end - begin) * 8:
        _damaged(
            path,
            f"tensor {name!r}: its shape and its bytes disagree",
            f"{end - begin} bytes for {dtype} {shape}",
            f"{elements * bits / 8:g} bytes",
        )
    return StoredTensor(name, our_name, tuple(shape), path, data_start + begin, end - begin)


def _check_coverage(path: Path, tensors: list[StoredTensor], data_start: int, size: int) -> None:
    position = data_start
    for tensor in sorted(tensors, key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset != position:
            kind = "overlap" if tensor.offset < position else "leave a hole"
            _damaged(
                path,
                f"tensors {kind} before {tensor.name!r}",
                f"offset {tensor.offset - data_start}",
                f"offset {position - data_start}",
            )
        position += tensor.nbytes
    if position > size:
        _damaged(path, "truncated: data is missing at its end", f"{size} bytes", f"{position} bytes")
    if position < size:
        _damaged(path, "data follows the last tensor", f"{size} bytes", f"{position} bytes")


def _damaged(path: Path, what: str, found: str, expected: str) -> NoReturn:
    raise CheckpointError(
        f"{path.name}: {what}",
        found=found,
        expected=expected,
        where=str(path),
        todo="the file is damaged or was not completely copied; fetch it again",
    )
