"""The shape of a KV cache, slot by slot: layers may differ in heads, head size, dtype and device."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass

from .device import DeviceLocation
from .dtypes import ITEM_SIZE, check_kv_dtype
from .errors import LayoutError
from .manifest_schema import KvSlotSpec

__all__ = ["KvGeometry", "KvWhich", "SlotGeometry", "uniform_geometry"]


class KvWhich(enum.StrEnum):
    """Which of a layer's two buffers."""

    KEY = "key"
    VALUE = "value"

    @staticmethod
    def named(name: str) -> KvWhich | None:
        """The member called ``name``, or None."""
        return next((w for w in KvWhich if w.value == name), None)


@dataclass(frozen=True, slots=True)
class SlotGeometry:
    """One buffer ``[batch, n_kv_heads, capacity, head_dim]`` without its capacity."""

    layer: int
    which: KvWhich
    n_kv_heads: int
    head_dim: int
    dtype: str
    device: DeviceLocation

    def shape(self, batch: int, capacity: int) -> tuple[int, int, int, int]:
        return (batch, self.n_kv_heads, capacity, self.head_dim)

    def nbytes(self, batch: int, capacity: int) -> int:
        return math.prod(self.shape(batch, capacity)) * ITEM_SIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """Every slot of a cache, ordered by layer, key before value."""

    slots: tuple[SlotGeometry, ...]

    @property
    def n_layers(self) -> int:
        return 1 + max(s.layer for s in self.slots)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(sorted({s.dtype for s in self.slots}))

    def nbytes(self, capacity: int, batch: int = 1) -> int:
        """Bytes of all buffers at ``capacity`` positions."""
        return sum(s.nbytes(batch, capacity) for s in self.slots)

    def device(self) -> DeviceLocation | None:
        """The one device of all slots, or None when they are spread."""
        devices = {s.device for s in self.slots}
        return next(iter(devices)) if len(devices) == 1 else None

    @staticmethod
    def of_specs(specs: Iterable[KvSlotSpec]) -> KvGeometry:
        """A plan's slots. Raises LayoutError."""
        made: list[SlotGeometry] = []
        for spec in specs:
            which = KvWhich.named(spec.which)
            if which is None:
                raise LayoutError("Unknown KV slot.", found=spec.which, expected="key or value")
            device = DeviceLocation.parse(spec.device)
            made.append(SlotGeometry(spec.layer, which, spec.n_kv_heads, spec.head_dim, spec.dtype, device))
        return checked(made)


def checked(slots: Iterable[SlotGeometry]) -> KvGeometry:
    """Order and check slots. Raises LayoutError."""
    ordered = sorted(slots, key=lambda s: (s.layer, s.which.value))
    if not ordered:
        raise LayoutError("A KV cache needs at least one layer.", found="0 slots", expected=">= 1")
    seen: set[tuple[int, str]] = set()
    for slot in ordered:
        check_kv_dtype(slot.dtype)
        for name, value in (("n_kv_heads", slot.n_kv_heads), ("head_dim", slot.head_dim)):
            check_size(name, value)
        if slot.layer < 0 or (slot.layer, slot.which.value) in seen:
            raise LayoutError("A KV slot is given twice or has no layer.", found=f"{slot.layer} {slot.which}")
        seen.add((slot.layer, slot.which.value))
    return KvGeometry(tuple(ordered))


def check_size(name: str, value: object) -> int:
    """A positive int. Raises LayoutError."""
    if type(value) is not int or value < 1:
        raise LayoutError(f"A KV cache's {name} must be positive.", found=repr(value), expected=">= 1")
    return value


def uniform_geometry(
    n_layers: int, n_kv_heads: int, head_dim: int, dtype: str, device: DeviceLocation
) -> KvGeometry:
    """The same key and value for every layer. Raises LayoutError."""
    check_size("n_layers", n_layers)
    return checked(
        SlotGeometry(layer, which, n_kv_heads, head_dim, dtype, device)
        for layer in range(n_layers)
        for which in KvWhich
    )
