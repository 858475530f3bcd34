"""Which stage each operation runs in: one ONNX program holds what can run on one device in one go.

Pure planning over plain lists, so that it can be tested against an oracle without any IR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planonce.runtime.errors import CompileError

__all__ = ["StageAssignment", "StageNode", "assign_stages"]


@dataclass(frozen=True, slots=True)
class StageNode:
    """An operation on ``device`` that reads the results of ``producers`` (indices of earlier nodes).

    ``is_copy``: it brings its one producer's value to ``device``, which must wait for that stage's end.
    """

    device: str
    producers: tuple[int, ...]
    is_copy: bool = False
    where: str = ""


@dataclass(frozen=True, slots=True)
class StageAssignment:
    """``devices[s]``: stage s's device, in running order. ``stage_of[i]``: node i's stage, -1 for copies."""

    devices: tuple[str, ...]
    stage_of: tuple[int, ...]


def assign_stages(nodes: Sequence[StageNode]) -> StageAssignment:
    """Group ``nodes`` (in program order) into stages so that values only flow to the same or a later one.

    Raises CompileError when a node reads from another device without a copy.
    """
    levels = _earliest_levels(nodes)
    _sink(nodes, levels)
    keys = sorted(
        {(level, node.device) for node, level in zip(nodes, levels, strict=True) if not node.is_copy}
    )
    index = {key: i for i, key in enumerate(keys)}
    stage_of = tuple(
        -1 if node.is_copy else index[level, node.device] for node, level in zip(nodes, levels, strict=True)
    )
    return StageAssignment(tuple(device for _, device in keys), stage_of)


def _earliest_levels(nodes: Sequence[StageNode]) -> list[int]:
    levels: list[int] = []
    for i, node in enumerate(nodes):
        level = 0
        for producer in node.producers:
            assert producer < i, "nodes come in program order"
            source = nodes[producer]
            if source.device != node.device and not node.is_copy:
                raise CompileError(
                    "An operation reads a value from another device.",
                    found=f"a value on {source.device}",
                    expected=f"a plan.copy to {node.device}",
                    where=node.where,
                    todo="Run insert-copies after assign-placement.",
                )
            level = max(level, levels[producer] + (1 if node.is_copy else 0))
        levels.append(level)
    return levels


def _sink(nodes: Sequence[StageNode], levels: list[int]) -> None:
    """Move a node to the stage of its first reader: what only a later stage needs is computed there.

    Without this, index arithmetic on a second device would form a stage of its own ahead of the first.
    """
    first_reader = [-1] * len(nodes)
    for i in range(len(nodes) - 1, -1, -1):
        if first_reader[i] >= 0:
            levels[i] = first_reader[i]
        # A copy's source must end a stage earlier than the copy is read.
        latest = levels[i] - (1 if nodes[i].is_copy else 0)
        for producer in nodes[i].producers:
            known = first_reader[producer]
            first_reader[producer] = latest if known < 0 else min(known, latest)
