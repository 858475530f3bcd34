"""Placement by budget: bytes of weights and KV, what each device can hold and how fast it reads them.

A decode step reads every weight once, so a device's time is its bytes over its bandwidth, and a token pays
for each crossing the link's latency and the activation's bytes over the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planonce.runtime.errors import PassError

__all__ = ["Budget", "Link", "ModelCost", "cheapest", "seconds_per_token"]

MOST_DEVICES = 6
# Bytes a second that decoding reads: what a desktop's memory and a data-centre GPU give, in round numbers.
BANDWIDTH = {"cpu": 20e9, "cuda": 1000e9}


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of weights and KV that ``device`` may hold."""

    device: str
    nbytes: int

    @property
    def bandwidth(self) -> float:
        return BANDWIDTH[self.device.partition(":")[0]]


@dataclass(frozen=True, slots=True)
class Link:
    """Between any two devices: bytes a second, and seconds that a copy costs however small it is."""

    bandwidth: float = 12e9
    latency: float = 20e-6


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Bytes of weights of the embedding, each layer and the head; ``shared``: in embedding and head alike.

    ``kv``: each layer's KV bytes a position. ``activation``: bytes that cross between two parts.
    """

    layers: tuple[int, ...]
    kv: tuple[int, ...]
    embed: int = 0
    head: int = 0
    shared: int = 0
    activation: int = 0

    def held(self, start: int, stop: int, positions: int) -> int:
        """Bytes that units ``[start, stop)`` of embedding, layers and head take on one device."""
        units = (self.embed, *self.layers, self.head)
        kv = (0, *self.kv, 0)
        tied = self.shared if start == 0 and stop == len(units) else 0
        return sum(units[start:stop]) + positions * sum(kv[start:stop]) - tied

    def read(self, start: int, stop: int, positions: int) -> int:
        """Bytes that a token reads of them: the embedding gives one row, which is nothing."""
        units = (0, *self.layers, self.head)
        kv = (0, *self.kv, 0)
        return sum(units[start:stop]) + positions * sum(kv[start:stop])


def seconds_per_token(
    model: ModelCost,
    budgets: Sequence[Budget],
    link: Link,
    positions: int,
    segments: Sequence[tuple[int, int, int]],
) -> float:
    """Of ``segments`` (start, stop, index into budgets) in order."""
    compute = sum(model.read(a, b, positions) / budgets[d].bandwidth for a, b, d in segments)
    crossing = link.latency + model.activation / link.bandwidth
    return compute + crossing * (len(segments) - 1)


def cheapest(model: ModelCost, budgets: Sequence[Budget], link: Link, positions: int) -> list[str]:
    """A device for the embedding, each layer and the head: the fastest of all ways to give each device one
    run of neighbours, within its budget. Equally fast: the device named first.

    Raises PassError when nothing fits, or with more than six devices.
    """
    if len(budgets) > MOST_DEVICES:
        raise PassError(
            "too many devices to place by budget", found=str(len(budgets)), expected=f"at most {MOST_DEVICES}"
        )
    units = len(model.layers) + 2
    # (units placed, devices used) -> seconds, then the segments that give them.
    best: dict[tuple[int, int], tuple[float, tuple[tuple[int, int, int], ...]]] = {(0, 0): (0.0, ())}
    for done in range(units):
        for used in range(1 << len(budgets)):
            known = best.get((done, used))
            if known is None:
                continue
            for device, budget in enumerate(budgets):
                if used >> device & 1:
                    continue
                for stop in range(done + 1, units + 1):
                    if model.held(done, stop, positions) > budget.nbytes:
                        break  # more units never take less
                    segments = (*known[1], (done, stop, device))
                    seconds = seconds_per_token(model, budgets, link, positions, segments)
                    key = (stop, used | 1 << device)
                    if key not in best or (seconds, _order(segments)) < (best[key][0], _order(best[key][1])):
                        best[key] = (seconds, segments)
    ways = [way for (done, _), way in best.items() if done == units]
    if not ways:
        wanted = model.held(0, units, positions)
        raise PassError(
            "the model does not fit the budgets",
            found=f"{wanted:,} bytes of weights and of KV at {positions} positions",
            expected=", ".join(f"{b.device}={b.nbytes:,} bytes" for b in budgets),
            todo="give more, name another device, or plan for fewer positions (positions=N)",
        )
    _, segments = min(ways, key=lambda way: (way[0], _order(way[1])))
    devices = [""] * units
    for start, stop, device in segments:
        devices[start:stop] = [budgets[device].device] * (stop - start)
    return devices


def _order(segments: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple((device, -stop) for _, stop, device in segments)
