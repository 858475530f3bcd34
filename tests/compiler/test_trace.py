"""Tracing: one program for every family, KV slots as the model has them, and refusals that say why."""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import transformers
from tiny_models import FAMILIES, WINDOW, tiny_config
from traced_models import MAX_SEQ_LEN, traced

from planonce.compiler.trace import trace
from planonce.compiler.trace_attention import StepState, attention_forward, tracing
from planonce.compiler.trace_cache import StepLayer
from planonce.compiler.trace_model import build_meta_model
from planonce.runtime.errors import UnsupportedModel

NOT_YET_LOWERED = ("qwen3_moe", "deepseek_v2", "deepseek_v3")


def _targets(family: str) -> list[str]:
    return [
        str(node.target) for node in traced(family).exported_program.graph.nodes if node.op == "call_function"
    ]


@pytest.mark.parametrize("family", [*FAMILIES, *NOT_YET_LOWERED])
def test_attention_and_kv_writes_stay_whole(family: str) -> None:
    targets = _targets(family)
    layers = len({slot.layer for slot in traced(family).kv_slots})
    assert targets.count("planonce.attention.default") == layers
    assert targets.count("planonce.kv_write.default") == 2 * layers == len(traced(family).kv_slots)
    if family in FAMILIES:
        assert not [t for t in targets if "softmax" in t or "scaled_dot_product" in t or "experts" in t]


def test_slots_carry_the_window_of_their_layer() -> None:
    windows = [(slot.layer, slot.window) for slot in traced("gemma3").kv_slots]
    assert windows == [(0, WINDOW), (0, WINDOW), (1, 0), (1, 0), (2, WINDOW), (2, WINDOW), (3, 0), (3, 0)]
    assert {slot.window for slot in traced("llama").kv_slots} == {0}


def test_latent_slots_have_the_shapes_the_model_writes() -> None:
    slots = traced("deepseek_v3").kv_slots
    assert [(slot.heads, slot.head_dim) for slot in slots[:2]] == [(1, 16), (1, 8)]


def test_layers_of_different_geometry_are_described_slot_by_slot() -> None:
    model = traced("gemma3")
    assert [slot.argument_name for slot in model.kv_slots[:3]] == ["past.0.key", "past.0.value", "past.1.key"]
    assert model.kv_slots[1].result_name == "present.0.value"
    assert model.kv_slots[0].dims == ("batch", "2", "capacity", "16")


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_have_no_storage_and_buffers_are_bit_equal(family: str) -> None:
    config = tiny_config(family)
    meta = build_meta_model(config, MAX_SEQ_LEN)
    assert all(parameter.is_meta for parameter in meta.model.parameters())
    real = dict(transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config)).named_buffers())
    assert set(meta.buffers) <= set(real)
    for name, value in meta.buffers.items():
        assert not value.is_meta and torch.equal(value, real[name]), name


def test_tied_weights_have_one_name_and_untied_their_own() -> None:
    assert traced("qwen2").canonical_name("model.lm_head.weight") == "model.embed_tokens.weight"
    assert traced("llama").canonical_name("model.lm_head.weight") == "lm_head.weight"
    kept = trace(tiny_config("qwen2"), max_seq_len=MAX_SEQ_LEN, untied=["lm_head.weight"])
    assert kept.canonical_name("model.lm_head.weight") == "lm_head.weight"


def test_the_callers_config_is_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    config = tiny_config("gpt2")
    before = config.to_json_string()
    implementation = config._attn_implementation
    capfd.readouterr()
    trace(config, max_seq_len=MAX_SEQ_LEN)
    assert config.to_json_string() == before and config._attn_implementation == implementation
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rope_that_switches_at_a_length_is_refused_past_it(kind: str) -> None:
    config = tiny_config("llama")
    config.max_position_embeddings = 256
    config.rope_parameters = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0}
    if kind == "longrope":
        factors = {
            "short_factor": [1.0] * 8,
            "long_factor": [4.0] * 8,
            "original_max_position_embeddings": 64,
        }
        config.rope_parameters |= factors
    limit = 64 if kind == "longrope" else 256
    with pytest.raises(UnsupportedModel, match=f"--max-seq-len {limit}"):
        trace(config, max_seq_len=limit + 1)
    program = trace(config, max_seq_len=limit).exported_program
    assert not program.graph_signature.buffers_to_mutate


