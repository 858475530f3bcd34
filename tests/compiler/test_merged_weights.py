"""A weight made of several of the checkpoint's tensors: one initializer, streamed part after part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from planonce.compiler.emit import emit
from planonce.compiler.tensor_use import TensorUse
from planonce.compiler.weights_writer import WEIGHTS_FILE, WeightMode, place, write_tensors
from planonce.passes.ir.context import make_context, parse_module
from planonce.passes.ir.weights import joined_name
from planonce.runtime.errors import CheckpointError

MERGED = TensorUse("a+b", "float32", (5, 3), merged=("a", "b"))


class Tensors:
    """Weights in memory, handed out a row at a time; all of them lie usable in one safetensors file."""

    def __init__(self, **tensors: np.ndarray) -> None:
        self.tensors = tensors

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> np.ndarray:
        return self.tensors[name]

    def chunks(self, name: str, dtype: str) -> Iterator[np.ndarray]:
        yield from self.tensors[name].astype(dtype)[:, None]

    def raw_location(self, name: str, dtype: str) -> tuple[Path, int, int] | None:
        return Path("/nowhere/model.safetensors"), 8, self.tensors[name].nbytes


class Written:
    """What a plan file is asked to hold."""

    def __init__(self) -> None:
        self.data = b""

    @property
    def position(self) -> int:
        return len(self.data)

    def pad_to(self, offset: int) -> None:
        self.data = self.data.ljust(offset, b"\0")

    def write(self, data: bytes) -> None:
        self.data += bytes(data)


def _tensors() -> Tensors:
    return Tensors(
        a=np.arange(6, dtype=np.float32).reshape(2, 3), b=10 + np.arange(9, dtype=np.float32).reshape(3, 3)
    )


@pytest.mark.parametrize("mode", WeightMode)
def test_parts_are_written_one_below_the_other_and_never_used_where_they_lie(mode: WeightMode) -> None:
    tensors, file = _tensors(), Written()
    placement = place({"a+b": [0]}, [MERGED], tensors, mode, file_name=lambda path: path.name)
    assert placement.locations["a+b"].file == WEIGHTS_FILE and not placement.links
    assert not placement.references and not placement.stored[0].constant
    write_tensors(placement, tensors, file)
    expected = np.concatenate([tensors["a"], tensors["b"]])
    np.testing.assert_array_equal(np.frombuffer(file.data, np.float32).reshape(5, 3), expected)


def test_a_missing_part_is_named() -> None:
    tensors = _tensors()
    del tensors.tensors["b"]
    with pytest.raises(CheckpointError, match="lacks weights") as caught:
        place({"a+b": [0]}, [MERGED], tensors, WeightMode.EMBED, file_name=str)
    assert caught.value.found == "no b"


@pytest.mark.parametrize("shape", [(4, 3), (3, 2)])
def test_parts_that_do_not_fit_are_refused(shape: tuple[int, int]) -> None:
    """Too many rows, or rows of another width (whose bytes might still add up)."""
    tensors = _tensors()
    tensors.tensors["b"] = np.zeros(shape, np.float32)
    with pytest.raises(CheckpointError, match="shape is not the one"):
        place({"a+b": [0]}, [MERGED], tensors, WeightMode.EMBED, file_name=str)


def test_emitted_as_one_initializer_it_computes_what_the_parts_do(tmp_path: Path) -> None:
    roles = 'plan.name = "NAME", plan.role = "ROLE", plan.dims = []'
    names = {"ids": "token_ids", "at": "write_offset"}
    arguments = ", ".join(
        f"%{n}: tensor<{'?x?' if n == 'ids' else '?'}xi64> {{{roles.replace('NAME', n).replace('ROLE', r)}}}"
        for n, r in names.items()
    )
    text = f"""func.func @step({arguments})
      -> (tensor<?x?x5xf32> {{plan.name = "logits", plan.role = "logits", plan.dims = ["b", "s", "5"]}}) {{
      %e = "plan.weight"() {{name = "a"}} : () -> tensor<2x3xf32>
      %x = "onnx.gather"(%e, %ids) {{axis = 0 : i64}}
        : (tensor<2x3xf32>, tensor<?x?xi64>) -> tensor<?x?x3xf32>
      %w = "plan.weight"() {{name = "a+b", parts = ["a", "b"]}} : () -> tensor<5x3xf32>
      %y = "onnx.ms_fused_mat_mul"(%x, %w) {{transB = 1 : i64}}
        : (tensor<?x?x3xf32>, tensor<5x3xf32>) -> tensor<?x?x5xf32>
      %out = "plan.copy"(%y) {{to = "host"}} : (tensor<?x?x5xf32>) -> tensor<?x?x5xf32>
      func.return %out : tensor<?x?x5xf32>
    }}"""
    program = emit(parse_module(text, make_context()))
    tensors, file = _tensors(), Written()
    uses = {use.name: [0] for use in program.tensors}
    # As if nothing lay usable anywhere: all data goes to the plan's own file.
    placement = place(uses, program.tensors, tensors, WeightMode.EMBED, file_name=lambda path: "model.bin")
    write_tensors(placement, tensors, file)
    (tmp_path / WEIGHTS_FILE).write_bytes(file.data)
    path = tmp_path / "program.onnx"
    path.write_bytes(program.stages[0].serialize(placement.locations))
    ids = np.array([[1, 0, 1]])
    (logits,) = ort.InferenceSession(str(path)).run(["logits"], {"ids": ids, "at": np.array([0])})
    expected = tensors["a"][ids] @ np.concatenate([tensors["a"], tensors["b"]]).T
    np.testing.assert_allclose(logits, expected, rtol=1e-6)


def test_joined_names_say_what_they_have_in_common_once() -> None:
    parts = ["model.layers.0.attn.q.weight", "model.layers.0.attn.k.weight"]
    assert joined_name(parts) == "model.layers.0.attn.q.weight+k.weight"
    assert joined_name(["a", "a"]) == "a+a"
