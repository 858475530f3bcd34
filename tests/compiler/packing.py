"""Does ONNX Runtime pack weights here in the layout that offsets can be written into?"""

from __future__ import annotations

import functools

import numpy as np
from onnx import NodeProto, helper

from planonce.compiler import packed_program
from planonce.compiler.packed_program import UnknownLayout

__all__ = ["NOT_HERE", "linear", "packs_here"]

NOT_HERE = "ONNX Runtime packs weights otherwise on this processor: plans have the portable program alone"


def linear(n: int, k: int, *, bits: int, block: int) -> tuple[NodeProto, dict[str, np.ndarray]]:
    """A MatMulNBits over x, data and scales, and random tensors for it, the offsets too."""
    random = np.random.default_rng(n)
    blocks = k // block
    tensors = {
        "data": random.integers(0, 256, (n, blocks, block * bits // 8), dtype=np.uint8),
        "scales": random.uniform(0.001, 0.1, (n, blocks)).astype(np.float32),
        "offset": random.uniform(-1, 1, (n, blocks)).astype(np.float32),
    }
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": 4}
    node = helper.make_node(
        "MatMulNBits", ["x", "data", "scales"], ["y"], domain="com.microsoft", **attributes
    )
    return node, tensors


@functools.cache
def packs_here() -> bool:
    """On x86 with AVX2 or AVX-512 it does. On others a compile says so in a remark."""
    node, tensors = linear(48, 64, bits=4, block=32)
    try:
        _, packed = packed_program._pack(node, tensors["data"], tensors["scales"])
        packed_program._write_offsets(packed, *tensors.values(), zero=8)
    except UnknownLayout:
        return False
    return True
