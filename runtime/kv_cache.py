"""A KV cache: pre-allocated head-major buffers with an identity, a residency and a live length.

Three questions, kept apart. *Allocation*: :meth:`KvCache.alloc_id`, which buffers these are.
*Residency*: :attr:`KvCache.device_location`, where they provably live. *Content*: :attr:`KvCache.length`
and per-slot versions. Capacity is how much fits, length is how much is live; nothing confuses the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kv_programs
from .device import HOST, DeviceLocation
from .dtypes import ITEM_SIZE
from .errors import CapacityExceeded, LayoutError
from .kv_alloc_id import KvAllocId
from .kv_geometry import KvGeometry, KvWhich, SlotGeometry, check_size, uniform_geometry
from .kv_incoming import incoming_tensor, refuse_shared
from .kv_slot import Authority, KvSlot
from .kv_state import KvState
from .manifest_schema import KvSlotSpec
from .ort import Tensor, carrier
from .rebind import RebindBusy
from .storage import Storage, check_memory

__all__ = ["KvCache"]


class KvCache:
    """Key and value buffers ``[batch, n_kv_heads, capacity, head_dim]`` of every layer. Thread-safe."""

    __slots__ = ("_batch", "_device", "_fixed_capacity", "_slots", "geometry", "state")

    def __init__(self, geometry: KvGeometry, *, batch: int, fixed_capacity: int | None) -> None:
        """Use :meth:`with_capacity`, :meth:`for_slots` or :meth:`with_dims`."""
        self.geometry = geometry
        self.state = KvState()
        self._batch = batch
        self._fixed_capacity = fixed_capacity
        self._device: DeviceLocation | None = None
        self._slots: dict[tuple[int, str], KvSlot | None] = {
            (s.layer, s.which.value): None for s in geometry.slots
        }

    # --- construction -------------------------------------------------------------------------------

    @staticmethod
    def with_capacity(
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        max_seq_len: int,
        dtype: str = "float32",
        device: DeviceLocation | str = HOST,
    ) -> KvCache:
        """Zero-filled ``[1, n_kv_heads, max_seq_len, head_dim]`` buffers for every layer, on ``device``.

        Raises LayoutError (geometry, dtype, unknown device), KvMemoryError; nothing stays allocated.
        """
        location = DeviceLocation.parse(device) if isinstance(device, str) else device
        geometry = uniform_geometry(n_layers, n_kv_heads, head_dim, dtype, location)
        return KvCache._allocated(geometry, max_seq_len, 1)

    @staticmethod
    def for_slots(specs: Iterable[KvSlotSpec], capacity: int, *, batch: int = 1) -> KvCache:
        """Buffers for a plan's slots, which may differ from layer to layer. Raises as with_capacity."""
        return KvCache._allocated(KvGeometry.of_specs(specs), capacity, batch)

    @staticmethod
    def for_geometry(geometry: KvGeometry, capacity: int, *, batch: int = 1) -> KvCache:
        """Buffers of the same geometry as another cache's. Raises as with_capacity."""
        return KvCache._allocated(geometry, capacity, batch)

    @staticmethod
    def with_dims(
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        dtype: str = "float32",
        device: DeviceLocation | str = HOST,
    ) -> KvCache:
        """A cache that grows by replacement: layers start empty, :meth:`set_layer` installs storage."""
        location = DeviceLocation.parse(device) if isinstance(device, str) else device
        geometry = uniform_geometry(n_layers, n_kv_heads, head_dim, dtype, location)
        return KvCache(geometry, batch=1, fixed_capacity=None)

    @staticmethod
    def _allocated(geometry: KvGeometry, capacity: int, batch: int) -> KvCache:
        check_size("capacity", capacity)
        check_size("batch", batch)
        for device in {s.device for s in geometry.slots}:
            here = KvGeometry(tuple(s for s in geometry.slots if s.device == device))
            check_memory(here.nbytes(capacity, batch), device)
        cache = KvCache(geometry, batch=batch, fixed_capacity=capacity)
        for slot in geometry.slots:
            shape = slot.shape(batch, capacity)
            storage = Storage.empty(shape, slot.dtype, slot.device, cache.state.lock)
            kv_programs.zero_fill(storage.tensor, slot.device)
            cache._slots[slot.layer, slot.which.value] = KvSlot(storage, cache.state)
        cache._device = geometry.device()
        return cache

    # --- what it is ---------------------------------------------------------------------------------

    def alloc_id(self) -> KvAllocId:
        """Names the allocation: new on construction, :meth:`clear` and :meth:`set_layer`, and only then."""
        return self.state.alloc_id

    @property
    def device_location(self) -> DeviceLocation | None:
        """Known only while every buffer was allocated by us on one device; None means "cannot prove"."""
        return self._device

    @property
    def n_layers(self) -> int:
        return self.geometry.n_layers

    @property
    def batch(self) -> int:
        return self._batch

    @property
    def capacity(self) -> int:
        """Positions every slot has room for; 0 while a layer is empty."""
        with self.state.lock:
            slots = list(self._slots.values())
            return 0 if any(s is None for s in slots) else min(s.extent for s in slots if s is not None)

    @property
    def length(self) -> int:
        """Live positions ``[0, length)``. Sessions advance it; both sessions on one cache see it."""
        return self.state.length

    @property
    def nbytes(self) -> int:
        """Bytes held on the devices."""
        with self.state.lock:
            return sum(s.storage.nbytes for s in self._slots.values() if s is not None)

    def slot_storage(self, layer: int, which: str) -> Storage | None:
        """The slot's storage, the same object each time; None when out of range or empty."""
        with self.state.lock:
            slot = self._slots.get((layer, which))
            if slot is None:
                return None
            # Whoever takes the storage reads device bytes; a host edit must not be missed.
            slot.upload()
            return slot.storage

    def layer(self, layer: int) -> tuple[Storage, Storage] | None:
        """Key and value storage of a layer; None when out of range or empty."""
        key = self.slot_storage(layer, KvWhich.KEY)
        value = self.slot_storage(layer, KvWhich.VALUE)
        return None if key is None or value is None else (key, value)

    # --- re-bind source (P10) -----------------------------------------------------------------------

    def rebind_location(self) -> DeviceLocation | None:
        return self._device

    def rebind_slot(self, layer: int, which: str) -> Storage | None:
        """As :meth:`slot_storage`, but never waits: raises RebindBusy while another thread decodes."""
        if not self.state.lock.acquire(blocking=False):
            raise RebindBusy
        try:
            return self.slot_storage(layer, which)
        finally:
            self.state.lock.release()

    # --- content ------------------------------------------------------------------------------------

    def truncate_to(self, n: int) -> None:
        """Forget positions from ``n`` on. Metadata only; never grows. Raises LayoutError on n < 0."""
        if n < 0:
            raise LayoutError("A cache cannot be truncated to fewer than no positions.", found=str(n))
        with self.state.lock:
            self.state.length = min(self.state.length, n)

    def extend_to(self, n: int) -> None:
        """Declare ``[length, n)`` live because the caller has written it (:meth:`write_bytes`).

        Raises CapacityExceeded beyond the capacity, LayoutError below the current length.
        """
        with self.state.lock:
            if n < self.state.length:
                raise LayoutError(
                    "extend_to never shrinks.", found=str(n), expected=f">= {self.state.length}",
                    todo="Use truncate_to.",
                )  # fmt: skip
            if n > self.capacity:
                raise CapacityExceeded(
                    "A cache cannot hold that many positions.", found=str(n), expected=f"<= {self.capacity}"
                )
            self.state.length = n

    def clear(self) -> None:
        """Drop every buffer. The layers are empty, the allocation is another, residency is unknown."""
        with self.state.lock:
            for key in self._slots:
                self._slots[key] = None
            self._device = None
            self.state.length = 0
            self.state.host_dirty = False
            self.state.shape_key = None
            self.state.renew()

    def set_layer(
        self,
        layer: int,
        key: NDArray[Any] | Tensor,
        value: NDArray[Any] | Tensor,
        *,
        length: int | None = None,
    ) -> None:
        """Install caller storage ``[batch, n_kv_heads, extent, head_dim]``; arrays are copied, tensors kept.

        The allocation is another afterwards and residency is unknown. ``length`` is the live length from
        here on; by default a with_dims cache takes its storage to be fully live and another keeps its own.
        Raises LayoutError before anything changes.
        """
        with self.state.lock:
            extent = self._fixed_capacity
            tensors = [
                incoming_tensor(self._geometry(layer, which), given, self._batch, extent)
                for which, given in ((KvWhich.KEY, key), (KvWhich.VALUE, value))
            ]
            if tensors[0].shape[2] != tensors[1].shape[2]:
                raise LayoutError(
                    "A layer's key and value differ in extent.",
                    found=f"{tensors[0].shape[2]} and {tensors[1].shape[2]}",
                )
            rest = [s for (i, _), s in self._slots.items() if i != layer]
            refuse_shared(tensors, [s.storage.tensor for s in rest if s is not None])
            populated = all(s is not None for s in rest)
            extents = [s.extent for s in rest if s is not None]
            capacity = min([tensors[0].shape[2], *extents]) if populated else 0
            if length is not None:
                live = length
            else:
                live = capacity if self._fixed_capacity is None else self.state.length
            if not 0 <= live <= max(capacity, 0):
                raise LayoutError(
                    "The live length does not fit the storage.", found=str(live), expected=f"<= {capacity}",
                    todo="Give the last layer the length, once every layer is set.",
                )  # fmt: skip
            for which, tensor in zip(KvWhich, tensors, strict=True):
                storage = Storage(tensor, location=None, guard=self.state.lock)
                self._slots[layer, which.value] = KvSlot(storage, self.state)
            self._device = None
            self.state.length = live
            self.state.renew()

    def write_bytes(self, layer: int, slot: str, start: int, n: int, data: bytes) -> None:
        """Write positions ``[start, start+n)``. data: little-endian ``[batch, n_kv_heads, n, head_dim]``.

        Same buffer: a held session sees it on its next token. The live length is not changed
        (:meth:`extend_to`). Raises LayoutError or CapacityExceeded before anything is touched.
        """
        with self.state.lock:
            if self._fixed_capacity is None:
                raise LayoutError(
                    "A grow-by-replacement cache cannot be written by bytes.",
                    todo="Use set_layer, or make the cache with_capacity.",
                )
            which = KvWhich.named(slot)
            if which is None:
                raise LayoutError("Unknown KV slot.", found=repr(slot), expected="key or value")
            geometry = self._geometry(layer, which)
            target = self._slots[layer, which.value]
            if target is None:
                raise LayoutError("This layer holds no storage.", where=f"layer {layer} {which}")
            if target.storage.dtype not in ITEM_SIZE:
                raise LayoutError("Bytes of this dtype cannot be written.", found=target.storage.dtype)
            if start < 0 or n < 0 or start + n > target.extent:
                raise CapacityExceeded(
                    "The positions lie outside the cache.",
                    found=f"[{start}, {start + n})",
                    expected=f"within [0, {target.extent})",
                )
            shape = geometry.shape(self._batch, n)
            expected = geometry.nbytes(self._batch, n)
            if len(data) != expected:
                raise LayoutError(
                    "The bytes do not fill the positions.",
                    found=f"{len(data)} bytes",
                    expected=f"{expected} bytes for {geometry.dtype} {list(shape)}",
                )
            if n:
                target.write(np.frombuffer(data, dtype=carrier(geometry.dtype)).reshape(shape), start)

    def read_positions(self, layer: int, which: str, start: int, n: int) -> NDArray[Any]:
        """A host copy of positions ``[start, start+n)``: ``[batch, n_kv_heads, n, head_dim]``.

        bfloat16 comes as uint16. Cost follows n, not the capacity. Raises LayoutError, CapacityExceeded.
        """
        with self.state.lock:
            slot = self._populated(layer, which)
            if start < 0 or n < 0 or start + n > slot.extent:
                raise CapacityExceeded(
                    "The positions lie outside the cache.",
                    found=f"[{start}, {start + n})",
                    expected=f"within [0, {slot.extent})",
                )
            return slot.read(start, n)

    # --- authority and versions ---------------------------------------------------------------------

    def host_array(self, layer: int, which: str) -> NDArray[Any]:
        """The whole slot on the host, read-only, never stale; flushed once per change. Raises LayoutError."""
        with self.state.lock:
            return self._populated(layer, which).host()

    def write_host(self, layer: int, which: str, start: int, values: NDArray[Any]) -> None:
        """Change positions on the host; the device gets them before it next runs. Raises as write_bytes."""
        with self.state.lock:
            slot = self._populated(layer, which)
            geometry = self._geometry(layer, which)
            n = values.shape[2] if values.ndim == 4 else -1
            if tuple(values.shape) != geometry.shape(self._batch, n) or start < 0 or start + n > slot.extent:
                raise LayoutError(
                    "The values do not fit the slot.",
                    found=f"{list(values.shape)} at {start}",
                    expected=f"{list(geometry.shape(self._batch, n))} within {slot.extent} positions",
                )
            if values.dtype != carrier(geometry.dtype):
                raise LayoutError("Wrong dtype.", found=str(values.dtype), expected=geometry.dtype)

            def edit(mirror: NDArray[Any]) -> None:
                mirror[:, :, start : start + n] = values

            slot.edit_host(edit)

    def authority(self, layer: int, which: str) -> Authority | None:
        """Who holds the newest bytes of a slot; None when out of range or empty."""
        with self.state.lock:
            slot = self._slots.get((layer, which))
            return None if slot is None else slot.authority

    def version(self, layer: int, which: str) -> int | None:
        """The slot's version, which only rises; None when out of range or empty."""
        with self.state.lock:
            slot = self._slots.get((layer, which))
            return None if slot is None else slot.version

    def flushes(self, layer: int, which: str) -> int:
        """How often the slot was copied from device to host whole."""
        with self.state.lock:
            return self._populated(layer, which).flushes

    def bump_version(self, layer: int, which: str) -> None:
        """Declare a slot's device bytes changed. Does nothing for an empty or missing slot."""
        with self.state.lock:
            slot = self._slots.get((layer, which))
            if slot is not None:
                slot.bump()

    def upload(self) -> int:
        """Send host edits to the devices; a session does so before it runs. Returns how many slots."""
        with self.state.lock:
            sent = sum(s.upload() for s in self._slots.values() if s is not None)
            self.state.host_dirty = False
            return sent

    # --- helpers ------------------------------------------------------------------------------------

    def _geometry(self, layer: int, which: str) -> SlotGeometry:
        for slot in self.geometry.slots:
            if slot.layer == layer and slot.which.value == which:
                return slot
        raise LayoutError(
            "No such KV slot.", found=f"layer {layer}, {which!r}", expected=f"layer 0..{self.n_layers - 1}"
        )

    def _populated(self, layer: int, which: str) -> KvSlot:
        self._geometry(layer, which)
        slot = self._slots[layer, which]
        if slot is None:
            raise LayoutError("This layer holds no storage.", where=f"layer {layer} {which}")
        return slot

    def __repr__(self) -> str:
        return (
            f"KvCache({self.n_layers} layers, {self.length}/{self.capacity} positions, "
            f"{'+'.join(self.geometry.dtypes)}, {self._device or 'unproven'}, alloc {self.alloc_id()})"
        )
