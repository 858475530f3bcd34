"""The transformers model that a plan is compared with: float32, eager attention, the checkpoint's weights."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from planonce.runtime.errors import CheckpointError

from .progress import Progress, SilentProgress
from .trace_model import parameters_on_meta, quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .checkpoint import Checkpoint

__all__ = ["load_reference"]


def load_reference(checkpoint: Checkpoint, progress: Progress | None = None) -> PreTrainedModel:
    """The model in eval mode; weights stored in blocks are dequantised. All of it is in memory.

    Raises CheckpointError when the checkpoint lacks a tensor of the model.
    """
    progress = progress or SilentProgress()
    weights = checkpoint.weights
    with quiet(), parameters_on_meta():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            copy.deepcopy(checkpoint.config), dtype=torch.float32, attn_implementation="eager"
        )
    loaded: dict[str, nn.Parameter] = {}
    for name, _ in list(model.named_parameters(remove_duplicate=False)):
        if name not in weights:
            raise CheckpointError(
                "the checkpoint lacks a weight of the model", found=f"no {name}", where=checkpoint.source
            )
        canonical = weights.canonical(name)
        if canonical not in loaded:
            values = torch.from_numpy(weights.read(canonical, "float32"))
            loaded[canonical] = nn.Parameter(values, requires_grad=False)
            progress.advance(values.nbytes, canonical)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, loaded[canonical])
    return model.eval()
