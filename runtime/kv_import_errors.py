"""Why KV bytes were not taken: one type a fault, so that a damaged file is told from a wrong one."""

from __future__ import annotations

from .errors import KvError

__all__ = [
    "KvImportCorrupt",
    "KvImportError",
    "KvImportOtherModel",
    "KvImportTruncated",
    "KvImportVersion",
    "KvImportWrongDtype",
    "KvImportWrongGeometry",
]


class KvImportError(KvError):
    """An export could not be imported; the cache is as it was."""

    code = "kv-import"


class KvImportTruncated(KvImportError):
    """The bytes end before the content does."""

    code = "kv-import-truncated"


class KvImportCorrupt(KvImportError):
    """The bytes are not an export, or not the ones that were written."""

    code = "kv-import-corrupt"


class KvImportVersion(KvImportError):
    """Written by a version of planonce whose exports this one cannot read."""

    code = "kv-import-version"


class KvImportOtherModel(KvImportError):
    """Computed by another model: its keys and values mean nothing here."""

    code = "kv-import-other-model"


class KvImportWrongDtype(KvImportError):
    """The elements are of another dtype."""

    code = "kv-import-wrong-dtype"


class KvImportWrongGeometry(KvImportError):
    """Other layers, heads, head sizes or rows."""

    code = "kv-import-wrong-geometry"
