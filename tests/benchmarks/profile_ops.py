"""Where a token goes inside ONNX Runtime: a table by operation, from its own profiler.

    python tests/benchmarks/profile_ops.py PLAN [--live 128] [--tokens 64] [--threads 2] [--by-node]

``--sequence 512`` profiles a prompt's chunk instead. The profiler costs some microseconds a node, so that
the sum is more than a token takes; compare shares. Made for plans of one stage.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnxruntime

from planonce.runtime import Plan

Table = dict[str, list[float]]


def profile(plan_path: Path, live: int, tokens: int, threads: int, sequence: int) -> list[dict]:
    """The profiler's events of ``tokens`` steps after two that are dropped."""
    made = onnxruntime.SessionOptions
    with tempfile.TemporaryDirectory() as directory:

        def with_profiling() -> onnxruntime.SessionOptions:
            options = made()
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(directory) / "ort")
            return options

        onnxruntime.SessionOptions = with_profiling
        try:
            plan = Plan.load(plan_path, threads=threads)
        finally:
            onnxruntime.SessionOptions = made
        session = plan.open(capacity=live + sequence + tokens + 8)
        cache = session.cache
        assert cache is not None
        cache.extend_to(live)  # zeros will do: no kernel is faster on them
        ids = np.arange(100, 100 + sequence)
        for _ in range(tokens + 2):
            if sequence == 1:
                session.realize_token(100)
            else:
                session.prefill(ids, chunk=sequence)
                cache.truncate_to(live)
        path = session.program.stages[0].program._session.end_profiling()
        events = json.loads(Path(path).read_text(encoding="utf-8"))
    runs = [e for e in events if e.get("name") == "model_run"]
    first = runs[-tokens]["ts"]
    return [e for e in events if e.get("ts", 0) >= first]


def table(events: list[dict], tokens: int, by_node: bool) -> Table:
    """Name to [nodes, microseconds] a token."""
    rows: Table = defaultdict(lambda: [0.0, 0.0])
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        key = event["name"].removesuffix("_kernel_time") if by_node else event["args"]["op_name"]
        rows[key][0] += 1 / tokens
        rows[key][1] += event["dur"] / tokens
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--live", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=1)
    parser.add_argument("--by-node", action="store_true")
    parser.add_argument("--top", type=int, default=25)
    arguments = parser.parse_args()
    events = profile(
        arguments.plan, arguments.live, arguments.tokens, arguments.threads, arguments.sequence
    )  # fmt: skip
    rows = table(events, arguments.tokens, arguments.by_node)
    whole = float(np.median([e["dur"] for e in events if e.get("name") == "model_run"]))
    kernels = sum(us for _, us in rows.values())
    nodes = sum(count for count, _ in rows.values())
    print(f"run {whole / 1e3:.2f} ms (median); kernels {kernels / 1e3:.2f} ms in {nodes:.0f} nodes")
    for name, (count, us) in sorted(rows.items(), key=lambda row: -row[1][1])[: arguments.top]:
        print(f"{us / 1e3:9.3f} ms  {us / kernels:6.1%}  {count:5.0f} x {us / count:8.1f} us  {name}")


if __name__ == "__main__":
    main()
