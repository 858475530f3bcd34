"""A tensor that a program needs and that is too large to lie in the ``.onnx`` file itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from planonce.runtime.dtypes import ITEM_SIZE

__all__ = ["TensorUse"]


@dataclass(frozen=True, slots=True)
class TensorUse:
    """Initializer ``name`` of every stage listed, with its element type and shape.

    Its data is the checkpoint's tensor ``weight`` (converted to ``dtype``), or ``constant``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    weight: str | None = None
    constant: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_SIZE[self.dtype]
