"""The key/value cache a model sees while it is traced, and what one forward pass tells about its slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from planonce.runtime.errors import UnsupportedModel

__all__ = ["KvSlot", "LayerProbe", "StepLayer", "Which", "make_cache"]


class Which(StrEnum):
    """The two slots of a layer."""

    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class KvSlot:
    """One KV buffer [batch, heads, capacity, head_dim]; window: positions a query sees, 0 = all."""

    layer: int
    which: Which
    heads: int
    head_dim: int
    window: int

    @property
    def argument_name(self) -> str:
        return f"past.{self.layer}.{self.which}"

    @property
    def result_name(self) -> str:
        return f"present.{self.layer}.{self.which}"

    @property
    def dims(self) -> tuple[str, ...]:
        return ("batch", str(self.heads), "capacity", str(self.head_dim))


class _TracedLayer(CacheLayerMixin):
    """What a model may ask of a cache layer during tracing.

    A length would be a constant in the graph (it is the example's), so none is given: positions come from
    `write_offset`, and masks are never built.
    """

    is_compileable = True
    is_sliding = False
    is_croppable = False

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise AssertionError("a traced cache layer is born initialised")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        raise self._length_asked("get_mask_sizes")

    def get_seq_length(self) -> int:
        raise self._length_asked("get_seq_length")

    def get_max_length(self) -> int:
        raise self._length_asked("get_max_length")

    def _length_asked(self, method: str) -> UnsupportedModel:
        return UnsupportedModel(
            "the model asks its cache for a length while it is being traced",
            found=f"layer {self.layer}: cache.{method}()",
            expected="positions taken from position_ids, attention through the attention interface",
            todo="this architecture's forward builds masks or positions itself and cannot be compiled yet",
        )


@dataclass(slots=True)
class LayerProbe:
    """What one forward pass showed of a layer: slot shapes and how its attention was called."""

    heads: tuple[int, int] | None = None
    head_dims: tuple[int, int] | None = None
    windows: list[int] = field(default_factory=list)


class ProbeLayer(_TracedLayer):
    """Records the shapes of the new keys and values and hands them back."""

    def __init__(self, layer: int, probe: LayerProbe) -> None:
        super().__init__(layer)
        self.probe = probe

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.probe.heads = (key_states.shape[1], value_states.shape[1])
        self.probe.head_dims = (key_states.shape[3], value_states.shape[3])
        return key_states, value_states


class StepLayer(_TracedLayer):
    """One layer's caller-owned buffers; an update is one `planonce::kv_write` for each of them."""

    def __init__(self, layer: int, keys: Tensor, values: Tensor, write_offset: Tensor) -> None:
        super().__init__(layer)
        self.keys = keys
        self.values = values
        self.write_offset = write_offset

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys: Tensor = torch.ops.planonce.kv_write(self.keys, key_states, self.write_offset)
        values: Tensor = torch.ops.planonce.kv_write(self.values, value_states, self.write_offset)
        self.keys, self.values = keys, values
        return keys, values


class _AbsentLayer(_TracedLayer):
    """A layer that keeps no keys and values (it shares another layer's)."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        raise AssertionError(f"layer {self.layer} updates a cache that the probe did not see")


def make_cache(layers: dict[int, StepLayer] | dict[int, ProbeLayer]) -> Cache:
    """A transformers cache over these layers; indices between them hold no KV."""
    count = max(layers, default=-1) + 1
    return Cache(layers=[layers.get(index, _AbsentLayer(index)) for index in range(count)])
