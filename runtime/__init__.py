"""planonce runtime: a plan directory becomes tokens. Needs numpy and onnxruntime; nothing of the compiler.

Names are loaded on first use, so that importing ``planonce.runtime.manifest`` or ``.errors`` alone does not
load onnxruntime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .capture import CapturedDecodeSession, CaptureReason, CaptureRefusal, CaptureRefused
    from .counters import SessionCounters, process_counters
    from .decode_session import DecodeSession
    from .device import DeviceLocation, local_devices
    from .errors import PlanonceError
    from .fingerprint import Encoding, StorageFingerprint
    from .forward import ForwardPath, ForwardStep, forward_decode_step
    from .inference_context import InferenceContext
    from .kv_batched import alloc_batched_kv
    from .kv_cache import KvCache
    from .kv_import_errors import KvImportError
    from .kv_slot import Authority
    from .manifest import Manifest
    from .plan import Plan
    from .plan_files import Verify
    from .probe import probe_program
    from .processor import processor_key
    from .realize import Prebuilt
    from .rebind import KvRebindSource, RebindBusy, RebindReason, RebindRefusal
    from .storage import Storage
    from .sym_env import SymEnv
    from .validity import PlanValidity, StaleCache

_HOME = {
    "Authority": "kv_slot",
    "CaptureReason": "capture",
    "CaptureRefusal": "capture",
    "CaptureRefused": "capture",
    "CapturedDecodeSession": "capture",
    "DecodeSession": "decode_session",
    "DeviceLocation": "device",
    "Encoding": "fingerprint",
    "ForwardPath": "forward",
    "ForwardStep": "forward",
    "InferenceContext": "inference_context",
    "KvCache": "kv_cache",
    "KvImportError": "kv_import_errors",
    "KvRebindSource": "rebind",
    "Manifest": "manifest",
    "Plan": "plan",
    "PlanValidity": "validity",
    "PlanonceError": "errors",
    "Prebuilt": "realize",
    "RebindBusy": "rebind",
    "RebindReason": "rebind",
    "RebindRefusal": "rebind",
    "SessionCounters": "counters",
    "StaleCache": "validity",
    "Storage": "storage",
    "StorageFingerprint": "fingerprint",
    "SymEnv": "sym_env",
    "Verify": "plan_files",
    "alloc_batched_kv": "kv_batched",
    "forward_decode_step": "forward",
    "local_devices": "device",
    "probe_program": "probe",
    "processor_key": "processor",
    "process_counters": "counters",
}

__all__ = [
    "Authority",
    "CaptureReason",
    "CaptureRefusal",
    "CaptureRefused",
    "CapturedDecodeSession",
    "DecodeSession",
    "DeviceLocation",
    "Encoding",
    "ForwardPath",
    "ForwardStep",
    "InferenceContext",
    "KvCache",
    "KvImportError",
    "KvRebindSource",
    "Manifest",
    "Plan",
    "PlanValidity",
    "PlanonceError",
    "Prebuilt",
    "RebindBusy",
    "RebindReason",
    "RebindRefusal",
    "SessionCounters",
    "StaleCache",
    "Storage",
    "StorageFingerprint",
    "SymEnv",
    "Verify",
    "alloc_batched_kv",
    "forward_decode_step",
    "local_devices",
    "probe_program",
    "process_counters",
    "processor_key",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
