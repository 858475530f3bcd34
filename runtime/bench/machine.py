"""Says on what a bench ran: a figure without its machine is no figure."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from ..threads import default_threads
from .results import Machine

__all__ = ["this_machine"]


def this_machine() -> Machine:
    return Machine(
        cpu=_cpu(),
        cores=default_threads(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    )


def _cpu() -> str:
    """The model's name and the widest vectors it has: they decide which kernels run."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in fields.items()}
    name = facts.get("model name", platform.machine())
    flags = facts.get("flags", "").split()
    widest = next((flag for flag in ("avx512_vnni", "avx512f", "avx_vnni", "avx2") if flag in flags), None)
    return name if widest is None else f"{name} ({widest})"
