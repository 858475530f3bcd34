"""M5, the paged arm: what a paged program computes, seen without a GPU.

The lowered program is emitted and run by onnx's reference evaluator, with PagedAttention written out in numpy
(paged_reference.py), in single precision: arms choose by dtype, so the IR is 16-bit while they do. It is
compared with the same model over KV slots in ONNX Runtime, on the same tokens.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

sys.path.insert(0, str(Path(__file__).parent))
from half_ir import as_half, as_single
from paged_reference import evaluator, standalone
from tiny_models import make_tiny_model
from torch_mlir import ir
from traced_models import converted, tiny_weights

from planonce.compiler.compile import compile_checkpoint, refuse_paged
from planonce.compiler.compile_options import CompileOptions
from planonce.compiler.emit import EmittedProgram, emit
from planonce.passes.driver import run_pipeline
from planonce.passes.ir.context import make_context, parse_module
from planonce.runtime.errors import CompileError, PassError, UnsupportedPlan
from planonce.runtime.manifest import ArgumentRole

BLOCK, POSITIONS, TOKENS = 16, 64, 320
PAGED = f"select-attention{{arm=paged device=cuda:0 block-size={BLOCK}}},assign-placement{{device=cuda:0}}"
REST = "insert-copies,alias-kv,canonicalize,cse,verify-plan"
# Both rows together, then the second rewound by four, then through the ends of blocks at 16 and 32: row 0 in
# single tokens, row 1 in the middle of a chunk.
STEPS = [([0, 0], 13), *(([13 + i, 9 + i], 1) for i in range(4)), ([17, 13], 5), ([22, 18], 11)]
BLOCKS = {0: (7, 2, 5), 1: (4, 8)}  # in the order in which the rows grow into them
N_BLOCKS, WIDTH, UNOWNED = 10, 4, 0


@functools.cache
def prepared(family: str) -> ir.Module:
    module = converted(family).operation.clone()
    run_pipeline(
        module, f"tabulate-positions{{max-seq-len={POSITIONS}}},fuse-rope,merge-linears,canonicalize,cse"
    )
    return module


@functools.cache
def paged_ir(family: str, dtype: str = "f16", last: str = REST) -> ir.Module:
    module = as_half(prepared(family), dtype)
    run_pipeline(module, f"{PAGED},{last}", check_changed=True)
    return module


@functools.cache
def paged(family: str) -> ReferenceEvaluator:
    return evaluator(standalone(emit(as_single(paged_ir(family))), tiny_weights(family)))


@functools.cache
def slots(family: str, arm: str) -> onnxruntime.InferenceSession:
    module = prepared(family).operation.clone()
    run_pipeline(module, f"select-attention{{arm={arm}}},assign-placement,{REST}")
    return session_of(standalone(emit(module), tiny_weights(family)))


def session_of(model: ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def tokens(rows: int = 2) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, TOKENS, (rows, length)) for _, length in STEPS]


@dataclass
class Stepper:
    """A program, and KV that each step's results take the place of."""

    program: ReferenceEvaluator | onnxruntime.InferenceSession
    kv: dict[str, np.ndarray]

    def step(self, ids: np.ndarray, offsets: list[int], **more: np.ndarray) -> np.ndarray:
        """Logits [B, S, V] of every new position."""
        feeds = {
            "input_ids": ids,
            "write_offset": np.array(offsets),
            "logit_positions": np.arange(ids.shape[1]),
            **self.kv,
            **more,
        }
        logits, *written = self.program.run(None, feeds)
        self.kv = dict(zip(self.kv, written, strict=True))
        return np.asarray(logits)


def over_slots(family: str, arm: str, rows: int) -> Stepper:
    session = slots(family, arm)
    shapes = {i.name: i.shape for i in session.get_inputs() if i.name.startswith("past.")}
    return Stepper(
        session, {n: np.zeros((rows, s[1], POSITIONS, s[3]), np.float32) for n, s in shapes.items()}
    )


