"""Lowering, by value: whole models against transformers, single rows against torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from ir_interpreter import Interpreter
from stepwise import check_prefill_and_decode, check_rows_at_different_offsets, poisoned_kv
from tiny_models import FAMILIES
from torch.export import Dim
from torch_mlir import ir
from torch_mlir.extras.fx_importer import FxImporter
from traced_models import CONVERT, converted, tiny_weights, traced

from planonce.compiler.import_torch import drop_assertions, import_program
from planonce.passes.driver import run_pipeline
from planonce.passes.ir.context import make_context, print_module
from planonce.passes.ir.roles import arguments, body_of, function_of
from planonce.passes.lowerings import lowering_table
from planonce.passes.lowerings.table import LoweringTable
from planonce.runtime.errors import PassError, UnsupportedOp


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_decode_equal_transformers(family: str) -> None:
    check_prefill_and_decode(Interpreter(converted(family), tiny_weights(family)), family)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_rows_at_different_offsets_equal_single_rows(family: str) -> None:
    """And logit_positions chooses: here the last two of each step, in the other order."""
    check_rows_at_different_offsets(Interpreter(converted(family), tiny_weights(family)), family)


def test_window_and_scale_are_live() -> None:
    """Negative control: another window or scale in the IR moves the logits far past the tolerance."""
    tokens = np.random.default_rng(0).integers(0, 250, (1, 24))
    text = print_module(converted("mistral"), elide_large=False)
    weights, kv = tiny_weights("mistral"), poisoned_kv("mistral", 1)
    feeds = [tokens, np.array([0]), np.arange(24), *kv]
    right = Interpreter(converted("mistral"), weights)(feeds)[0]
    for old, new in (("window = 8", "window = 9"), ("scale = 2.500000e-01", "scale = 2.000000e-01")):
        assert old in text
        with make_context():
            broken = ir.Module.parse(text.replace(old, new))
            moved = Interpreter(broken, weights)(feeds)[0]
        assert np.abs(moved - right).max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_run_changes_nothing_and_shapes_need_no_arithmetic(family: str) -> None:
    module = converted(family)
    before = print_module(module, elide_large=False)
    report = run_pipeline(module, "convert-torch-to-onnx", check_changed=True)
    assert not report.changed and print_module(module, elide_large=False) == before
    assert len(arguments(function_of(module))) == 3 + len(traced(family).kv_slots)
    names = [op.operation.name for op in body_of(function_of(module)).operations]
    # One Shape, for the length of arange; every reshape has a constant target.
    assert names.count("onnx.shape") == 1 and "onnx.expand" not in names


def test_everything_missing_is_listed_at_once() -> None:
    module = import_program(traced("deepseek_v2"), make_context())
    before = print_module(module)
    with pytest.raises(UnsupportedOp) as caught:
        run_pipeline(module, "convert-torch-to-onnx")
    assert "torch.aten.polar (x1)" in caught.value.found
    assert "torch.aten.view_as_complex (x" in caught.value.found
    assert caught.value.found.count("modeling_deepseek_v2.py:") >= 2
    assert print_module(module) == before


def test_a_duplicate_row_is_refused() -> None:
    table = LoweringTable("mine")
    table.add("torch.aten.tanh", lambda low, call: call.args[0])
    with pytest.raises(PassError, match="two lowerings"):
        table.add("torch.aten.tanh", lambda low, call: call.args[0])
    with pytest.raises(PassError, match="in all families and mine"):
        lowering_table().merge(table)


def _f(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y, Z = _f(3, 4, 6), _f(3, 4, 6, seed=1), _f(6, 5, seed=2)
I = torch.arange(24).reshape(3, 8)  # noqa: E741
# ruff: noqa: E501  (one row, one line)
ROWS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "arithmetic": (lambda x, y: (x + y * 2 - 1) / (y.abs() + 0.5) - (3 - x), (X, Y)),
    "alpha": (lambda x, y: torch.add(x, y, alpha=3) + torch.sub(x, y, alpha=2), (X, Y)),
    "integers and floats": (lambda i: i * 0.5 + i / 4 + (i - 3) * 2, (I,)),
    "neutral": (lambda x: (x * 1.0 + 0.0) / 1, (X,)),
    "powers": (lambda x: x**2 + x**3 + x.abs() ** 0.5 + 2.0**x, (X,)),
    "unary": (lambda x: x.cos() + x.sin().exp() + x.abs().sqrt() + (x.abs() + 1).log() - x.floor() + x.erf(), (X,)),
    "rsqrt": (lambda x: (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() + (x.abs() + 1).reciprocal(), (X,)),
    "activations": (lambda x: torch.nn.functional.silu(x) + x.relu() + x.sigmoid() + x.tanh(), (X,)),
    "gelu": (lambda x: torch.nn.functional.gelu(x) - torch.nn.functional.gelu(x, approximate="tanh"), (X,)),
    "comparisons": (lambda x, y: (x > y) | (x <= 0.1) & (y != 0) & ~(x == y) | (x < y) & (y >= 0.5), (X, Y)),
    "integer compared with float": (lambda i: i > 2.5, (I,)),
    "where": (lambda x, y: torch.where(x > y, x, y) + torch.where(x > 0, x, 0.5), (X, Y)),
    "masked fill": (lambda x: x.masked_fill(x > 0, float("-inf")), (X,)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5) + x.clamp(min=0.1) + torch.maximum(x, x * 2) - torch.minimum(x, x * 2), (X,)),
    "casts": (lambda x: x.to(torch.int64).to(torch.float32) + x.type_as(x) + (x > 0).to(torch.float32), (X,)),
    "views": (lambda x: x.view(x.shape[0], x.shape[1], 2, 3).transpose(1, 2).reshape(x.shape[0], 2, -1), (X,)),
    "flatten": (lambda x: x.flatten(1).unflatten(1, (-1, 6)) + x.flatten(0, 1).view(x.shape), (X,)),
    "view of two unknown": (lambda x: x.reshape(-1, 6).reshape(x.shape[0], x.shape[1], 3, 2), (X,)),
    "expand": (lambda x: x[:, :1].expand(-1, x.shape[1], -1) + x[0].expand(x.shape[0], -1, -1), (X,)),
    "squeeze": (lambda x: x.unsqueeze(-1).squeeze(-1) + x[:, :1].squeeze(1).unsqueeze(-2), (X,)),
    "permute": (lambda x: x.permute(2, 0, 1) + x.transpose(0, 2).transpose(1, 2), (X,)),
    "matrix transpose": (lambda z: z.t(), (Z,)),
    "cat and stack": (lambda x, y: torch.cat([x, y, x], -1).sum(-1) + torch.stack([x, y], 1).sum((1, 3)), (X, Y)),
    "many cat": (lambda x: torch.cat([x * n for n in range(20)], 1), (X,)),
    "split": (lambda x: [*x.split(4, -1), *x.split([1, 5], -1), *x.chunk(2, -1)], (X,)),
    "slices": (lambda x: x[:, 1:] - x[:, :-1] + x[..., ::2].sum(-1, keepdim=True)[:, 1:] + x[:, -1:], (X,)),
    "select": (lambda x: x[:, 0] + x[:, -1] + x.select(1, 1), (X,)),
    "repeat": (lambda x: x.repeat_interleave(2, dim=1).sum(-1) + x.repeat(1, 2, 1).sum(-1), (X,)),
    "reductions": (lambda x: x.mean((0, 2)) + x.sum(-1).amax(0) - x.amin((0, 2)) + x.sum() + x.max() - x.min(), (X,)),
    "indices": (lambda x: (x.argmax(-1), x.max(-1), x.min(1, keepdim=True), x.topk(2, -1)), (X,)),
    "cumsum": (lambda x: x.cumsum(1), (X,)),
    "softmax": (lambda x: x.softmax(-1) + torch.softmax(x, 1, dtype=torch.float32), (X,)),
    "layer norm": (lambda x, w: torch.layer_norm(x, [6], w, w * 2) + torch.layer_norm(x, [6]), (X, _f(6))),
    "rms norm": (lambda x, w: torch.rms_norm(x, [6], w, 1e-6) + torch.rms_norm(x, [6]), (X, _f(6))),
    "linear": (lambda x, w, b: torch.nn.functional.linear(x, w, b) + torch.nn.functional.linear(x, w), (X, _f(7, 6), _f(7))),
    "matmul": (lambda x, y, z: (x @ z).sum(-1) + (x @ y.transpose(1, 2)).sum(-1), (X, Y, Z)),
    "addmm": (lambda x, z, b: torch.addmm(b, x.view(-1, 6), z).view(x.shape[0], x.shape[1], 5), (X, Z, _f(5))),
    "addmm of rows": (lambda x, z, b: torch.addmm(b, x[0], z) + x[1] @ z + torch.mm(x[2], z), (X, Z, _f(5))),
    "embedding": (lambda i, w: torch.nn.functional.embedding(i % 5, w), (I, _f(5, 3))),
    "index": (lambda x, i: (x[:, i[0] % 3], x.index_select(1, i[0] % 3)), (X, I)),
    "gather": (lambda x, i: x.gather(1, (i[:, :6] % 4).unsqueeze(1)), (X, I)),
    "scatter": (lambda x, i: x.scatter(1, (i[:, :6] % 4).unsqueeze(1), 7.0), (X, I)),
    "arange": (lambda x: torch.arange(x.shape[1]) + torch.arange(2, x.shape[1] * 2 + 2, 2) - torch.arange(3, x.shape[1] + 3), (X,)),
    "filled": (
        lambda x: x + torch.zeros_like(x) + torch.ones(x.shape[1], 6) + torch.full((6,), 2.0) + torch.full_like(x, 3.0),
        (X,),
    ),
    "new": (lambda x: x.new_ones(x.shape[0], 1, 6) + x.new_zeros(6) + x.new_full((1, 6), 2.0), (X,)),
}  # fmt: skip


class _Call(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def _import(function: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> ir.Module:
    """The first two dimensions of operands of the first one's shape are dynamic where the function allows."""
    dims: Any = {0: Dim.AUTO, 1: Dim.AUTO} if args[0].dim() == 3 else None
    shapes = tuple(dims if arg.shape == args[0].shape else None for arg in args)
    program = torch.export.export(_Call(function), args, dynamic_shapes=(shapes,), strict=False)
    program = program.run_decompositions({})
    drop_assertions(program)
    importer = FxImporter(context=make_context())
    importer.import_program(program, func_name="f", import_symbolic_shape_expressions=True)
    return importer.module


