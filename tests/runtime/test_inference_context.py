"""P17: values that outlive calls, programs over them, symbols bound once, and at most one held session."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from handmade_plan import Tiny
from kv_support import CLOSE, PROMPT, WRONG, Reference, distance, filled
from onnx import TensorProto, helper

from planonce.runtime import InferenceContext, Plan, SymEnv, process_counters
from planonce.runtime.errors import LayoutError, PlanError, RequestError, SymbolError
from planonce.runtime.ort import OrtProgram, ProgramOptions, Tensor

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def program(nodes: list, inputs: list, outputs: list) -> bytes:
    values = [[helper.make_tensor_value_info(*v) for v in side] for side in (inputs, outputs)]
    model = helper.make_model(
        helper.make_graph(nodes, "small", *values), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    return model.SerializeToString()


def affine() -> bytes:
    """y = x @ w + b, z = y * y; w and b are meant to persist."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["y"]),
        helper.make_node("Mul", ["y", "y"], ["z"]),
    ]
    inputs = [("x", F32, ["n", "k"]), ("w", F32, ["k", "m"]), ("b", F32, ["m"])]
    return program(nodes, inputs, [("y", F32, ["n", "m"]), ("z", F32, ["n", "m"])])


def masked_sum() -> bytes:
    """The sum of x's first cached_len elements: what a wrong length changes."""
    nodes = [
        helper.make_node("Constant", [], ["zero"], value=helper.make_tensor("", I64, [1], [0])),
        helper.make_node("Slice", ["x", "zero", "cached_len"], ["live"]),
        helper.make_node("ReduceSum", ["live"], ["total"], keepdims=1),
    ]
    return program(nodes, [("x", F32, ["n"]), ("cached_len", I64, [1])], [("total", F32, [1])])


def nonzero() -> bytes:
    nodes = [helper.make_node("NonZero", ["x"], ["where"])]
    return program(nodes, [("x", F32, ["n"])], [("where", I64, [1, "found"])])


@pytest.fixture
def context() -> InferenceContext:
    made = InferenceContext()
    made.define("affine", affine())
    made.define("masked sum", masked_sum())
    made.define("nonzero", nonzero())
    return made


RNG = np.random.default_rng(3)
X, W, B = (RNG.standard_normal(s).astype(np.float32) for s in ((2, 3), (3, 4), (4,)))


# --- the map ------------------------------------------------------------------------------------------


def test_map_inserts_replaces_removes_counts_and_clears(context: InferenceContext) -> None:
    array = W.copy()
    kept = context.insert("w", array)
    array[:] = 0  # the caller's array is the caller's
    assert np.array_equal(kept.to_numpy(), W)
    assert context.get("w") is kept
    assert context.contains("w")
    assert "w" in context
    assert context.len() == len(context) == 1
    context.insert("w", B)
    assert context.len() == 1
    assert context.get("w") is not kept
    assert context.remove("w") is not None
    assert context.remove("w") is None
    assert context.get("w") is None
    assert not context.contains("w")
    context.insert("a", X)
    context.insert("b", X)
    context.clear()
    assert context.len() == 0
    context.realize_many("affine", {"x": X, "w": W, "b": B})  # programs stay


def test_values_survive_realizing_and_are_sent_once(context: InferenceContext) -> None:
    w, b = context.insert("w", W), context.insert("b", B)
    for _ in range(5):
        y, z = context.realize_many("affine", {"x": X})
        assert np.allclose(y, X @ W + B, atol=1e-6)
        assert np.allclose(z, (X @ W + B) ** 2, atol=1e-5)
    assert context.uploads == 2
    assert context.get("w") is w
    assert context.get("b") is b
    assert np.array_equal(w.to_numpy(), W)


def test_a_feed_goes_before_a_kept_value(context: InferenceContext) -> None:
    context.insert("w", W)
    context.insert("b", B)
    assert np.allclose(context.realize_many("affine", {"x": X, "b": -B})[0], X @ W - B, atol=1e-6)


def test_bfloat16_travels_as_uint16(context: InferenceContext) -> None:
    import ml_dtypes

    values = np.array([1.5, -2.0], dtype=ml_dtypes.bfloat16)
    by_carrier = context.insert("a", values.view(np.uint16), dtype="bfloat16")
    assert by_carrier.dtype == context.insert("b", values).dtype == "bfloat16"
    assert np.array_equal(by_carrier.to_numpy(), values.view(np.uint16))
    for bad in (np.array(["x"]), np.array([object()])):
        with pytest.raises(LayoutError):
            context.insert("c", bad)
    with pytest.raises(LayoutError):
        context.insert("c", np.zeros((2, 2), np.float32), dtype="bfloat16")


# --- realize ------------------------------------------------------------------------------------------


def test_realize_one_wants_exactly_one_result(context: InferenceContext) -> None:
    assert context.realize_one("masked sum", {"x": B}, env=SymEnv(cached_len=4)) == pytest.approx(B.sum())
    with pytest.raises(RequestError, match="more than one"):
        context.realize_one("affine", {"x": X, "w": W, "b": B})


