"""GGUF blocks taken apart without rounding: whole-number codes, a scale and perhaps an offset a block.

``w = scale * code + offset``, codes centred on zero. gguf-py gives values only, so the bits are read here;
its ``dequantize`` is what the tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planonce.runtime.errors import CheckpointError

__all__ = ["BlockCodes", "take_apart"]


@dataclass(frozen=True, slots=True)
class BlockCodes:
    """codes: int8 [rows, blocks, block]. scales, offsets: float32 [rows, blocks]."""

    codes: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray | None = None


def take_apart(raw: np.ndarray, block_type: str) -> BlockCodes:
    """uint8 [rows, bytes a row] as ``WeightIndex.raw_blocks`` gives them.

    Raises CheckpointError for a block type whose values are not codes times a scale.
    """
    found = _READERS.get(block_type)
    if found is None:
        raise CheckpointError(
            "this block format cannot be taken apart", found=block_type, expected=", ".join(_READERS)
        )
    nbytes, read = found
    rows = raw.shape[0]
    codes, scales, offsets = read(np.ascontiguousarray(raw).reshape(-1, nbytes))
    return BlockCodes(
        codes.reshape(rows, -1, codes.shape[-1]),
        scales.reshape(rows, -1),
        None if offsets is None else offsets.reshape(rows, -1),
    )


# What a reader gives: codes [n, sub-blocks, values], scales [n, sub-blocks], offsets likewise or None.
_Parts = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _half(raw: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _bits(raw: np.ndarray, width: int, run: int) -> np.ndarray:
    """Fields of ``width`` bits, [n, fields]: of each ``run`` bytes first all low fields, then the next."""
    shifts = np.arange(0, 8, width, dtype=np.uint8).reshape(1, 1, -1, 1)
    fields = raw.reshape(len(raw), -1, 1, run) >> shifts
    return (fields & np.uint8((1 << width) - 1)).reshape(len(raw), -1)


def _centred(codes: np.ndarray, zero: int, n_blocks: int) -> np.ndarray:
    return (codes.astype(np.int8) - np.int8(zero)).reshape(len(codes), n_blocks, -1)


def _offset(scales: np.ndarray, zero: int, minima: np.ndarray) -> np.ndarray:
    """scale * code + minimum with codes moved down by ``zero``. Float64: both terms have many bits."""
    return (zero * scales.astype(np.float64) + minima).astype(np.float32)


def _q4_0(b: np.ndarray) -> _Parts:
    return _centred(_bits(b[:, 2:], 4, 16), 8, 1), _half(b[:, :2]), None


def _q4_1(b: np.ndarray) -> _Parts:
    d, m = _half(b[:, :2]), _half(b[:, 2:4])
    return _centred(_bits(b[:, 4:], 4, 16), 8, 1), d, _offset(d, 8, m)


def _five_bits(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    fifth = np.unpackbits(np.ascontiguousarray(high), axis=-1, bitorder="little")
    return _bits(low, 4, 16) | (fifth << np.uint8(4))


def _q5_0(b: np.ndarray) -> _Parts:
    return _centred(_five_bits(b[:, 6:], b[:, 2:6]), 16, 1), _half(b[:, :2]), None


def _q5_1(b: np.ndarray) -> _Parts:
    d, m = _half(b[:, :2]), _half(b[:, 2:4])
    return _centred(_five_bits(b[:, 8:], b[:, 4:8]), 16, 1), d, _offset(d, 16, m)


def _q8_0(b: np.ndarray) -> _Parts:
    return b[:, 2:].view(np.int8)[:, None, :], _half(b[:, :2]), None


def _q2_k(b: np.ndarray) -> _Parts:
    scales, quants = b[:, :16], b[:, 16:80]
    d = _half(b[:, 80:82]) * (scales & 15)
    minima = -_half(b[:, 82:84]).astype(np.float64) * (scales >> 4)
    return _centred(_bits(quants, 2, 32), 2, 16), d, _offset(d, 2, minima)


def _q3_k(b: np.ndarray) -> _Parts:
    high, low, packed = b[:, :32], b[:, 32:96], b[:, 96:108]
    scales = _bits(packed[:, :8], 4, 8) | (_bits(packed[:, 8:], 2, 4) << np.uint8(4))
    codes = _bits(low, 2, 32) | (_bits(high, 1, 32) << np.uint8(2))
    return _centred(codes, 4, 16), _half(b[:, 108:110]) * (scales.astype(np.float32) - 32), None


def _scales_and_minima(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of q4_k and q5_k: eight scales and eight minima of six bits, as float32 and float64 [n, 8]."""
    low, middle, both = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = np.concatenate([low & 63, (both & 15) | ((low >> 2) & 48)], axis=1)
    minima = np.concatenate([middle & 63, (both >> 4) | ((middle >> 2) & 48)], axis=1)
    return _half(b[:, :2]) * scales, -_half(b[:, 2:4]).astype(np.float64) * minima


def _q4_k(b: np.ndarray) -> _Parts:
    d, minima = _scales_and_minima(b)
    return _centred(_bits(b[:, 16:], 4, 32), 8, 8), d, _offset(d, 8, minima)


def _q5_k(b: np.ndarray) -> _Parts:
    d, minima = _scales_and_minima(b)
    codes = _bits(b[:, 48:], 4, 32) | (_bits(b[:, 16:48], 1, 32) << np.uint8(4))
    return _centred(codes, 16, 8), d, _offset(d, 16, minima)


def _q6_k(b: np.ndarray) -> _Parts:
    scales = _half(b[:, 208:210]) * b[:, 192:208].view(np.int8)
    codes = _bits(b[:, :128], 4, 64) | (_bits(b[:, 128:192], 2, 32) << np.uint8(4))
    return _centred(codes, 32, 16), scales, None


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _iq4(quants: np.ndarray, n_blocks: int) -> np.ndarray:
    return np.array(_IQ4, np.int8)[_bits(quants, 4, 16)].reshape(len(quants), n_blocks, -1)


def _iq4_nl(b: np.ndarray) -> _Parts:
    return _iq4(b[:, 2:], 1), _half(b[:, :2]), None


def _iq4_xs(b: np.ndarray) -> _Parts:
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    high = ((np.ascontiguousarray(b[:, 2:4]).view("<u2") >> shifts) & 3).astype(np.uint8)
    scales = _bits(b[:, 4:8], 4, 1) | (high << np.uint8(4))
    return _iq4(b[:, 8:], 8), _half(b[:, :2]) * (scales.astype(np.float32) - 32), None


# block type -> (bytes a block, its reader)
_READERS: dict[str, tuple[int, Callable[[np.ndarray], _Parts]]] = {
    "q4_0": (18, _q4_0),
    "q4_1": (20, _q4_1),
    "q5_0": (22, _q5_0),
    "q5_1": (24, _q5_1),
    "q8_0": (34, _q8_0),
    "q2_k": (84, _q2_k),
    "q3_k": (110, _q3_k),
    "q4_k": (144, _q4_k),
    "q5_k": (176, _q5_k),
    "q6_k": (210, _q6_k),
    "iq4_nl": (18, _iq4_nl),
    "iq4_xs": (136, _iq4_xs),
}
