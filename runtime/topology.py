"""Are the devices and providers that a plan was placed for there, and are they still?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import ort
from .device import DeviceLocation, local_devices
from .errors import TopologyChanged
from .manifest import Manifest, Stage
from .ort import HostNode

__all__ = ["Topology", "check_asked_for", "check_on_device", "needs_device"]

_TODO = "Compile the plan for this machine's devices."
# What CUDA programs keep on the host because it is about shapes, of which the host has to know.
_ABOUT_SHAPES = frozenset(
    {
        "Add", "Cast", "Concat", "Constant", "Div", "Equal", "Gather", "Identity", "Max", "Min", "Mul",
        "Range", "ReduceMax", "ReduceMin", "Reshape", "Shape", "Size", "Slice", "Squeeze", "Sub", "Unsqueeze",
        "Where",
    }
)  # fmt: skip


def needs_device(node: HostNode) -> bool:
    """Whether a node on the host is more than arithmetic on shapes."""
    return node.op_type not in _ABOUT_SHAPES


def check_asked_for(manifest: Manifest, device: str) -> None:
    """The plan is placed on ``device`` alone: ``cpu`` or ``cuda`` for any of them, ``cpu:1`` for one.

    Raises TopologyChanged: a plan runs where it was compiled for, never quietly elsewhere.
    """
    placed = list(dict.fromkeys(stage.device for stage in manifest.stages))
    if any(device not in (each, each.partition(":")[0]) for each in placed):
        raise TopologyChanged(
            "The plan is placed on other devices than the one asked for.",
            found=", ".join(placed),
            expected=device,
            todo=f"Compile it again with --place {device if ':' in device else device + ':0'}.",
        )


def check_on_device(stage: Stage, host_nodes: Sequence[HostNode]) -> None:
    """Nothing but shapes may run on the host for another device's stage. Raises TopologyChanged.

    ONNX Runtime gives an operator without a kernel there to the CPU, with no more than a log line: the plan
    would run, and copy its values to the host and back at every token.
    """
    away = [node for node in host_nodes if needs_device(node)]
    if away:
        raise TopologyChanged(
            "ONNX Runtime runs part of a program on the host.",
            found=", ".join(map(str, away[:4])) + (f" and {len(away) - 4} more" if len(away) > 4 else ""),
            expected=f"every operator on {stage.device}",
            where=stage.program,
            todo="Compile with a dtype and attention arm that the device has kernels for (select-attention).",
        )


@dataclass(frozen=True, slots=True)
class Topology:
    """The devices of a plan's stages, in order, and which of them this machine reported at load."""

    stages: tuple[DeviceLocation, ...]
    reported: frozenset[DeviceLocation]

    @staticmethod
    def of(manifest: Manifest, devices: Sequence[DeviceLocation] | None = None) -> Topology:
        """The plan's topology among ``devices`` (by default this machine's). Raises TopologyChanged."""
        local = local_devices()
        topology = Topology(tuple(DeviceLocation.parse(s.device) for s in manifest.stages), frozenset(local))
        topology._check(local if devices is None else devices)
        return topology

    def check_still_there(self) -> None:
        """Nothing that was reported at load has gone since. Raises TopologyChanged.

        Asked when a run has failed, not before each: it costs a call to the driver.
        """
        now = set(local_devices())
        # A device that was never reported (a caller's own list, at load) says nothing by being absent.
        self._check([d for d in self.stages if d in now or d not in self.reported])

    def _check(self, devices: Sequence[DeviceLocation]) -> None:
        providers = ort.available_providers()
        for i, location in enumerate(self.stages):
            provider = location.kind.provider
            if location in devices and provider in providers:
                continue
            missing = "device" if location not in devices else "provider"
            raise TopologyChanged(
                f"The plan was placed on a {missing} that is not there.",
                found=", ".join(map(str, devices)) if missing == "device" else ", ".join(providers),
                expected=str(location) if missing == "device" else provider,
                where=f"stages[{i}]",
                todo=_TODO,
            )
