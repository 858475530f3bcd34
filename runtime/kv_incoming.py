"""Caller storage on its way into a cache: checked, and copied when it is an array."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import CapacityExceeded, LayoutError
from .kv_geometry import SlotGeometry
from .kv_owners import first_overlap, owners_of
from .kv_state import KvState
from .ort import Tensor, carrier

__all__ = ["check_count", "check_positions", "incoming_tensor", "refuse_shared"]


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


def refuse_shared(tensors: Sequence[Tensor], others: Iterable[Tensor], cache: KvState) -> None:
    """Memory in two slots, or in two caches, would be overwritten by whichever is written last.

    Raises LayoutError.
    """
    if first_overlap([*tensors, *others]) is not None:
        raise LayoutError("Two KV slots cannot share one buffer.", todo="Give every slot its own memory.")
    if any(owner is not cache for owner in owners_of(tensors)):
        raise LayoutError(
            "This buffer belongs to another cache: each would overwrite the other's context.",
            todo="Copy it (give an array), or fork the other cache.",
        )


def check_count(name: str, value: object) -> int:
    """An int. Raises LayoutError: half a position would be rounded to another one."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise LayoutError(f"{name} must be a whole number.", found=repr(value), expected="an int") from None


def check_positions(start: int, n: int, extent: int) -> None:
    """``[start, start+n)`` lies within ``[0, extent)``. Raises CapacityExceeded, LayoutError."""
    check_count("The first position", start)
    check_count("The number of positions", n)
    if start < 0 or n < 0 or start + n > extent:
        raise CapacityExceeded(
            "The positions lie outside the cache.",
            found=f"[{start}, {start + n})",
            expected=f"within [0, {extent})",
        )
