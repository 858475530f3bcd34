"""Importing: names, roles, literals, source lines, and nothing of the example."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tiny_models import FAMILIES, tiny_config
from traced_models import MAX_SEQ_LEN, tiny_weights, traced

import planonce.compiler.import_torch as import_torch
from planonce.compiler.trace import trace
from planonce.passes.ir.context import make_context, print_module
from planonce.passes.ir.locations import source_line
from planonce.passes.ir.roles import Role, arguments, body_of, function_of, results
from planonce.runtime.errors import UnsupportedModel


@pytest.mark.parametrize("family", FAMILIES)
def test_arguments_and_results_carry_their_roles(family: str) -> None:
    function = function_of(import_torch.import_program(traced(family), make_context()))
    inputs, outputs = arguments(function), results(function)
    assert [info.role for info in inputs[:3]] == [Role.TOKEN_IDS, Role.WRITE_OFFSET, Role.LOGIT_POSITIONS]
    assert [info.name for info in inputs[:3]] == ["input_ids", "write_offset", "logit_positions"]
    assert inputs[0].dims == ("batch", "sequence") and inputs[2].dims == ("logits",)
    assert outputs[0].role is Role.LOGITS and outputs[0].dims == ("batch", "logits", "320")
    slots = [(info.layer, info.which, info.dims) for info in inputs[3:]]
    assert slots == [(info.layer, info.which, info.dims) for info in outputs[1:]]
    assert slots == [(slot.layer, str(slot.which), slot.dims) for slot in traced(family).kv_slots]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_is_in_the_checkpoint_under_its_canonical_name(family: str) -> None:
    module = import_torch.import_program(traced(family), make_context())
    named = [
        op.operation.attributes["plan.weight"].value
        for op in body_of(function_of(module)).operations
        if "plan.weight" in op.operation.attributes
    ]
    stored = set(tiny_weights(family))
    assert len(named) == len(set(named))
    assert set(named) == stored - set(traced(family).tied)


def test_text_does_not_depend_on_the_example_or_on_the_run() -> None:
    """P3: with locations, so that not even a line of another branch may differ."""
    texts = {
        print_module(
            import_torch.import_program(
                trace(tiny_config("gemma3"), max_seq_len=MAX_SEQ_LEN, example_cached_len=length),
                make_context(),
            ),
            elide_large=False,
            locations=True,
        )
        for length in (0, 8, 8, 57)
    }
    assert len(texts) == 1


def test_locations_name_the_line_of_the_model() -> None:
    module = import_torch.import_program(traced("llama"), make_context())
    ops = [op.operation for op in body_of(function_of(module)).operations]
    named = {op.attributes["name"].value: op for op in ops if op.name == "torch.operator"}
    attention = named["torch.planonce.attention"]
    assert "modeling_llama.py" in str(attention.location)
    rsqrt = next(op for op in ops if op.name == "torch.aten.rsqrt")
    assert "modeling_llama.py:" in (source_line(rsqrt.location) or "")


def test_buffers_are_literals_and_large_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = print_module(import_torch.import_program(traced("llama"), make_context()), elide_large=False)
    assert "torch.vtensor.literal" in text and "inv_freq" not in text
    monkeypatch.setattr(import_torch, "MAX_LITERAL_ELEMENTS", 4)
    with pytest.raises(UnsupportedModel, match=r"rotary_emb\.inv_freq"):
        import_torch.import_program(traced("llama"), make_context())
