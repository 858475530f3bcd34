"""Values to codes and back: the arithmetic of quantised weights, on rows of a matrix at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planonce.passes.ir.nbits import NBits, WeightForm

from .checkpoint.block_codes import BlockCodes

__all__ = ["EncodedRows", "decode_rows", "encode_blocks", "round_rows"]

# Scales tried for a block of 4 bits, as fractions of the one that reaches the block's largest value: with so
# few codes, a block of many middling values is better served by a finer step and one value cut off.
_SCALE_FRACTIONS = np.linspace(0.75, 1.0, 6, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """codes: uint8 [rows, blocks, block]. scales, and offset if there is one: float32 [rows, blocks]."""

    codes: np.ndarray
    scales: np.ndarray
    offset: np.ndarray | None = None

    def tensor(self, form: WeightForm, bits: int) -> np.ndarray:
        """One of the tensors that a plan stores, in the layout that MatMulNBits reads."""
        match form:
            case WeightForm.DATA | WeightForm.FOLDED:
                return _packed(self.codes, bits)
            case WeightForm.ROWS:
                return _packed(self.codes.reshape(len(self.codes), -1), bits)
            case WeightForm.SCALES:
                return self.scales
            case WeightForm.OFFSET:
                assert self.offset is not None
                return self.offset


def round_rows(values: np.ndarray, format: NBits) -> EncodedRows:
    """float32 [rows, K] to the nearest codes; a last block that is not full is padded with zeros."""
    rows, k = values.shape
    padded = np.zeros((rows, format.n_blocks(k) * format.block), np.float32)
    padded[:, :k] = values
    blocks = padded.reshape(rows, -1, format.block)
    return _round_from_minimum(blocks, format) if format.offset else _round_symmetric(blocks, format)


def encode_blocks(blocks: BlockCodes, format: NBits) -> EncodedRows:
    """Codes that are there already, in a format that holds them (``NBits.holds``); nothing is rounded."""
    rows, n_blocks, size = blocks.codes.shape
    repeat = size // format.block
    codes = (blocks.codes.astype(np.int16) + format.zero).astype(np.uint8)
    offset = None
    if format.offset:
        given = np.zeros((rows, n_blocks), np.float32) if blocks.offsets is None else blocks.offsets
        offset = np.repeat(given, repeat, axis=1)
    return EncodedRows(
        codes.reshape(rows, -1, format.block), np.repeat(blocks.scales, repeat, axis=1), offset
    )


def decode_rows(encoded: EncodedRows, format: NBits, k: int) -> np.ndarray:
    """float32 [rows, k], each value rounded once per operation as the kernels' own arithmetic is."""
    codes = encoded.codes.astype(np.float32) - format.zero
    values = codes * encoded.scales[..., None]
    if encoded.offset is not None:
        values += encoded.offset[..., None]
    return values.reshape(len(values), -1)[:, :k]


def _round_symmetric(blocks: np.ndarray, format: NBits) -> EncodedRows:
    zero = format.zero
    if format.bits == 8:
        scales = np.abs(blocks).max(axis=-1) / np.float32(zero - 1)
        return EncodedRows(_codes(blocks, scales, zero, zero - 1), scales)
    # The largest value, with its sign, gets the code -8: there is one more code below zero than above.
    at = np.abs(blocks).argmax(axis=-1)[..., None]
    widest = np.take_along_axis(blocks, at, axis=-1)[..., 0] / np.float32(-zero)
    best_scales, best_codes, best_error = widest, None, None
    for fraction in _SCALE_FRACTIONS[::-1]:
        scales = widest * fraction
        codes = _codes(blocks, scales, zero, zero - 1)
        restored = (codes.astype(np.float32) - zero) * scales[..., None]
        error = np.square(restored - blocks).sum(axis=-1)
        if best_codes is None or best_error is None:
            best_codes, best_error = codes, error
            continue
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scales = np.where(better, scales, best_scales)
        best_codes[better] = codes[better]
    assert best_codes is not None
    return EncodedRows(best_codes, best_scales)


def _codes(blocks: np.ndarray, scales: np.ndarray, zero: int, highest: int) -> np.ndarray:
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales != 0)
    whole = np.rint(blocks * inverse[..., None])
    return (np.clip(whole, -zero, highest) + zero).astype(np.uint8)


def _round_from_minimum(blocks: np.ndarray, format: NBits) -> EncodedRows:
    """Codes from the block's smallest value up to its largest, as in GGUF's q4_1."""
    top = (1 << format.bits) - 1
    low = blocks.min(axis=-1)
    scales = (blocks.max(axis=-1) - low) / np.float32(top)
    codes = _codes(blocks - low[..., None], scales, 0, top)
    offset = low.astype(np.float64) + format.zero * scales.astype(np.float64)
    return EncodedRows(codes, scales, offset.astype(np.float32))


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes of 4 bits two to a byte along the last axis, the first one low."""
    if bits == 8:
        return codes
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))