@pytest.mark.parametrize("name", ROWS)
def test_row_equals_torch(name: str) -> None:
    function, args = ROWS[name]
    module = _import(function, args)
    run_pipeline(module, CONVERT)
    found = Interpreter(module, {})([arg.numpy() for arg in args])
    expected = [each.numpy() for each in torch.utils._pytree.tree_leaves(function(*args))]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


def test_a_form_that_a_row_does_not_cover_is_named() -> None:
    module = _import(lambda x, i: x[i[0] % 3, i[1] % 3], (X, I))
    with pytest.raises(UnsupportedOp, match="2 index tensors at once"):
        run_pipeline(module, "convert-torch-to-onnx")


BIG = """
import resource, time
from transformers import LlamaConfig
from planonce.compiler.import_torch import drop_assertions, import_program
from planonce.compiler.trace import trace
from planonce.passes.driver import run_pipeline
from planonce.passes.ir.context import make_context
start = time.time()
config = LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
    num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192)
module = import_program(trace(config, max_seq_len=8192), make_context())
run_pipeline(module, "convert-torch-to-onnx,canonicalize,cse")
print(time.time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_an_8b_model_needs_neither_its_memory_nor_minutes() -> None:
    ran = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, check=True)
    seconds, peak = (float(part) for part in ran.stdout.split()[-2:])
    assert peak < 1.2e9
    assert seconds < 40
