"""Moving a cache's buffers between devices, whole or by layer: offload to the host and the way back.

A moved slot is another buffer with the same bytes. The cache's allocation is another afterwards, so a held
session refuses it by name until it is re-bound: it can neither read the buffer that was left behind nor
write into it. Writes between the two moves go to wherever the slot is, and so come back with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .device import DeviceLocation
from .errors import LayoutError
from .kv_geometry import KvWhich
from .kv_slots import KvSlots
from .kv_state import KvState
from .storage import Storage, check_memory

__all__ = ["location_of", "move_slots"]


def move_slots(
    slots: KvSlots, state: KvState, location: DeviceLocation | None, layers: Iterable[int] | None
) -> int:
    """Move every slot of ``layers`` (all when None) to ``location``, or home when None; how many moved.

    Expects the cache's lock to be held. Raises LayoutError (no such layer, or an empty one) and
    KvMemoryError before anything changes.
    """
    wanted = _destinations(slots, location, layers)
    for device in set(wanted.values()):
        nbytes = sum(slots.populated(*place).storage.nbytes for place, d in wanted.items() if d == device)
        check_memory(nbytes, device)
    moved: dict[tuple[int, str], Storage] = {}
    for (layer, which), device in wanted.items():
        source = slots.populated(layer, which)
        source.upload()  # a host edit that has not been sent is part of the slot's bytes
        target = Storage.empty(source.storage.shape, source.storage.dtype, device, state)
        target.tensor.copy_from(source.storage.tensor)
        moved[layer, which] = target
    # Every buffer is there and filled: from here on nothing can fail half way.
    slots.raise_version_floor()
    for (layer, which), storage in moved.items():
        slots.install(layer, KvWhich(which), storage)
    if moved:
        state.renew()
    return len(moved)


def location_of(slots: KvSlots) -> DeviceLocation | None:
    """Where all buffers provably are; None when one is not ours, missing, or elsewhere than the others."""
    found = {slot.storage.location for slot in slots.present()}
    return next(iter(found)) if len(found) == 1 and slots.complete() else None


def _destinations(
    slots: KvSlots, location: DeviceLocation | None, layers: Iterable[int] | None
) -> Mapping[tuple[int, str], DeviceLocation]:
    """Where each slot that has to move goes to."""
    chosen = None if layers is None else set(layers)
    known = {slot.layer for slot in slots.geometry.slots}
    if chosen is not None and not chosen <= known:
        raise LayoutError(
            "There is no such layer to move.",
            found=str(sorted(chosen - known)[0]),
            expected=f"0..{max(known)}",
        )
    found: dict[tuple[int, str], DeviceLocation] = {}
    for slot in slots.geometry.slots:
        if chosen is None or slot.layer in chosen:
            target = slot.device if location is None else location
            if slots.populated(slot.layer, slot.which).storage.location != target:
                found[slot.layer, slot.which.value] = target
    return found
