"""plan.weight read back: a tensor of the checkpoint, or several of them one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch_mlir import ir

from .matching import attribute, maker

__all__ = ["WeightRef", "joined_name", "weight_of", "weight_ref"]


@dataclass(frozen=True, slots=True)
class WeightRef:
    """``parts``: the checkpoint's tensors, concatenated along axis 0; one for a plain weight.

    ``form``: which tensor of a quantised weight it is (see nbits.py); empty for the values themselves.
    """

    name: str
    parts: tuple[str, ...]
    form: str = ""

    @property
    def merged(self) -> bool:
        return len(self.parts) > 1


def weight_ref(op: ir.Operation) -> WeightRef:
    """What a plan.weight refers to."""
    name = ir.StringAttr(op.attributes["name"]).value
    parts = attribute(op, "parts")
    names = tuple(map(str, cast("list[object]", parts))) if isinstance(parts, list) else (name,)
    return WeightRef(name, names, str(attribute(op, "form", "")))


def weight_of(value: ir.Value) -> WeightRef | None:
    """The weight that ``value`` is, or None when another operation makes it."""
    op = maker(value, "plan.weight")
    return None if op is None else weight_ref(op)


def joined_name(parts: Sequence[str]) -> str:
    """One name for several: ``layers.0.q_proj.weight`` and ``layers.0.k_proj.weight`` ->
    ``layers.0.q_proj.weight+k_proj.weight``."""
    pieces = [part.split(".") for part in parts]
    common = 0
    while all(len(piece) > common + 1 and piece[common] == pieces[0][common] for piece in pieces):
        common += 1
    return "+".join([parts[0], *(".".join(piece[common:]) for piece in pieces[1:])])
