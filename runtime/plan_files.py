"""Are a plan's files, and the checkpoint it may refer to, the ones the manifest describes?"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path

from .errors import PlanIntegrityError
from .file_digest import file_digest, sample_digest
from .manifest import FileRecord, Manifest

__all__ = ["Verify", "file_problems", "verify_files"]

_WHOLE = 16 * 1024 * 1024


class Verify(enum.Enum):
    """How much of the files is read at load.

    SIZE: existence and size of each. STANDARD (the default): also the sha256 of files up to 16 MiB
    (programs, tokenizer) and a sampled digest (256 KiB) of larger ones, where the compiler recorded it.
    FULL: the sha256 of every file, the referenced checkpoint included.
    """

    SIZE = "size"
    STANDARD = "standard"
    FULL = "full"


def verify_files(manifest: Manifest, directory: Path, level: Verify) -> None:
    """Raises PlanIntegrityError at the first file that is missing, elsewhere, resized or altered."""
    for problem in file_problems(manifest, directory, level):
        raise problem


def file_problems(manifest: Manifest, directory: Path, level: Verify) -> Iterator[PlanIntegrityError]:
    """What is wrong, a file at a time; nothing is raised and nothing more is read than was asked for."""
    for record in manifest.files:
        path = directory / record.path
        problem = _problem(record, path, level, "Compile the plan again, or copy the whole directory again.")
        # ONNX Runtime would refuse it later and less clearly; and a link out of the plan can change unseen.
        if problem is None and not path.resolve().is_relative_to(directory.resolve()):
            problem = PlanIntegrityError(
                "A file of the plan is a link that leaves the plan's directory.", where=str(path)
            )
        if problem is not None:
            yield problem
    reference = manifest.checkpoint
    if reference.root is None:
        return
    root = Path(reference.root)
    todo = (
        "Put the checkpoint back, or compile again (without `--weights reference` a plan is self-contained)."
    )
    if not root.is_dir():
        yield PlanIntegrityError(
            "The checkpoint that this plan refers to has moved.",
            found="no such directory",
            where=str(root),
            todo=todo,
        )
        return
    for record in reference.files:
        owner = "The checkpoint that this plan refers to"
        problem = _problem(record, root / record.path, level, todo, owner)
        if problem is not None:
            yield problem


def _problem(
    record: FileRecord, path: Path, level: Verify, todo: str, owner: str = "The plan"
) -> PlanIntegrityError | None:
    try:
        size = path.stat().st_size
    except OSError:
        return PlanIntegrityError(f"{owner} lacks a file.", found="no such file", where=str(path), todo=todo)
    if not path.is_file():
        return PlanIntegrityError(f"{owner} lacks a file.", found="not a file", where=str(path), todo=todo)
    if size != record.size:
        return PlanIntegrityError(
            f"{owner} has a file of another size.",
            found=f"{size} bytes",
            expected=f"{record.size} bytes",
            where=str(path),
            todo=todo,
        )
    if level is Verify.SIZE:
        return None
    if level is Verify.FULL or size <= _WHOLE:
        found, expected = file_digest(path), record.sha256
    elif record.sample:
        found, expected = sample_digest(path), record.sample
    else:
        return None
    if found == expected:
        return None
    return PlanIntegrityError(
        f"{owner} has a file with other contents.",
        found=found,
        expected=expected,
        where=str(path),
        todo=todo,
    )
