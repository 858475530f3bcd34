"""Digests of files: the whole of one, or a cheap sample of one. Standard library only."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["file_digest", "sample_digest"]

_BLOCK = 4096
_BLOCKS = 64


def file_digest(path: Path) -> str:
    """sha256 (hex) of a whole file, streamed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sample_digest(path: Path) -> str:
    """sha256 (hex) of a file's size and 64 blocks of 4 KiB spread evenly from its first to its last byte.

    It reads 256 KiB whatever the size. It cannot see every change, but weights that were trained further,
    quantised again or truncated and padded differ nearly everywhere, and those are what happens to files.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        if size <= _BLOCK * _BLOCKS:
            digest.update(file.read())
        else:
            for i in range(_BLOCKS):
                file.seek((size - _BLOCK) * i // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK))
    return digest.hexdigest()
