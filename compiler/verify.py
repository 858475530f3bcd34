"""How far a plan's answers are from the reference's, over a text: agreement, KL divergence, perplexity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from planonce.runtime.errors import CompileError

from .progress import Progress, SilentProgress

if TYPE_CHECKING:
    from .checkpoint import Checkpoint

__all__ = ["DEFAULT_TEXT", "DEFAULT_WINDOW", "Comparison", "compare_logits", "verify_plan"]

# The first chapter of Pride and Prejudice, about 1,000 tokens.
DEFAULT_TEXT = Path(__file__).with_name("verify_text.txt")
DEFAULT_WINDOW = 512
# Rows of logits in float64 at a time; a vocabulary may have 260,000 entries.
_ROWS = 32


@dataclass(frozen=True, slots=True)
class Comparison:
    """Over ``positions``, each fed the text's own tokens before it, in windows that begin afresh.

    ``top1_agreement``: share of positions where both find the same token likeliest. ``mean_kl``, ``max_kl``:
    of the plan's distribution from the reference's, in nats. Perplexities: of the text's next token.
    """

    positions: int
    window: int
    top1_agreement: float
    mean_kl: float
    max_kl: float
    perplexity: float
    reference_perplexity: float


class LogitSource(Protocol):
    """Something with logits: tokens of one window -> float32 [tokens, vocabulary]."""

    def __call__(self, tokens: Sequence[int], /) -> np.ndarray: ...


def verify_plan(
    plan: Path,
    reference: Checkpoint,
    text: str,
    *,
    window: int = DEFAULT_WINDOW,
    max_tokens: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare the plan with its reference over ``text``, cut after ``max_tokens``.

    Raises CompileError when there is nothing to compare, and what loading either can raise.
    """
    import torch

    from planonce.runtime import Plan

    from .reference_model import load_reference

    progress = progress or SilentProgress()
    tokens = _encode(reference, text)[:max_tokens]
    if len(tokens) < 2:
        raise CompileError(
            "The text is too short to compare anything.", found=f"{len(tokens)} tokens", expected="at least 2"
        )
    loaded = Plan.load(plan, threads=threads)
    if loaded.model.vocab_size != int(reference.config.vocab_size):
        raise CompileError(
            "The plan was not made from this checkpoint or one like it.",
            found=f"{loaded.model.vocab_size} tokens in the plan's vocabulary",
            expected=str(reference.config.vocab_size),
            todo="Give the checkpoint that the plan was compiled from.",
        )
    window = min(window, loaded.model.max_seq_len)
    torch.set_num_threads(loaded.threads)
    progress.start("reference", reference.weights.nbytes, "bytes")
    model = load_reference(reference, progress)
    progress.finish()

    def reference_logits(ids: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()

    def plan_logits(ids: Sequence[int]) -> np.ndarray:
        return loaded.open(capacity=window).prefill(ids, num_logits=len(ids))

    return compare_logits(plan_logits, reference_logits, tokens, window=window, progress=progress)


def compare_logits(
    plan: LogitSource,
    reference: LogitSource,
    tokens: Sequence[int],
    *,
    window: int,
    progress: Progress | None = None,
) -> Comparison:
    """The figures, window by window."""
    progress = progress or SilentProgress()
    same: list[np.ndarray] = []
    divergence: list[np.ndarray] = []
    own_loss: list[np.ndarray] = []
    reference_loss: list[np.ndarray] = []
    progress.start("compare", len(tokens))
    for start in range(0, len(tokens), window):
        ids = tokens[start : start + window]
        ours, theirs = plan(ids), reference(ids)
        for rows in _slices(len(ids)):
            log_p, log_q = _log_softmax(theirs[rows]), _log_softmax(ours[rows])
            same.append(log_p.argmax(axis=-1) == log_q.argmax(axis=-1))
            divergence.append((np.exp(log_p) * (log_p - log_q)).sum(axis=-1))
            following = np.array(ids[rows.start + 1 : rows.stop + 1], dtype=np.int64)
            at = np.arange(len(following))
            own_loss.append(-log_q[at, following])
            reference_loss.append(-log_p[at, following])
        progress.advance(len(ids), f"{start + len(ids)} tokens")
    progress.finish()
    kl = np.concatenate(divergence)
    return Comparison(
        positions=len(tokens),
        window=window,
        top1_agreement=float(np.concatenate(same).mean()),
        mean_kl=float(kl.mean()),
        max_kl=float(kl.max()),
        perplexity=float(np.exp(np.concatenate(own_loss).mean())),
        reference_perplexity=float(np.exp(np.concatenate(reference_loss).mean())),
    )


def _slices(n: int) -> Iterator[slice]:
    for start in range(0, n, _ROWS):
        yield slice(start, min(start + _ROWS, n))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def _encode(reference: Checkpoint, text: str) -> list[int]:
    from tokenizers import Tokenizer

    if reference.tokenizer is None:
        raise CompileError(
            "The reference has no tokenizer.", where=reference.source, todo="Give a checkpoint that has one."
        )
    tokenizer = Tokenizer.from_buffer(reference.tokenizer.tokenizer_json)
    tokenizer.no_truncation()
    return list(tokenizer.encode(text).ids)
