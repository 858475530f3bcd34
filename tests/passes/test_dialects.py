"""The dialects: every op can be built, printed and read back, and what does not fit is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch_mlir import ir

from planonce.passes.ir.attributes import AttributeKind, to_attribute, to_python
from planonce.passes.ir.builder import OnnxBuilder, constant_array, dtype_of, shape_of, tensor_type
from planonce.passes.ir.context import make_context, parse_module, print_module
from planonce.passes.ir.locations import describe_location, source_line
from planonce.passes.ir.ms_schemas import MS_SCHEMAS
from planonce.passes.ir.onnx_schemas import (
    MAX_VARIADIC,
    OpSchema,
    all_schemas,
    find_schema,
    ir_name,
    schema_for,
)
from planonce.passes.ir.plan_dialect import PLAN_OPS
from planonce.passes.ir.roles import (
    ArgumentInfo,
    ResultInfo,
    Role,
    arguments,
    body_of,
    function_of,
    results,
    set_arguments,
    set_results,
)
from planonce.passes.verify_capture import READ_ON_HOST
from planonce.runtime.errors import PassError

FUNCTION = """
func.func @step(%x: tensor<2x3xf32>, %kv: tensor<?x2x?x8xf32>, %q: tensor<?x4x?x8xf32>,
                %offset: tensor<?xi64>) {
  return
}
"""
VALUES: dict[AttributeKind, Any] = {
    AttributeKind.INT: 1,
    AttributeKind.FLOAT: 0.5,
    AttributeKind.STRING: "s",
    AttributeKind.INTS: [1, 2],
    AttributeKind.FLOATS: [0.5, 1.5],
    AttributeKind.STRINGS: ["a", "b"],
    AttributeKind.TENSOR: np.arange(3, dtype=np.float32),
}


class Scratch:
    """A function to build into, with a builder at its end."""

    def __init__(self) -> None:
        self.context = make_context()
        self.module = parse_module(FUNCTION, self.context)
        block = body_of(function_of(self.module))
        self.x, self.kv, self.q, self.offset = block.arguments
        self.build = OnnxBuilder(insertion_point=ir.InsertionPoint(block.operations[0]))

    def round_trip(self) -> None:
        assert self.module.operation.verify()
        text = print_module(self.module, elide_large=False)
        assert print_module(parse_module(text, self.context), elide_large=False) == text

    def type(self, shape: list[int | None], dtype: str = "f32") -> ir.Type:
        with self.context:
            return tensor_type(shape, dtype)


@pytest.fixture
def scratch() -> Scratch:
    return Scratch()


def build_any(scratch: Scratch, schema: OpSchema) -> list[ir.Value]:
    """The op with every attribute given, its optional inputs absent and its variadic ones full."""
    operands: list[ir.Value | None] = []
    for parameter in schema.inputs:
        operands += [scratch.x] * (MAX_VARIADIC if parameter.variadic else 1)
        if parameter.optional:
            operands[-1] = None
    outputs: list[ir.Type | None] = []
    for parameter in schema.outputs:
        outputs += [scratch.x.type] * (2 if parameter.variadic else 1)
    attributes = {name: VALUES[spec.kind] for name, spec in schema.attributes.items()}
    return scratch.build.op(schema.op_type, operands, outputs, attributes, schema.domain)


def test_every_onnx_op_builds_and_reads_back(scratch: Scratch) -> None:
    count = 0
    for schema in all_schemas().values():
        if schema.op_type != "Constant":
            assert len(build_any(scratch, schema)) >= 1 or not schema.outputs
            count += 1
    assert count > 190
    scratch.round_trip()


def test_operands_that_cuda_kernels_read_on_the_host_exist() -> None:
    """A row of the table for an operator that is spelt otherwise would check nothing."""
    for name, operands in READ_ON_HOST.items():
        schema = find_schema(name)
        assert schema is not None and max(operands) < len(schema.inputs), name


def test_ms_table_is_what_onnxruntime_declares() -> None:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    declared = {(s.domain, s.name): s for s in state.get_all_operator_schema()}
    for ours in MS_SCHEMAS:
        theirs = declared[ours.domain, ours.op_type]
        assert [p.name for p in ours.inputs] == [p.name for p in theirs.inputs], ours.op_type
        assert [p.optional for p in ours.inputs] == ["Optional" in str(p.option) for p in theirs.inputs]
        assert [p.name for p in ours.outputs] == [p.name for p in theirs.outputs], ours.op_type
        attributes = {
            n: (str(a.type).split(".")[-1].lower(), a.required) for n, a in theirs.attributes.items()
        }
        assert {n: (s.kind.value, s.required) for n, s in ours.attributes.items()} == attributes, ours.op_type


def test_names() -> None:
    assert ir_name("MatMul") == "mat_mul"
    assert ir_name("GroupQueryAttention", "com.microsoft") == "ms_group_query_attention"
    assert [ir_name(n) for n in ("RMSNormalization", "IsNaN", "QMoE", "ReduceL2", "GatherND")] == [
        "rms_normalization",
        "is_nan",
        "qmoe",
        "reduce_l2",
        "gather_nd",
    ]
    # Both domains have a RotaryEmbedding; they must not meet.
    assert find_schema("onnx.rotary_embedding") is schema_for("RotaryEmbedding")
    assert find_schema("onnx.ms_rotary_embedding") is schema_for("RotaryEmbedding", "com.microsoft")
    assert find_schema("plan.weight") is None


Mistake = Callable[[Scratch], object]
MISTAKES: list[tuple[Mistake, str]] = [
    (lambda s: s.build.one("Matmul", [s.x, s.x], s.x.type), "did you mean MatMul?"),
    (lambda s: s.build.one("FusedMatMul", [s.x, s.x], s.x.type), "it is in domain com.microsoft"),
    (lambda s: s.build.one("Add", [s.x], s.x.type), "input 'B' is not optional"),
    (lambda s: s.build.one("Add", [s.x] * 3, s.x.type), "found: 3"),
    (lambda s: s.build.op("Add", [s.x, s.x], [s.x.type] * 2), "outputs"),
    (lambda s: s.build.one("Concat", [], s.x.type, {"axis": 0}), "1 to 16"),
    (lambda s: s.build.one("Concat", [s.x] * 17, s.x.type, {"axis": 0}), "found: 17"),
    (lambda s: s.build.one("Concat", [s.x], s.x.type), "needs the attribute 'axis'"),
    (lambda s: s.build.one("Softmax", [s.x], s.x.type, {"axes": 0}), "did you mean axis?"),
    (lambda s: s.build.one("Softmax", [s.x], s.x.type, {"axis": 0.5}), "expected: int"),
    (lambda s: s.build.one("Transpose", [s.x], s.x.type, {"perm": 1}), "expected: ints"),
    (lambda s: s.build.plan("atention", [], []), "did you mean attention?"),
    (lambda s: s.build.plan("weight", [], [s.x.type]), "needs the attribute 'name'"),
    (lambda s: s.build.constant(np.array(["text"])), "unsupported dtype"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_builder_refuses(scratch: Scratch, mistake: Mistake, message: str) -> None:
    with pytest.raises(PassError) as caught:
        mistake(scratch)
    assert message in str(caught.value)


BAD_IR = [
    ('"onnx.add"(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>', "wrong number of operands"),
    ('"onnx.add"(%x, %none) : (tensor<2x3xf32>, none) -> tensor<2x3xf32>', "operand 'B' is not optional"),
    ('"onnx.neg"(%x) : (tensor<2x3xf32>) -> none', "result 'Y' is not optional"),
    ('"onnx.neg"(%x) {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>', "unknown attribute 'axis'"),
    ('"onnx.softmax"(%x) {axis = 1 : i32} : (tensor<2x3xf32>) -> tensor<2x3xf32>', "the wrong kind"),
    ('"onnx.tensor_scatter"(%x, %x) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>', "found: 2"),
    ('"onnx.constant"() {value = dense<1> : tensor<i64>} : () -> tensor<i32>', "differ in type"),
    ('"onnx.constant"() : () -> tensor<i32>', "'value' is missing"),
    ('"onnx.no_value"() : () -> tensor<i32>', "type none"),
    ('"onnx.no_such"() : () -> none', "onnx.no_such"),
    ('"plan.weight"() {name = "w"} : () -> tensor<?xf32>', "must be static"),
    ('"plan.weight"() {name = 1 : i64} : () -> tensor<1xf32>', "'name' has the wrong kind"),
    ('"plan.weight"() {name = "w", dtype = "f32"} : () -> tensor<1xf32>', "unknown attribute 'dtype'"),
    ('"plan.copy"(%x) {to = "host"} : (tensor<2x3xf32>) -> tensor<3x2xf32>', "differs from the operand's"),
    ('"plan.copy"(%none) {to = "host"} : (none) -> none', "operand 'x' is not optional"),
    ('"plan.write_slice"(%kv, %kv, %x) {axis = 2 : i64} : (!kv, !kv, tensor<2x3xf32>) -> !kv', "wrong rank"),
    ('"plan.write_slice"(%kv, %x, %o) {axis = 2 : i64} : (!kv, tensor<2x3xf32>, !o) -> !kv', "wrong rank"),
    ('"plan.write_slice"(%kv, %kv, %o) {axis = 4 : i64} : (!kv, !kv, !o) -> !kv', "out of range"),
    ('"plan.write_slice"(%kv, %q, %o) {axis = 2 : i64} : (!kv, !q, !o) -> !kv', "disagree about dimension 1"),
    ('"plan.write_slice"(%kv, %kv, %o) {axis = 2 : i64} : (!kv, !kv, !o) -> !q', "not of the cache's type"),
    ('"plan.attention"(%q, %kv, %kv, %o) {A} : (!q, !kv, !kv, !o) -> !r', "wrong number of operands"),
    ('"plan.attention"(%kv, %q, %q, %o, %none) {A} : (!kv, !q, !q, !o, none) -> !r', "no multiple"),
    ('"plan.attention"(%q, %kv, %q, %o, %none) {A} : (!q, !kv, !q, !o, none) -> !r', "number of KV heads"),
    (
        '"plan.attention"(%q, %kv, %kv, %o, %none) {A} : (!q, !kv, !kv, !o, none) -> tensor<1x1x3x8xf32>',
        "[heads]",
    ),
    ('"plan.attention"(%q, %kv, %kv, %o, %x) {A} : (!q, !kv, !kv, !o, tensor<2x3xf32>) -> !r', "'sinks'"),
]


def parse_op(line: str) -> ir.Module:
    attributes = "layer = 0 : i64, scale = 1.0 : f32, window = 0 : i64, softcap = 0.0 : f32"
    types = {"!kv": "tensor<?x2x?x8xf32>", "!q": "tensor<?x4x?x8xf32>", "!o": "tensor<?xi64>"}
    line = line.replace("{A}", f"{{{attributes}}}").replace("!r", "tensor<?x?x4x8xf32>")
    for short, full in types.items():
        line = line.replace(short, full)
    arguments = "%x: tensor<2x3xf32>, %kv: tensor<?x2x?x8xf32>, %q: tensor<?x4x?x8xf32>, %o: tensor<?xi64>"
    lines = [
        f"func.func @f({arguments}) {{",
        '%none = "onnx.no_value"() : () -> none',
        f"%y = {line}",
        "return }",
    ]
    return parse_module("\n".join(lines), make_context(), source="test.mlir")


@pytest.mark.parametrize(("line", "message"), BAD_IR, ids=[m for _, m in BAD_IR])
def test_verifier_refuses_with_op_and_place(line: str, message: str) -> None:
    with pytest.raises(PassError) as caught:
        parse_op(line)
    assert message in caught.value.message
    assert line.split('"')[1] in caught.value.message
    assert caught.value.where.startswith("test.mlir:3:")


def test_verifier_accepts_the_same_ops_put_right() -> None:
    """Without this, a verifier that refuses everything would pass the tests above."""
    for line in (
        '"plan.attention"(%q, %kv, %kv, %o, %none) {A} : (!q, !kv, !kv, !o, none) -> !r',
        '"plan.write_slice"(%kv, %kv, %o) {axis = 2 : i64} : (!kv, !kv, !o) -> !kv',
        '"plan.copy"(%x) {to = "host", plan.device = "cpu:0"} : (tensor<2x3xf32>) -> tensor<2x3xf32>',
        '"onnx.tensor_scatter"(%x, %x, %none) : (tensor<2x3xf32>, tensor<2x3xf32>, none) -> tensor<2x3xf32>',
    ):
        assert parse_op(line).operation.verify()


def test_attention_over_values_of_another_width_than_the_keys(scratch: Scratch) -> None:
    v = scratch.build.weight("v", scratch.type([1, 2, 16, 24]))
    attributes = {"layer": 0, "scale": 0.1, "window": 128, "softcap": 50.0}
    out = scratch.build.plan(
        "attention", [scratch.q, scratch.kv, v, scratch.offset], [scratch.type([1, None, 4, 24])], attributes
    )[0]
    assert shape_of(out) == (1, None, 4, 24)
    scratch.round_trip()


def test_every_plan_op_is_pure_but_alloc() -> None:
    assert {name for name, op in PLAN_OPS.items() if not op.pure} == {"alloc"}


DTYPES = [
    np.float32,
    np.float64,
    np.float16,
    np.int64,
    np.int32,
    np.int8,
    np.uint8,
    np.bool_,
    ml_dtypes.bfloat16,
]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_constant_gives_its_array_back(data: st.DataObject) -> None:
    scratch = Scratch()
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    array = data.draw(hnp.arrays(np.int8, shape)).astype(dtype)
    value = scratch.build.constant(array)
    back = constant_array(value)
    assert back is not None and back.dtype == dtype and shape_of(value) == shape
    np.testing.assert_array_equal(back, array)
    scratch.round_trip()


@pytest.mark.parametrize("size", [1, 3, 500])
def test_bfloat16_constant_keeps_every_bit(scratch: Scratch, size: int) -> None:
    bits = np.arange(0, 65536, 131, dtype=np.uint16)[:size]
    bits[0] = 0xFFC1  # a NaN with a payload
    back = constant_array(scratch.build.constant(bits.view(ml_dtypes.bfloat16)))
    assert back is not None
    np.testing.assert_array_equal(back.view(np.uint16), bits)


def test_constant_of_python_numbers_and_of_other_values(scratch: Scratch) -> None:
    assert dtype_of(scratch.build.constant([1, 2])) == "i64"
    assert dtype_of(scratch.build.constant(0.5)) == "f32"
    assert constant_array(scratch.x) is None
    assert constant_array(scratch.build.one("Neg", [scratch.x], scratch.x.type)) is None


def test_long_constant_is_abbreviated_only_when_asked(scratch: Scratch) -> None:
    scratch.build.constant(np.arange(1000))
    assert len(print_module(scratch.module)) < 1000 < len(print_module(scratch.module, elide_large=False))


@pytest.mark.parametrize("kind", AttributeKind)
def test_attribute_values_come_back(kind: AttributeKind) -> None:
    with make_context():
        np.testing.assert_array_equal(to_python(to_attribute(VALUES[kind], kind)), VALUES[kind])


def test_location_gives_the_innermost_line_of_the_model() -> None:
    stack = (
        'loc(callsite("/site/torch/nn/functional.py":9:0 at callsite("/site/transformers/llama.py":88:0 '
        'at "/site/trace.py":3:0)))'
    )
    assert source_line(stack) == "/site/transformers/llama.py:88"
    assert source_line('loc("in.mlir":3:4)') is None
    assert describe_location('loc("in.mlir":3:4)') == "in.mlir:3:4"
    assert describe_location("loc(unknown)") == ""


ARGUMENT = ArgumentInfo("past.0.key", Role.KV, ("batch", "2", "capacity", "8"), 0, "key")


def test_roles_are_read_back_and_other_attributes_stay() -> None:
    text = """func.func @step(%k: tensor<?x2x?x8xf32> {test.kept}) -> tensor<?x2x?x8xf32> {
      return %k : tensor<?x2x?x8xf32> }"""
    module = parse_module(text, make_context())  # the function dies with its module
    function = function_of(module)
    set_arguments(function, [ARGUMENT])
    result = ResultInfo("present.0.key", Role.KV, ARGUMENT.dims, 0, "key")
    for expected in (result, replace(result, alias=0), result):
        set_results(function, [expected])
        assert results(function) == [expected]
    assert arguments(function) == [ARGUMENT]
    assert "test.kept" in str(function)
    with pytest.raises(PassError, match="wrong number of entries"):
        set_arguments(function, [])


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("", "no usable plan.role"),
        ('plan.role = "cache"', "unknown plan.role"),
        ('plan.role = "kv", plan.dims = ["a"], plan.name = "k", plan.which = "key"', "without its place"),
        ('plan.role = "logits", plan.name = "l"', "no usable plan.dims"),
        ('plan.role = "logits", plan.dims = ["a"]', "no usable plan.name"),
    ],
)
def test_malformed_roles_are_refused(attributes: str, message: str) -> None:
    module = parse_module(f"func.func @step(%a: tensor<1xf32> {{{attributes}}}) {{ return }}", make_context())
    with pytest.raises(PassError) as caught:
        arguments(function_of(module))
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "func.func @a() { return } func.func @b() { return }"])
def test_program_is_one_function(text: str) -> None:
    with pytest.raises(PassError, match="one function"):
        function_of(parse_module(text, make_context()))
