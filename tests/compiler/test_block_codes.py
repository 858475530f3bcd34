"""GGUF blocks taken apart, widened and packed: no value may change on the way."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from planonce.compiler.checkpoint.block_codes import take_apart
from planonce.compiler.quantize import decode_rows, encode_blocks, round_rows
from planonce.passes.ir.nbits import EXACT_FORMS, NBits, WeightForm
from planonce.runtime.errors import CheckpointError, PassError

sys.path.insert(0, str(Path(__file__).parent))
from quantised_gguf import random_blocks

RNG = np.random.default_rng(3)


def within_one_ulp(found: np.ndarray, expected: np.ndarray, block: int) -> bool:
    """One ulp of the largest value in the block: the terms of w = d*q + m may cancel."""
    largest = np.abs(expected).reshape(len(expected), -1, block).max(axis=-1)
    return bool((np.abs(found - expected) <= np.repeat(np.spacing(largest), block, axis=1)).all())


@pytest.mark.parametrize("block_type", EXACT_FORMS)
def test_every_exact_form_dequantises_to_what_gguf_py_gives(block_type: str) -> None:
    raw = random_blocks(RNG, 64, 512, block_type)
    expected = dequantize(raw, GGMLQuantizationType[block_type.upper()])
    format = EXACT_FORMS[block_type]
    encoded = encode_blocks(take_apart(raw, block_type), format)
    found = decode_rows(encoded, format, 512)
    assert within_one_ulp(found, expected, format.block)
    assert np.array_equal(found, expected) or block_type in ("q4_k", "q5_k"), (
        "only sums of long terms may round"
    )
    # negative control: the neighbouring block's scale would not do
    wrong = encoded.__class__(encoded.codes, np.roll(encoded.scales, 1, axis=1), encoded.offset)
    assert not within_one_ulp(decode_rows(wrong, format, 512), expected, format.block)


@pytest.mark.parametrize("block_type", ["q4_1", "q5_0", "q6_k", "q4_k"])
def test_a_wider_format_holds_the_same_values(block_type: str) -> None:
    raw = random_blocks(RNG, 8, 512, block_type)
    blocks, narrow, wide = take_apart(raw, block_type), EXACT_FORMS[block_type], NBits(8, 16, offset=True)
    assert wide.holds(narrow)
    narrow_values = decode_rows(encode_blocks(blocks, narrow), narrow, 512)
    assert np.array_equal(decode_rows(encode_blocks(blocks, wide), wide, 512), narrow_values)


def test_what_a_format_holds() -> None:
    assert not NBits(4, 32).holds(NBits(4, 32, offset=True)), "an offset would be lost"
    assert not NBits(4, 16).holds(NBits(8, 32)), "codes would be cut off"
    assert not NBits(8, 64).holds(NBits(4, 32)), "two scales do not fit one block"
    assert NBits(4, 32, offset=True).joined(NBits(8, 16)) == NBits(8, 16, offset=True)
    for format in (*EXACT_FORMS.values(), NBits(4, 64, transposed=True)):
        assert NBits.parse(str(format)) == format
    for text in ("int4", "int5/32", "int4/33", "int4/32+ofset", "int4/32+offset "):
        with pytest.raises(PassError):
            NBits.parse(text)


def test_a_format_whose_values_are_no_codes_is_refused() -> None:
    with pytest.raises(CheckpointError, match="taken apart"):
        take_apart(np.zeros((1, 66), np.uint8), "iq2_xxs")


@pytest.mark.parametrize(
    "format", [NBits(8, 32), NBits(8, 32, offset=True), NBits(4, 32, offset=True), NBits(4, 64)]
)
def test_rounding_is_to_the_nearest_code(format: NBits) -> None:
    values = RNG.standard_normal((16, 256)).astype(np.float32)
    encoded = round_rows(values, format)
    found = decode_rows(encoded, format, 256)
    half = np.repeat(np.abs(encoded.scales) / 2, format.block, axis=1)
    cut_off = np.abs(found - values) > half * 1.001
    # Four symmetric bits may cut a few large values off; no other format may.
    assert cut_off.mean() < (0.05 if format == NBits(4, 64) else 1e-9)


def test_four_symmetric_bits_beat_the_plain_scale() -> None:
    values = RNG.standard_normal((64, 256)).astype(np.float32)
    format = NBits(4, 32)
    blocks = values.reshape(64, -1, 32)
    widest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1) / -8
    plain = (np.clip(np.rint(blocks / widest), -8, 7) * widest).reshape(64, -1)
    error = np.square(decode_rows(round_rows(values, format), format, 256) - values).mean()
    assert error < 0.95 * np.square(plain - values).mean()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offset", [False, True])
def test_constant_and_zero_blocks(bits: int, *, offset: bool) -> None:
    format = NBits(bits, 32, offset=offset)
    values = np.zeros((3, 64), np.float32)
    values[1], values[2, 5] = 0.37, -1.5
    found = decode_rows(round_rows(values, format), format, 64)
    assert np.isfinite(found).all() and (found[0] == 0).all()
    np.testing.assert_allclose(found, values, atol=0.37 * 0.13 if not offset else 1e-6)


def test_the_last_block_is_padded_with_zeros() -> None:
    values = RNG.standard_normal((4, 112)).astype(np.float32)
    format = NBits(4, 32)
    encoded = round_rows(values, format)
    assert encoded.tensor(WeightForm.DATA, 4).shape == format.shape(WeightForm.DATA, 4, 112) == (4, 4, 16)
    assert (encoded.codes[:, 3, 16:] == format.zero).all()
