"""The plan directory, written so that it appears whole or not at all.

Files go into a hidden directory beside the target, ``.NAME.planonce-XXXXXXXX.partial``, are synced,
and one rename publishes them. Whatever ends the compile early (an error, Ctrl-C, a full disk) removes
that directory; after a SIGKILL it stays, and the next compile to the same target removes it, which it
can tell from one that is still being written because the writer holds a lock on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Generator
from pathlib import Path

from planonce.runtime.errors import OutputError
from planonce.runtime.manifest import MANIFEST_NAME, FileRecord

from .plan_file import COPY_CHUNK, PlanFile, output_errors, record_of

__all__ = ["PlanDirectory", "check_target", "open_plan_directory", "require_free_space"]

_SLACK = 1 << 20  # directory entries, the manifest, rounding to blocks
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a target that cannot become a plan, before any work is done. Raises OutputError.

    ``force`` replaces a plan, never another kind of directory: a mistyped ``-o ~`` must not cost a home.
    """
    if not os.path.lexists(target):
        parent = _existing_ancestor(target)
        if not parent.is_dir():
            raise OutputError("The plan cannot be put below a file.", where=str(target), found=str(parent))
        if not os.access(parent, os.W_OK | os.X_OK):
            raise OutputError(
                "The plan's directory cannot be written.", where=str(parent), todo="Choose another -o."
            )
        return
    if target.is_dir():
        is_plan = (target / MANIFEST_NAME).is_file()
        if not any(target.iterdir()) or (is_plan and force):
            return
        found = "a plan" if is_plan else "a directory that is no plan"
    else:
        is_plan, found = False, "a file or a broken link"
    raise OutputError(
        "The output exists already.",
        where=str(target),
        found=found,
        todo="Pass --force to replace it, or choose another -o." if is_plan else "Choose another -o.",
    )


def require_free_space(directory: Path, needed: int) -> None:
    """Raises OutputError when the file system of ``directory`` has fewer than ``needed`` bytes left."""
    ancestor = _existing_ancestor(directory)
    free = _free_bytes(ancestor)
    if free < needed + _SLACK:
        raise OutputError(
            "There is not enough room for the plan.",
            found=f"{free:,} bytes free",
            expected=f"{needed + _SLACK:,} bytes",
            where=str(ancestor),
            todo="Free some space, choose another -o, or try --weights reference.",
        )


class PlanDirectory:
    """A plan directory under construction at ``path``; see :func:`open_plan_directory`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.needed = 0  # bytes the whole plan takes, for the message when the disk runs full
        self._records: dict[str, FileRecord] = {}

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """Every file so far but the manifest, by path."""
        return tuple(self._records[path] for path in sorted(self._records))

    @contextlib.contextmanager
    def create(self, name: str) -> Generator[PlanFile]:
        """A new file to append to; recorded and synced when the block ends. Raises OutputError."""
        path = self.path / name
        with output_errors(path, self.needed), PlanFile(path) as file:
            yield file
            file.sync()
        if name != MANIFEST_NAME:
            self._records[name] = record_of(path, name, file.sha256)

    def write(self, name: str, data: bytes) -> None:
        with self.create(name) as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """A file that is not to be part of the plan after all."""
        (self.path / name).unlink()
        del self._records[name]

    def adopt(self, source: Path, name: str, *, sha256: str | None = None, on_copy_of: int = 0) -> bool:
        """Make ``source`` a file of the plan: hard-linked, or copied where a link is impossible.

        ``sha256`` (of the whole source, if known) saves reading it. Returns whether it was linked.
        A copy is not begun unless it and ``on_copy_of`` more bytes have room.
        """
        source, path = source.resolve(), self.path / name
        try:
            with output_errors(path, self.needed):
                try:
                    os.link(source, path)
                except OSError as error:
                    if error.errno not in _CANNOT_LINK:
                        raise
                else:
                    self._records[name] = record_of(path, name, sha256)
                    return True
            require_free_space(self.path, source.stat().st_size + on_copy_of)
            with source.open("rb") as original, self.create(name) as copy:
                while chunk := original.read(COPY_CHUNK):
                    copy.write(chunk)
        except FileNotFoundError as error:
            raise OutputError("A checkpoint file has gone.", where=str(error.filename)) from None
        return False


@contextlib.contextmanager
def open_plan_directory(target: Path, *, force: bool = False) -> Generator[PlanDirectory]:
    """A directory to fill; published at ``target`` when the block ends well, removed when it does not.

    With ``force`` a plan that is there already is exchanged in one step and then removed.
    Raises OutputError.
    """
    # A link is followed: replacing the link itself would leave the plan it points to behind.
    target = target.resolve()
    check_target(target, force=force)
    made = _make_parents(target.parent)
    directory: Path | None = None
    lock = -1
    try:
        with output_errors(target, 0):
            _remove_abandoned(target)
            directory, lock = _make_locked(target)
        plan = PlanDirectory(directory)
        yield plan
        with output_errors(target, plan.needed):
            _sync_directory(directory)
            _publish(directory, target, force=force)
            _sync_directory(target.parent)
        made = []
    finally:
        if directory is not None:
            # What is at this name now is the unfinished plan, or the one that was replaced.
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)
        for parent in reversed(made):
            with contextlib.suppress(OSError):
                parent.rmdir()


def _publish(directory: Path, target: Path, *, force: bool) -> None:
    check_target(target, force=force)  # again: minutes have passed
    if target.is_dir() and any(target.iterdir()):
        _exchange(directory, target)
    else:
        directory.rename(target)


def _exchange(first: Path, second: Path) -> None:
    """Swap two directories in one step; in two renames where the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        names = (os.fsencode(first), os.fsencode(second))
        if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
    aside = first.with_name(first.name + ".old")
    second.rename(aside)
    try:
        first.rename(second)
    except BaseException:
        aside.rename(second)
        raise
    aside.rename(first)


def _partial_prefix(target: Path) -> str:
    return f".{target.name}.planonce-"


def _make_locked(target: Path) -> tuple[Path, int]:
    """A fresh partial directory and a descriptor that holds its lock until closed (or the process dies)."""
    while True:
        path = target.parent / f"{_partial_prefix(target)}{secrets.token_hex(4)}.partial"
        path.mkdir()
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another compile may have taken it for abandoned before the lock was ours.
        if path.exists():
            return path, lock
        os.close(lock)


def _remove_abandoned(target: Path) -> None:
    prefix = _partial_prefix(target)
    for path in target.parent.iterdir():
        if not path.name.startswith(prefix) or ".partial" not in path.name:
            continue
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # still being written
        finally:
            os.close(lock)


def _make_parents(directory: Path) -> list[Path]:
    """Create ``directory``; returns what had to be made, outermost first."""
    made: list[Path] = []
    with output_errors(directory, 0):
        for parent in reversed([directory, *directory.parents]):
            if not parent.exists():
                parent.mkdir(exist_ok=True)
                made.append(parent)
    return made


def _existing_ancestor(path: Path) -> Path:
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())


def _free_bytes(directory: Path) -> int:
    usage = os.statvfs(directory)
    return usage.f_bavail * usage.f_frsize


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
