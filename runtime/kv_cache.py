"""A KV cache: pre-allocated head-major buffers with an identity, a residency and a live length.

Three questions, kept apart. *Allocation*: :meth:`KvCache.alloc_id`, which buffers these are.
*Residency*: :attr:`KvCache.device_location`, where they provably live. *Content*: :attr:`KvCache.length`
and per-slot versions. Capacity is how much fits, length is how much is live; nothing confuses the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kv_programs
from .atomic_file import write_atomic
from .device import HOST, DeviceLocation, check_local
from .dtypes import ITEM_SIZE
from .errors import CapacityExceeded, LayoutError
from .kv_alloc_id import KvAllocId
from .kv_geometry import KvGeometry, KvWhich, check_size, uniform_geometry
from .kv_handoff import KvExport, read_export
from .kv_incoming import check_count, check_positions
from .kv_move import location_of, move_slots
from .kv_slot import Authority
from .kv_slots import KvSlots
from .kv_state import KvState
from .manifest_schema import KvSlotSpec
from .ort import Tensor, carrier
from .rebind import RebindBusy
from .storage import Storage, check_memory

__all__ = ["KvCache"]


class KvCache:
    """Key and value buffers ``[batch, n_kv_heads, capacity, head_dim]`` of every layer. Thread-safe."""

    __slots__ = ("_device", "_fixed_capacity", "_slots", "state")

    def __init__(self, geometry: KvGeometry, *, batch: int, fixed_capacity: int | None) -> None:
        """Use :meth:`with_capacity`, :meth:`for_slots` or :meth:`with_dims`."""
        self.state = KvState()
        self._fixed_capacity = fixed_capacity
        self._device: DeviceLocation | None = None
        self._slots = KvSlots(geometry, batch, self.state)

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
        location = check_local(DeviceLocation.parse(device) if isinstance(device, str) else device)
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
            storage = Storage.empty(shape, slot.dtype, slot.device, cache.state)
            kv_programs.zero_fill(storage.tensor, slot.device)
            cache._slots.install(slot.layer, slot.which, storage)
        cache._device = geometry.device()
        return cache

    # --- what it is ---------------------------------------------------------------------------------

    def alloc_id(self) -> KvAllocId:
        """Names the allocation: new on construction, :meth:`clear`, :meth:`set_layer` and when a buffer moves
        to another device, and only then."""
        return self.state.alloc_id

    @property
    def device_location(self) -> DeviceLocation | None:
        """Known only while every buffer was allocated by us on one device; None means "cannot prove"."""
        return self._device

    @property
    def geometry(self) -> KvGeometry:
        return self._slots.geometry

    @property
    def n_layers(self) -> int:
        return self.geometry.n_layers

    @property
    def batch(self) -> int:
        return self._slots.batch

    @property
    def capacity(self) -> int:
        """Positions every slot has room for; 0 while a layer is empty."""
        with self.state.lock:
            return self._slots.capacity

    @property
    def length(self) -> int:
        """Live positions ``[0, length)``. Sessions advance it; both sessions on one cache see it."""
        return self.state.length

    @property
    def nbytes(self) -> int:
        """Bytes held on the devices."""
        with self.state.lock:
            return sum(s.storage.nbytes for s in self._slots.present())

    def slot_storage(self, layer: int, which: str) -> Storage | None:
        """The slot's storage, the same object each time; None when out of range or empty."""
        with self.state.lock:
            slot = self._slots.get(layer, which)
            if slot is None:
                return None
            # Whoever takes the storage reads device bytes; a host edit must not be missed.
            slot.upload()
            return slot.storage

    def layer(self, layer: int) -> tuple[Storage, Storage] | None:
        """Key and value storage of a layer; None when out of range or empty."""
        with self.state.lock:  # or another thread's set_layer could come between the two
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

    # --- residency ----------------------------------------------------------------------------------

    def move_to(self, location: DeviceLocation | str, layers: Iterable[int] | None = None) -> int:
        """Move the buffers of ``layers`` (default: all) to ``location``, such as the host; how many moved.

        Content and live length stay. When a buffer moved the allocation is another: a held session refuses
        the cache (StaleCache) until it is back (:meth:`move_home`) and re-bound; what is written meanwhile
        comes back too. Raises LayoutError (device, layer), KvMemoryError before anything changes.
        """
        target = check_local(DeviceLocation.parse(location) if isinstance(location, str) else location)
        return self._move(target, layers)

    def move_home(self, layers: Iterable[int] | None = None) -> int:
        """Move buffers back to the devices that the cache was made for. As :meth:`move_to`."""
        return self._move(None, layers)

    def _move(self, target: DeviceLocation | None, layers: Iterable[int] | None) -> int:
        with self.state.lock:
            moved = move_slots(self._slots, self.state, target, layers)
            if moved:
                self._device = location_of(self._slots)
            return moved

    # --- content ------------------------------------------------------------------------------------

    def truncate_to(self, n: int) -> None:
        """Forget positions from ``n`` on. Metadata only; never grows. Raises LayoutError on n < 0."""
        n = check_count("The length", n)
        if n < 0:
            raise LayoutError("A cache cannot be truncated to fewer than no positions.", found=str(n))
        with self.state.lock:
            self.state.length = min(self.state.length, n)

    def extend_to(self, n: int) -> None:
        """Declare ``[length, n)`` live because the caller has written it (:meth:`write_bytes`).

        Raises CapacityExceeded beyond the capacity, LayoutError below the current length.
        """
        n = check_count("The length", n)
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
            self._slots.drop()
            self._device = None
            self.state.length = 0
            self.state.forget_edits()
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
            tensors = self._slots.incoming(layer, key, value, self._fixed_capacity)
            extents = [tensors[0].shape[2], *(s.extent for s in self._slots.present(layer))]
            capacity = min(extents) if self._slots.complete(layer) else 0
            if length is not None:
                live = check_count("The live length", length)
            else:
                live = capacity if self._fixed_capacity is None else self.state.length
            if not 0 <= live <= capacity:
                raise LayoutError(
                    "The live length does not fit the storage.", found=str(live), expected=f"<= {capacity}",
                    todo="Give the last layer the length, once every layer is set.",
                )  # fmt: skip
            self._slots.raise_version_floor()
            for which, tensor in zip(KvWhich, tensors, strict=True):
                self._slots.install(layer, which, Storage(tensor, location=None, owner=self.state))
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
            geometry = self._slots.expected(layer, which)
            target = self._slots.populated(layer, which)
            if target.storage.dtype not in ITEM_SIZE:
                raise LayoutError("Bytes of this dtype cannot be written.", found=target.storage.dtype)
            check_positions(start, n, target.extent)
            shape = geometry.shape(self.batch, n)
            expected = geometry.nbytes(self.batch, n)
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
            slot = self._slots.populated(layer, which)
            check_positions(start, n, slot.extent)
            return slot.read(start, n)

    # --- hand-off -----------------------------------------------------------------------------------

    def export(self, positions: int | None = None) -> bytes:
        """The first ``positions`` live positions (default: all) as a checked, portable container.

        Raises CapacityExceeded beyond the live length, LayoutError while a layer is empty.
        """
        with self.state.lock:
            n = self.state.length if positions is None else check_count("The number of positions", positions)
            if not 0 <= n <= self.state.length:
                raise CapacityExceeded(
                    "Only live positions can be exported.", found=str(n), expected=f"0..{self.state.length}"
                )
            return self._slots.exported(n).to_bytes()

    def import_(self, data: bytes) -> None:
        """Make an export's positions this cache's content, in place: a held session continues after them.

        Raises KvImportError (a subclass a fault), CapacityExceeded, LayoutError before anything is touched.
        """
        incoming = KvExport.from_bytes(data)
        with self.state.lock:
            if self._fixed_capacity is None:
                raise LayoutError(
                    "A grow-by-replacement cache cannot be imported into.",
                    todo="Make a cache with_capacity, or by Plan.new_cache.",
                )
            for slot in self.geometry.slots:
                self._slots.populated(slot.layer, slot.which)
            incoming.check_fits(self.geometry, self.batch, self.capacity, self.state.shape_key)
            self._slots.take(incoming)

    def fork(self) -> KvCache:
        """A cache of the same geometry and live content in its own buffers: what one decodes, the other
        does not see. Raises KvMemoryError, LayoutError while a layer is empty."""
        with self.state.lock:
            here = self._slots.exported(self.state.length)
            if self._fixed_capacity is None:
                copy = KvCache(self.geometry, batch=self.batch, fixed_capacity=None)
                for layer in range(self.n_layers):
                    key, value = (self.host_array(layer, which) for which in KvWhich)
                    copy.set_layer(layer, key, value)
                copy.state.length, copy.state.shape_key = self.state.length, self.state.shape_key
                return copy
            copy = KvCache._allocated(self.geometry, self._fixed_capacity, self.batch)
            copy._slots.take(here)
            return copy

    def save(self, path: Path | str, positions: int | None = None) -> None:
        """:meth:`export` to a file, whole or not at all. Raises as export, and OutputError."""
        write_atomic(Path(path), self.export(positions))

    def load(self, path: Path | str) -> None:
        """:meth:`import_` from a file. Raises as import_, and KvImportError when it cannot be read."""
        self.import_(read_export(Path(path)))

    # --- authority and versions ---------------------------------------------------------------------

    def host_array(self, layer: int, which: str) -> NDArray[Any]:
        """The whole slot on the host, read-only, never stale; flushed once per change. Raises LayoutError."""
        with self.state.lock:
            return self._slots.populated(layer, which).host()

    def write_host(self, layer: int, which: str, start: int, values: NDArray[Any]) -> None:
        """Change positions on the host; the device gets them before it next runs. Raises as write_bytes."""
        with self.state.lock:
            slot = self._slots.populated(layer, which)
            geometry = self._slots.expected(layer, which)
            n = values.shape[2] if values.ndim == 4 else -1
            start = check_count("The first position", start)
            if tuple(values.shape) != geometry.shape(self.batch, n) or start < 0 or start + n > slot.extent:
                raise LayoutError(
                    "The values do not fit the slot.",
                    found=f"{list(values.shape)} at {start}",
                    expected=f"{list(geometry.shape(self.batch, n))} within {slot.extent} positions",
                )
            if values.dtype != carrier(geometry.dtype):
                raise LayoutError("Wrong dtype.", found=str(values.dtype), expected=geometry.dtype)

            def edit(mirror: NDArray[Any]) -> None:
                mirror[:, :, start : start + n] = values

            slot.edit_host(edit)

    def authority(self, layer: int, which: str) -> Authority | None:
        """Who holds the newest bytes of a slot; None when out of range or empty."""
        with self.state.lock:
            slot = self._slots.get(layer, which)
            return None if slot is None else slot.authority

    def version(self, layer: int, which: str) -> int | None:
        """The slot's version, which only rises; None when out of range or empty."""
        with self.state.lock:
            slot = self._slots.get(layer, which)
            return None if slot is None else slot.version

    def flushes(self, layer: int, which: str) -> int:
        """How often the slot was copied from device to host whole."""
        with self.state.lock:
            return self._slots.populated(layer, which).flushes

    def bump_version(self, layer: int, which: str) -> None:
        """Declare a slot's device bytes changed. Does nothing for an empty or missing slot."""
        with self.state.lock:
            slot = self._slots.get(layer, which)
            if slot is not None:
                slot.bump()

    def upload(self) -> int:
        """Send host edits to the devices; a session does so before it runs. Returns how many slots."""
        with self.state.lock:
            return self.state.upload()

    def __repr__(self) -> str:
        return (
            f"KvCache({self.n_layers} layers, {self.length}/{self.capacity} positions, "
            f"{'+'.join(self.geometry.dtypes)}, {self._device or 'unproven'}, alloc {self.alloc_id()})"
        )
