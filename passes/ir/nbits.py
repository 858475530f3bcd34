"""How a quantised matrix is kept, as the IR says it and the compiler's writer makes it.

A matrix ``[N, K]`` is cut into blocks along K. Each value has a code of ``bits`` bits, each block a scale:
``w = scale * (code - zero)`` with ``zero`` the middle of the codes, plus an offset in formats that have one.
The layouts are those of ONNX Runtime's MatMulNBits and GatherBlockQuantized. Their zero points are not used:
whole-number ones cannot say what a block's minimum is, and others take the kernels' slow path.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from planonce.runtime.errors import PassError

__all__ = ["BLOCKS", "EXACT_FORMS", "REQUANTISED", "NBits", "WeightForm"]

BLOCKS = (16, 32, 64, 128, 256)
_TEXT = re.compile(r"int(4|8)/(\d+)((?:\+[a-z-]+)*)")
_FLAGS = ("offset", "transposed")


class WeightForm(enum.Enum):
    """Which of its tensors a quantised ``plan.weight`` is: the attribute ``form``."""

    DATA = "data"  # ui8 [N, blocks, block * bits / 8], low bits first
    ROWS = "rows"  # the same bytes as DATA, as [N, K * bits / 8]
    FOLDED = "folded"  # the same bytes as DATA, of a linear whose kernel packs the offsets with them
    SCALES = "scales"  # [N, blocks], in the dtype of what the weight is multiplied with
    OFFSET = "offset"  # the same


@dataclass(frozen=True, slots=True)
class NBits:
    """A quantised format; its text (``int4/32+offset``) is the attribute ``format`` of ``plan.weight``.

    ``transposed``: the checkpoint's tensor is ``[K, N]``.
    """

    bits: int
    block: int
    offset: bool = False
    transposed: bool = False

    @property
    def zero(self) -> int:
        """The code that stands for 0."""
        return 1 << (self.bits - 1)

    def n_blocks(self, k: int) -> int:
        """Blocks of a row; the last one may be padded."""
        return -(-k // self.block)

    def shape(self, form: WeightForm, n: int, k: int) -> tuple[int, ...]:
        """Shape of one of the tensors of a matrix ``[n, k]``."""
        blocks = self.n_blocks(k)
        match form:
            case WeightForm.DATA | WeightForm.FOLDED:
                return (n, blocks, self.block * self.bits // 8)
            case WeightForm.ROWS:
                return (n, blocks * self.block * self.bits // 8)
            case WeightForm.SCALES | WeightForm.OFFSET:
                return (n, blocks)

    def holds(self, other: NBits) -> bool:
        """Whether a matrix in ``other`` can be written in this format without changing a value."""
        return (
            self.bits >= other.bits
            and other.block % self.block == 0
            and self.offset >= other.offset
            and self.transposed == other.transposed
        )

    def joined(self, other: NBits) -> NBits:
        """The smallest format that holds both."""
        return NBits(
            max(self.bits, other.bits), min(self.block, other.block), offset=self.offset or other.offset
        )

    def __str__(self) -> str:
        flags = (flag for flag in _FLAGS if getattr(self, flag))
        return "+".join([f"int{self.bits}/{self.block}", *flags])

    @staticmethod
    def parse(text: str) -> NBits:
        """The inverse of ``str``. Raises PassError."""
        match = _TEXT.fullmatch(text)
        flags = match[3].split("+")[1:] if match else []
        known = {flag: True for flag in flags if flag in _FLAGS}
        if match is None or len(known) != len(flags) or int(match[2]) not in BLOCKS:
            raise PassError(
                "unknown format of a quantised weight", found=text, expected="such as int4/32+offset"
            )
        return NBits(int(match[1]), int(match[2]), **known)


# GGUF block format -> the format that holds its values exactly. Sub-blocks of 16 and six-bit scales are
# what the k-quants have; each product of two scales fits a float32.
EXACT_FORMS: Mapping[str, NBits] = {
    "q4_0": NBits(4, 32),
    "q4_1": NBits(4, 32, offset=True),
    "q5_0": NBits(8, 32),
    "q5_1": NBits(8, 32, offset=True),
    "q8_0": NBits(8, 32),
    "q2_k": NBits(4, 16, offset=True),
    "q3_k": NBits(4, 16),
    "q4_k": NBits(4, 32, offset=True),
    "q5_k": NBits(8, 32, offset=True),
    "q6_k": NBits(8, 16),
    "iq4_nl": NBits(8, 32),
    "iq4_xs": NBits(8, 32),
}
# What a block format without an exact form becomes.
REQUANTISED = NBits(8, 32)
