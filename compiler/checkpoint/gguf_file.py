"""The header of a GGUF file: metadata and tensor table, bounds-checked while it is read.

gguf-py's reader trusts the file (a hostile length sends it reading gigabytes) and takes seconds for a
vocabulary, so the header is parsed here; gguf-py is left the block formats' arithmetic.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from planonce.runtime.errors import CheckpointError, UnsupportedModel

from .stored import StoredTensor

__all__ = ["GgufHeader", "MetadataEntry", "read_gguf_header"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# value type -> struct code
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
PLAIN_TYPES = {
    "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One metadata value and the bytes it takes (key included), so that it can be copied verbatim."""

    value: Any
    start: int
    end: int
    is_array: bool


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says of itself. Tensor shapes are outermost first, as torch has them."""

    path: Path
    version: int
    entries: Mapping[str, MetadataEntry]
    tensors: Mapping[str, StoredTensor]

    @property
    def architecture(self) -> str:
        return str(self.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        entry = self.entries.get(key)
        return default if entry is None else entry.value


class _Cursor:
    """Reads forward through the mapped file; every read is checked against the file's size."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.position = 0

    def take(self, nbytes: int, what: str) -> int:
        start = self.position
        if nbytes > len(self.data) - start:
            _damaged(
                self.path,
                f"truncated or garbage: its header ends inside {what}",
                f"{len(self.data)} bytes",
                f"at least {start + nbytes} bytes",
            )
        self.position = start + nbytes
        return start

    def unpack(self, code: str, what: str) -> Any:
        layout = struct.Struct("<" + code)
        values = layout.unpack_from(self.data, self.take(layout.size, what))
        return values[0] if len(values) == 1 else values

    def string(self, what: str) -> str:
        length = self.unpack("Q", what)
        start = self.take(length, what)
        return self.data[start : start + length].decode("utf-8", errors="replace")

    def value(self, kind: int, what: str) -> Any:
        if kind in SCALARS:
            return self.unpack(SCALARS[kind], what)
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            element, count = self.unpack("IQ", what)
            if element in SCALARS:
                layout = struct.Struct("<" + SCALARS[element])
                start = self.take(layout.size * count, what)
                return list(struct.unpack_from(f"<{count}{SCALARS[element]}", self.data, start))
            if element == STRING:
                # a string is at least 8 bytes: refuse a hostile count before looping over it
                if count * 8 > len(self.data) - self.position:
                    self.take(count * 8, what)
                return [self.string(what) for _ in range(count)]
            kind = element
        return _damaged(self.path, f"{what} has an unknown value type", str(kind), "a GGUF value type (0-12)")


def read_gguf_header(path: Path) -> GgufHeader:
    """Metadata and tensor table of ``path``; no tensor is read.

    Raises CheckpointError (damaged, truncated, duplicate names, unknown tensor type) and UnsupportedModel
    (one part of a split file, big-endian).
    """
    try:
        size = path.stat().st_size
        file = path.open("rb")
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path.name}: {error.strerror or error}",
            where=str(path),
            todo="check the path and its permissions",
        ) from error
    with file:
        if file.read(4) != MAGIC:
            file.seek(0)
            _damaged(
                path, "not a GGUF file", f"{size} bytes beginning {file.read(4)!r}", f"the magic {MAGIC!r}"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)


