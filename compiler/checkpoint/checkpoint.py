"""A checkpoint, opened: its config, an index of its weights, its tokenizer and the identity of its bytes."""

from __future__ import annotations

import copy
import enum
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from planonce.runtime.errors import CheckpointError
from planonce.runtime.manifest import FileRecord

from .tokenizer_assets import GenerationDefaults, TokenizerAssets
from .weights import WeightIndex

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["Checkpoint", "CheckpointKind", "Progress"]

# progress(file name, bytes done of all files, bytes of all files)
Progress = Callable[[str, int, int], None]


class CheckpointKind(enum.Enum):
    """What was opened."""

    HUGGING_FACE = "hugging-face"
    GGUF = "gguf"


@dataclass(slots=True)
class Checkpoint:
    """Nothing here holds weights; ``weights`` reads them one at a time.

    source: what the user gave. root: the directory that ``file_paths`` are relative to. config: of the text
    model; a private copy. file_paths: name relative to root to the resolved path, weight files first.
    remarks: what a user should know and no one else will say (a tie that was not honoured, ...).
    """

    source: str
    kind: CheckpointKind
    root: Path
    config: PretrainedConfig
    weights: WeightIndex
    tokenizer: TokenizerAssets | None
    generation: GenerationDefaults
    file_paths: Mapping[str, Path]
    remarks: tuple[str, ...] = ()
    _records: tuple[FileRecord, ...] | None = field(default=None, repr=False)

    def hash_files(self, progress: Progress | None = None) -> tuple[FileRecord, ...]:
        """Size and sha256 of every file, streamed; done once and kept. Raises CheckpointError."""
        if self._records is None:
            self._records = _hash_files(self.file_paths, progress)
        return self._records

    @property
    def files(self) -> tuple[FileRecord, ...]:
        return self.hash_files()

    @property
    def identity(self) -> str:
        """sha256 hex of the weights: name, format, shape and content of each. Where they lie on disk is no
        part of it: content is the hash of the file and the range within it, so no byte is hashed twice."""
        digests = {self.file_paths[record.path]: record.sha256 for record in self.files}
        lines: list[str] = []
        for name, entry in self.weights.items():
            content = " ".join(
                f"{digests[source.file]}:{source.offset}:{source.nbytes}:{source.dtype}"
                for source in entry.sources
            )
            lines.append(f"{name} {entry.dtype} {list(entry.shape)} {content}")
        lines += [f"{alias} = {name}" for alias, name in self.weights.aliases.items()]
        return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8")).hexdigest()

    def relative_name(self, path: Path) -> str:
        """The name in ``root`` of a weight's file (``WeightEntry.file``)."""
        for name, resolved in self.file_paths.items():
            if resolved == path:
                return name
        raise CheckpointError(
            "this file is not part of the checkpoint", found=str(path), where=str(self.root)
        )


def untie(config: PretrainedConfig) -> PretrainedConfig:
    """A copy of ``config`` whose embeddings are not tied."""
    config = copy.deepcopy(config)
    config.tie_word_embeddings = False
    return config


def _hash_files(paths: Mapping[str, Path], progress: Progress | None) -> tuple[FileRecord, ...]:
    records: list[FileRecord] = []
    try:
        total = sum(path.stat().st_size for path in paths.values())
        done = 0
        buffer = bytearray(4 << 20)
        view = memoryview(buffer)
        for name, path in paths.items():
            digest = hashlib.sha256()
            size = 0
            with path.open("rb", buffering=0) as file:
                while read := file.readinto(buffer):
                    digest.update(view[:read])
                    size += read
                    done += read
                    if progress is not None:
                        progress(name, done, total)
            records.append(FileRecord(name, size, digest.hexdigest()))
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint: {error.strerror or error}",
            where=str(error.filename or ""),
            todo="check that the checkpoint is still there and readable",
        ) from error
    return tuple(records)
