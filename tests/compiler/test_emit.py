"""Emit: the final IR becomes ONNX programs one to one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from planonce.compiler.emit import EmittedProgram, emit
from planonce.compiler.emit_stages import StageNode, assign_stages
from planonce.compiler.weights_writer import Location
from planonce.passes.ir.context import make_context, parse_module
from planonce.runtime.errors import CompileError
from planonce.runtime.manifest import ArgumentRole, CopyEdge

KV = 'plan.dims = ["batch", "2", "capacity", "4"], plan.layer = 0 : i64, plan.role = "kv"'
SIGNATURE = f"""(
  %ids: tensor<?x?xi64>
    {{plan.name = "input_ids", plan.role = "token_ids", plan.dims = ["batch", "sequence"]}},
  %at: tensor<?xi64> {{plan.name = "write_offset", plan.role = "write_offset", plan.dims = ["batch"]}},
  %pick: tensor<?xi64>
    {{plan.name = "logit_positions", plan.role = "logit_positions", plan.dims = ["logits"]}},
  %k: tensor<?x2x?x4xf32> {{plan.name = "past.0.key", plan.which = "key", {KV}}}
) -> (
  tensor<?x?x6xf32> {{plan.name = "logits", plan.role = "logits", plan.dims = ["batch", "logits", "6"]}},
  tensor<?x2x?x4xf32>
    {{plan.name = "present.0.key", plan.which = "key", plan.alias = 3 : i64, {KV}}}
)"""
BODY = """
  %w = "plan.weight"() {name = "embed"} : () -> tensor<6x8xf32>
  %h = "onnx.gather"(%w, %ids) {axis = 0 : i64, plan.device = "cpu:0"}
    : (tensor<6x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  %shape = "onnx.constant"() {value = dense<[0, 0, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %r = "onnx.reshape"(%h, %shape) : (tensor<?x?x8xf32>, tensor<4xi64>) -> tensor<?x?x2x4xf32>
  %t = "onnx.transpose"(%r) {perm = array<i64: 0, 2, 1, 3>}
    : (tensor<?x?x2x4xf32>) -> tensor<?x2x?x4xf32>
  %new = "onnx.tensor_scatter"(%k, %t, %at) {axis = 2 : i64}
    : (tensor<?x2x?x4xf32>, tensor<?x2x?x4xf32>, tensor<?xi64>) -> tensor<?x2x?x4xf32>
  %none = "onnx.no_value"() : () -> none
  %g = "onnx.gather"(%h, %pick) {axis = 1 : i64}
    : (tensor<?x?x8xf32>, tensor<?xi64>) -> tensor<?x?x8xf32>
  %l = "onnx.ms_fused_mat_mul"(%g, %w) {transB = 1 : i64}
    : (tensor<?x?x8xf32>, tensor<6x8xf32>) -> tensor<?x?x6xf32>
  %c = "onnx.clip"(%l, %none, %none)
    : (tensor<?x?x6xf32>, none, none) -> tensor<?x?x6xf32>
  %out = "plan.copy"(%c) {to = "host"} : (tensor<?x?x6xf32>) -> tensor<?x?x6xf32>
"""


def emit_text(body: str, returned: str = "%out, %new") -> EmittedProgram:
    types = "tensor<?x?x6xf32>, tensor<?x2x?x4xf32>"
    text = f"func.func @step{SIGNATURE} {{\n{body}\n  func.return {returned} : {types}\n}}"
    return emit(parse_module(text, make_context()), windows={0: 16})


def run(program: EmittedProgram, directory: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All stages in order in ONNX Runtime, edges carried by name; every value by its name."""
    embed = np.arange(48, dtype=np.float32).reshape(6, 8) / 10 - 1
    (directory / "weights.bin").write_bytes(embed.tobytes())
    values = dict(inputs)
    for stage in program.stages:
        path = directory / stage.stage.program
        path.write_bytes(stage.serialize({"embed": Location("weights.bin", 0, embed.nbytes)}))
        onnx.checker.check_model(str(path))
        session = ort.InferenceSession(str(path))
        feeds = {a.name: values[a.name] for a in stage.stage.inputs}
        outputs = session.run([a.name for a in stage.stage.outputs], feeds)
        values |= dict(zip((a.name for a in stage.stage.outputs), outputs, strict=True))
    return values


def step_inputs() -> dict[str, np.ndarray]:
    return {
        "input_ids": np.array([[1, 5, 2]]),
        "write_offset": np.array([4]),
        "logit_positions": np.array([2, 0]),
        "past.0.key": np.zeros((1, 2, 9, 4), np.float32),
    }


def expected() -> tuple[np.ndarray, np.ndarray]:
    embed = np.arange(48, dtype=np.float32).reshape(6, 8) / 10 - 1
    hidden = embed[[1, 5, 2]]
    key = np.zeros((1, 2, 9, 4), np.float32)
    key[0, :, 4:7] = hidden.reshape(3, 2, 4).transpose(1, 0, 2)
    return (hidden[[2, 0]] @ embed.T)[None], key


def test_one_stage_runs_and_says_what_it_is(tmp_path: Path) -> None:
    program = emit_text(BODY)
    values = run(program, tmp_path, step_inputs())
    logits, key = expected()
    np.testing.assert_allclose(values["logits"], logits, rtol=1e-5)
    np.testing.assert_array_equal(values["present.0.key"], key)
    (stage,) = program.stages
    assert stage.stage.program == "program.onnx" and stage.stage.device == "cpu:0"
    assert [a.name for a in stage.stage.inputs] == [
        "input_ids",
        "write_offset",
        "logit_positions",
        "past.0.key",
    ]
    assert [a.role for a in stage.stage.outputs] == [ArgumentRole.LOGITS, ArgumentRole.KV]
    assert stage.stage.inputs[3].shape == ("batch", 2, "capacity", 4)
    assert program.copies == (CopyEdge(0, "logits", None, "logits"),)
    (slot,) = program.kv_slots
    assert (slot.input, slot.output, slot.window, slot.head_dim) == ("past.0.key", "present.0.key", 16, 4)


def test_the_program_holds_no_weight_and_a_tied_weight_once() -> None:
    (stage,) = emit_text(BODY).stages
    assert [use.name for use in stage.tensors] == ["embed"]
    assert stage.tensors[0].nbytes == 6 * 8 * 4
    assert all(t.name != "embed" for t in stage.model.graph.initializer)
    assert {o.domain for o in stage.model.opset_import} == {"", "com.microsoft"}


def test_absent_inputs_are_blank_and_trailing_ones_dropped() -> None:
    nodes = {n.op_type: n for n in emit_text(BODY).stages[0].model.graph.node}
    assert len(nodes["Clip"].input) == 1
    minimum = BODY.replace("(%l, %none, %none)", "(%l, %none, %max)").replace(
        "none, none)", "none, tensor<f32>)"
    )
    limit = '%max = "onnx.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>\n'
    nodes = {n.op_type: n for n in emit_text(limit + minimum).stages[0].model.graph.node}
    assert nodes["Clip"].input[1] == "" and nodes["Clip"].input[2] != ""


def test_emitting_twice_gives_the_same_bytes() -> None:
    first, second = (
        [s.serialize({"embed": Location("w", 0, 192)}) for s in emit_text(BODY).stages] for _ in range(2)
    )
    assert first == second


def two_devices() -> str:
    """The head on cpu:1; it needs the hidden state and the weight there."""
    body = BODY.replace(
        '"onnx.gather"(%h, %pick) {axis = 1 : i64}',
        '"onnx.gather"(%there, %pick) {axis = 1 : i64, plan.device = "cpu:1"}',
    )
    body = body.replace("{transB = 1 : i64}", '{transB = 1 : i64, plan.device = "cpu:1"}')
    body = body.replace("(%l, %none, %none)", '(%l, %none, %none) {plan.device = "cpu:1"}')
    copy = '%there = "plan.copy"(%h) {to = "cpu:1"} : (tensor<?x?x8xf32>) -> tensor<?x?x8xf32>\n'
    return body.replace("  %none =", f"  {copy}  %none =", 1)


def test_two_devices_make_two_programs_joined_by_a_copy(tmp_path: Path) -> None:
    program = emit_text(two_devices())
    assert [s.stage.device for s in program.stages] == ["cpu:0", "cpu:1"]
    assert [s.stage.program for s in program.stages] == ["stage-0.onnx", "stage-1.onnx"]
    crossing, to_host = program.copies
    assert (crossing.source_stage, crossing.target_stage) == (0, 1)
    assert to_host == CopyEdge(1, "logits", None, "logits")
    assert [s.tensors[0].name for s in program.stages] == ["embed", "embed"]
    assert [use.name for use in program.tensors] == ["embed"]
    values = run(program, tmp_path, step_inputs())
    logits, key = expected()
    np.testing.assert_allclose(values["logits"], logits, rtol=1e-5)
    np.testing.assert_array_equal(values["present.0.key"], key)


def test_a_missing_copy_between_devices_is_refused() -> None:
    with pytest.raises(CompileError, match="another device"):
        emit_text(two_devices().replace("(%there, %pick)", "(%h, %pick)"))


def test_logits_that_stay_on_the_device_are_refused() -> None:
    with pytest.raises(CompileError, match="not copied to the host"):
        emit_text(BODY, "%c, %new")


def test_an_op_that_is_not_lowered_is_named_with_what_to_do() -> None:
    body = BODY.replace('"onnx.tensor_scatter"(%k, %t, %at)', '"plan.write_slice"(%k, %t, %at)')
    with pytest.raises(CompileError, match=r"plan\.write_slice") as caught:
        emit_text(body)
    assert "select-attention" in caught.value.todo


def test_a_cache_handed_back_untouched_still_has_its_own_output(tmp_path: Path) -> None:
    program = emit_text(BODY, "%out, %k")
    inputs = step_inputs()
    inputs["past.0.key"] += 3
    values = run(program, tmp_path, inputs)
    np.testing.assert_array_equal(values["present.0.key"], inputs["past.0.key"])


def test_a_large_constant_is_kept_out_of_the_program() -> None:
    numbers = ", ".join(str(float(i)) for i in range(400))
    body = BODY.replace(
        '%c = "onnx.clip"',
        f'%big = "onnx.constant"() {{value = dense<[{numbers}]> : tensor<400xf32>}} : () -> tensor<400xf32>\n'
        '  %sum = "onnx.reduce_sum"(%big, %none) {keepdims = 0 : i64}'
        " : (tensor<400xf32>, none) -> tensor<f32>\n"
        '  %l2 = "onnx.add"(%l, %sum) : (tensor<?x?x6xf32>, tensor<f32>) -> tensor<?x?x6xf32>\n'
        '  %c = "onnx.clip"',
    ).replace("(%l, %none", "(%l2, %none")
    (stage,) = emit_text(body).stages
    (use,) = [t for t in stage.tensors if t.weight is None]
    np.testing.assert_array_equal(use.constant, np.arange(400, dtype=np.float32))
    assert len(stage.model.SerializeToString()) < 3000


@pytest.mark.parametrize("seed", range(40))
def test_stages_respect_every_edge(seed: int) -> None:
    """Random graphs with copies wherever devices differ: checked edge by edge, not by re-planning."""
    rng = random.Random(seed)
    nodes: list[StageNode] = []
    for _ in range(rng.randrange(1, 40)):
        device = rng.choice(["cpu:0", "cpu:1", "cpu:2"])
        wanted = sorted(rng.sample(range(len(nodes)), min(len(nodes), rng.randrange(3))))
        producers: list[int] = []
        for producer in wanted:
            if nodes[producer].device != device:
                nodes.append(StageNode(device, (producer,), is_copy=True))
                producer = len(nodes) - 1
            producers.append(producer)
        nodes.append(StageNode(device, tuple(producers)))
    found = assign_stages(nodes)

    def real(index: int) -> int:
        return real(nodes[index].producers[0]) if nodes[index].is_copy else index

    for i, node in enumerate(nodes):
        if node.is_copy:
            assert found.stage_of[i] == -1
            continue
        stage = found.stage_of[i]
        assert found.devices[stage] == node.device
        for producer in node.producers:
            before = found.stage_of[real(producer)]
            assert before < stage if nodes[producer].is_copy else before <= stage
    used = {s for s in found.stage_of if s >= 0}
    assert used == set(range(len(found.devices)))


def test_what_only_the_second_device_needs_makes_no_stage_before_the_first() -> None:
    nodes = [
        StageNode("cpu:1", ()),  # positions, needed by the head only
        StageNode("cpu:0", ()),
        StageNode("cpu:1", (1,), is_copy=True),
        StageNode("cpu:1", (0, 2)),
    ]
    assert assign_stages(nodes).devices == ("cpu:0", "cpu:1")