def over_pools(family: str, dtype: type = np.float32) -> Stepper:
    """Every block is poison: a read of what no step has written is NaN in the logits."""
    program = paged(family)
    infos = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in program.proto_.graph.input}
    shapes = {name: dims for name, dims in infos.items() if name.startswith("past.")}
    return Stepper(program, {n: np.full((N_BLOCKS, *s[1:]), np.nan, dtype) for n, s in shapes.items()})


def table(lengths: list[int]) -> np.ndarray:
    """The blocks that rows of these lengths have grown into; the rest of the table is the unowned block."""
    found = np.full((len(lengths), WIDTH), UNOWNED, np.int32)
    for row, length in enumerate(lengths):
        n = -(-length // BLOCK)
        found[row, :n] = BLOCKS[row][:n]
    return found


def run_all(stepper: Stepper) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for ids, (offsets, length) in zip(tokens(), STEPS, strict=True):
        found.append(stepper.step(ids, offsets, block_table=table([o + length for o in offsets])))
    return found


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


# Beside the plain one: windows and softcap, windows in some layers, norms of q and k, heads that turn in part
# and interleaved (embeddings of their own), no rotary embedding at all.
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "qwen3", "phi", "cohere", "gpt2"])
def test_a_paged_program_computes_what_slots_do(family: str) -> None:
    want = over_slots(family, "portable", 2)
    for ids, (offsets, _), got in zip(tokens(), STEPS, run_all(over_pools(family)), strict=True):
        assert_close(got, want.step(ids, offsets))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_each_row_of_a_paged_batch_is_the_fused_arm_alone(family: str) -> None:
    rows = [over_slots(family, "fused", 1) for _ in range(2)]
    for ids, (offsets, _), got in zip(tokens(), STEPS, run_all(over_pools(family)), strict=True):
        for row, alone in enumerate(rows):
            assert_close(got[row : row + 1], alone.step(ids[row : row + 1], [offsets[row]]))


def test_blocks_hold_what_slots_hold_and_the_others_are_untouched() -> None:
    pools, want = over_pools("llama"), over_slots("llama", "portable", 2)
    run_all(pools)
    for ids, (offsets, _) in zip(tokens(), STEPS, strict=True):
        want.step(ids, offsets)
    live = [offset + STEPS[-1][1] for offset in STEPS[-1][0]]
    for name, pool in pools.kv.items():
        written = ~np.isnan(pool).all(axis=(2, 3))
        assert not np.isnan(pool[written]).any()
        for row, length in enumerate(live):
            own = pool[list(BLOCKS[row])].reshape(-1, *pool.shape[2:])
            np.testing.assert_allclose(own[:length].swapaxes(0, 1), want.kv[name][row, :, :length], atol=2e-5)
        assert written.sum() == sum(live)


def test_it_runs_in_half_precision_too() -> None:
    half = Stepper(
        evaluator(standalone(emit(paged_ir("llama")), tiny_weights("llama"))),
        over_pools("llama", np.float16).kv,
    )
    for got, want in zip(run_all(half), run_all(over_pools("llama")), strict=True):
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, want, rtol=0, atol=0.05 * np.abs(want).max())


def after_prefill() -> tuple[Stepper, np.ndarray, np.ndarray]:
    """A stepper with 13 positions a row, the next step's tokens and its right logits."""
    stepper = over_pools("llama")
    stepper.step(tokens()[0], [0, 0], block_table=table([13, 13]))
    kept = stepper.kv
    want = stepper.step(tokens()[1], [13, 13], block_table=table([14, 14]))
    stepper.kv = kept
    return stepper, tokens()[1], want


def test_a_permuted_block_table_is_seen_in_the_logits() -> None:
    stepper, ids, want = after_prefill()
    got = stepper.step(ids, [13, 13], block_table=table([14, 14])[::-1].copy())
    assert np.abs(got - want).max() > 1e-2


def test_a_block_owned_by_no_one_is_poison_where_it_is_read() -> None:
    """The control of every comparison above: were unowned blocks read, the logits would be NaN."""
    stepper, ids, want = after_prefill()
    wrong = table([14, 14])
    wrong[0, 0] = UNOWNED
    got = stepper.step(ids, [13, 13], block_table=wrong)
    assert np.isnan(got[0]).all()
    assert_close(got[1], want[1])


