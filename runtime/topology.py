"""Are the devices and providers that a plan was placed for there, and are they still?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import ort
from .device import DeviceLocation, local_devices
from .errors import TopologyChanged
from .manifest import Manifest

__all__ = ["Topology"]

_TODO = "Compile the plan for this machine's devices."


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
