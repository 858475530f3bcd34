"""Map the weights of a referenced checkpoint and hand them to ONNX Runtime.

ONNX Runtime refuses external data outside the model's own directory, so a plan that leaves the checkpoint
in place names its initializers in the manifest, and their bytes are handed over as mapped arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .manifest import CheckpointReference
from .ort import Tensor, carrier

__all__ = ["map_weights"]


def map_weights(reference: CheckpointReference) -> Mapping[int, Mapping[str, Tensor]]:
    """Stage -> initializer name -> tensor over the mapped file; nothing is read until used.

    Sizes and offsets were checked with the manifest.
    """
    if reference.root is None:
        return {}
    root = Path(reference.root)
    files: dict[str, NDArray[Any]] = {}
    tensors: dict[int, dict[str, Tensor]] = {}
    for weight in reference.weights:
        if weight.file not in files:
            files[weight.file] = np.memmap(root / weight.file, dtype=np.uint8, mode="r")
        raw = files[weight.file][weight.offset : weight.offset + weight.nbytes]
        array = np.asarray(raw).view(carrier(weight.dtype)).reshape(weight.shape)
        tensors.setdefault(weight.stage, {})[weight.name] = Tensor.over(array, weight.dtype)
    return tensors
