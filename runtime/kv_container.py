"""Bytes of an export: a safetensors file with a version and a checksum over every byte of it.

``u64 header length | JSON header, padded with spaces | tensors``, all little-endian. Any safetensors reader
opens it; ``__metadata__`` carries ours, and its ``sha256`` is of the whole file with that value's 64 digits
read as zeros.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from .dtypes import ITEM_SIZE
from .kv_import_errors import KvImportCorrupt, KvImportTruncated, KvImportVersion

__all__ = ["FORMAT", "VERSION", "Entry", "pack", "unpack"]

FORMAT = "planonce-kv"
VERSION = 1

_TAG = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "uint8": "U8"}
_DTYPE = {tag: dtype for dtype, tag in _TAG.items()}
_ZEROS = "0" * 64
_MARK = b'"sha256":"'
_ALIGN = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its name, dtype, shape, and bytes in C order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


def pack(metadata: Mapping[str, str], entries: Sequence[Entry]) -> bytes:
    """The container's bytes: equal content gives equal bytes."""
    header: dict[str, object] = {
        "__metadata__": {"sha256": _ZEROS, "format": FORMAT, "version": str(VERSION), **metadata}
    }
    offset = 0
    for entry in entries:
        stop = offset + len(entry.data)
        header[entry.name] = {
            "dtype": _TAG[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [offset, stop],
        }
        offset = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    parts = [struct.pack("<Q", len(text)), text, *(e.data for e in entries)]
    digest = _digest(parts).encode()
    at = text.index(_MARK) + len(_MARK)
    parts[1] = text[:at] + digest + text[at + 64 :]
    return b"".join(parts)


def unpack(data: bytes) -> tuple[dict[str, str], list[Entry]]:
    """Metadata and tensors; the tensors are views of ``data``.

    Raises KvImportTruncated, KvImportVersion, KvImportCorrupt. The version is looked at first: another may
    have another checksum.
    """
    view = memoryview(data)
    if len(view) < 8:
        raise _truncated(len(view), 8)
    (size,) = struct.unpack("<Q", view[:8])
    if size > len(view) - 8:
        raise _truncated(len(view), size + 8)
    raw = bytes(view[8 : 8 + size])
    metadata, described = _parse(raw)
    content = view[8 + size :]
    entries: list[Entry] = []
    offset = 0
    for name, fields in described.items():
        entry_dtype, shape, start, stop = _fields(name, fields)
        if start != offset or stop - start != math.prod(shape) * ITEM_SIZE[entry_dtype]:
            raise _corrupt("A tensor's place does not follow from its shape.", name)
        if stop > len(content):
            raise _truncated(len(view), 8 + size + stop)
        entries.append(Entry(name, entry_dtype, shape, content[start:stop]))
        offset = stop
    if offset != len(content):
        raise _corrupt("There are bytes that belong to no tensor.", f"{len(content) - offset} bytes")
    at = raw.find(_MARK) + len(_MARK)
    blank = raw[:at] + _ZEROS.encode() + raw[at + 64 :]
    if raw.find(_MARK) < 0 or _digest([view[:8], blank, content]).encode() != raw[at : at + 64]:
        raise _corrupt("The checksum is not that of the bytes.", metadata.get("sha256", "none"))
    return metadata, entries


def _digest(parts: Sequence[bytes | memoryview]) -> str:
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def _parse(raw: bytes) -> tuple[dict[str, str], dict[str, object]]:
    """The header's metadata and the rest of it, once format and version are ours."""
    try:
        parsed: object = json.loads(raw)
    except (ValueError, RecursionError):
        raise _corrupt("The header is not JSON.", raw[:20].decode("ascii", "replace")) from None
    header = cast("dict[str, object]", parsed) if isinstance(parsed, dict) else {}
    found = header.pop("__metadata__", None)
    metadata = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    if metadata.get("format") != FORMAT:
        raise _corrupt("This is not a KV export.", repr(metadata.get("format")))
    version = metadata.get("version")
    if version != str(VERSION):
        raise KvImportVersion(
            "This KV export is of another version.",
            found=repr(version),
            expected=repr(str(VERSION)),
            todo="Import it with the planonce that wrote it, or compute the prefix again.",
        )
    if not all(isinstance(value, str) for value in metadata.values()):
        raise _corrupt("The header's metadata is not text.", "")
    return cast("dict[str, str]", metadata), header


def _fields(name: str, fields: object) -> tuple[str, tuple[int, ...], int, int]:
    """dtype, shape and byte range of one tensor as the header gives them. Raises KvImportCorrupt."""
    try:
        known = cast("dict[str, Any]", fields)
        dtype = _DTYPE[known["dtype"]]
        shape = tuple(known["shape"])
        start, stop = known["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise _corrupt("A tensor is not described.", name) from None
    if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)) or start > stop:
        raise _corrupt("A tensor's shape or place is not made of numbers.", name)
    return dtype, shape, start, stop


def _corrupt(message: str, found: str) -> KvImportCorrupt:
    return KvImportCorrupt(message, found=found, todo="Export the cache again.")


def _truncated(found: int, expected: int) -> KvImportTruncated:
    return KvImportTruncated(
        "The KV export ends too early.",
        found=f"{found} bytes",
        expected=f">= {expected} bytes",
        todo="Copy the file again, or export the cache again.",
    )
