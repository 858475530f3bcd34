"""Which processor this is, as far as ONNX Runtime's choice of kernels depends on it."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

__all__ = ["processor_key"]

_CPUINFO = Path("/proc/cpuinfo")
_INSTRUCTIONS = ("flags", "Features")  # what the line is called on x86 and on ARM


def processor_key() -> str:
    """``x86_64-`` and a digest of the instruction sets. Empty when they cannot be found out: such a machine
    is like no other."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _INSTRUCTIONS:
            digest = hashlib.sha256(" ".join(sorted(value.split())).encode()).hexdigest()
            return f"{platform.machine()}-{digest[:16]}"
    return ""
