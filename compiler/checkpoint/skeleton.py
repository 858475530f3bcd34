"""The transformers model of a config, on the meta device: its tensors' names and shapes, no values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planonce.runtime.errors import CheckpointError, UnsupportedModel

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["ModelSkeleton", "build_skeleton"]

# Old checkpoints hold these buffers; the models compute them, so they are no sign of a wrong model.
COMPUTED_BUFFERS = (
    r"rotary_emb\.inv_freq$",
    r"(^|\.)position_ids$",
    r"\.attn\.(masked_)?bias$",
    r"\.attention\.(masked_)?bias$",
)


@dataclass(frozen=True, slots=True)
class ModelSkeleton:
    """shapes: state-dict name to shape, tied names included. tied: name to the name it shares, per config.

    may_tie: what the architecture would tie if its config said so.
    """

    model: Any
    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]
    may_tie: Mapping[str, str]
    may_miss: tuple[str, ...]
    may_ignore: tuple[str, ...]


def build_skeleton(config: PretrainedConfig, n_stored: int) -> ModelSkeleton:
    """Build it; ``n_stored`` is the number of tensors in the checkpoint.

    Raises UnsupportedModel when transformers has no causal language model for the config.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    layers = getattr(config, "num_hidden_layers", 0) or 0
    if layers > n_stored:
        # Also keeps a hostile config from building a billion layers below.
        raise CheckpointError(
            "the config describes more layers than the checkpoint has tensors",
            found=f"{n_stored} tensors",
            expected=f"{layers} layers",
            todo="check that config and weights come from one checkpoint",
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(
            "this architecture is not a causal language model that transformers knows",
            found=f"model_type {config.model_type!r} ({type(config).__name__})",
            expected="a decoder-only language model",
            todo="choose a checkpoint that AutoModelForCausalLM loads",
        )
    try:
        # A copy: from_config keeps the object it is given and writes its attention choice into it.
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32)
    except Exception as error:  # whatever a config can provoke inside transformers
        raise UnsupportedModel(
            "transformers cannot build the model that the config describes",
            found=f"{type(error).__name__}: {error}"[:500],
            expected=f"a valid {config.model_type} config",
            todo="check config.json, or report the architecture",
        ) from error
    declared = getattr(model, "_tied_weights_keys", None)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return ModelSkeleton(
        model=model,
        shapes=shapes,
        tied=dict(model.all_tied_weights_keys),
        may_tie={t: s for t, s in declared.items() if t in shapes and s in shapes}
        if isinstance(declared, dict)
        else {},
        may_miss=tuple(model._keys_to_ignore_on_load_missing or ()),
        may_ignore=(*(model._keys_to_ignore_on_load_unexpected or ()), *COMPUTED_BUFFERS),
    )