def _parse(path: Path, data: mmap.mmap) -> GgufHeader:
    cursor = _Cursor(data, path)
    cursor.take(4, "the magic")
    version, n_tensors, n_entries = cursor.unpack("IQQ", "the counts")
    if version not in VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            raise UnsupportedModel(
                f"{path.name} is a big-endian GGUF file",
                where=str(path),
                todo="convert it with gguf-py's gguf_convert_endian script",
            )
        _damaged(path, "unknown GGUF version", str(version), " or ".join(map(str, VERSIONS)))
    entries: dict[str, MetadataEntry] = {}
    for _ in range(n_entries):
        start = cursor.position
        key = cursor.string("a metadata key")
        kind = cursor.unpack("I", f"metadata {key!r}"[:100])
        value = cursor.value(kind, f"metadata {key!r}"[:100])
        if key in entries:
            _damaged(path, "a metadata key appears twice", repr(key)[:100], "each key once")
        entries[key] = MetadataEntry(value, start, cursor.position, kind == ARRAY)
    _check_entries(path, entries)
    table = [_tensor_info(cursor) for _ in range(n_tensors)]
    alignment = entries["general.alignment"].value if "general.alignment" in entries else 32
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        _damaged(path, "the alignment is not a power of two", repr(alignment)[:40], "32")
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for name, shape, kind, offset in table:
        if name in tensors:
            _damaged(path, "a tensor appears twice", repr(name)[:100], "each name once")
        tensors[name] = _stored(path, name, shape, kind, data_start, offset)
    _check_ranges(path, list(tensors.values()), len(data))
    return GgufHeader(path, version, entries, tensors)


def _check_entries(path: Path, entries: Mapping[str, MetadataEntry]) -> None:
    architecture = entries.get("general.architecture")
    if architecture is None or not isinstance(architecture.value, str):
        _damaged(path, "no general.architecture in its metadata", "nothing", "a model's GGUF file")
    parts = entries.get("split.count")
    if parts is not None and isinstance(parts.value, int) and parts.value > 1:
        raise UnsupportedModel(
            f"{path.name} is one part of a split GGUF file",
            found=f"{parts.value} parts",
            expected="one file",
            where=str(path),
            todo="merge the parts with llama.cpp's llama-gguf-split --merge",
        )


def _tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string("a tensor's name")
    n_dims = cursor.unpack("I", "the tensor table")
    if n_dims > 8:
        _damaged(cursor.path, f"tensor {name!r} has too many dimensions"[:120], str(n_dims), "at most 4")
    dims = struct.unpack_from(f"<{n_dims}Q", cursor.data, cursor.take(8 * n_dims, "the tensor table"))
    kind, offset = cursor.unpack("IQ", "the tensor table")
    return name, tuple(reversed(dims)), kind, offset


def _stored(
    path: Path, name: str, shape: tuple[int, ...], kind: int, data_start: int, offset: int
) -> StoredTensor:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        ggml_type = GGMLQuantizationType(kind)
    except ValueError:
        _damaged(path, f"tensor {name!r} has an unknown type"[:120], str(kind), "a type gguf-py knows")
    block_elements, block_bytes = GGML_QUANT_SIZES[ggml_type]
    elements = 1
    for extent in shape:
        elements *= extent
    row = shape[-1] if shape else 1
    if row % block_elements:
        _damaged(
            path,
            f"tensor {name!r}: its rows do not divide into blocks"[:120],
            f"rows of {row}",
            f"a multiple of {block_elements} for {ggml_type.name}",
        )
    dtype = PLAIN_TYPES.get(ggml_type.name, ggml_type.name.lower())
    return StoredTensor(
        name, dtype, shape, path, data_start + offset, elements // block_elements * block_bytes
    )


def _check_ranges(path: Path, tensors: list[StoredTensor], size: int) -> None:
    position, previous = 0, ""
    for tensor in sorted(tensors, key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset < position:
            _damaged(
                path,
                f"tensors {previous!r} and {tensor.name!r} overlap"[:200],
                f"offset {tensor.offset}",
                f"offset {position} or more",
            )
        position, previous = tensor.offset + tensor.nbytes, tensor.name
    if position > size:
        _damaged(
            path,
            f"truncated: data of tensor {previous!r} is missing"[:200],
            f"{size} bytes",
            f"at least {position} bytes",
        )


def _damaged(path: Path, what: str, found: str, expected: str) -> NoReturn:
    raise CheckpointError(
        f"{path.name}: {what}",
        found=found,
        expected=expected,
        where=str(path),
        todo="the file is damaged or was not completely copied; fetch it again",
    )
