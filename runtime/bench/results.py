"""What a bench measured: samples a round, their medians and spread, and ratios between engines."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

__all__ = ["BenchResult", "EngineResult", "Machine", "Ratio", "Summary", "ratio"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and quartiles of ``samples``, one a round, in seconds or bytes a second."""

    median: float
    low: float  # first quartile
    high: float  # third quartile
    samples: tuple[float, ...]

    @staticmethod
    def of(samples: Sequence[float]) -> Summary | None:
        """None without samples."""
        if not samples:
            return None
        low, high = _quartiles(samples)
        return Summary(statistics.median(samples), low, high, tuple(samples))


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our time over a peer's: below 1 we are faster. ``median``: of both sides' medians; ``low``, ``high``:
    quartiles of the ratios of single rounds, whose two measurements lie seconds apart."""

    median: float
    low: float
    high: float


@dataclass(slots=True)
class EngineResult:
    """Seconds. Keys of ``prefill`` are prompt lengths, of ``decode`` live lengths (seconds a token)."""

    name: str
    weights: str
    version: str
    weight_bytes: int
    kv_bytes_per_position: int
    threads: int
    prefill: dict[int, Summary] = field(default_factory=dict[int, Summary])
    decode: dict[int, Summary] = field(default_factory=dict[int, Summary])
    first_token: Summary | None = None  # cache made, prompt fed, token picked; the model is loaded
    load: Summary | None = None  # the model, in a fresh process whose libraries are imported
    load_to_first_token: Summary | None = None  # the same and a short prompt's first token
    peak_memory: int | None = None
    bandwidth_used: dict[int, float] = field(default_factory=dict[int, float])  # 1: the floor is reached


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cores: int
    memory_bytes: int
    system: str


@dataclass(slots=True)
class BenchResult:
    """One interleaved run. The first of ``engines`` is planonce."""

    machine: Machine
    threads: int
    rounds: int
    tokens: int
    bandwidth: Summary
    engines: list[EngineResult]
    missing: list[dict[str, str]]

    def ratios(self) -> dict[str, dict[str, Ratio]]:
        """Peer to measurement (``decode@128``, ``prefill@512``, ``load_to_first_token``) to ratio."""
        ours = _named(self.engines[0])
        found: dict[str, dict[str, Ratio]] = {}
        for peer in self.engines[1:]:
            theirs = _named(peer)
            found[peer.name] = {key: ratio(ours[key], theirs[key]) for key in ours if key in theirs}
        return found

    def document(self) -> dict[str, object]:
        """For JSON."""
        ratios = {peer: {k: asdict(r) for k, r in found.items()} for peer, found in self.ratios().items()}
        return {**asdict(self), "ratios": ratios}


def ratio(ours: Summary, theirs: Summary) -> Ratio:
    """Both with one sample a round, in the same rounds."""
    pairs = [a / b for a, b in zip(ours.samples, theirs.samples, strict=False)]
    return Ratio(ours.median / theirs.median, *_quartiles(pairs))


def _named(engine: EngineResult) -> dict[str, Summary]:
    named: dict[str, Summary | None] = {f"decode@{live}": s for live, s in engine.decode.items()}
    named |= {f"prefill@{n}": s for n, s in engine.prefill.items()}
    named |= {"first_token": engine.first_token, "load": engine.load}
    named["load_to_first_token"] = engine.load_to_first_token
    return {key: summary for key, summary in named.items() if summary is not None}


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
