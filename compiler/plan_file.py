"""One file of a plan while it is written: appended, hashed on the way, synced."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import Self

from planonce.runtime.errors import OutputError
from planonce.runtime.file_digest import file_digest, sample_digest
from planonce.runtime.manifest import FileRecord

__all__ = ["COPY_CHUNK", "PlanFile", "output_errors", "record_of"]

COPY_CHUNK = 1 << 22
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PlanFile:
    """A new file, written from front to back. ``position`` is the number of bytes so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        self._digest = hashlib.sha256()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        """Append all of ``data``. Raises OSError; inside ``PlanDirectory.create`` that is OutputError."""
        rest = memoryview(data).cast("B")
        while rest:
            # In chunks: one call takes at most 2 GiB, and the page cache stays shallow.
            chunk = rest[:COPY_CHUNK]
            written = os.write(self._descriptor, chunk)
            self._digest.update(chunk[:written])
            self.position += written
            rest = rest[written:]

    def pad_to(self, offset: int) -> None:
        """Append zeros until ``position == offset``."""
        assert offset >= self.position, (offset, self.position)
        self.write(bytes(offset - self.position))

    def sync(self) -> None:
        os.fsync(self._descriptor)


def record_of(path: Path, name: str, sha256: str | None = None) -> FileRecord:
    """The manifest's record of ``path`` under ``name``; reads the file only if ``sha256`` is not given."""
    return FileRecord(name, path.stat().st_size, sha256 or file_digest(path), sample_digest(path))


@contextlib.contextmanager
def output_errors(path: Path, needed: int) -> Generator[None]:
    """Turn an OSError of the block into OutputError; ``needed``: bytes of the whole plan, 0 if unknown."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise OutputError(
                "The disk is full: the plan was not written.",
                found=_room(path) or str(error),
                expected=f"{needed:,} bytes for the whole plan" if needed else "",
                where=str(path.parent),
                todo="Free some space, choose another -o, or try --weights reference.",
            ) from error
        raise OutputError(
            "The plan cannot be written.", found=error.strerror or str(error), where=str(path)
        ) from error


def _room(path: Path) -> str:
    try:
        usage = os.statvfs(path.parent)
    except OSError:
        return ""
    return f"{usage.f_bavail * usage.f_frsize:,} bytes free"
