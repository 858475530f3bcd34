"""The index of a checkpoint's weights: where each lies, and how one is read. Nothing is held in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from planonce.runtime.errors import CheckpointError

from .blocks import dequantise, row_bytes
from .stored import PLAIN_FORMATS, StoredTensor, convert_dtype, plain_dtype, read_range, to_plain

__all__ = ["CHUNK_BYTES", "WeightEntry", "WeightIndex"]

CHUNK_BYTES = 16 << 20

# Takes the sources' values (float32 unless stored wider), returns the weight in the model's layout.
Decode = Callable[[list[np.ndarray]], np.ndarray]


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """One weight under the model's own name and shape.

    dtype: the format of its bytes ("float32", "bfloat16", "float16", ... or a GGUF block type, "q4_1").
    sources: the stored tensors it is made of; nearly always one.
    rows: None, or int64 [shape[0]]: row i of the weight is stored row rows[i] (llama.cpp interleaves the
        halves of rotary heads; a block never spans two rows, so this loses nothing in a quantised file).
    decode: None when the stored values, rows reordered, are the weight; else what makes it of them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    sources: tuple[StoredTensor, ...]
    rows: np.ndarray | None = field(default=None, compare=False)
    decode: Decode | None = field(default=None, compare=False)

    @property
    def file(self) -> Path:
        return self.sources[0].file

    @property
    def offset(self) -> int:
        return self.sources[0].offset

    @property
    def nbytes(self) -> int:
        """Bytes it takes in the checkpoint."""
        return sum(source.nbytes for source in self.sources)

    @property
    def n_elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def block_type(self) -> str | None:
        """The GGUF block type, or None for a weight stored as plain values."""
        return None if self.dtype in PLAIN_FORMATS else self.dtype


