"""Does a cache fit a plan? Asked once, when a session is opened over it."""

from __future__ import annotations

from .device import DeviceKind
from .errors import LayoutError
from .kv_cache import KvCache
from .step_program import StepProgram
from .storage import Storage

__all__ = ["slots_for"]


def slots_for(program: StepProgram, cache: KvCache) -> dict[tuple[int, str], Storage]:
    """Every slot the plan binds, checked against what it was compiled for. Raises LayoutError."""
    if cache.batch != 1:
        raise LayoutError(
            "A decode session serves one row.", found=f"batch {cache.batch}", expected="batch 1"
        )
    specs = {(s.layer, s.which): s for s in program.slots}
    extra = [(s.layer, s.which.value) for s in cache.geometry.slots if (s.layer, s.which.value) not in specs]
    if extra:
        raise LayoutError("The cache has a slot that the plan does not.", found=f"layer {extra[0]}")
    for layer, which in specs:  # before the capacity, which is 0 while a layer is empty
        if cache.slot_storage(layer, which) is None:
            raise LayoutError("The cache lacks a slot that the plan binds.", where=f"layer {layer} {which}")
    capacity = cache.capacity
    if capacity > program.manifest.model.max_seq_len:
        raise LayoutError(
            "The cache is larger than the plan can address.",
            found=str(capacity),
            expected=f"<= {program.manifest.model.max_seq_len}",
        )
    found: dict[tuple[int, str], Storage] = {}
    for (layer, which), spec in specs.items():
        storage = cache.slot_storage(layer, which)
        where = f"layer {layer} {which}"
        assert storage is not None
        expected = (1, spec.n_kv_heads, capacity, spec.head_dim)
        if storage.shape != expected or storage.dtype != spec.dtype:
            raise LayoutError(
                "A slot of the cache does not fit the plan.",
                found=f"{storage.dtype} {list(storage.shape)}",
                expected=f"{spec.dtype} {list(expected)}",
                where=where,
            )
        # Caller storage has no proven residency, but ONNX Runtime knows what kind of memory it is.
        kind = DeviceKind(spec.device.split(":")[0])
        lies = str(storage.location) if storage.location is not None else storage.tensor.device_type
        if lies not in (spec.device, kind.value):
            raise LayoutError(
                "A slot of the cache lies on another device.", found=lies, expected=spec.device, where=where
            )
        found[layer, which] = storage
    return found
