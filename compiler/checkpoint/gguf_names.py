"""From GGUF tensors to the model's weights, by transformers' own tables and tensor processors.

llama.cpp renames tensors and changes some (rotary heads interleaved, norms stored plus one, transposes).
transformers' processors undo that on whole arrays; what a processor does to a tensor is found out here by
giving it a probe, so that a mere reordering of rows can be applied to quantised bytes too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from planonce.runtime.errors import CheckpointError, UnsupportedModel

from .gguf_file import GgufHeader
from .skeleton import ModelSkeleton
from .stored import StoredTensor
from .weights import WeightEntry

__all__ = ["map_gguf"]


def map_gguf(
    header: GgufHeader, config_values: Mapping[str, Any], skeleton: ModelSkeleton
) -> tuple[dict[str, WeightEntry], list[str]]:
    """(entries by model name, stored names that are not part of the model).

    config_values: what transformers read from the file's metadata. Raises UnsupportedModel.
    """
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    processor = TENSOR_PROCESSORS.get(header.architecture, TensorProcessor)(config=dict(config_values))
    try:
        names = get_gguf_hf_weights_map(skeleton.model, processor)
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"no table of tensor names for GGUF architecture {header.architecture!r}",
            found=str(error)[:300],
            where=str(header.path),
            todo="use the original Hugging Face checkpoint",
        ) from error
    groups: dict[str, list[StoredTensor]] = {}
    unexpected: list[str] = []
    for name, tensor in header.tensors.items():
        target = _model_name(name, names, header.architecture)
        if target is None:
            unexpected.append(name)
        else:
            groups.setdefault(target, []).append(tensor)
    entries = {
        target: _entry(target, tensors, processor, names, skeleton) for target, tensors in groups.items()
    }
    return entries, unexpected


def _model_name(name: str, names: Mapping[str, str], architecture: str) -> str | None:
    if architecture == "gpt2" and name == "output.weight":
        return "lm_head.weight"  # named by the processor itself, not by the table
    return names.get(name) or names.get(name.removesuffix(".weight"))


class _Processed:
    """``decode`` of an entry that a transformers processor makes of one or more GGUF tensors."""

    def __init__(self, target: str, stored: list[str], processor: Any, names: Mapping[str, str]) -> None:
        self.target, self.stored, self.processor, self.names = target, stored, processor, names

    def __call__(self, sources: list[np.ndarray]) -> np.ndarray:
        parsed: dict[str, dict[str, Any]] = {"tensors": {}}
        for name, values in zip(self.stored, sources, strict=True):
            result = self.processor.process(
                weights=values, name=name, tensor_key_mapping=self.names, parsed_parameters=parsed
            )
            if result.name in self.names:
                parsed["tensors"][self.names[result.name]] = result.weights
        return np.asarray(parsed["tensors"][self.target])


def _entry(
    target: str,
    tensors: list[StoredTensor],
    processor: Any,
    names: Mapping[str, str],
    skeleton: ModelSkeleton,
) -> WeightEntry:
    first = tensors[0]
    decode = _Processed(target, [tensor.name for tensor in tensors], processor, names)
    if len(tensors) > 1:
        # Experts: gate and up become one tensor. The model says its shape; reading checks it.
        shape = skeleton.shapes[target]
        return WeightEntry(target, first.dtype, shape, tuple(tensors), decode=decode)
    rows = _row_order(first, decode)
    if rows is not None:
        reordered = None if np.array_equal(rows, np.arange(len(rows))) else rows
        if reordered is None and not _changes_values(first, decode):
            return WeightEntry(target, first.dtype, first.shape, (first,))
        if reordered is not None:
            return WeightEntry(target, first.dtype, first.shape, (first,), rows=reordered)
    return WeightEntry(target, first.dtype, _decoded_shape(first, decode), (first,), decode=decode)


def _row_order(tensor: StoredTensor, decode: _Processed) -> np.ndarray | None:
    """rows[i] = the stored row that becomes row i, or None if the processor does more than reorder rows."""
    n_rows = tensor.shape[0] if tensor.shape else 1
    columns = 1 if len(tensor.shape) < 2 else 2
    probe = np.arange(n_rows * columns, dtype=np.float64).reshape(
        n_rows, *[1] * (len(tensor.shape) - 2), columns
    )
    if columns == 1:
        probe = probe.reshape(n_rows)
    try:
        result = decode([probe])
    except (ValueError, IndexError, KeyError, TypeError):
        return None
    if result.shape != probe.shape:
        return None
    flat = result.reshape(n_rows, columns)
    rows = (flat[:, 0] // columns).astype(np.int64)
    if not np.array_equal(np.sort(rows), np.arange(n_rows)):
        return None
    return rows if np.array_equal(flat, probe.reshape(n_rows, columns)[rows]) else None


def _changes_values(tensor: StoredTensor, decode: _Processed) -> bool:
    # A square matrix's transpose keeps its shape, and a two-column probe of two rows cannot see it.
    if len(tensor.shape) < 2 or min(tensor.shape) > 2:
        return False
    probe = np.arange(int(np.prod(tensor.shape)), dtype=np.float64).reshape(tensor.shape)
    return not np.array_equal(decode([probe]), probe)


def _decoded_shape(tensor: StoredTensor, decode: _Processed) -> tuple[int, ...]:
    # All elements are one byte in memory: broadcast, so that probing a large tensor costs little.
    probe = np.broadcast_to(np.float16(-1), tensor.shape)
    try:
        with np.errstate(all="ignore"):
            return tuple(decode([probe]).shape)
    except Exception as error:  # a processor's complaint about a shape it did not expect
        raise CheckpointError(
            f"tensor {tensor.name} cannot be turned into weight {decode.target}",
            found=f"shape {list(tensor.shape)}: {error}"[:300],
            where=str(tensor.file),
            todo="the file does not hold what its metadata says; fetch it again",
        ) from error