class WeightIndex(Mapping[str, WeightEntry]):
    """Weights by the model's state-dict names; iterating gives each stored weight once.

    A tied name is an alias: looking it up gives the entry of the weight it shares, and ``in`` is true, but
    it is not iterated. Weights are tied by what is stored, never by what a config claims:

    - one of the two names is stored and the model ties them: the other is its alias;
    - both are stored with equal bytes: one is kept, the other is its alias;
    - both are stored with different bytes: they are *not* tied, whatever the config says. transformers
      warns and loads both; here ``Checkpoint.config.tie_word_embeddings`` becomes False as well, so that
      a trace made from the config uses both too, and a remark says so.
    """

    def __init__(self, entries: Mapping[str, WeightEntry], aliases: Mapping[str, str] | None = None) -> None:
        self._entries = dict(entries)
        self.aliases: dict[str, str] = dict(aliases or {})

    def canonical(self, name: str) -> str:
        """The name under which the weight is stored: ``name``, or what it is an alias of."""
        return self.aliases.get(name, name)

    def __getitem__(self, name: str) -> WeightEntry:
        return self._entries[self.canonical(name)]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self.aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes all weights take in the checkpoint, tied ones once."""
        return sum(entry.nbytes for entry in self._entries.values())

    def entry(self, name: str) -> WeightEntry:
        """Like ``[name]``, but an unknown name raises CheckpointError."""
        try:
            return self[name]
        except KeyError:
            raise CheckpointError(
                "the checkpoint holds no such weight",
                found=f"{len(self)} weights, none called {name}",
                expected=name,
                todo="the model and the checkpoint do not belong together",
            ) from None

    def read(self, name: str, dtype: str = "float32") -> np.ndarray:
        """The weight as an owned C-contiguous array, ``shape`` as the model has it.

        Peak memory: the result and one chunk (an entry with ``decode``: its sources in float32 too).
        Raises CheckpointError.
        """
        entry = self.entry(name)
        if entry.decode is not None:
            values = entry.decode([_source_values(source) for source in entry.sources])
            if values.shape != entry.shape:
                raise CheckpointError(
                    f"weight {name} came out in another shape than the index says",
                    found=str(values.shape),
                    expected=str(entry.shape),
                )
            return np.ascontiguousarray(convert_dtype(values, dtype))
        out = np.empty(entry.shape, dtype=plain_dtype(dtype))
        flat = out.reshape(-1)
        position = 0
        for chunk in self.chunks(name, dtype):
            flat[position : position + chunk.size] = chunk.reshape(-1)
            position += chunk.size
        return out

    def chunks(
        self, name: str, dtype: str = "float32", chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[np.ndarray]:
        """The weight in slices along axis 0, in order, each of about ``chunk_bytes``: for writing a file.

        A weight that must be decoded whole comes as one slice. Raises CheckpointError.
        """
        entry = self.entry(name)
        if entry.decode is not None:
            yield self.read(name, dtype)
            return
        source = entry.sources[0]
        n_rows = entry.shape[0] if entry.shape else 1
        if entry.n_elements == 0:
            return
        row = source.nbytes // n_rows
        widest = max(row, entry.n_elements // n_rows * plain_dtype(dtype).itemsize)
        step = max(1, chunk_bytes // widest)
        for start in range(0, n_rows, step):
            stop = min(start + step, n_rows)
            raw = _raw_rows(entry, start, stop, row)
            yield convert_dtype(_values(raw, source, (stop - start, *entry.shape[1:])), dtype)

    def raw_location(self, name: str, dtype: str) -> tuple[Path, int, int] | None:
        """(file, offset, nbytes) if the file's bytes are the weight in ``dtype`` as they lie, else None."""
        entry = self.entry(name)
        if entry.decode is not None or entry.rows is not None or entry.dtype != dtype:
            return None
        source = entry.sources[0]
        return source.file, source.offset, source.nbytes

    def raw_blocks(self, name: str) -> tuple[np.ndarray, str] | None:
        """(uint8 [rows, bytes a row], block type) of a quantised weight, rows in the model's order.

        A view of the mapped file when its rows need no reordering, else a copy of the bytes; never
        rounded. None for a weight that is not stored in blocks, or whose blocks cannot be kept (a
        transposed one). Leading dimensions are folded into rows.
        """
        entry = self.entry(name)
        if entry.block_type is None or entry.decode is not None or entry.nbytes == 0:
            return None
        source = entry.sources[0]
        mapped = np.memmap(source.file, np.uint8, "r", source.offset, (source.nbytes,))
        if entry.rows is not None:
            mapped = mapped.reshape(entry.shape[0], -1)[entry.rows]
        return mapped.reshape(-1, row_bytes(entry.dtype, entry.shape[-1])), entry.dtype

    def block_formats(self) -> dict[str, str]:
        """Block format by name, tied names too, of the matrices whose blocks ``block_chunks`` can give."""
        names = [*self, *self.aliases]
        return {
            name: block_type
            for name in names
            if (block_type := self[name].block_type) is not None
            and self[name].decode is None
            and len(self[name].shape) == 2
        }

    def block_chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[np.ndarray, str]]:
        """``raw_blocks`` in slices along axis 0, read rather than mapped. The weight must have raw blocks."""
        entry = self.entry(name)
        n_rows = entry.shape[0]
        row = entry.nbytes // n_rows
        step = max(1, chunk_bytes // row)
        for start in range(0, n_rows, step):
            stop = min(start + step, n_rows)
            raw = _raw_rows(entry, start, stop, row)
            yield raw.reshape(-1, row_bytes(entry.dtype, entry.shape[-1])), entry.dtype

    def check_against(
        self,
        model_shapes: Mapping[str, tuple[int, ...]],
        *,
        may_miss: Iterable[str] = (),
        may_ignore: Iterable[str] = (),
        unexpected: Iterable[str] = (),
    ) -> None:
        """Compare with a model's state dict (name to shape). Raises CheckpointError listing every difference.

        may_miss, may_ignore: regular expressions of names that may be absent from, or superfluous in, the
        checkpoint. unexpected: stored names that could not be given a name of the model at all.
        """
        optional = [re.compile(pattern) for pattern in may_miss]
        ignorable = [re.compile(pattern) for pattern in may_ignore]
        missing = [
            f"{name} {_shape(shape)}"
            for name, shape in model_shapes.items()
            if name not in self and not any(pattern.search(name) for pattern in optional)
        ]
        superfluous = [
            name
            for name in [*self, *unexpected]
            if name not in model_shapes and not any(pattern.search(name) for pattern in ignorable)
        ]
        mis_shaped = [
            f"{name}: checkpoint {_shape(self[name].shape)}, model {_shape(shape)}"
            for name, shape in model_shapes.items()
            if name in self and self[name].shape != tuple(shape)
        ]
        if not (missing or superfluous or mis_shaped):
            return
        parts = [
            f"{label}:\n" + "\n".join(f"      {line}" for line in _shorten(lines))
            for label, lines in (
                (f"{len(missing)} missing", missing),
                (f"{len(superfluous)} not part of the model", superfluous),
                (f"{len(mis_shaped)} of another shape", mis_shaped),
            )
            if lines
        ]
        raise CheckpointError(
            "the weights do not fit the model that the config describes",
            found="\n    ".join(["", *parts]),
            expected=f"the {len(model_shapes)} tensors of the model",
            todo="check that config and weights come from one checkpoint and that all of it was copied",
        )


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _shorten(lines: list[str], most: int = 200) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"... and {len(lines) - most} more"]


def _values(raw: np.ndarray, source: StoredTensor, shape: tuple[int, ...]) -> np.ndarray:
    if source.dtype in PLAIN_FORMATS:
        return to_plain(raw, source.dtype).reshape(shape)
    return dequantise(raw.reshape(-1, row_bytes(source.dtype, source.shape[-1])), source.dtype).reshape(shape)


def _source_values(source: StoredTensor) -> np.ndarray:
    values = _values(read_range(source), source, source.shape)
    narrow = source.dtype in ("bfloat16", "float16")
    return convert_dtype(values, "float32") if narrow else values


def _raw_rows(entry: WeightEntry, start: int, stop: int, row: int) -> np.ndarray:
    source = entry.sources[0]
    if entry.rows is None:
        return read_range(source, start * row, (stop - start) * row)
    mapped = np.memmap(source.file, np.uint8, "r", source.offset, (source.nbytes,))
    return mapped.reshape(-1, row)[entry.rows[start:stop]].reshape(-1)
