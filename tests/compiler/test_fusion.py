"""Fusion passes, by value: fused programs of whole models against transformers, in every attention arm."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from ir_interpreter import Interpreter
from stepwise import check_prefill_and_decode, check_rows_at_different_offsets, poisoned_kv
from tiny_models import FAMILIES
from torch_mlir import ir
from traced_models import MAX_SEQ_LEN, MORE_FAMILIES, converted, tiny_weights, traced

from planonce.passes.driver import run_pipeline
from planonce.passes.ir.context import make_context, parse_module, print_module
from planonce.passes.ir.roles import body_of, function_of

FUSE = (
    f"tabulate-positions{{max-seq-len={MAX_SEQ_LEN}}},fuse-rms-norm,fuse-activation,fuse-rope,"
    "move-logit-gather,merge-linears,canonicalize,cse"
)
ARMS = {
    "": FUSE,
    "fused": f"{FUSE},select-attention,canonicalize,cse",
    "portable": f"{FUSE},select-attention{{arm=portable}},canonicalize,cse",
    "skip-norm": f"{FUSE},fuse-skip-norm,select-attention,canonicalize,cse",
}
# What each family must come to in the fused arm: (norms, activations, layers whose attention turns q and k
# itself, rotary embeddings of their own, merged linears).
SHAPES = {
    "llama": (5, 2, 2, 0, 4),
    "mistral": (5, 2, 2, 0, 4),
    "qwen2": (5, 2, 2, 0, 4),
    "qwen3": (9, 2, 2, 0, 4),
    "phi": (0, 2, 0, 4, 2),
    "phi3": (5, 2, 2, 0, 0),
    "gemma2": (9, 2, 2, 0, 4),
    "gemma3": (25, 4, 4, 0, 8),
    "gpt2": (0, 2, 0, 0, 0),
    "gpt_neox": (0, 2, 0, 4, 0),
    "cohere": (3, 2, 2, 0, 4),  # its layer norms are RMSNorms of what the mean was taken from
    "glm": (5, 2, 2, 0, 2),
    "gptj": (0, 2, 0, 4, 2),
}


@functools.cache
def fused(family: str, arm: str) -> ir.Module:
    """A copy of the converted model, fused."""
    module = parse_module(print_module(converted(family), elide_large=False), make_context())
    run_pipeline(module, ARMS[arm], check_changed=True)
    return module


def _ops(module: ir.Module) -> list[ir.Operation]:
    return [view.operation for view in body_of(function_of(module)).operations]


CASES = [
    *((family, arm) for family in SHAPES for arm in ("fused", "portable")),
    *((family, arm) for family in ("llama", "gpt2", "gemma3", "gptj") for arm in ("", "skip-norm")),
]


@pytest.mark.parametrize(("family", "arm"), CASES)
def test_fused_prefill_and_decode_equal_transformers(family: str, arm: str) -> None:
    check_prefill_and_decode(Interpreter(fused(family, arm), tiny_weights(family)), family)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gptj"])
def test_rows_at_different_offsets_and_chosen_positions_equal_single_rows(family: str) -> None:
    """The portable arm takes any batch; logit_positions are chosen before the last layer's tail."""
    check_rows_at_different_offsets(Interpreter(fused(family, "portable"), tiny_weights(family)), family)


@pytest.mark.parametrize("family", SHAPES)
def test_every_fusion_matched_what_the_family_has(family: str) -> None:
    ops = _ops(fused(family, "fused"))
    count = Counter(op.name for op in ops)
    turned = sum("do_rotary" in op.attributes for op in ops)
    activations = count["onnx.gelu"] + count["onnx.ms_quick_gelu"]
    merged = sum("parts" in op.attributes for op in ops if op.name == "plan.weight")
    biases = sum(
        "parts" in op.attributes and ".bias" in str(op.attributes["name"])
        for op in ops
        if op.name == "plan.weight"
    )
    found = (
        count["onnx.simplified_layer_normalization"], activations, turned,
        count["onnx.rotary_embedding"], merged - biases,
    )  # fmt: skip
    assert found == SHAPES[family]
    left = {"onnx.cos", "onnx.sin", "onnx.sqrt", "onnx.sigmoid", "onnx.neg", "onnx.reciprocal"}
    assert not left & set(count)
    assert set(FAMILIES) <= set(SHAPES) and set(MORE_FAMILIES) <= set(SHAPES)


@pytest.mark.parametrize(("family", "arm"), CASES)
def test_a_second_run_changes_nothing(family: str, arm: str) -> None:
    module = fused(family, arm)
    before = print_module(module, elide_large=False)
    report = run_pipeline(module, ARMS[arm], check_changed=True)
    assert not report.changed and print_module(module, elide_large=False) == before


def test_tables_are_exact_and_long_enough() -> None:
    """Each entry is the cosine of the angle in float32, rounded once."""
    from planonce.passes.ir.tensors import constant_array

    rope = next(op for op in _ops(fused("llama", "")) if op.name == "plan.rope")
    cos, sin = (constant_array(rope.operands[i]) for i in (1, 2))
    rate = traced("llama").buffers["model.rotary_emb.inv_freq"].numpy()
    angles = np.arange(MAX_SEQ_LEN, dtype=np.float32)[:, None] * rate
    np.testing.assert_array_equal(cos, np.cos(angles.astype(np.float64)).astype(np.float32))
    np.testing.assert_array_equal(sin, np.sin(angles.astype(np.float64)).astype(np.float32))


def test_order_of_merged_parts_and_the_table_are_live() -> None:
    """Negative control: two parts swapped, or angles of other positions, move the logits."""
    tokens = np.random.default_rng(0).integers(0, 250, (1, 24))
    text = print_module(fused("llama", ""), elide_large=False)
    weights = tiny_weights("llama")
    feeds = [tokens, np.array([3]), np.arange(24), *(np.zeros_like(kv) for kv in poisoned_kv("llama", 1))]
    right = Interpreter(fused("llama", ""), weights)(feeds)[0]
    gate, up = '"model.layers.0.mlp.gate_proj.weight", ', '"model.layers.0.mlp.up_proj.weight"'
    swapped = text.replace(f"[{gate}{up}]", f"[{up}, {gate.removesuffix(', ')}]")
    assert swapped != text and "interleaved = 0" in text
    for broken in (swapped, text.replace("interleaved = 0", "interleaved = 1")):
        moved = Interpreter(parse_module(broken, make_context()), weights)(feeds)[0]
        assert np.abs(moved - right).max() > 1e-2
