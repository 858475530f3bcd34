"""Which part of the model an operation belongs to, on graphs drawn as text."""

from __future__ import annotations

import pytest

from planonce.passes.ir.model_ops import layer_of_weight
from planonce.passes.model_parts import EMBED, STEP, PartNode, parts_of

# One line an operation: its name, what it reads; @N: a weight or KV slot of layer N; @w: another weight.
DECODER = """
positions
table      positions
hidden     @w
square0    hidden
norm0      hidden square0 @0
attention0 norm0 table @0
residual0  hidden attention0
square1    residual0
norm1      residual0 square1 @1
attention1 norm1 table @1
residual1  residual0 attention1
square2    residual1
norm2      residual1 square2 @w
logits     norm2 @w
"""


def parts(text: str) -> dict[str, int | str]:
    names: list[str] = []
    nodes: list[PartNode] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        name, *words = line.split()
        ties = [w[1:] for w in words if w[0] == "@"]
        nodes.append(
            PartNode(
                tuple(names.index(w) for w in words if w[0] != "@"),
                layer=max((int(t) for t in ties if t.isdigit()), default=None),
                other_weight="w" in ties,
                returned=name.startswith("logits"),
            )
        )
        names.append(name)
    found = parts_of(nodes)
    words = {STEP: "step", EMBED: "embed", found.head: "head"}
    return {name: words.get(part, part) for name, part in zip(names, found.of, strict=True)}


def test_each_operation_of_a_decoder_is_where_the_fewest_values_cross() -> None:
    assert parts(DECODER) == {
        "positions": "step",
        "table": "step",
        "hidden": "embed",
        "square0": 0,  # a norm goes with its weight
        "norm0": 0,
        "attention0": 0,
        "residual0": 0,  # both addends are here: moving it on would make two values cross
        "square1": 1,
        "norm1": 1,
        "attention1": 1,
        "residual1": 1,
        "square2": "head",
        "norm2": "head",
        "logits": "head",
    }


def test_a_sum_of_two_earlier_values_is_not_pulled_into_the_next_layer() -> None:
    found = parts("a @0\nb @0\nsum a b\nc sum @1")
    assert found["sum"] == 0
    # Control: where one addend crosses anyway, moving costs nothing and the sum goes along.
    assert parts("a @0\nb @0\nsum a b\nc sum a @1")["sum"] == 1


def test_a_weight_of_no_layer_between_two_layers_makes_neither_embedding_nor_head() -> None:
    assert parts("hidden @w\na hidden @0\nslopes a @w\nb slopes a @0\nc b @1")["slopes"] == 0


def test_a_transposed_head_belongs_to_the_head_and_a_transposed_table_to_the_embedding() -> None:
    found = parts("turned @w\nhidden turned\na hidden @0\nlast @w\nlogits a last")
    assert (found["turned"], found["last"], found["logits"]) == ("embed", "head", "head")


def test_a_result_that_is_returned_stays() -> None:
    assert parts("a @0\nlogits_like a\nb logits_like @1")["logits_like"] == 0


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.3.mlp.up_proj.weight", 3),
        ("transformer.h.11.ln_1.bias", 11),
        ("model.layers.2.mlp.experts.7.w1.weight", 2),
        ("lm_head.weight", None),
        ("model.norm2d.weight", None),
    ],
)
def test_a_weights_name_says_its_layer(name: str, layer: int | None) -> None:
    assert layer_of_weight(name) == layer
