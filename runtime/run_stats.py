"""What a run cost and why: speeds from the generations' clocks, proofs from the counters."""

from __future__ import annotations

import statistics
from collections.abc import Generator
from dataclasses import asdict, dataclass

from .counters import SessionCounters, process_counters
from .decode_session import DecodeSession
from .generate import Generation, GenerationResult, Token
from .manifest import Manifest
from .plan import Plan

__all__ = ["RunMeter", "RunStats", "plan_facts", "size_text", "stats_lines"]


@dataclass(frozen=True, slots=True)
class RunStats:
    """Over all generations of a run. Seconds and bytes; rates are None where nothing was measured."""

    load_seconds: float
    prompt_tokens: int  # fed by prefills; in a chat only what was new
    prefill_seconds: float
    prefill_tokens_per_second: float | None
    first_token_seconds: float | None  # of the first generation, from its start, loading left out
    new_tokens: int
    decode_steps: int
    decode_seconds: float
    decode_tokens_per_second: float | None
    median_step_seconds: float | None
    host_share: float | None  # of decode_seconds: picking the token and settling its text
    capacity: int
    live_positions: int
    kv_bytes: int
    threads: int
    # Why it is fast: what was made or bound once, and not again.
    ort_sessions_after_load: int
    bindings_after_first_token: int
    bind_calls_after_first_token: int
    runs_after_first_token: int
    traces: int
    pass_runs: int
    program: str  # which of the plan's programs runs, and why
    load_parts: dict[str, float]  # seconds of the plan's own load, by part

    def document(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


class RunMeter:
    """Watches the generations of one session. Make it when everything is loaded."""

    def __init__(self, plan: Plan, session: DecodeSession, load_seconds: float) -> None:
        self._plan = plan
        self._session = session
        self._load = load_seconds
        self._sessions = process_counters().ort_sessions
        self._after_first = SessionCounters()
        self._results: list[GenerationResult] = []

    def watch(self, generation: Generation) -> Generator[Token]:
        """The generation's events. Close it, or read it to its end, before asking for :meth:`stats`."""
        first: SessionCounters | None = None
        try:
            for event in generation:
                if first is None:
                    first = self._session.counters.snapshot()
                yield event
        finally:
            if first is not None:
                now, total = self._session.counters, self._after_first
                total.bindings_made += now.bindings_made - first.bindings_made
                total.bind_calls += now.bind_calls - first.bind_calls
                total.runs += now.runs - first.runs
            self._results.append(generation.result)

    def stats(self) -> RunStats:
        times = [result.times for result in self._results]
        steps = [seconds for t in times for seconds in t.steps]
        decode = sum(steps)
        prefill = sum(t.prefill for t in times)
        prompt = sum(result.tokens_fed for result in self._results)
        counters = self._session.counters
        return RunStats(
            load_seconds=self._load,
            prompt_tokens=prompt,
            prefill_seconds=prefill,
            prefill_tokens_per_second=_rate(prompt, prefill),
            first_token_seconds=next((t.first_token for t in times if t.first_token), None),
            new_tokens=sum(len(result.tokens) for result in self._results),
            decode_steps=len(steps),
            decode_seconds=decode,
            decode_tokens_per_second=_rate(len(steps), decode),
            median_step_seconds=statistics.median(steps) if steps else None,
            host_share=_rate(sum(t.host for t in times), decode),
            capacity=self._session.capacity,
            live_positions=self._session.position,
            kv_bytes=self._plan.kv_bytes(self._session.capacity),
            threads=self._plan.threads,
            ort_sessions_after_load=process_counters().ort_sessions - self._sessions,
            bindings_after_first_token=self._after_first.bindings_made,
            bind_calls_after_first_token=self._after_first.bind_calls,
            runs_after_first_token=self._after_first.runs,
            traces=counters.traces,
            pass_runs=counters.pass_runs,
            program=self._plan.program,
            load_parts=dict(self._plan.load_parts),
        )


def stats_lines(stats: RunStats, manifest: Manifest) -> list[str]:
    """A table for a person, one line a fact."""
    median = stats.median_step_seconds
    host = stats.host_share
    decode = "no step"
    if median is not None:
        decode = (
            f"{stats.decode_steps} steps, {_tokens(stats.decode_tokens_per_second)},"
            f" {median * 1e3:.2f} ms a token (median)"
        )
        decode += f", {host:.1%} of it picking and text" if host is not None else ""
    first = "none" if stats.first_token_seconds is None else f"after {stats.first_token_seconds:.3f} s"
    parts = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in stats.load_parts.items())
    rows = [
        ("load", f"{stats.load_seconds:.2f} s" + (f" ({parts})" if parts else "")),
        (
            "prompt",
            f"{stats.prompt_tokens} tokens in {stats.prefill_seconds:.3f} s,"
            f" {_tokens(stats.prefill_tokens_per_second)}",
        ),
        ("first token", first),
        ("decode", decode),
        (
            "KV cache",
            f"{size_text(stats.kv_bytes)} for {stats.capacity} positions, {stats.live_positions} live",
        ),
        ("threads", str(stats.threads)),
        ("plan", plan_facts(manifest)),
        ("program", stats.program),
        (
            "why fast",
            f"after load {stats.ort_sessions_after_load} ONNX Runtime sessions made; after the first token"
            f" {stats.bindings_after_first_token} bindings made, {stats.bind_calls_after_first_token} arrays"
            f" bound, {stats.runs_after_first_token} runs for {stats.decode_steps} steps;"
            f" {stats.traces} traces, {stats.pass_runs} passes",
        ),
    ]
    return [f"{name:<12} {text}" for name, text in rows]


def plan_facts(manifest: Manifest) -> str:
    """``LlamaForCausalLM, 30 layers, float32 (weights int8/32); 1 stage on cpu:0; attention fused in 30``."""
    model = manifest.model
    arms: dict[str, int] = {}
    for choice in manifest.attention:
        arms[choice.arm] = arms.get(choice.arm, 0) + 1
    weights = f" (weights {', '.join(model.weight_formats)})" if model.weight_formats else ""
    count = len(manifest.stages)
    devices = ", ".join(dict.fromkeys(stage.device for stage in manifest.stages))
    parts = [
        f"{model.architecture}, {model.n_layers} layers, {model.dtype}{weights}",
        f"{count} {'stage' if count == 1 else 'stages'} on {devices}",
    ]
    if arms:
        parts.append("attention " + ", ".join(f"{arm} in {n} layers" for arm, n in arms.items()))
    return "; ".join(parts)


def size_text(nbytes: int) -> str:
    """Decimal units: ``94.4 MB``."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def _rate(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def _tokens(rate: float | None) -> str:
    return "no rate" if rate is None else f"{rate:.1f} tok/s"
