"""A bench's result as a table for a terminal, and as Markdown for the README."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..run_stats import size_text
from .results import BenchResult, EngineResult, Ratio, Summary

__all__ = ["heading", "markdown", "text_tables"]

Row = list[str]


def heading(result: BenchResult) -> str:
    """The machine, threads and rounds in one line."""
    machine = result.machine
    return (
        f"{machine.cpu}, {machine.cores} cores, {size_text(machine.memory_bytes)}, {machine.system};"
        f" {result.threads} threads; medians of {result.rounds} interleaved rounds [quartiles];"
        f" reads {result.bandwidth.median / 1e9:.1f} GB/s"
    )


def text_tables(result: BenchResult) -> str:
    """Absolute figures, then ratios, then what is missing."""
    lines = [heading(result), "", *_aligned(_rows(result))]
    ratios = _ratio_rows(result)
    if ratios:
        lines += ["", "planonce's time over the peer's (below 1: planonce is faster)", *_aligned(ratios)]
    lines += _missing(result)
    return "\n".join(lines)


def markdown(result: BenchResult) -> str:
    """Both tables; the heading above them."""
    blocks = [heading(result), _piped(_rows(result))]
    ratios = _ratio_rows(result)
    if ratios:
        blocks += ["planonce's time over the peer's (below 1: planonce is faster):", _piped(ratios)]
    blocks += _missing(result)
    return "\n\n".join(blocks) + "\n"


def _rows(result: BenchResult) -> list[Row]:
    rows = [["", *(engine.name for engine in result.engines)]]

    def add(label: str, cell: Callable[[EngineResult], str]) -> None:
        rows.append([label, *map(cell, result.engines)])

    add("version", lambda e: e.version)
    add("weights", lambda e: f"{e.weights}, {size_text(e.weight_bytes)}")
    for n in result.engines[0].prefill:
        add(f"prefill {n}, tok/s", lambda e, n=n: _rate(e.prefill.get(n), n))
    for live in result.engines[0].decode:
        add(f"decode at {live}, ms/token", lambda e, live=live: _milliseconds(e.decode.get(live)))
        add(f"decode at {live}, tok/s", lambda e, live=live: _rate(e.decode.get(live), 1))
        add(f"bandwidth used at {live}", lambda e, live=live: f"{e.bandwidth_used.get(live, 0):.0%}")
    for n in result.engines[0].prefill:
        add(f"first token of {n}, ms", lambda e: _milliseconds(e.first_token))
    add("load, ms", lambda e: _milliseconds(e.load))
    add("load to first token, ms", lambda e: _milliseconds(e.load_to_first_token))
    add("peak memory", lambda e: "-" if e.peak_memory is None else size_text(e.peak_memory))
    return rows


def _ratio_rows(result: BenchResult) -> list[Row]:
    ratios = result.ratios()
    if not ratios:
        return []
    keys = dict.fromkeys(key for found in ratios.values() for key in found)
    rows = [["", *ratios]]
    rows += [[key.replace("_", " "), *(_ratio(found.get(key)) for found in ratios.values())] for key in keys]
    return rows


def _missing(result: BenchResult) -> list[str]:
    return [f"{m['name']} is missing: {m['why']}. {m['todo']}" for m in result.missing]


def _milliseconds(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    return f"{summary.median * 1e3:.2f} [{summary.low * 1e3:.2f}, {summary.high * 1e3:.2f}]"


def _rate(summary: Summary | None, n: int) -> str:
    return "-" if summary is None else f"{n / summary.median:.1f}"


def _ratio(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def _aligned(rows: Sequence[Row]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _piped(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines)
