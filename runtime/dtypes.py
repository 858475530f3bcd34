"""Element types by name, their size in bytes, and ONNX's number for each. Standard library only."""

from __future__ import annotations

from .errors import LayoutError

__all__ = ["ITEM_SIZE", "KV_DTYPES", "ONNX_ELEMENT_TYPE", "check_kv_dtype"]

ITEM_SIZE = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float64": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}

ONNX_ELEMENT_TYPE = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
}

KV_DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8")


def check_kv_dtype(dtype: str) -> str:
    """``dtype`` if a KV buffer can have it. Raises LayoutError."""
    if dtype not in KV_DTYPES:
        raise LayoutError(
            "A KV buffer cannot have this dtype.", found=repr(dtype), expected=", ".join(KV_DTYPES)
        )
    return dtype
