"""Which part of the model an operation belongs to, over plain lists: embedding, a layer, or the head.

An operation is *tied* to the layer whose weights or KV slot it takes. What takes a weight of no layer is the
embedding when a layer comes after it, and the head when none does. The rest follows its operands: it belongs
to the latest part that it reads, unless only a later part reads it and moving there makes no more values
cross: so a norm goes with the weight it is multiplied by, and a residual sum stays where its addends are.

What follows from the step's inputs alone (positions, lengths, masks) belongs to no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["EMBED", "STEP", "PartNode", "Parts", "parts_of"]

STEP = -2
EMBED = -1


@dataclass(frozen=True, slots=True)
class PartNode:
    """An operation: the earlier nodes it reads, the layer it is tied to, whether it takes a weight of no
    layer, and whether the program returns one of its results."""

    producers: tuple[int, ...] = ()
    layer: int | None = None
    other_weight: bool = False
    returned: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """``of[i]``: STEP, EMBED, a layer, or ``head``, which is the number of layers."""

    of: tuple[int, ...]
    head: int


def parts_of(nodes: Sequence[PartNode], n_layers: int = 0) -> Parts:
    """The part of each node, given in program order. ``n_layers``: at least so many."""
    head = max([n_layers, *(node.layer + 1 for node in nodes if node.layer is not None)])
    readers: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for producer in node.producers:
            readers[producer].append(i)
    tied = _ties(nodes, readers, head)
    parts: list[int] = []
    for node, own in zip(nodes, tied, strict=True):
        parts.append(max([STEP if own is None else own, *(parts[p] for p in node.producers)]))
    _sink(nodes, readers, tied, parts)
    return Parts(tuple(parts), head)


def _ties(nodes: Sequence[PartNode], readers: Sequence[Sequence[int]], head: int) -> list[int | None]:
    after = [False] * len(nodes)  # a layer comes after it
    for i in range(len(nodes) - 1, -1, -1):
        after[i] = any(nodes[r].layer is not None or after[r] for r in readers[i])
    before = [False] * len(nodes)
    tied: list[int | None] = []
    for i, node in enumerate(nodes):
        before[i] = any(nodes[p].layer is not None or before[p] for p in node.producers)
        own = node.layer
        if own is None and node.other_weight and not (before[i] and after[i]):
            own = EMBED if after[i] else head
        tied.append(own)
    return tied


def _sink(
    nodes: Sequence[PartNode], readers: Sequence[Sequence[int]], tied: Sequence[int | None], parts: list[int]
) -> None:
    """Move what only a later part reads there, when at most one more value crosses for the one that stops."""
    for i in range(len(nodes) - 1, -1, -1):
        if tied[i] is not None or parts[i] == STEP or nodes[i].returned or not readers[i]:
            continue
        target = min(parts[r] for r in readers[i])
        if target <= parts[i]:
            continue
        crossing = [
            p
            for p in set(nodes[i].producers)
            if parts[p] not in (STEP, target) and not any(parts[r] == target for r in readers[p] if r != i)
        ]
        if len(crossing) <= 1:
            parts[i] = target
