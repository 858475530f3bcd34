"""A plan's stages and copy edges as something that can be bound: what a session needs of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from .device import DeviceLocation
from .errors import PlanFormatError
from .manifest import Argument, ArgumentRole, CopyEdge, KvSlotSpec, Manifest, Stage
from .ort import OrtProgram
from .topology import Topology

__all__ = ["StageProgram", "StepProgram", "StepShape"]


@dataclass(frozen=True, slots=True)
class StageProgram:
    """A stage of the manifest and its loaded program."""

    stage: Stage
    program: OrtProgram

    @property
    def location(self) -> DeviceLocation:
        return self.program.location


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes that one binding is made for."""

    batch: int
    sequence: int
    logits: int
    capacity: int


class StepProgram:
    """Immutable and shared by every session of a plan."""

    __slots__ = (
        "_symbols",
        "copies",
        "incoming",
        "logits",
        "manifest",
        "next_tokens",
        "slots",
        "stage_of",
        "stages",
        "topology",
    )

    def __init__(
        self, manifest: Manifest, stages: tuple[StageProgram, ...], topology: Topology | None = None
    ) -> None:
        """``topology``: as it was checked at load; by default this machine's now. Raises TopologyChanged.

        Raises PlanFormatError when a dimension's name means nothing or two things."""
        self.manifest = manifest
        self.stages = stages
        self.topology = Topology.of(manifest) if topology is None else topology
        self.slots: tuple[KvSlotSpec, ...] = manifest.kv_slots
        self.copies: tuple[CopyEdge, ...] = tuple(c for c in manifest.copies if c.target_stage is not None)
        # (stage, argument) -> the edge that brings it.
        self.incoming = {(c.target_stage, c.target): c for c in self.copies}
        # KV input's name -> index of the one stage that takes it.
        self.stage_of = {
            a.name: i for i, s in enumerate(stages) for a in s.stage.inputs if a.role is ArgumentRole.KV
        }
        # (stage, result) of what the caller reads on the host; no next tokens without a greedy head.
        on_host = {c.target: (c.source_stage, c.source) for c in manifest.copies if c.target_stage is None}
        self.logits = on_host[ArgumentRole.LOGITS.value]
        self.next_tokens = on_host.get(ArgumentRole.NEXT_TOKENS.value)
        self._symbols = _symbols(manifest)
        for stage in manifest.stages:
            for argument in stage.outputs:
                self.resolve(argument, StepShape(1, 1, 1, 1))

    def resolve(self, argument: Argument, shape: StepShape) -> tuple[int, ...]:
        """The argument's shape in numbers. Raises PlanFormatError on an unknown name."""
        return tuple(self._dim(d, argument.name, shape) for d in argument.shape)

    def _dim(self, dim: int | str, name: str, shape: StepShape) -> int:
        if isinstance(dim, int):
            return dim
        if dim not in self._symbols:
            raise PlanFormatError(
                "A dimension's name is bound by no input of the step.",
                found=dim,
                expected=", ".join(self._symbols),
                where=name,
                todo="Compile the plan again.",
            )
        return int(getattr(shape, self._symbols[dim]))


def _symbols(manifest: Manifest) -> dict[str, str]:
    """Dimension name -> field of StepShape, read off the arguments whose roles define it."""
    found: dict[str, str] = {}

    def define(dim: int | str, field: str, where: str) -> None:
        if isinstance(dim, str) and found.setdefault(dim, field) != field:
            raise PlanFormatError(
                "One name is used for two dimensions.", found=dim, where=where, todo="Compile the plan again."
            )

    for stage in manifest.stages:
        for a in stage.inputs:
            if a.role is ArgumentRole.TOKEN_IDS:
                define(a.shape[0], "batch", a.name)
                define(a.shape[1], "sequence", a.name)
            elif a.role is ArgumentRole.WRITE_OFFSET:
                define(a.shape[0], "batch", a.name)
            elif a.role is ArgumentRole.LOGIT_POSITIONS:
                define(a.shape[0], "logits", a.name)
            elif a.role is ArgumentRole.KV:
                define(a.shape[0], "batch", a.name)
                define(a.shape[2], "capacity", a.name)
    return found
