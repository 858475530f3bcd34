"""What travels when KV is handed to another cache, session or process, and when it may be taken.

Only prefixes ``[0, n)`` travel: keys carry their absolute positions, and what a position's key and value are
depends on every position before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import CapacityExceeded
from .fingerprint import Encoding
from .kv_container import Entry, pack, unpack
from .kv_geometry import KvGeometry
from .kv_import_errors import (
    KvImportCorrupt,
    KvImportError,
    KvImportOtherModel,
    KvImportWrongDtype,
    KvImportWrongGeometry,
)
from .ort import carrier

__all__ = ["ExportedSlot", "KvExport", "read_export"]

_UNKNOWN = "unknown"  # a cache that no plan has decoded into


@dataclass(frozen=True, slots=True)
class ExportedSlot:
    """One slot's positions ``[batch, n_kv_heads, n, head_dim]``; bfloat16 as uint16."""

    layer: int
    which: str
    dtype: str
    array: NDArray[Any]

    @property
    def name(self) -> str:
        return f"layers.{self.layer}.{self.which}"


@dataclass(frozen=True, slots=True)
class KvExport:
    """``length`` positions of every slot, and the plan (``shape_key``) that computed them."""

    shape_key: str | None
    batch: int
    length: int
    slots: tuple[ExportedSlot, ...]

    def to_bytes(self) -> bytes:
        """Equal content gives equal bytes."""
        metadata = {
            "shape_key": self.shape_key or _UNKNOWN,
            "encoding": Encoding.PLAIN.value,
            "batch": str(self.batch),
            "length": str(self.length),
        }
        return pack(metadata, [Entry(s.name, s.dtype, s.array.shape, s.array.tobytes()) for s in self.slots])

    @staticmethod
    def from_bytes(data: bytes) -> KvExport:
        """Parse and check everything that needs no cache to compare with. Raises KvImportError."""
        metadata, entries = unpack(data)
        try:
            batch, length = int(metadata["batch"]), int(metadata["length"])
            key, encoding = metadata["shape_key"], metadata["encoding"]
            slots = tuple(_slot(e) for e in entries)
        except (KeyError, ValueError) as error:
            raise KvImportCorrupt("The KV export's header is incomplete.", found=str(error)) from None
        if encoding != Encoding.PLAIN.value:
            raise KvImportWrongDtype(
                "The KV export's elements are encoded otherwise.",
                found=encoding,
                expected=Encoding.PLAIN.value,
            )
        if any(s.array.ndim != 4 or s.array.shape[0] != batch or s.array.shape[2] != length for s in slots):
            raise KvImportCorrupt("The KV export's tensors are not of the length that it says.")
        return KvExport(None if key == _UNKNOWN else key, batch, length, slots)

    def check_fits(self, geometry: KvGeometry, batch: int, capacity: int, shape_key: str | None) -> None:
        """May a cache of this kind take it? Raises KvImportOtherModel, -WrongDtype, -WrongGeometry,
        CapacityExceeded, in this order."""
        if shape_key is not None and self.shape_key != shape_key:
            raise KvImportOtherModel(
                "The KV export was computed by another model.",
                found=self.shape_key or "unknown: no plan had decoded into the exported cache",
                expected=shape_key,
                todo="Compute the prefix with this plan.",
            )
        mine = {(s.layer, s.which.value): s for s in geometry.slots}
        theirs = {(s.layer, s.which): s for s in self.slots}
        for place in sorted(mine.keys() & theirs.keys()):
            if theirs[place].dtype != mine[place].dtype:
                raise KvImportWrongDtype(
                    "The KV export's elements have another dtype.",
                    found=theirs[place].dtype,
                    expected=mine[place].dtype,
                    where=theirs[place].name,
                )
        for place in sorted(mine.keys() ^ theirs.keys()):
            raise KvImportWrongGeometry(
                "The KV export and the cache have other slots.",
                found=f"layer {place[0]} {place[1]} only in the {'cache' if place in mine else 'export'}",
            )
        for place, slot in mine.items():
            expected = slot.shape(batch, self.length)
            if theirs[place].array.shape != expected:
                raise KvImportWrongGeometry(
                    "The KV export's slots have another shape.",
                    found=str(list(theirs[place].array.shape)),
                    expected=str(list(expected)),
                    where=theirs[place].name,
                )
        if self.length > capacity:
            raise CapacityExceeded(
                "The KV export holds more positions than the cache.",
                found=str(self.length),
                expected=f"<= {capacity}",
                todo="Make a cache of a larger capacity, or export fewer positions.",
            )


def read_export(path: Path) -> bytes:
    """A file's bytes. Raises KvImportError when there are none to read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise KvImportError(
            "The KV export cannot be read.", found=error.strerror or str(error), where=str(path)
        ) from None


def _slot(entry: Entry) -> ExportedSlot:
    prefix, layer, which = entry.name.split(".")
    if prefix != "layers":
        raise ValueError(entry.name)
    array = np.frombuffer(entry.data, dtype=carrier(entry.dtype)).reshape(entry.shape)
    return ExportedSlot(int(layer), which, entry.dtype, array)
