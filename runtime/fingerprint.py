"""What two buffers must share to be interchangeable under a held plan, short of where they live."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Encoding", "StorageFingerprint"]


class Encoding(enum.Enum):
    """How elements are stored."""

    PLAIN = "plain"
    INT8_QUANTISED = "int8-quantised"  # with scales beside it
    BLOCK = "block"  # [n_blocks, block_size, heads, dim]


@dataclass(frozen=True, slots=True)
class StorageFingerprint:
    """dtype, encoding, K+V bundling, backend, byte extent, and shape.

    Residency is not here: two CUDA devices' buffers have equal fingerprints. Shape is, because
    ``[1, 4, 64, 8]`` and ``[1, 8, 32, 8]`` have the same bytes and different meaning.
    """

    dtype: str
    encoding: Encoding
    bundled: bool
    backend: str
    nbytes: int
    shape: tuple[int, ...]
