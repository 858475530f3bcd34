"""A plan's weights as numbers: read from its files with arithmetic of the test's own."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes  # noqa: F401  (gives numpy bfloat16 by name)
import numpy as np

from planonce.compiler.checkpoint import open_checkpoint
from planonce.passes.ir.nbits import NBits
from planonce.runtime import Manifest

__all__ = ["PlanWeights", "check_exact"]


class PlanWeights:
    """``formats``: quantised weight (its own name in the plan) -> format."""

    def __init__(self, plan: Path) -> None:
        self.plan = plan
        self.stored = {tensor.name: tensor for tensor in Manifest.load(plan).tensors}
        self.formats: dict[str, NBits] = {}
        for name in self.stored:
            weight, at, rest = name.rpartition("@")
            if at:
                self.formats[weight] = NBits.parse(rest.rpartition(".")[0])

    def tensor(self, name: str) -> np.ndarray:
        at = self.stored[name]
        raw = np.fromfile(self.plan / at.file, np.uint8, at.nbytes, offset=at.offset)
        return raw.view(np.dtype(at.dtype)).reshape(at.shape)

    def form(self, weight: str, form: str) -> np.ndarray:
        return self.tensor(f"{weight}@{self.formats[weight]}.{form}")

    def dequantised(self, weight: str) -> np.ndarray:
        """float32 [N, blocks * block], in float64 until the end."""
        format = self.formats[weight]
        data = self.form(weight, "data" if f"{weight}@{format}.data" in self.stored else "rows")
        codes = data.reshape(len(data), -1).astype(np.int64)
        if format.bits == 4:
            codes = np.stack([codes % 16, codes // 16], axis=-1).reshape(len(data), -1)
        values = (codes - 2 ** (format.bits - 1)) * np.repeat(
            self.form(weight, "scales"), format.block, axis=1
        ).astype(np.float64)
        if format.offset:
            values += np.repeat(self.form(weight, "offset"), format.block, axis=1)
        return values.astype(np.float32)


def check_exact(plan: Path, checkpoint: Path) -> int:
    """Every quantised weight of the plan against the checkpoint, part by part. Returns how many."""
    weights, kept = open_checkpoint(checkpoint).weights, PlanWeights(plan)
    tensors = {name.rpartition("@")[0] for name in kept.stored if "@" in name}
    count = 0
    for name in tensors:
        found, top = kept.dequantised(name), 0
        first, *others = name.split("+")
        # merge-linears' name: the first part whole, of the others what differs
        stem = first.removesuffix(".".join(first.split(".")[-len(others[0].split(".")) :])) if others else ""
        for part in (first, *(stem + other for other in others)):
            expected = weights.read(part)
            block = kept.formats[name].block
            largest = np.abs(expected).reshape(len(expected), -1, block).max(axis=-1)
            rows = found[top : top + len(expected)]
            assert (np.abs(rows - expected) <= np.repeat(np.spacing(largest), block, axis=1)).all(), part
            top += len(expected)
            count += 1
        assert top == len(found)
    return count
