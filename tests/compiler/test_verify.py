"""`planonce verify`: its figures against figures made another way, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from planonce.compiler.checkpoint import open_checkpoint
from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions
from planonce.compiler.reference_model import load_reference
from planonce.compiler.verify import DEFAULT_TEXT, compare_logits, verify_plan
from planonce.runtime.errors import CompileError

sys.path.insert(0, str(Path(__file__).parent))
from quantised_gguf import write_quantised_llama
from tiny_models import make_tiny_model

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom."


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_quantised_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf", {}, default="q4_0", tied=True)


@pytest.fixture(scope="module")
def plan(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("plans") / "f32"
    compile_checkpoint(CompileOptions(str(gguf), output, dtype="float32", self_check=False))
    return output


def test_figures_are_torchs() -> None:
    import torch

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50, 101).tolist()
    theirs = rng.standard_normal((101, 50)).astype(np.float32) * 3
    ours = theirs + rng.standard_normal((101, 50)).astype(np.float32)
    at = {"plan": 0, "reference": 0}

    def give(which: str, values: np.ndarray):  # type: ignore[no-untyped-def]
        def logits(ids: list[int]) -> np.ndarray:
            start = at[which]
            at[which] += len(ids)
            return values[start : start + len(ids)]

        return logits

    found = compare_logits(give("plan", ours), give("reference", theirs), tokens, window=40)
    p, q = (torch.from_numpy(values).double().log_softmax(-1) for values in (theirs, ours))
    divergence = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1)
    assert found.mean_kl == pytest.approx(divergence.mean().item())
    assert found.max_kl == pytest.approx(divergence.max().item())
    assert found.top1_agreement == pytest.approx((p.argmax(-1) == q.argmax(-1)).double().mean().item())
    # the last position of each window has no next token in it
    predicts = [i for i in range(100) if i % 40 != 39]
    following = torch.tensor([tokens[i + 1] for i in predicts])
    for logs, perplexity in ((q, found.perplexity), (p, found.reference_perplexity)):
        assert perplexity == pytest.approx(
            torch.nn.functional.nll_loss(logs[predicts], following).exp().item()
        )


def test_a_plan_agrees_with_its_own_checkpoint_and_not_with_another(
    plan: Path, gguf: Path, tmp_path: Path
) -> None:
    found = verify_plan(plan, open_checkpoint(gguf), TEXT, window=32, threads=1)
    assert found.top1_agreement == 1 and found.max_kl < 1e-8
    assert found.perplexity == pytest.approx(found.reference_perplexity, rel=1e-4)
    other = write_quantised_llama(tmp_path / "other.gguf", {}, default="q4_0", tied=True, seed=1)
    wrong = verify_plan(plan, open_checkpoint(other), TEXT, window=32, max_tokens=40, threads=1)
    assert wrong.positions == 40
    assert wrong.top1_agreement < 0.5 and wrong.mean_kl > 0.01


@pytest.mark.parametrize("family", ["gemma2", "gpt2"])
def test_the_reference_is_the_checkpoints_model(family: str, tmp_path: Path) -> None:
    """Buffers that no checkpoint holds (rotary frequencies, an embedding scale) and ties included."""
    import torch

    tiny = make_tiny_model(family, tmp_path)
    ids = torch.tensor([[3, 7, 50, 9, 11, 200]])
    found = load_reference(open_checkpoint(tmp_path))(ids).logits
    torch.testing.assert_close(found, tiny.model(ids).logits, rtol=1e-5, atol=1e-5)


def test_the_command_prints_json(plan: Path, gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    program = "import typer; from planonce.compiler.verify_cli import verify_command as run; typer.run(run)"
    command = [sys.executable, "-P", "-c", program, str(plan), "--reference", str(gguf), "--json"]
    more = ["--text", str(tmp_path / "text.txt"), "--threads", "1"]
    done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["top1_agreement"] == 1


def test_what_cannot_be_compared_is_refused(plan: Path, gguf: Path) -> None:
    with pytest.raises(CompileError, match="too short"):
        verify_plan(plan, open_checkpoint(gguf), "")


def test_the_text_that_ships_is_long_enough_to_mean_something() -> None:
    assert 800 < len(DEFAULT_TEXT.read_text(encoding="utf-8").split()) < 1500
