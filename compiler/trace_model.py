"""Build a transformers model whose parameters have shapes but no storage, and check that it can be traced."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from planonce.runtime.errors import UnsupportedModel

from .trace_attention import IMPLEMENTATION, register

__all__ = ["MetaModel", "build_meta_model", "parameters_on_meta", "quiet"]

_LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class MetaModel:
    """model: everything on the meta device; buffers: the real values of its non-persistent buffers;
    tied: parameter name -> the name of the parameter it is the same tensor as."""

    model: PreTrainedModel
    buffers: dict[str, Tensor]
    tied: dict[str, str]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence what transformers and torch print while a model is built and exported."""
    verbosity = transformers_logging.get_verbosity()
    export_logger = logging.getLogger("torch")
    level = export_logger.level
    transformers_logging.set_verbosity_error()
    export_logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        export_logger.setLevel(level)


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Every parameter loses its storage the moment a module registers it; buffers keep theirs.

    Building under `torch.device("meta")` instead would lose the buffers' values too (rotary frequencies,
    Gemma's embedding scale), and they are in no checkpoint.
    """
    original = nn.Module.register_parameter

    def register_parameter(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            param = nn.Parameter(param.detach().to("meta"), requires_grad=False)
        original(self, name, param)

    nn.Module.register_parameter = register_parameter
    try:
        yield
    finally:
        nn.Module.register_parameter = original


def build_meta_model(
    config: PretrainedConfig,
    max_seq_len: int,
    untied: Collection[str] = (),
    dtype: torch.dtype = torch.float32,
) -> MetaModel:
    """Instantiate the model of `config` in `dtype` with no parameter storage; `untied` parameters are tensors
    of their own whatever the config says.

    Raises UnsupportedModel when the architecture is not a causal language model of transformers, when its
    layers are not plain or sliding attention, or when its rotary embedding would change below max_seq_len.
    """
    # from_config keeps the object it is given, and sets the attention implementation on it.
    config = copy.deepcopy(config)
    _check_layer_types(config)
    register()
    with quiet(), parameters_on_meta():
        try:
            model = AutoModelForCausalLM.from_config(
                config,
                dtype=dtype,
                attn_implementation=IMPLEMENTATION,
                experts_implementation=IMPLEMENTATION,
            )
        except (ValueError, KeyError, AttributeError, TypeError, ImportError) as error:
            raise UnsupportedModel(
                "transformers cannot build this model",
                found=f"model_type {config.model_type!r}: {_first_line(error)}",
                expected="a causal language model of transformers that uses its attention interface",
                todo="check config.json; a newer transformers may know the architecture",
            ) from error
    model.eval()
    # Known to the model, it makes some look for padding in the token values, only to print a warning.
    model.config.pad_token_id = None
    _fix_rope(model, max_seq_len)
    _untie(model, untied)
    persistent = set(model.state_dict(keep_vars=True))
    buffers = {name: value.detach() for name, value in model.named_buffers() if name not in persistent}
    return MetaModel(model.to("meta"), buffers, _tied_parameters(model))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _untie(model: nn.Module, names: Collection[str]) -> None:
    for name in names:
        parent, _, last = name.rpartition(".")
        own = nn.Parameter(torch.empty_like(model.get_parameter(name)), requires_grad=False)
        setattr(model.get_submodule(parent), last, own)


def _tied_parameters(model: nn.Module) -> dict[str, str]:
    """By identity of the parameter, not by what the config claims."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)
        if owner != name:
            tied[name] = owner
    return tied


def _check_layer_types(config: PretrainedConfig) -> None:
    found = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if found - _LAYER_TYPES:
        raise UnsupportedModel(
            "the model has layers that are neither full nor sliding attention",
            found=f"model_type {config.model_type!r}: {', '.join(sorted(found - _LAYER_TYPES))}",
            expected=", ".join(sorted(_LAYER_TYPES)),
            todo="this architecture cannot be compiled yet",
        )


def _fix_rope(model: PreTrainedModel, max_seq_len: int) -> None:
    """Pin rotary embeddings that switch frequencies at a length, if max_seq_len stays below the switch.

    Past the switch a running cache would hold keys of the old frequencies: refused, not approximated.
    """
    for name, module in model.named_modules():
        rope_type = getattr(module, "rope_type", None)
        if rope_type is None:
            continue
        by_layer = rope_type if isinstance(rope_type, dict) else {"": rope_type}
        for layer_type, kind in by_layer.items():
            if "dynamic" not in kind and kind != "longrope":
                continue
            limit = _rope_switch(module, layer_type, kind)
            if max_seq_len > limit:
                raise UnsupportedModel(
                    f"the rotary embedding ({kind}) changes its frequencies at a length",
                    found=f"{name}: max_seq_len {max_seq_len} is past the change at {limit}",
                    expected=f"max_seq_len <= {limit}",
                    todo=f"compile with --max-seq-len {limit} or less",
                )
            if isinstance(rope_type, dict):
                rope_type[layer_type] = "default"
            else:
                setattr(module, "rope_type", "default")  # noqa: B010  (nn.Module declares only tensors)


def _rope_switch(module: Any, layer_type: str, kind: str) -> int:
    """The greatest length at which the frequencies are still the ones computed at construction."""
    config = module.config
    if kind == "longrope":
        parameters = config.rope_parameters
        parameters = parameters[layer_type] if layer_type else parameters
        return int(parameters["original_max_position_embeddings"])
    return int(config.max_position_embeddings)