def test_realize_many_gives_the_results_asked_for_in_order(context: InferenceContext) -> None:
    feeds = {"x": X, "w": W, "b": B}
    (z,) = context.realize_many("affine", feeds, outputs=["z"])
    again_z, again_y = context.realize_many("affine", feeds, outputs=["z", "y"])
    assert np.array_equal(z, again_z)
    assert np.array_equal(again_y * again_y, z)
    with pytest.raises(RequestError, match="no such result"):
        context.realize_many("affine", feeds, outputs=["w"])


@pytest.mark.parametrize("n_host", [0, 1, 2])
def test_realize_split_leaves_the_rest_on_the_device_and_it_can_be_kept(
    context: InferenceContext, n_host: int
) -> None:
    host, device = context.realize_split("affine", n_host, {"x": X, "w": W, "b": B})
    assert [type(v) for v in host] == [np.ndarray] * n_host
    assert [type(v) for v in device] == [Tensor] * (2 - n_host)
    expected = [X @ W + B, (X @ W + B) ** 2]
    for got, want in zip([*host, *(t.to_numpy() for t in device)], expected, strict=True):
        assert np.allclose(got, want, atol=1e-5)
    if device:
        uploads = context.uploads
        context.insert("kept", device[-1])
        assert context.uploads == uploads
        context.realize_split("affine", n_host, {"x": -X, "w": W, "b": B})  # its results are its own
        assert np.allclose(device[-1].to_numpy(), expected[-1], atol=1e-5)


@pytest.mark.parametrize("n_host", [-1, 3])
def test_realize_split_out_of_range_is_refused(context: InferenceContext, n_host: int) -> None:
    with pytest.raises(RequestError, match="host"):
        context.realize_split("affine", n_host, {"x": X, "w": W, "b": B})


def test_result_of_a_size_only_the_run_knows(context: InferenceContext) -> None:
    prebuilt = context.prebuild("nonzero", {"x": np.zeros(4, np.float32)})
    for values in ([0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 5, 0]):
        x = np.array(values, np.float32)
        (where,) = context.realize_prebuilt(prebuilt, {"x": x}).to_host()
        assert np.array_equal(where, np.nonzero(x)[0][None])


def test_what_is_wrong_is_named(context: InferenceContext) -> None:
    good = {"x": X, "w": W, "b": B}
    with pytest.raises(RequestError, match="no such program"):
        context.realize_one("missing", {})
    with pytest.raises(RequestError, match="no such input"):
        context.realize_many("affine", {**good, "v": B})
    with pytest.raises(RequestError, match="no value"):
        context.realize_many("affine", {"x": X, "w": W})
    with pytest.raises(LayoutError, match="wrong dtype"):
        context.realize_many("affine", {**good, "b": B.astype(np.float64)})
    with pytest.raises(LayoutError, match="does not fit"):
        context.realize_many("affine", {**good, "b": B[None]})
    with pytest.raises(PlanError):
        context.define("bad", b"not a program")


# --- symbols ------------------------------------------------------------------------------------------


def test_symbols_are_write_once() -> None:
    env = SymEnv(cached_len=3)
    env.bind("cached_len", 3)
    with pytest.raises(SymbolError, match="bound twice"):
        env.bind("cached_len", 4)
    assert env["cached_len"] == 3
    with pytest.raises(SymbolError, match="unbound"):
        env["attended_len"]
    assert env.get("attended_len") is None
    for bad in (-1, 1.0, True, "3"):
        with pytest.raises(SymbolError):
            SymEnv(n=bad)  # type: ignore[arg-type]
    inner = env.scope()
    inner.bind("n", 1)
    assert "n" not in env
    assert len(inner) == 2


def test_unbound_symbol_is_refused_and_a_wrong_one_moves_the_result(context: InferenceContext) -> None:
    context.insert("x", np.arange(1, 9, dtype=np.float32))
    with pytest.raises(SymbolError, match="cached_len"):
        context.realize_one("masked sum")
    right = context.realize_one("masked sum", env=SymEnv(cached_len=5))
    wrong = context.realize_one("masked sum", env=SymEnv(cached_len=6))
    assert (right, wrong) == (15, 21)


def test_sizes_bind_dimension_names_and_a_disagreement_is_refused(context: InferenceContext) -> None:
    with pytest.raises(SymbolError, match="'k' is bound twice"):
        context.realize_many("affine", {"x": X, "w": W[:2], "b": B})
    with pytest.raises(SymbolError, match="'n' is bound twice"):
        context.realize_many("affine", {"x": X, "w": W, "b": B}, env=SymEnv(n=3))
    env = SymEnv(n=2)
    context.realize_many("affine", {"x": X, "w": W, "b": B}, env=env)
    assert env.as_dict() == {"n": 2}  # one call's sizes are not another's


# --- prebuilt -----------------------------------------------------------------------------------------


