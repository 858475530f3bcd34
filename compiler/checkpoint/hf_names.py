"""From names in safetensors files to the model's names, by transformers' own rules.

transformers renames keys when it loads (base-model prefixes, old spellings) and builds some weights of
several stored ones (experts). The same rules are applied to the index, and to one weight when it is read.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from planonce.runtime.errors import CheckpointError

from .skeleton import ModelSkeleton
from .stored import PLAIN_FORMATS, StoredTensor, convert_dtype
from .weights import WeightEntry

__all__ = ["map_safetensors", "text_part"]

# A multimodal checkpoint holds its language model under one of these prefixes, and parts we leave out.
LANGUAGE_PREFIXES = (
    (re.compile(r"^model\.language_model\."), "model."),
    (re.compile(r"^language_model\.model\."), "model."),
    (re.compile(r"^language_model\.lm_head\."), "lm_head."),
)
OTHER_MODALITIES = re.compile(
    r"^(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|audio_tower|embed_vision|embed_audio)\."
)


def text_part(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The language model's tensors of a multimodal checkpoint, named as the text model names them."""
    kept: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        if OTHER_MODALITIES.search(name):
            continue
        for prefix, replacement in LANGUAGE_PREFIXES:
            if prefix.search(name):
                name = prefix.sub(replacement, name)
                break
        kept[name] = tensor
    return kept


def map_safetensors(
    stored: Mapping[str, StoredTensor], skeleton: ModelSkeleton
) -> tuple[dict[str, WeightEntry], list[str]]:
    """(entries by model name, stored names that are not part of the model). Raises CheckpointError."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    transforms = get_model_conversion_mapping(skeleton.model)
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    by_pattern = {pattern: c for c in converters for pattern in c.source_patterns}
    prefix = skeleton.model.base_model_prefix
    known: dict[str, Any] = dict(skeleton.shapes)
    groups: dict[str, list[tuple[StoredTensor, str | None]]] = {}
    unexpected: list[str] = []
    for name in sorted(stored, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, known)
        if target not in known and name in known:
            target, pattern = rename_source_key(name, [], [], prefix, known)
        if target in known:
            groups.setdefault(target, []).append((stored[name], pattern))
        else:
            unexpected.append(name)
    entries: dict[str, WeightEntry] = {}
    for target, sources in groups.items():
        pattern = sources[0][1]
        if pattern is None:
            if len(sources) > 1:
                raise _named_twice(target, [tensor for tensor, _ in sources])
            tensor = sources[0][0]
            entries[target] = WeightEntry(target, tensor.dtype, tensor.shape, (tensor,))
        else:
            for entry in _converted(target, sources, by_pattern[pattern], skeleton):
                entries[entry.name] = entry
    return entries, unexpected


def _named_twice(target: str, tensors: list[StoredTensor]) -> CheckpointError:
    return CheckpointError(
        "two stored tensors are the same weight of the model",
        found=", ".join(f"{tensor.name} in {tensor.file.name}" for tensor in tensors),
        expected=f"one tensor for {target}",
        todo="remove one of them from the checkpoint",
    )


class _Converter:
    """``decode`` of an entry that transformers' converter makes: its stored tensors in, one output out."""

    def __init__(
        self, template: Any, group: str, target: str, names: list[tuple[str, str]], model: Any
    ) -> None:
        self.template, self.group, self.target, self.names, self.model = template, group, target, names, model

    def run(self, tensors: list[Any]) -> dict[str, Any]:
        converter = copy.deepcopy(self.template)
        for (name, pattern), tensor in zip(self.names, tensors, strict=True):
            converter.add_tensor(self.group, name, pattern, tensor)
        outputs = converter.convert(self.group, model=self.model, config=self.model.config)
        return {name: out[0] if isinstance(out, list) else out for name, out in outputs.items()}

    def __call__(self, sources: list[np.ndarray]) -> np.ndarray:
        import torch

        tensors = [torch.from_numpy(convert_dtype(values, "float32")) for values in sources]
        return self.run(tensors)[self.target].contiguous().numpy()


def _converted(
    group: str, sources: list[tuple[StoredTensor, str | None]], template: Any, skeleton: ModelSkeleton
) -> list[WeightEntry]:
    import torch

    tensors = tuple(tensor for tensor, _ in sources)
    names = [(tensor.name, str(pattern)) for tensor, pattern in sources]
    first = f"{tensors[0].name} {list(tensors[0].shape)}"
    try:
        # On the meta device: shapes of the outputs without reading anything.
        probe = _Converter(template, group, group, names, skeleton.model)
        outputs = probe.run([torch.empty(tensor.shape, device="meta") for tensor in tensors])
    except Exception as error:  # the converter's own complaints about shapes and counts
        raise CheckpointError(
            f"the stored tensors cannot be combined into {group}",
            found=f"{len(tensors)} tensors, the first {first}: {error}"[:500],
            expected="one tensor of each kind for every expert",
            todo="check that all of the checkpoint was copied",
        ) from error
    dtypes = {tensor.dtype for tensor in tensors}
    dtype = dtypes.pop() if len(dtypes) == 1 else "float32"
    if dtype not in PLAIN_FORMATS:
        dtype = tensors[0].dtype
    return [
        WeightEntry(
            name,
            dtype,
            tuple(output.shape),
            tensors,
            decode=_Converter(template, group, name, names, skeleton.model),
        )
        for name, output in outputs.items()
    ]
