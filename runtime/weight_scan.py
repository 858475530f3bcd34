"""Looking for values that are not numbers in a plan's weights, a block at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import PlanIntegrityError
from .manifest import Manifest, StoredTensor, WeightReference

__all__ = ["NonFinite", "WeightScan", "scan_weights"]

_BLOCK = 1 << 20  # bytes read at once: fits a core's cache, and memory stays flat whatever the plan's size
# The bits of the exponent: all set is an infinity or, with any bit of the fraction, NaN.
_EXPONENT = {
    "float64": (np.dtype("<u8"), 0x7FF0_0000_0000_0000),
    "float32": (np.dtype("<u4"), 0x7F80_0000),
    "float16": (np.dtype("<u2"), 0x7C00),
    "bfloat16": (np.dtype("<u2"), 0x7F80),
}

Tensor = StoredTensor | WeightReference


@dataclass(frozen=True, slots=True)
class NonFinite:
    """A tensor with NaN or infinite values; ``first``: the index of the first, one number a dimension."""

    name: str
    file: str
    n_nan: int
    n_inf: int
    first: tuple[int, ...]
    constant: bool

    @property
    def bad(self) -> bool:
        """NaN anywhere, or an infinity in a weight. A constant of the program may hold it: masks do."""
        return self.n_nan > 0 or not self.constant


@dataclass(frozen=True, slots=True)
class WeightScan:
    """What was read, and what in it is not a finite number, in the manifest's order."""

    tensors: int
    nbytes: int
    non_finite: tuple[NonFinite, ...]


def scan_weights(
    manifest: Manifest, directory: Path, progress: Callable[[int, int], None] | None = None
) -> WeightScan:
    """Read every tensor that lies outside the programs, the referenced checkpoint's included.

    progress(bytes done, bytes in all). Raises PlanIntegrityError when a file ends early or cannot be read.
    """
    found: list[NonFinite] = []
    tensors = _tensors(manifest, directory)
    total = sum(tensor.nbytes for _, tensor in tensors)
    done = 0
    for path, tensor in tensors:
        if tensor.dtype in _EXPONENT:
            result = _scan(path, tensor)
            if result is not None:
                found.append(result)
        done += tensor.nbytes
        if progress is not None:
            progress(done, total)
    return WeightScan(len(tensors), total, tuple(found))


def _tensors(manifest: Manifest, directory: Path) -> list[tuple[Path, Tensor]]:
    tensors: dict[tuple[Path, int, str], tuple[Path, Tensor]] = {}
    listed: list[tuple[Path, Tensor]] = [(directory / t.file, t) for t in manifest.tensors]
    if manifest.checkpoint.root is not None:
        root = Path(manifest.checkpoint.root)
        listed += [(root / w.file, w) for w in manifest.checkpoint.weights]
    for path, tensor in listed:
        # A weight that two stages use is listed for each and read once.
        tensors.setdefault((path, tensor.offset, tensor.name), (path, tensor))
    return list(tensors.values())


def _scan(path: Path, tensor: Tensor) -> NonFinite | None:
    kind, exponent = _EXPONENT[tensor.dtype]
    buffer = np.empty(_BLOCK // kind.itemsize, kind)
    n_nan = n_inf = 0
    first = -1
    position, left = 0, tensor.nbytes // kind.itemsize
    try:
        # Read, not mapped: a mapping would count all of the weights as this process's memory.
        with path.open("rb", buffering=0) as file:
            file.seek(tensor.offset)
            while left:
                block = buffer[: min(left, buffer.size)]
                _read(file.readinto, block.view(np.uint8).data, path)
                bad = (block & exponent) == exponent
                if bad.any():
                    if first < 0:
                        first = position + int(bad.argmax())
                    infinite = int(
                        np.count_nonzero((block << 1) == (exponent << 1) % (1 << 8 * kind.itemsize))
                    )
                    n_inf += infinite
                    n_nan += int(np.count_nonzero(bad)) - infinite
                position += block.size
                left -= block.size
    except OSError as error:
        raise PlanIntegrityError("A weight cannot be read.", found=str(error), where=str(path)) from None
    if first < 0:
        return None
    index = tuple(int(i) for i in np.unravel_index(first, tensor.shape)) if tensor.shape else ()
    constant = isinstance(tensor, StoredTensor) and tensor.constant
    return NonFinite(tensor.name, tensor.file, n_nan, n_inf, index, constant)


def _read(readinto: Callable[[memoryview], int | None], target: memoryview, path: Path) -> None:
    """Fill ``target``; a read may give less than was asked for."""
    while target:
        count = readinto(target)
        if not count:
            raise PlanIntegrityError("A file of weights ends early.", where=str(path))
        target = target[count:]
