"""The rounds of a bench: every engine in turn, measurement by measurement, so that drift hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from .bandwidth import Bandwidth
from .engines import Engine, Missing
from .machine import this_machine
from .results import BenchResult, EngineResult, Summary
from .worker import Worker, WorkerError

__all__ = ["BenchOptions", "Report", "run_bench"]

Report = Callable[[str], None]
_SHORT_PROMPT = 16


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """``live``: positions in the cache when decoding starts; ``tokens``: decoded from there each round."""

    threads: int = 2
    rounds: int = 7
    live: tuple[int, ...] = (128, 1024, 4096)
    tokens: int = 64
    prefill: int = 512
    loads: int = 5

    @property
    def capacity(self) -> int:
        """Of every engine's cache: the longest text of the run, and a little."""
        return max(*(n + self.tokens for n in self.live), self.prefill + 1) + 16


@dataclass(slots=True)
class _Samples:
    """One engine's, as they come in."""

    facts: dict[str, Any]
    prefill: list[float] = field(default_factory=list[float])
    decode: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    first_token: list[float] = field(default_factory=list[float])
    load: list[float] = field(default_factory=list[float])
    load_to_first_token: list[float] = field(default_factory=list[float])
    peak: int | None = None


def run_bench(
    engines: Sequence[Engine], missing: Sequence[Missing], options: BenchOptions, report: Report
) -> BenchResult:
    """Measure; ``engines[0]`` must work, another that fails is reported as missing. Raises WorkerError."""
    bandwidth = Bandwidth(options.threads)
    reads: list[float] = []
    gone = list(missing)
    try:
        with ExitStack() as stack:
            running = _start(engines, gone, options, stack, report)
            samples = {engine.name: _Samples(facts) for engine, _, facts in running}
            for round_number in range(-1, options.rounds):
                report("warm-up" if round_number < 0 else f"round {round_number + 1} of {options.rounds}")
                # Whoever runs first finds the caches as the bandwidth test left them: take turns.
                start = round_number % len(running)
                order = [(e.name, w) for e, w, _ in (*running[start:], *running[:start])]
                _round(order, samples, options, keep=round_number >= 0)
                if round_number >= 0:
                    reads.append(bandwidth.measure())
            for engine, worker, _ in running:
                samples[engine.name].peak = worker.ask("memory")["peak"]
        kept = [engine for engine, _, _ in running]
        for number in range(options.loads):
            report(f"load {number + 1} of {options.loads}")
            for engine in kept:
                _load_once(engine, samples[engine.name], options)
    finally:
        bandwidth.close()
    speed = Summary.of(reads)
    assert speed is not None
    return BenchResult(
        machine=this_machine(),
        threads=options.threads,
        rounds=options.rounds,
        tokens=options.tokens,
        bandwidth=speed,
        engines=[_result(engine, samples[engine.name], options, speed.median) for engine in kept],
        missing=[asdict(m) for m in gone],
    )


def _start(
    engines: Sequence[Engine], gone: list[Missing], options: BenchOptions, stack: ExitStack, report: Report
) -> list[tuple[Engine, Worker, dict[str, Any]]]:
    running: list[tuple[Engine, Worker, dict[str, Any]]] = []
    for engine in engines:
        report(f"loading {engine.name}")
        try:
            worker = stack.enter_context(Worker(engine.name, engine.command))
            facts = _load(worker, engine, options)
        except WorkerError as error:
            if engine is engines[0]:
                raise
            gone.append(Missing(engine.name, str(error.found or error.message), error.todo))
            continue
        running.append((engine, worker, facts))
    return running


def _load(worker: Worker, engine: Engine, options: BenchOptions) -> dict[str, Any]:
    return worker.ask("load", model=str(engine.model), threads=options.threads, capacity=options.capacity)


def _round(
    order: Sequence[tuple[str, Worker]], samples: dict[str, _Samples], options: BenchOptions, *, keep: bool
) -> None:
    for name, worker in order:
        seconds = worker.ask("prefill", n=options.prefill)["seconds"]
        if keep:
            samples[name].prefill.append(seconds)
    for live in options.live:
        for name, worker in order:
            seconds = worker.ask("decode", live=live, n=options.tokens)["seconds"]
            if keep:
                samples[name].decode.setdefault(live, []).append(seconds / options.tokens)
    for name, worker in order:
        if keep and samples[name].facts["imports"] is not None:
            samples[name].first_token.append(worker.ask("first_token", n=options.prefill)["seconds"])


def _load_once(engine: Engine, samples: _Samples, options: BenchOptions) -> None:
    """In a fresh process. Importing libraries is left out; an engine without any is timed whole."""
    with Worker(engine.name, engine.command) as worker:
        loaded = _load(worker, engine, options)
        if loaded["imports"] is None:
            samples.load_to_first_token.append(worker.ask("cold_start", n=_SHORT_PROMPT)["seconds"])
            return
        first = worker.ask("first_token", n=_SHORT_PROMPT)["seconds"]
        samples.load.append(loaded["seconds"])
        samples.load_to_first_token.append(loaded["seconds"] + first)


def _result(engine: Engine, samples: _Samples, options: BenchOptions, bandwidth: float) -> EngineResult:
    facts = samples.facts
    result = EngineResult(
        name=engine.name,
        weights=engine.weights,
        version=str(facts["version"]),
        weight_bytes=int(facts["weight_bytes"]),
        kv_bytes_per_position=int(facts["kv_bytes_per_position"] or 0),
        threads=options.threads,
        first_token=Summary.of(samples.first_token),
        load=Summary.of(samples.load),
        load_to_first_token=Summary.of(samples.load_to_first_token),
        peak_memory=samples.peak,
    )
    prefill = Summary.of(samples.prefill)
    if prefill is not None:
        result.prefill[options.prefill] = prefill
    for live, values in samples.decode.items():
        summary = Summary.of(values)
        assert summary is not None
        result.decode[live] = summary
        middle = live + options.tokens // 2
        floor = (result.weight_bytes + result.kv_bytes_per_position * middle) / bandwidth
        result.bandwidth_used[live] = floor / summary.median
    return result
