"""Ten architectures by the same code: greedy tokens and logits equal transformers' eager attention.

Weights are scaled so that attention is far from uniform, and windows are shorter than what is decoded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from decoding import greedy
from tiny_models import FAMILIES, TinyModel, make_tiny_model

from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions
from planonce.runtime import DecodeSession, Plan

NEW_TOKENS = 48
PROMPT = [257, 72, 101, 108, 108, 111, 44, 32, 119, 111, 114]
# The architectures that differ most: each on both arms.
BOTH_ARMS = ("llama", "qwen3", "phi", "gemma3", "gpt2")
CASES = [(family, "fused") for family in FAMILIES] + [(family, "portable") for family in BOTH_ARMS]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyModel]:
    directory = tmp_path_factory.mktemp("tiny")
    return {family: make_tiny_model(family, directory / family) for family in FAMILIES}


def compiled(model: TinyModel, output: Path, arm: str) -> Plan:
    compile_checkpoint(CompileOptions(str(model.directory), output, attention=arm, self_check=False))
    return Plan.load(output, threads=1)


@pytest.mark.parametrize(("family", "arm"), CASES)
def test_greedy_tokens_equal_transformers(
    family: str, arm: str, checkpoints: dict[str, TinyModel], tmp_path: Path
) -> None:
    model = checkpoints[family]
    plan = compiled(model, tmp_path / "plan", arm)
    assert {choice.arm for choice in plan.manifest.attention} == {arm}
    tokens, logits = greedy(plan.open(capacity=64), PROMPT, NEW_TOKENS)
    with torch.no_grad():
        everything = model.model(torch.tensor([PROMPT + tokens])).logits[0].numpy()
    expected = everything[len(PROMPT) - 1 : -1]
    assert list(expected.argmax(-1)) == tokens
    assert np.abs(expected).max() > 1
    assert np.abs(logits - expected).max() <= 2e-4


def test_gemma3_describes_its_cache_slot_by_slot(checkpoints: dict[str, TinyModel], tmp_path: Path) -> None:
    plan = compiled(checkpoints["gemma3"], tmp_path / "plan", "auto")
    windows = {slot.layer: slot.window for slot in plan.manifest.kv_slots}
    assert windows == {0: 8, 1: None, 2: 8, 3: None}


def test_a_head_dim_that_the_fused_arm_cannot_take_gets_the_portable_one(tmp_path: Path) -> None:
    model = make_tiny_model(
        "llama", tmp_path / "model", adjust=lambda config: setattr(config, "head_dim", 12)
    )
    plan = compiled(model, tmp_path / "plan", "auto")
    (reason,) = {choice.reason for choice in plan.manifest.attention}
    assert "head_dim 12 is no multiple of 8" in reason
    tokens, logits = greedy(plan.open(capacity=64), PROMPT, 16)
    with torch.no_grad():
        expected = model.model(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1].numpy()
    assert np.abs(logits - expected).max() <= 2e-4


@pytest.mark.parametrize("arm", ["fused", "portable"])
def test_what_lies_beyond_the_live_positions_is_never_read(
    arm: str, checkpoints: dict[str, TinyModel], tmp_path: Path
) -> None:
    """Every byte of the cache is NaN before the first token, and the tail again after a truncate."""
    plan = compiled(checkpoints["mistral"], tmp_path / "plan", arm)
    clean, poisoned = plan.open(capacity=64), plan.open(capacity=64)
    _poison(poisoned, 0)
    prompt = list(PROMPT)
    assert np.array_equal(clean.prefill(prompt, chunk=5), poisoned.prefill(prompt, chunk=5))
    for session in (clean, poisoned):
        assert session.cache is not None
        session.cache.truncate_to(6)
    _poison(poisoned, 6)
    for token in (5, 9, 200):
        assert np.array_equal(clean.realize_token(token), poisoned.realize_token(token))
    # Negative control: the same bytes inside the live prefix are read.
    _poison(poisoned, 3)
    assert np.isnan(poisoned.realize_token(7)).any()


def _poison(session: DecodeSession, start: int) -> None:
    cache = session.cache
    assert cache is not None
    n = cache.capacity - start
    for spec in cache.geometry.slots:
        nan = np.full((1, spec.n_kv_heads, n, spec.head_dim), np.nan, np.float32)
        cache.write_bytes(spec.layer, spec.which, start, n, nan.tobytes())