def test_prebuilt_runs_on_new_feeds_and_symbols_with_nothing_made_anew(context: InferenceContext) -> None:
    context.insert("x", np.arange(1, 9, dtype=np.float32))
    prebuilt = context.prebuild("masked sum", env=SymEnv(cached_len=1))
    binds, sessions = prebuilt._binding.bind_calls, process_counters().ort_sessions
    totals = [context.realize_prebuilt(prebuilt, env=SymEnv(cached_len=n)).to_host()[0] for n in (1, 2, 3, 8)]
    assert totals == [1, 3, 6, 36]
    assert prebuilt._binding.bind_calls == binds
    assert process_counters().ort_sessions == sessions
    assert context.realize_prebuilt(prebuilt).to_host()[0] == 36  # what is not given keeps its value
    with pytest.raises(SymbolError, match="bound twice"):
        context.realize_prebuilt(prebuilt, env=SymEnv(n=9))


def test_prebuilt_sees_a_replaced_value_and_refuses_a_removed_or_resized_one(
    context: InferenceContext,
) -> None:
    context.insert("w", W)
    context.insert("b", B)
    prebuilt = context.prebuild("affine", {"x": X})
    assert np.allclose(context.realize_prebuilt(prebuilt).to_host()[0], X @ W + B, atol=1e-6)
    context.insert("w", -W)
    assert np.allclose(context.realize_prebuilt(prebuilt).to_host()[0], X @ -W + B, atol=1e-6)
    context.insert("w", W[:, :3])
    with pytest.raises(LayoutError, match="another layout"):
        context.realize_prebuilt(prebuilt)
    context.remove("w")
    with pytest.raises(RequestError, match="removed"):
        context.realize_prebuilt(prebuilt)


def test_prebuilt_refuses_other_sizes_before_it_writes(context: InferenceContext) -> None:
    context.insert("w", W)
    context.insert("b", B)
    prebuilt = context.prebuild("affine", {"x": X})
    for bad in (X[:1], X.astype(np.float64)):
        with pytest.raises(LayoutError):
            context.realize_prebuilt(prebuilt, {"x": bad})
    with pytest.raises(RequestError, match="not fed"):
        context.realize_prebuilt(prebuilt, {"x": -X, "w": W})
    assert np.allclose(context.realize_prebuilt(prebuilt).to_host()[0], X @ W + B, atol=1e-6)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_plans_stage_realized_with_its_offset_as_a_symbol(tiny_plan: Plan, tiny: Tiny, shift: int) -> None:
    """The stage writes into kept KV in place; an offset that is one too far moves the logits."""
    cache = filled(tiny_plan, PROMPT)
    context = InferenceContext()
    tied = {}
    for layer in range(2):
        for which in ("key", "value"):
            storage = cache.slot_storage(layer, which)
            assert storage is not None
            context.insert(f"past.{layer}.{which}", storage.tensor)
            tied[f"present.{layer}.{which}"] = f"past.{layer}.{which}"
    stage = tiny_plan.open(cache).program.stages[0].program
    feeds = {"input_ids": np.zeros((1, 1), np.int64), "logit_positions": np.zeros(1, np.int64)}
    with pytest.raises(SymbolError, match="write_offset"):
        context.prebuild(stage, feeds)
    env = SymEnv(write_offset=0)
    prebuilt = context.prebuild(stage, feeds, env=env, outputs=["logits"], in_place=tied)
    history = list(PROMPT)
    far = 0.0
    for token in (9, 60, 33):
        env = SymEnv(write_offset=len(history) + shift)
        feeds = {"input_ids": np.array([[token]], np.int64)}
        (logits,) = context.realize_prebuilt(prebuilt, feeds, env=env).to_host()
        history.append(token)
        far = max(far, distance(logits[0, 0], Reference(tiny)(history)))
    assert far < CLOSE if shift == 0 else far > WRONG


def test_in_place_ties_only_to_what_is_kept(tiny_plan: Plan, context: InferenceContext) -> None:
    with pytest.raises(RequestError, match="in_place"):
        context.prebuild("affine", {"x": X, "w": W, "b": B}, in_place={"y": "x"})


# --- the held session ---------------------------------------------------------------------------------


def test_at_most_one_session_is_held_and_taking_it_leaves_none(tiny_plan: Plan) -> None:
    context = InferenceContext()
    assert not context.has_session()
    assert context.take_session() is None
    first, second = tiny_plan.open(), tiny_plan.open()
    context.put_session(first)
    context.put_session(second)
    context.insert("x", X)
    context.clear()
    assert context.has_session()
    assert context.take_session() is second
    assert not context.has_session()
    assert context.take_session() is None


def test_a_session_is_taken_by_one_thread_only(tiny_plan: Plan) -> None:
    context = InferenceContext()
    for _ in range(50):
        context.put_session(tiny_plan.open())
        taken: list[object] = []
        take = lambda to=taken: to.append(context.take_session())  # noqa: E731
        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(t is not None for t in taken) == 1


def test_programs_of_other_contexts_can_be_run(context: InferenceContext) -> None:
    loaded = OrtProgram(affine(), ProgramOptions())
    assert np.allclose(context.realize_many(loaded, {"x": X, "w": W, "b": B})[0], X @ W + B, atol=1e-6)
