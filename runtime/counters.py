"""Counters that prove what a token costs: everything but runs stands still from the second token on."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields

__all__ = ["ProcessCounters", "SessionCounters", "count_allocation", "count_ort_session", "process_counters"]


@dataclass(slots=True)
class SessionCounters:
    """What one decode session did. The runtime cannot trace or run passes; those stay 0 by construction."""

    traces: int = 0
    pass_runs: int = 0
    bindings_made: int = 0  # IO bindings created
    bind_calls: int = 0  # tensors bound to a name, inputs and outputs
    runs: int = 0  # ORT runs, one a stage
    host_copies: int = 0  # times that logits were brought to the host
    uploads: int = 0  # KV slots whose newest bytes were on the host and had to be sent before a run
    realize_count: int = 0  # steps served, one a token in decode and one a chunk in prefill
    tokens: int = 0  # tokens fed
    rebinds: int = 0

    def snapshot(self) -> SessionCounters:
        """A copy that later steps do not change."""
        return SessionCounters(**{f.name: getattr(self, f.name) for f in fields(self)})


@dataclass(slots=True)
class ProcessCounters:
    """What this process made, by any plan or cache."""

    ort_sessions: int = 0
    kv_allocations: int = 0


_lock = threading.Lock()
_totals = ProcessCounters()


def count_ort_session() -> None:
    with _lock:
        _totals.ort_sessions += 1


def count_allocation() -> None:
    with _lock:
        _totals.kv_allocations += 1


def process_counters() -> ProcessCounters:
    """A copy of the process's counters."""
    with _lock:
        return ProcessCounters(_totals.ort_sessions, _totals.kv_allocations)
