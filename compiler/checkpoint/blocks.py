"""GGUF block formats: how many bytes a row takes, and the values in it (gguf-py's arithmetic, float32)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from planonce.runtime.errors import CheckpointError

if TYPE_CHECKING:
    from gguf.constants import GGMLQuantizationType

__all__ = ["check_readable", "dequantise", "row_bytes"]


def row_bytes(block_type: str, n_elements: int) -> int:
    """Bytes of a row of ``n_elements`` values in ``block_type`` ("q4_1", ...)."""
    from gguf.constants import GGML_QUANT_SIZES

    block_elements, block_bytes = GGML_QUANT_SIZES[_ggml_type(block_type)]
    return n_elements // block_elements * block_bytes


def dequantise(raw: np.ndarray, block_type: str) -> np.ndarray:
    """uint8 [rows, bytes a row] to float32 [rows, values a row]."""
    from gguf.quants import dequantize

    return dequantize(raw, _ggml_type(block_type))


@functools.cache
def check_readable(dtype: str) -> bool:
    """Whether ``dequantise`` knows ``dtype``: a block type gguf-py can unpack."""
    from gguf.constants import GGML_QUANT_SIZES

    try:
        ggml_type = _ggml_type(dtype)
        dequantise(np.zeros((1, GGML_QUANT_SIZES[ggml_type][1]), np.uint8), dtype)
    except (CheckpointError, NotImplementedError, KeyError):
        return False
    return True


def _ggml_type(block_type: str) -> GGMLQuantizationType:
    from gguf.constants import GGMLQuantizationType

    try:
        return GGMLQuantizationType[block_type.upper()]
    except KeyError:
        raise CheckpointError(
            "unsupported weight format",
            found=block_type,
            expected="float32, float16, bfloat16 or a GGUF block type",
            todo="convert the checkpoint to one of these",
        ) from None
