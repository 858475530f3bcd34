"""A tensor that a program needs and that is too large to lie in the ``.onnx`` file itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from planonce.passes.ir.nbits import NBits, WeightForm
from planonce.runtime.dtypes import ITEM_SIZE

__all__ = ["Encoding", "TensorUse"]


@dataclass(frozen=True, slots=True)
class Encoding:
    """Tensor ``form`` of a matrix that is kept in ``format``."""

    format: NBits
    form: WeightForm

    @property
    def bytes_of(self) -> tuple[NBits, WeightForm]:
        """Equal for the encodings whose bytes are the same: data by rows is data in another shape."""
        same = self.form in (WeightForm.ROWS, WeightForm.FOLDED)
        return self.format, WeightForm.DATA if same else self.form

    def shape(self, weight: tuple[int, ...]) -> tuple[int, ...]:
        """The tensor's shape when the checkpoint's has the shape ``weight``."""
        n, k = reversed(weight) if self.format.transposed else weight
        return self.format.shape(self.form, n, k)


@dataclass(frozen=True, slots=True)
class TensorUse:
    """Initializer ``name`` of every stage listed, with its element type and shape.

    Its data is the checkpoint's tensor ``weight`` (converted to ``dtype``); or, where ``merged`` names
    several of them, those one below the other, concatenated along axis 0; or ``constant``. ``encoding``:
    it is one tensor of that matrix, quantised.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    weight: str | None = None
    constant: np.ndarray | None = field(default=None, repr=False, compare=False)
    merged: tuple[str, ...] = ()
    encoding: Encoding | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The checkpoint's tensors that it is made of, in order; none for a constant."""
        return self.merged or (() if self.weight is None else (self.weight,))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_SIZE[self.dtype]
