"""Caller storage on its way into a cache: checked, and copied when it is an array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import LayoutError
from .kv_geometry import SlotGeometry
from .ort import Tensor, carrier

__all__ = ["incoming_tensor", "refuse_shared"]


def incoming_tensor(
    geometry: SlotGeometry, given: NDArray[Any] | Tensor, batch: int, extent: int | None
) -> Tensor:
    """A tensor ``[batch, n_kv_heads, extent, head_dim]``; any extent when None. Raises LayoutError.

    An array is copied, because its owner may go on writing to it. bfloat16 arrays come as their uint16
    carrier or with ml_dtypes' dtype.
    """
    where = f"layer {geometry.layer} {geometry.which}"
    shape = tuple(given.shape)
    expected = (batch, geometry.n_kv_heads, extent, geometry.head_dim)
    fits = len(shape) == 4 and all(e is None or e == s for e, s in zip(expected, shape, strict=True))
    if not fits or shape[2] < 1:
        raise LayoutError(
            "A layer's storage has the wrong shape.",
            found=str(list(shape)),
            expected=str(["any" if e is None else e for e in expected]),
            where=where,
        )
    dtype = given.dtype if isinstance(given, Tensor) else str(given.dtype)
    accepted = {geometry.dtype}
    if not isinstance(given, Tensor):
        accepted.add(str(carrier(geometry.dtype)))
    if dtype not in accepted:
        raise LayoutError(
            "A layer's storage has the wrong dtype.", found=dtype, expected=geometry.dtype, where=where
        )
    if isinstance(given, Tensor):
        return given
    own = np.array(given, order="C", copy=True).view(carrier(geometry.dtype))
    return Tensor.over(own, geometry.dtype)


def refuse_shared(tensors: Sequence[Tensor], others: Iterable[Tensor]) -> None:
    """One buffer in two slots would be overwritten by whichever is written last. Raises LayoutError."""
    addresses = [t.address for t in (*tensors, *others)]
    if len(set(addresses)) != len(addresses):
        raise LayoutError("Two KV slots cannot share one buffer.")
