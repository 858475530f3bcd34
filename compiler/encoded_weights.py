"""The tensors of quantised weights, made of the checkpoint's a slice at a time.

A weight that the checkpoint stores in blocks which the wanted format holds is repacked, not rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from planonce.passes.ir.nbits import EXACT_FORMS, NBits, WeightForm

from .checkpoint.block_codes import take_apart
from .checkpoint.weights import WeightEntry
from .quantize import EncodedRows, encode_blocks, round_rows

__all__ = ["BlockSource", "EncodedWeights"]

_SMALL_FORMS = (WeightForm.SCALES, WeightForm.OFFSET)


class BlockSource(Protocol):
    """What is asked of the checkpoint's index of weights; see ``WeightIndex``."""

    def entry(self, name: str) -> WeightEntry: ...

    def read(self, name: str, dtype: str) -> np.ndarray: ...

    def chunks(self, name: str, dtype: str) -> Iterator[np.ndarray]: ...

    def block_chunks(self, name: str) -> Iterator[tuple[np.ndarray, str]]: ...


class EncodedWeights:
    """Makes one tensor after another. Scales and the like are kept from when the codes were made until
    they are asked for: a program stores them side by side, and making them again would read all twice."""

    def __init__(self, weights: BlockSource) -> None:
        self._weights = weights
        self._kept: dict[WeightForm, list[np.ndarray]] = {}
        self._kept_of: tuple[tuple[str, ...], NBits] | None = None

    def is_exact(self, name: str, format: NBits) -> bool:
        """Whether the weight's stored blocks go into ``format`` as they are."""
        entry = self._weights.entry(name)
        if entry.block_type is None or entry.decode is not None or entry.shape[-1] % format.block:
            return False
        exact = EXACT_FORMS.get(entry.block_type)
        return exact is not None and format.holds(exact)

    def rows(self, parts: tuple[str, ...], format: NBits) -> Iterator[EncodedRows]:
        """The weight, its parts one below the other, in slices of rows. Raises CheckpointError."""
        for name in parts:
            if self.is_exact(name, format):
                for raw, block_type in self._weights.block_chunks(name):
                    yield encode_blocks(take_apart(raw, block_type), format)
            elif format.transposed:
                yield round_rows(self._weights.read(name, "float32").T, format)
            else:
                for values in self._weights.chunks(name, "float32"):
                    yield round_rows(values, format)

    def chunks(self, parts: tuple[str, ...], format: NBits, form: WeightForm) -> Iterator[np.ndarray]:
        """One tensor of the weight, in slices along axis 0. Raises CheckpointError."""
        if form in _SMALL_FORMS and self._kept_of == (parts, format) and form in self._kept:
            yield from self._kept.pop(form)
            return
        small = _SMALL_FORMS if format.offset else _SMALL_FORMS[:1]
        kept = [each for each in small if each is not form]
        found: dict[WeightForm, list[np.ndarray]] = {each: [] for each in kept}
        for encoded in self.rows(parts, format):
            yield encoded.tensor(form, format.bits)
            for each in kept:
                found[each].append(encoded.tensor(each, format.bits))
        self._kept, self._kept_of = found, (parts, format)
