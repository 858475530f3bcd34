"""The most memory this process has used."""

from __future__ import annotations

import resource
from pathlib import Path

__all__ = ["peak_rss"]


def peak_rss() -> int:
    """Peak resident set in bytes.

    From /proc where there is one: ru_maxrss of a started process begins at its parent's, not at zero.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
