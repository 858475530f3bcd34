"""How many threads a plan uses unless told: what this process may run on, not what the host has."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["default_threads"]

_CGROUP = Path("/sys/fs/cgroup")


def _quota(directory: Path) -> float:
    """CPUs the cgroup at ``directory`` may use; inf when it sets no limit."""
    try:
        quota, period = (directory / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        us = int((directory / "cpu.cfs_quota_us").read_text())
        return math.inf if us < 0 else us / int((directory / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _cgroup_quota(root: Path = _CGROUP, membership: Path = Path("/proc/self/cgroup")) -> float:
    """The tightest quota from this process's cgroup up to the root: every ancestor's limit holds."""
    limit = min(_quota(root), _quota(root / "cpu"))
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return limit
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "cpu", "cpu,cpuacct"):
            continue
        base = root if not controllers else root / controllers
        node = base / path.lstrip("/")
        while node != base and base in node.parents:
            limit = min(limit, _quota(node))
            node = node.parent
    return limit


def default_threads() -> int:
    """Threads for one plan: the affinity mask's CPUs, bounded by the cgroup's quota; at least 1.

    A container limited to two CPUs of a 64-CPU host must not start 64 threads: they would be throttled
    and each token would wait for the slowest.
    """
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:
        cpus = os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, cpus if quota == math.inf else min(cpus, math.ceil(quota)))
