"""Write a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from .errors import OutputError

__all__ = ["write_atomic"]


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``; whoever reads it sees the old bytes or the new. Raises OutputError.

    The file and then its directory are synced, so that a power cut cannot leave an empty file by that name.
    """
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        temporary = None
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise OutputError(
            "The file could not be written.",
            found=error.strerror or str(error),
            where=str(path),
            todo="Check the directory, its permissions and the free space.",
        ) from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
