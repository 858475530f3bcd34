"""Where each weight's bytes lie in the plan, and the writing of those that have to be laid out anew.

A tensor that a ``.safetensors`` file already holds in the wanted dtype and layout is used where it is:
the file is linked into the plan (or, by reference, stays with the checkpoint). Everything else goes to
``weights.bin``, a slice of one tensor in memory at a time.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np

from planonce.runtime.errors import CheckpointError
from planonce.runtime.manifest import StoredTensor, WeightReference

from .checkpoint.stored import convert_dtype
from .encoded_weights import BlockSource, EncodedWeights
from .plan_file import PlanFile
from .progress import Progress
from .tensor_use import TensorUse

__all__ = [
    "ALIGNMENT", "WEIGHTS_FILE", "Location", "Placement", "WeightMode", "WeightSource", "aligned", "place",
    "write_tensors",
]  # fmt: skip

WEIGHTS_FILE = "weights.bin"
# A page: the runtime maps each tensor, and a mapping that starts on a page shares none with its neighbour.
ALIGNMENT = 4096
# Linking a whole file for a few of its tensors would carry the rest along unused.
_WORTH_LINKING = 0.5


class WeightMode(enum.Enum):
    """``EMBED``: the plan holds all its weights. ``REFERENCE``: it maps the checkpoint's files."""

    EMBED = "embed"
    REFERENCE = "reference"


