"""What a compile is asked for, and what it says when it is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from planonce.runtime.errors import CompileError
from planonce.runtime.manifest import AttentionChoice

from .weights_writer import WeightMode

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["ATTENTION", "DEFAULT_MAX_SEQ_LEN", "CompileOptions", "CompileReport", "choose_max_seq_len"]

# A model's own maximum may be 131072: more positions than most callers will ever allocate a cache for.
DEFAULT_MAX_SEQ_LEN = 8192
ATTENTION = ("auto", "fused", "portable")
DTYPES = ("float32",)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """``checkpoint``: directory, ``.gguf`` file or ``package:NAME``. ``output``: the plan directory.

    ``max_seq_len``: the largest cache the plan may be opened with; None: the model's own, at most 8192.
    ``pass_pipeline`` replaces the default one whole, so it excludes ``attention``. ``dump_ir``: a directory
    for the IR after each pass. ``example_cached_len`` shapes the trace's example and must change nothing.
    """

    checkpoint: str
    output: Path
    dtype: str = "float32"
    max_seq_len: int | None = None
    attention: str = "auto"
    pass_pipeline: str | None = None
    dump_ir: Path | None = None
    weights: WeightMode = WeightMode.EMBED
    force: bool = False
    self_check: bool = True
    example_cached_len: int = 8

    def check(self) -> None:
        """What can be refused before anything is opened. Raises CompileError."""
        if self.max_seq_len is not None and self.max_seq_len < 1:
            raise CompileError(
                "The maximum sequence length must be at least 1.",
                found=str(self.max_seq_len),
                where="--max-seq-len",
            )
        if self.dtype not in DTYPES:
            raise CompileError(
                "This dtype of arithmetic is not available on the CPU.",
                found=self.dtype,
                expected=" or ".join(DTYPES),
                where="--dtype",
                todo="Checkpoints in bfloat16 or float16 are converted as they are compiled.",
            )
        if self.attention not in ATTENTION:
            raise CompileError(
                "There is no such attention arm.",
                found=self.attention,
                expected=", ".join(ATTENTION),
                where="--attention",
            )
        if self.pass_pipeline is not None and self.attention != "auto":
            raise CompileError(
                "--attention and --pass-pipeline exclude each other.",
                found=f"--attention {self.attention}",
                todo=f"Write select-attention{{arm={self.attention}}} into the pipeline.",
            )


@dataclass(frozen=True, slots=True)
class CompileReport:
    """A finished compile. ``seconds`` by phase in order; sizes and ``peak_rss`` in bytes.

    ``written_bytes``: weights laid out anew; ``linked_bytes``: checkpoint files that the plan shares or
    holds a copy of; ``referenced_bytes``: weights that stay with the checkpoint.
    """

    path: Path
    family: str
    architecture: str
    n_layers: int
    dtype: str
    max_seq_len: int
    shape_key: str
    seconds: dict[str, float]
    written_bytes: int
    linked_bytes: int
    referenced_bytes: int
    plan_bytes: int
    n_nodes: int
    attention: tuple[AttentionChoice, ...]
    peak_rss: int
    remarks: tuple[str, ...] = ()
    self_check: dict[str, float] = field(default_factory=dict)

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())


def choose_max_seq_len(config: PretrainedConfig, wanted: int | None) -> int:
    """``wanted`` if the model can address that many positions. Raises CompileError.

    A configuration that names no maximum (ALiBi, for one) is taken at its word: there is none.
    """
    limit = getattr(config, "max_position_embeddings", None)
    limit = limit if isinstance(limit, int) and limit > 0 else None
    if wanted is None:
        return min(limit or DEFAULT_MAX_SEQ_LEN, DEFAULT_MAX_SEQ_LEN)
    if wanted < 1 or (limit is not None and wanted > limit):
        raise CompileError(
            "The maximum sequence length is out of the model's range.",
            found=str(wanted),
            expected=f"1 to {limit}" if limit else "at least 1",
            where="--max-seq-len",
            todo="Leave the option out to take what the model allows.",
        )
    return wanted