def test_a_wrong_past_length_is_seen_in_the_logits() -> None:
    stepper, ids, want = after_prefill()
    got = stepper.step(ids, [12, 13], block_table=table([14, 14]))
    assert np.abs(got[0] - want[0]).max() > 1e-2
    assert_close(got[1], want[1])


Q, NEW, CACHE, OUT = (f"tensor<?x{dims}x16xf32>" for dims in ("4x?", "2x?", "2x?", "?x4"))


def described(name: str, role: str, dims: str, more: str = "") -> str:
    return f'{{plan.name = "{name}", plan.role = "{role}", plan.dims = [{dims}]{more}}}'


def kv(name: str, which: str) -> str:
    place = f', plan.which = "{which}", plan.layer = 0 : i64'
    return described(f"{name}.0.{which}", "kv", '"batch", "2", "capacity", "16"', place)


SINKS = f"""
func.func @sinks(
    %ids: tensor<?x?xi64> {described("input_ids", "token_ids", '"batch", "sequence"')},
    %at: tensor<?xi64> {described("write_offset", "write_offset", '"batch"')},
    %q: {Q} {described("q", "logit_positions", "")},
    %kn: {NEW} {described("kn", "logit_positions", "")}, %vn: {NEW} {described("vn", "logit_positions", "")},
    %k: {CACHE} {kv("past", "key")}, %v: {CACHE} {kv("past", "value")})
    -> ({OUT} {described("logits", "logits", '"batch", "sequence", "4", "16"')},
        {CACHE} {kv("present", "key")}, {CACHE} {kv("present", "value")}) {{
  %sinks = "plan.weight"() {{name = "sinks"}} : () -> tensor<4xf32>
  %kw = "plan.write_slice"(%k, %kn, %at) {{axis = 2 : i64}} : ({CACHE}, {NEW}, tensor<?xi64>) -> {CACHE}
  %vw = "plan.write_slice"(%v, %vn, %at) {{axis = 2 : i64}} : ({CACHE}, {NEW}, tensor<?xi64>) -> {CACHE}
  %a = "plan.attention"(%q, %kw, %vw, %at, %sinks)
    {{layer = 0 : i64, scale = 2.5e-01 : f32, window = 5 : i64, softcap = 3.0 : f32}}
    : ({Q}, {CACHE}, {CACHE}, tensor<?xi64>, tensor<4xf32>) -> {OUT}
  return %a, %kw, %vw : {OUT}, {CACHE}, {CACHE}
}}
"""


def attend(
    program: ReferenceEvaluator | onnxruntime.InferenceSession, cache: np.ndarray, **more: np.ndarray
) -> list[np.ndarray]:
    """Two steps of nine positions each, the second past a window of five. ``cache``: for K and for V."""
    kept = {"past.0.key": cache, "past.0.value": cache}
    rng, found = np.random.default_rng(1), []
    for at in (0, 9):
        feeds = {"input_ids": np.zeros((1, 9), np.int64), "write_offset": np.array([at]), **kept, **more}
        for name, heads in (("q", 4), ("kn", 2), ("vn", 2)):
            feeds[name] = 2 * rng.standard_normal((1, heads, 9, 16)).astype(np.float32)
        out, *written = program.run(None, feeds)
        kept = dict(zip(kept, written, strict=True))
        found.append(np.asarray(out))
    return found