class WeightEntryLike(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


class WeightSource(BlockSource, Protocol):
    """What is asked of the checkpoint's index of weights."""

    def __contains__(self, name: object, /) -> bool: ...

    def __getitem__(self, name: str, /) -> WeightEntryLike: ...

    def raw_location(self, name: str, dtype: str) -> tuple[Path, int, int] | None: ...


def aligned(position: int) -> int:
    """The first place from ``position`` on where a tensor of ``weights.bin`` may begin."""
    return -(-position // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Location:
    """Bytes ``[offset, offset + nbytes)`` of ``file``, a path relative to the plan's directory.

    By reference ``file`` may be one of the checkpoint's instead; the runtime then hands the array over.
    """

    file: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Every tensor's location, the files to link in, and what to write to ``weights.bin`` in which order.

    ``stored``: the tensors in the plan's own files. ``references``: the others.
    """

    locations: dict[str, Location]
    links: dict[str, Path]
    written: tuple[TensorUse, ...]
    written_bytes: int
    stored: tuple[StoredTensor, ...]
    references: tuple[WeightReference, ...]

    @property
    def linked_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.links.values())


def place(
    uses: Mapping[str, Sequence[int]],
    tensors: Sequence[TensorUse],
    weights: WeightSource,
    mode: WeightMode,
    *,
    file_name: Callable[[Path], str],
) -> Placement:
    """Decide where the data of ``tensors`` lies. Reads no data.

    ``uses``: the stages of each tensor. ``file_name``: a checkpoint file's name relative to the
    checkpoint's root, which is not its path's where that is a link into a download cache.
    Raises CheckpointError for a weight that is missing or of another shape than the program's.
    """
    tensors = _checked(tensors, weights)
    usable = _usable_as_they_lie(tensors, weights, mode, file_name)
    links: dict[str, Path] = {}
    names: dict[Path, str] = {}
    locations: dict[str, Location] = {}
    stored: list[StoredTensor] = []
    references: list[WeightReference] = []
    written: list[TensorUse] = []
    same: dict[object, Location] = {}
    end = 0
    for use in tensors:
        raw = usable.get(use.name)
        shared = None if use.encoding is None else (use.parts, use.encoding.bytes_of, use.dtype)
        if shared in same:
            # A tied embedding and head read one copy, each in its own shape.
            locations[use.name] = same[shared]
            stored.append(_stored(use, same[shared]))
            continue
        if raw is None:
            start = aligned(end)
            locations[use.name] = Location(WEIGHTS_FILE, start, use.nbytes)
            stored.append(_stored(use, locations[use.name]))
            end = start + use.nbytes
            written.append(use)
            if shared is not None:
                same[shared] = locations[use.name]
            continue
        path, offset, nbytes = raw
        if mode is WeightMode.REFERENCE:
            name = file_name(path)
            references += [
                WeightReference(use.name, name, offset, nbytes, use.dtype, use.shape, stage)
                for stage in uses[use.name]
            ]
        else:
            if path not in names:
                names[path] = _unused_name(PurePosixPath(file_name(path)).name, links)
            name = names[path]
            links[name] = path
            stored.append(_stored(use, Location(name, offset, nbytes)))
        locations[use.name] = Location(name, offset, nbytes)
    return Placement(locations, links, tuple(written), end, tuple(stored), tuple(references))


def _stored(use: TensorUse, at: Location) -> StoredTensor:
    constant = not use.parts
    return StoredTensor(use.name, at.file, at.offset, at.nbytes, use.dtype, use.shape, constant)


def write_tensors(
    placement: Placement, weights: WeightSource, file: PlanFile, progress: Progress | None = None
) -> None:
    """Stream what ``placement`` lays out anew into ``file``, slice by slice.

    Raises CheckpointError when the checkpoint cannot give a tensor, OSError when it cannot be written.
    """
    encoded = EncodedWeights(weights)
    for use in placement.written:
        file.pad_to(placement.locations[use.name].offset)
        start = file.position
        for array in _slices(use, weights, encoded):
            # Bytes, because the buffer protocol does not know bfloat16; a view, because it may be large.
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            file.write(data)
            if progress is not None:
                progress.advance(len(data), use.name)
        if file.position - start != use.nbytes:
            raise CheckpointError(
                "A weight was read with another size than its index says.",
                where=use.name,
                found=f"{file.position - start} bytes",
                expected=f"{use.nbytes} bytes ({list(use.shape)} {use.dtype})",
            )


def _slices(use: TensorUse, weights: WeightSource, encoded: EncodedWeights) -> Iterator[np.ndarray]:
    if use.constant is not None:
        yield use.constant
    if use.encoding is not None:
        for array in encoded.chunks(use.parts, use.encoding.format, use.encoding.form):
            yield convert_dtype(array, use.dtype)
        return
    for part in use.parts:
        yield from weights.chunks(part, use.dtype)


def _checked(uses: Iterable[TensorUse], weights: WeightSource) -> list[TensorUse]:
    checked: list[TensorUse] = []
    missing: list[str] = []
    for use in uses:
        absent = [part for part in use.parts if part not in weights]
        if absent:
            missing += absent
            continue
        if use.parts:
            shape = _stacked_shape([tuple(weights[part].shape) for part in use.parts])
            if use.encoding is not None and len(shape) == 2:
                shape = use.encoding.shape(shape)
            if shape != use.shape:
                raise CheckpointError(
                    "A weight's shape is not the one its configuration calls for.",
                    where=use.name,
                    found=str(list(shape)),
                    expected=str(list(use.shape)),
                    todo="Check that config.json belongs to these weights.",
                )
        checked.append(use)
    if missing:
        shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise CheckpointError(
            "The checkpoint lacks weights that the model needs.",
            found=f"no {shown}",
            todo="Check that config.json belongs to these weights and that no file is missing.",
        )
    return checked


def _stacked_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Of the tensors one below the other; where they do not fit, the first that does not."""
    if len(shapes) == 1:
        return shapes[0]
    odd = next((shape for shape in shapes if shape[1:] != shapes[0][1:] or not shape), None)
    return odd if odd is not None else (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _usable_as_they_lie(
    tensors: Iterable[TensorUse],
    weights: WeightSource,
    mode: WeightMode,
    file_name: Callable[[Path], str],
) -> dict[str, tuple[Path, int, int]]:
    usable: dict[str, tuple[Path, int, int]] = {}
    used: defaultdict[Path, int] = defaultdict(int)
    for use in tensors:
        raw = None if use.weight is None else weights.raw_location(use.weight, use.dtype)
        if raw is None or not file_name(raw[0]).endswith(".safetensors") or raw[2] != use.nbytes:
            continue
        usable[use.name] = raw
        used[raw[0]] += raw[2]
    if mode is WeightMode.REFERENCE:
        return usable
    worth = {path for path, nbytes in used.items() if nbytes >= _WORTH_LINKING * path.stat().st_size}
    return {name: raw for name, raw in usable.items() if raw[0] in worth}


def _unused_name(name: str, taken: dict[str, Path]) -> str:
    if name not in taken:
        return name
    stem, dot, suffix = name.partition(".")
    return next(f for i in range(1, len(taken) + 2) if (f := f"{stem}-{i}{dot}{suffix}") not in taken)
