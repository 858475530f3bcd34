"""llama.cpp as an engine of the bench: its own ``llama-bench``, a process a request.

llama-bench warms up by itself and measures without sampling; its ``-d`` fills the cache before it times.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from serve import serve


class LlamaCpp:
    def __init__(self, program: str) -> None:
        self.program = program

    def op_load(self, model: str, threads: int, capacity: int) -> dict[str, Any]:
        self.arguments = ["-m", model, "-t", str(threads), "-ngl", "0", "-r", "1", "-o", "json"]
        first = self._run("-p", "1", "-n", "0")[0]
        return {
            "imports": None,
            "seconds": None,  # it does not tell
            "version": f"build {first.get('build_number')} ({first.get('build_commit')})",
            "weight_bytes": first.get("model_size") or Path(model).stat().st_size,
            "kv_bytes_per_position": None,
        }

    def op_cold_start(self, n: int) -> dict[str, Any]:
        """From the start of a process, without a warm-up, to its end after a prompt and one token."""
        begin = time.perf_counter()
        self._run("-p", str(n), "-n", "1", "--no-warmup")
        return {"seconds": time.perf_counter() - begin}

    def op_prefill(self, n: int) -> dict[str, Any]:
        return {"seconds": _seconds(self._run("-p", str(n), "-n", "0"))}

    def op_decode(self, live: int, n: int) -> dict[str, Any]:
        return {"seconds": _seconds(self._run("-p", "0", "-n", str(n), "-d", str(live)))}

    def op_memory(self) -> dict[str, Any]:
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return {"peak": peak * (1 if sys.platform == "darwin" else 1024), "now": None}

    def _run(self, *more: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [self.program, *self.arguments, *more], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"llama-bench ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout)


def _seconds(rows: list[dict[str, Any]]) -> float:
    return rows[0]["samples_ns"][0] / 1e9


if __name__ == "__main__":
    serve(LlamaCpp(sys.argv[1]))