def test_sinks_window_and_softcap_reach_the_kernel() -> None:
    weights = {"sinks": np.array([0.5, -1, 2, 0], np.float32)}
    module = parse_module(SINKS, make_context())
    half = as_half(module)
    pipeline = PAGED.replace(f"block-size={BLOCK}", "block-size=256")
    rest = REST.removesuffix(",verify-plan")  # which asks for a whole model's signature
    run_pipeline(half, f"{pipeline},{rest}", check_changed=True)
    program = evaluator(standalone(emit(as_single(half)), weights))
    pool = np.full((3, 256, 2, 16), np.nan, np.float32)
    got = attend(program, pool, block_table=np.array([[2]], np.int32))
    run_pipeline(
        module, f"select-attention{{arm=portable}},assign-placement,{REST.removesuffix(',verify-plan')}"
    )
    slot = np.zeros((1, 2, 32, 16), np.float32)

    def portable(sinks: np.ndarray) -> list[np.ndarray]:
        return attend(session_of(standalone(emit(module), {"sinks": sinks})), slot)

    for here, there, other in zip(
        got, portable(weights["sinks"]), portable(weights["sinks"] + 1), strict=True
    ):
        assert_close(here, there)
        assert np.abs(here - other).max() > 1e-2


def test_the_emitted_program_is_what_onnxruntime_declares() -> None:
    """Its types, attributes and arity pass ONNX Runtime's own check of the graph; then no kernel is found."""
    program = emit(paged_ir("llama", "bf16"))
    roles = {a.role: a for a in program.stages[0].stage.inputs}
    assert roles[ArgumentRole.BLOCK_TABLE].dtype == "int32"
    assert roles[ArgumentRole.KV_POOL].shape == ("blocks", BLOCK, 2, 16) and not program.kv_slots
    model = standalone(program, tiny_weights("llama"))
    onnx.checker.check_model(model)
    with pytest.raises(NoKernel):
        session_of(model)
    node = next(node for node in model.graph.node if node.op_type == "PagedAttention")
    node.input[6] = "write_offset"  # the control: int64 where the operator wants int32
    with pytest.raises(InvalidGraph, match="write_offset"):
        session_of(model)


def test_a_paged_program_over_two_devices_binds_the_block_table_on_both() -> None:
    module = as_half(prepared("llama"))
    place = 'assign-placement{place="layers[0:1]=cuda:0,layers[1:]=cuda:1"}'
    run_pipeline(module, f"{place},select-attention{{arm=paged}},{place},{REST}", check_changed=True)
    stages = emit(module).stages
    assert [stage.stage.device for stage in stages] == ["cuda:0", "cuda:1"]
    for layer, stage in enumerate(stages):
        names = {
            a.name for a in stage.stage.inputs if a.role in (ArgumentRole.KV_POOL, ArgumentRole.BLOCK_TABLE)
        }
        assert names == {"block_table", f"past.{layer}.key", f"past.{layer}.value"}
    with pytest.raises(PassError, match="does not run on the captured device"):
        run_pipeline(module, "verify-capture")


@pytest.mark.parametrize("family", ["llama", "phi", "gpt2"])
def test_a_paged_program_can_be_captured(family: str) -> None:
    """Also where an operation of its own turns heads, or adds a position's embedding."""
    paged_ir(family, last=f"{REST},verify-capture")


def test_a_paged_program_is_not_packaged() -> None:
    with pytest.raises(UnsupportedPlan, match="does not execute paged plans") as caught:
        refuse_paged(emit(paged_ir("llama")))
    assert caught.value.code == "unsupported-plan" and isinstance(caught.value, CompileError)


def test_compiling_a_paged_plan_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    checkpoint = make_tiny_model("llama", tmp_path / "model", tokenizer=False).directory
    rope = f"tabulate-positions{{max-seq-len={POSITIONS}}},fuse-rope"
    pipeline = f"convert-torch-to-onnx,canonicalize,cse,{rope},{PAGED},{REST}"
    options = CompileOptions(
        str(checkpoint), tmp_path / "plan", dtype="float16", max_seq_len=POSITIONS, pass_pipeline=pipeline
    )
    with pytest.raises(UnsupportedPlan, match="does not execute paged plans"):
        compile_checkpoint(options)
    assert not (tmp_path / "plan").exists()


def test_a_program_over_slots_is_packaged() -> None:
    module = prepared("llama").operation.clone()
    run_pipeline(module, f"select-attention,assign-placement,{REST}")
    program: EmittedProgram = emit(module)
    refuse_paged(program)
    assert not program.is_paged and program.kv_slots
