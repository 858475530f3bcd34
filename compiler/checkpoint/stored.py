"""Tensors as they lie in a checkpoint's files, and the number formats they are stored in.

Nothing here knows a model: a ``StoredTensor`` is a name, a format, a shape and a byte range.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from planonce.runtime.errors import CheckpointError

__all__ = ["PLAIN_FORMATS", "StoredTensor", "convert_dtype", "plain_dtype", "read_range", "to_plain"]

# Formats whose bytes are the values. Anything else is a GGUF block format or is refused.
PLAIN_FORMATS: dict[str, np.dtype] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int64": np.dtype("<i8"),
    "int32": np.dtype("<i4"),
    "int16": np.dtype("<i2"),
    "int8": np.dtype("i1"),
    "uint8": np.dtype("u1"),
    "bool": np.dtype("bool"),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of one file. ``shape`` is outermost dimension first; ``offset`` and ``nbytes`` are bytes.

    ``dtype`` is a key of ``PLAIN_FORMATS``, a GGUF block type in lower case ("q4_1"), or a format this
    program cannot read; the last is refused only when the tensor is needed.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


def plain_dtype(name: str) -> np.dtype:
    """The numpy dtype called ``name``. Raises CheckpointError for one that is not a plain format."""
    try:
        return PLAIN_FORMATS[name]
    except KeyError:
        raise CheckpointError(
            "cannot convert weights to this dtype",
            found=name,
            expected=", ".join(PLAIN_FORMATS),
            todo="ask for float32, float16 or bfloat16",
        ) from None


def read_range(tensor: StoredTensor, start: int = 0, nbytes: int | None = None) -> np.ndarray:
    """``nbytes`` bytes of a tensor from byte ``start`` on, as an owned uint8 array.

    Read, not mapped: pages of a mapping count as resident until it is dropped, so mapping file after
    file would make a compile's memory grow with the model.
    Raises CheckpointError if the file has become shorter than its header says.
    """
    nbytes = tensor.nbytes - start if nbytes is None else nbytes
    try:
        data = np.fromfile(tensor.file, dtype=np.uint8, count=nbytes, offset=tensor.offset + start)
    except OSError as error:
        raise CheckpointError(
            f"cannot read tensor {tensor.name}: {error.strerror or error}",
            where=str(tensor.file),
            todo="check that the checkpoint is still there and readable",
        ) from error
    if data.nbytes != nbytes:
        raise CheckpointError(
            f"the file ends inside tensor {tensor.name}",
            found=f"{data.nbytes} bytes",
            expected=f"{nbytes} bytes at offset {tensor.offset + start}",
            where=str(tensor.file),
            todo="the file changed after it was opened; fetch the checkpoint again",
        )
    return data


def to_plain(data: np.ndarray, dtype: str) -> np.ndarray:
    """uint8 bytes as values of a plain format, flat, without a copy."""
    return data.view(PLAIN_FORMATS[dtype])


def convert_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """``values`` as ``dtype``: exact when widening, round to nearest even when narrowing."""
    wanted = plain_dtype(dtype)
    if values.dtype == wanted:
        return values
    if values.dtype == PLAIN_FORMATS["bfloat16"] and dtype == "float32":
        # A bfloat16 is the upper half of a float32; shifting is several times faster than casting.
        wide = values.view(np.uint16).astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    with np.errstate(over="ignore"):  # a value out of float16's range becomes inf, as torch does
        return values.astype(wanted)
