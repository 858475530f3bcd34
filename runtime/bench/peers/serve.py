"""The worker's side of the bench: one JSON object a line in, one out. Standard library only.

These scripts run under the Python of the engine they drive, which need not have planonce. A request is
``{"op": NAME, ...}``; the answer is ``{"ok": {...}}`` or ``{"error": TEXT}``. Whatever a library prints goes
to standard error: the channel is a copy of standard output made before anything is imported.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

_channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


def status_bytes(name: str) -> int | None:
    """A size from /proc/self/status; None where there is none."""
    try:
        with Path("/proc/self/status").open(encoding="ascii") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def memory() -> dict[str, int | None]:
    """Peak and current resident bytes of this process, mapped files included.

    Not getrusage where it can be avoided: its peak survives exec, so it may be the parent's.
    """
    peak = status_bytes("VmHWM")
    if peak is None:
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"peak": peak, "now": status_bytes("VmRSS")}


def prompt(n: int, vocab: int) -> list[int]:
    """n token ids, the same for every engine: spread over the vocabulary, none of the low special ones."""
    usable = vocab - 100
    return [100 + (i * 7919 + 13) % usable for i in range(n)]


def serve(engine: Any) -> None:
    """Answer requests with the methods ``op_NAME`` of ``engine`` until ``quit`` or the end of input."""
    for line in sys.stdin:
        request = json.loads(line)
        op = request.pop("op")
        if op == "quit":
            break
        try:
            method = getattr(engine, f"op_{op}", None)
            if method is not None:
                answer = {"ok": method(**request)}
            elif op == "memory":
                answer = {"ok": memory()}
            else:
                answer = {"error": f"this engine does not know {op}", "code": "unsupported"}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        _channel.write(json.dumps(answer) + "\n")
        _channel.flush()
