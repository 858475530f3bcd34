"""The buffers of one cache by layer and role: which are there, what they must look like, what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from .errors import LayoutError
from .kv_geometry import KvGeometry, KvWhich, SlotGeometry
from .kv_handoff import ExportedSlot, KvExport
from .kv_incoming import incoming_tensor, refuse_shared
from .kv_owners import register
from .kv_slot import KvSlot
from .kv_state import KvState
from .ort import Tensor
from .storage import Storage

__all__ = ["KvSlots"]


class KvSlots:
    """A slot, or None while empty, for every place of a geometry. Expects the cache's lock to be held."""

    __slots__ = ("_slots", "_state", "batch", "geometry")

    def __init__(self, geometry: KvGeometry, batch: int, state: KvState) -> None:
        self.geometry = geometry
        self.batch = batch
        self._state = state
        self._slots: dict[tuple[int, str], KvSlot | None] = {
            (s.layer, s.which.value): None for s in geometry.slots
        }

    def get(self, layer: int, which: str) -> KvSlot | None:
        """None when out of range or empty."""
        return self._slots.get((layer, which))

    def expected(self, layer: int, which: str) -> SlotGeometry:
        """What belongs there. Raises LayoutError when out of range."""
        for slot in self.geometry.slots:
            if slot.layer == layer and slot.which.value == which:
                return slot
        raise LayoutError(
            "No such KV slot.",
            found=f"layer {layer}, {which!r}",
            expected=f"layer 0..{self.geometry.n_layers - 1}",
        )

    def populated(self, layer: int, which: str) -> KvSlot:
        """Raises LayoutError when out of range or empty."""
        self.expected(layer, which)
        slot = self._slots[layer, which]
        if slot is None:
            raise LayoutError("This layer holds no storage.", where=f"layer {layer} {which}")
        return slot

    def present(self, but_layer: int | None = None) -> Iterator[KvSlot]:
        """Every slot that holds storage."""
        return (s for (layer, _), s in self._slots.items() if s is not None and layer != but_layer)

    def complete(self, but_layer: int | None = None) -> bool:
        """No layer is empty."""
        return all(s is not None for (layer, _), s in self._slots.items() if layer != but_layer)

    @property
    def capacity(self) -> int:
        """Positions every slot has room for; 0 while a layer is empty."""
        return min(s.extent for s in self.present()) if self.complete() else 0

    def install(self, layer: int, which: KvWhich, storage: Storage) -> None:
        register(storage)
        self._slots[layer, which.value] = KvSlot(storage, self._state)

    def drop(self) -> None:
        """Every slot is empty."""
        self.raise_version_floor()
        for place in self._slots:
            self._slots[place] = None

    def raise_version_floor(self) -> None:
        """What is installed next begins above every version given out so far."""
        self._state.version_floor = max([self._state.version_floor, *(s.version + 1 for s in self.present())])

    def incoming(
        self, layer: int, key: NDArray[Any] | Tensor, value: NDArray[Any] | Tensor, extent: int | None
    ) -> list[Tensor]:
        """Caller storage as tensors that fit the layer. Raises LayoutError; changes nothing."""
        tensors = [
            incoming_tensor(self.expected(layer, which), given, self.batch, extent)
            for which, given in ((KvWhich.KEY, key), (KvWhich.VALUE, value))
        ]
        if tensors[0].shape[2] != tensors[1].shape[2]:
            raise LayoutError(
                "A layer's key and value differ in extent.",
                found=f"{tensors[0].shape[2]} and {tensors[1].shape[2]}",
            )
        refuse_shared(tensors, [s.storage.tensor for s in self.present(layer)], self._state)
        return tensors

    def exported(self, n: int) -> KvExport:
        """The first ``n`` positions of every slot. Raises LayoutError while a layer is empty."""
        slots = [
            ExportedSlot(s.layer, s.which.value, s.dtype, self.populated(s.layer, s.which.value).read(0, n))
            for s in self.geometry.slots
        ]
        return KvExport(self._state.shape_key, self.batch, n, tuple(slots))

    def take(self, incoming: KvExport) -> None:
        """Make ``incoming``, which fits, the content."""
        # Should a write fail half way, the cache is empty rather than half one context and half another.
        self._state.length = 0
        if incoming.length:
            for source in incoming.slots:
                self.populated(source.layer, source.which).write(source.array, 0)
        self._state.length = incoming.length
        self._state.shape_key = incoming.shape_key
