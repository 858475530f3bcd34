"""planonce runtime: a plan directory becomes tokens. Needs numpy and onnxruntime; nothing of the compiler.

Names are loaded on first use, so that importing ``planonce.runtime.manifest`` or ``.errors`` alone does not
load onnxruntime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .counters import SessionCounters, process_counters
    from .decode_session import DecodeSession
    from .device import DeviceLocation, local_devices
    from .errors import PlanonceError
    from .fingerprint import StorageFingerprint
    from .kv_cache import KvCache
    from .kv_slot import Authority
    from .manifest import Manifest
    from .plan import Plan
    from .plan_files import Verify
    from .rebind import KvRebindSource, RebindReason, RebindRefusal
    from .storage import Storage
    from .validity import PlanValidity

_HOME = {
    "Authority": "kv_slot",
    "DecodeSession": "decode_session",
    "DeviceLocation": "device",
    "KvCache": "kv_cache",
    "KvRebindSource": "rebind",
    "Manifest": "manifest",
    "Plan": "plan",
    "PlanValidity": "validity",
    "PlanonceError": "errors",
    "RebindReason": "rebind",
    "RebindRefusal": "rebind",
    "SessionCounters": "counters",
    "Storage": "storage",
    "StorageFingerprint": "fingerprint",
    "Verify": "plan_files",
    "local_devices": "device",
    "process_counters": "counters",
}

__all__ = [
    "Authority",
    "DecodeSession",
    "DeviceLocation",
    "KvCache",
    "KvRebindSource",
    "Manifest",
    "Plan",
    "PlanValidity",
    "PlanonceError",
    "RebindReason",
    "RebindRefusal",
    "SessionCounters",
    "Storage",
    "StorageFingerprint",
    "Verify",
    "local_devices",
    "process_counters",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
