"""Any placement computes what one device computes: random devices for the operations of small models."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from placed_program import load, open_session
from torch_mlir import ir
from traced_models import converted, tiny_weights

from planonce.passes.driver import run_pipeline
from planonce.passes.ir.devices import copy_target, device_of_op, is_placed
from planonce.passes.ir.plan_dialect import DEVICE
from planonce.passes.ir.roles import body_of, function_of
from planonce.runtime.errors import CompileError, PassError
from planonce.runtime.step_program import StepProgram

REST = "insert-copies,alias-kv,canonicalize,cse,verify-plan"
PROMPT, NEXT = [1, 250, 3, 44, 5], (7, 310)


@functools.cache
def selected(family: str) -> ir.Module:
    module = converted(family).operation.clone()
    run_pipeline(module, "select-attention,canonicalize,cse")
    return module


@functools.cache
def expected(family: str, optimize: bool = False) -> list[np.ndarray]:
    """The single-device plan's logits."""
    module = selected(family).operation.clone()
    run_pipeline(module, f"assign-placement,{REST}")
    _, step = load(module, tiny_weights(family), optimize=optimize)
    return logits(step)


def logits(step: StepProgram) -> list[np.ndarray]:
    session = open_session(step)
    return [session.prefill(PROMPT).copy(), *(session.realize_token(token).copy() for token in NEXT)]


def each_alone(rng: random.Random, count: int) -> list[int]:
    """Every operation on a device of its own choice: stages of a few operations."""
    return [rng.randrange(3) for _ in range(count)]


def in_runs(rng: random.Random, count: int) -> list[int]:
    """A few long runs, as people place layers."""
    cuts = sorted(rng.sample(range(count), rng.randrange(1, 6)))
    devices = [rng.randrange(3) for _ in range(len(cuts) + 1)]
    return [devices[sum(cut <= i for cut in cuts)] for i in range(count)]


def placed(family: str, rng: random.Random, choose: Callable[[random.Random, int], list[int]]) -> ir.Module:
    module = selected(family).operation.clone()
    ops = [op for op in body_of(function_of(module)).operations if is_placed(op)]
    with module.context:
        for op, device in zip(ops, choose(rng, len(ops)), strict=True):
            op.attributes[DEVICE] = ir.StringAttr.get(f"cpu:{device}")
    return module


def crossing_pairs(module: ir.Module) -> int:
    """(value, device) pairs where a value is read on a device that it is not on; counted before any copy."""
    pairs: set[tuple[ir.Value, str]] = set()
    for op in body_of(function_of(module)).operations:
        for value in op.operands:
            owner = value.owner
            if is_placed(op) and not isinstance(owner, ir.Block) and is_placed(owner):
                here = device_of_op(op)
                assert here is not None
                if device_of_op(owner) != here:
                    pairs.add((value, here))
    return len(pairs)


def copies_between_devices(module: ir.Module) -> int:
    ops = body_of(function_of(module)).operations
    return sum(op.name == "plan.copy" and copy_target(op) != "host" for op in ops)


def check(family: str, seed: int) -> None:
    rng = random.Random(seed)
    module = placed(family, rng, each_alone if seed % 2 else in_runs)
    pairs = crossing_pairs(module)
    run_pipeline(module, "insert-copies")
    assert copies_between_devices(module) == pairs
    run_pipeline(module, "insert-copies")
    assert copies_between_devices(module) == pairs, "a second run copies again"
    run_pipeline(module, "alias-kv,canonicalize,cse,verify-plan")
    weights = tiny_weights(family)
    _, step = load(module, weights)
    assert open_session(step)._step.device_copies == copies_between_devices(module) <= pairs
    for got, want in zip(logits(step), expected(family), strict=True):
        np.testing.assert_array_equal(got, want)
    for got, want in zip(logits(load(module, weights, optimize=True)[1]), expected(family), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", range(10))
def test_any_placement_decodes_the_same(block: int) -> None:
    """200 placements over three devices."""
    for seed in range(20 * block, 20 * block + 20):
        check("llama", seed)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma3", "gpt2", "phi", "qwen3"])
def test_any_placement_of_other_families_decodes_the_same(family: str) -> None:
    for seed in range(30):
        check(family, seed)


def test_a_copy_that_brings_another_value_is_seen_in_the_logits() -> None:
    """The control: were the comparison blind, a copy edge could carry anything."""
    module = selected("llama").operation.clone()
    run_pipeline(module, f'assign-placement{{place="layers[0:1]=cpu:0,layers[1:]=cpu:1"}},{REST}')
    _, step = load(module, tiny_weights("llama"))
    session = open_session(step)
    session.prefill(PROMPT)
    bound = session._step
    assert len(bound._runs) == len(step.stages) + bound.device_copies == 3
    first = next(i for i, run in enumerate(bound._runs) if "copy_from" in run.__code__.co_names)
    bound._runs = (*bound._runs[:first], *bound._runs[first + 1 :])  # its landing buffer keeps its zeros
    got = session.realize_token(NEXT[0])
    assert np.abs(got - expected("llama")[1]).max() > 1e-2


def test_a_placement_without_its_copies_is_refused() -> None:
    module = placed("llama", random.Random(1), each_alone)
    with pytest.raises(PassError, match="without a copy"):
        run_pipeline(module, "alias-kv,verify-plan")


def test_a_value_whose_size_changes_with_every_token_may_not_cross() -> None:
    """The portable arm slices the live prefix; split between slice and product, no buffer can be made."""
    module = converted("llama").operation.clone()
    run_pipeline(module, "select-attention{arm=portable},canonicalize,cse")
    ops = [op for op in body_of(function_of(module)).operations if is_placed(op)]
    with module.context:
        for op in ops:
            op.attributes[DEVICE] = ir.StringAttr.get("cpu:1" if op.name == "onnx.slice" else "cpu:0")
    run_pipeline(module, REST)
    with pytest.raises(CompileError, match="no input of the step defines") as caught:
        load(module, tiny_weights("llama"))
    assert "before select-attention" in caught.value.todo


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("arm", ["fused", "portable"])
@pytest.mark.parametrize(
    "place",
    ["layers[0:1]=cpu:0,layers[1:]=cpu:1", "layers=cpu:0,kv=cpu:1", "layers=cpu:2,embed=cpu:0,head=cpu:1"],
)
def test_a_placement_by_policy_decodes_the_same_on_every_arm(family: str, arm: str, place: str) -> None:
    weights, found = tiny_weights(family), []
    for policy in ("cpu:0", place):
        module = converted(family).operation.clone()
        assign = f'assign-placement{{place="{policy}"}}'
        run_pipeline(module, f"{assign},select-attention{{arm={arm}}},{assign},{REST}", check_changed=True)
        program, step = load(module, weights)
        found.append(logits(step))
    assert len(program.stages) > 1
    for got, want in zip(found[1], found[0], strict=True):
        np.testing.assert_array_equal(got, want)
