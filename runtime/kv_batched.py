"""KV buffers with several rows, for an arm that decodes a batch in one run."""

from __future__ import annotations

from .device import HOST, DeviceLocation, check_local
from .kv_cache import KvCache
from .kv_geometry import uniform_geometry

__all__ = ["alloc_batched_kv"]


def alloc_batched_kv(
    k: int,
    n_layers: int,
    n_kv_heads: int,
    head_dim: int,
    max_seq_len: int,
    dtype: str = "float32",
    device: DeviceLocation | str = HOST,
) -> KvCache:
    """Zero-filled ``[k, n_kv_heads, max_seq_len, head_dim]`` buffers for every layer: all of them or none.

    Raises LayoutError (geometry, dtype, unknown device), KvMemoryError.
    """
    location = check_local(DeviceLocation.parse(device) if isinstance(device, str) else device)
    geometry = uniform_geometry(n_layers, n_kv_heads, head_dim, dtype, location)
    return KvCache.for_geometry(geometry, max_seq_len, batch=k)