def test_unknown_layer_types_are_refused() -> None:
    config = tiny_config("qwen3")
    config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(UnsupportedModel, match="chunked_attention"):
        trace(config, max_seq_len=MAX_SEQ_LEN)


def test_sliding_layer_that_never_passes_its_window_is_refused() -> None:
    config = tiny_config("llama")
    config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(UnsupportedModel, match="without its window"):
        trace(config, max_seq_len=MAX_SEQ_LEN)


@pytest.mark.parametrize(
    "config", [transformers.T5Config(), transformers.BloomConfig(n_layer=2, hidden_size=64, n_head=4)]
)
def test_models_that_are_not_our_kind_are_refused(config: transformers.PretrainedConfig) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        trace(config, max_seq_len=MAX_SEQ_LEN)
    assert caught.value.found and caught.value.todo


def test_a_length_asked_of_the_cache_is_refused() -> None:
    """A length is the example's: answered, it would be a constant in the program."""
    layer = StepLayer(3, torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2), torch.zeros(1, dtype=torch.int64))
    for ask in (layer.get_seq_length, layer.get_max_length, lambda: layer.get_mask_sizes(1)):
        with pytest.raises(UnsupportedModel, match="layer 3"):
            ask()


def test_attention_with_a_mask_or_unknown_arguments_is_refused() -> None:
    module = torch.nn.Module()
    module.layer_idx = 0  # pyright: ignore[reportAttributeAccessIssue]
    query = torch.zeros(1, 2, 1, 4)
    with tracing(StepState(torch.zeros(1, dtype=torch.int64))):
        with pytest.raises(UnsupportedModel, match="mask"):
            attention_forward(module, query, query, query, torch.zeros(1, 1, 1, 1))
        with pytest.raises(UnsupportedModel, match="position_bias"):
            attention_forward(module, query, query, query, None, position_bias=query)
        with pytest.raises(UnsupportedModel, match="bidirectional"):
            attention_forward(module, query, query, query, None, is_causal=False)


def _loop_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offset: list[int],
    window: int,
    softcap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One query at a time, over exactly the positions it sees."""
    batch, heads, length, _ = q.shape
    groups = heads // k.shape[1]
    out = torch.zeros(batch, length, heads, v.shape[3])
    for b in range(batch):
        for h in range(heads):
            for s in range(length):
                last = offset[b] + s
                seen = [p for p in range(last + 1) if window == 0 or p > last - window]
                scores = [float(q[b, h, s] @ k[b, h // groups, p]) * 0.5 for p in seen]
                if softcap:
                    scores = [softcap * math.tanh(x / softcap) for x in scores]
                weights = [math.exp(x) for x in scores]
                total = sum(weights) + (math.exp(float(sinks[h])) if sinks is not None else 0)
                for p, weight in zip(seen, weights, strict=True):
                    out[b, s, h] += weight / total * v[b, h // groups, p]
    return out


@pytest.mark.parametrize("window", [0, 1, 3, 4, 5])
@pytest.mark.parametrize(("softcap", "sinks"), [(0.0, False), (1.5, False), (0.0, True)])
def test_attention_reference_sees_exactly_its_positions(window: int, softcap: float, sinks: bool) -> None:
    """Rows at different offsets; slots past each row's length hold NaN and must not be read."""
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 3, 4), torch.randn(2, 2, 9, 4), torch.randn(2, 2, 9, 5)
    offset = [1, 4]
    for row, start in enumerate(offset):
        k[row, :, start + 3 :] = v[row, :, start + 3 :] = float("nan")
    sink = torch.randn(4) if sinks else None
    found = torch.ops.planonce.attention(q, k, v, torch.tensor(offset), sink, 0, 0.5, window, softcap)
    torch.testing.assert_close(
        found, _loop_attention(q, k, v, offset, window, softcap, sink), rtol=1e-5, atol=1e-6
    )


def test_kv_write_touches_only_its_positions() -> None:
    cache = torch.arange(2 * 1 * 5 * 2, dtype=torch.float32).reshape(2, 1, 5, 2)
    new = -torch.ones(2, 1, 2, 2)
    written = torch.ops.planonce.kv_write(cache, new, torch.tensor([0, 3]))
    expected = cache.clone()
    expected[0, :, 0:2] = expected[1, :, 3:5] = -1
    assert torch.equal(written, expected)
