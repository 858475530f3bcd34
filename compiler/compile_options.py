"""What a compile is asked for, and what it says when it is done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from planonce.runtime.errors import CompileError, UnsupportedPlan
from planonce.runtime.manifest import AttentionChoice

from .weights_writer import WeightMode

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from .checkpoint import WeightIndex

__all__ = [
    "ATTENTION", "DEFAULT_BLOCK_SIZE", "DEFAULT_MAX_SEQ_LEN", "ROUNDED", "CompileOptions", "CompileReport",
    "choose_arithmetic", "choose_dtype", "choose_max_seq_len", "refuse_without_kernels",
]  # fmt: skip

# A model's own maximum may be 131072: more positions than most callers will ever allocate a cache for.
DEFAULT_MAX_SEQ_LEN = 8192
ATTENTION = ("auto", "fused", "portable")
ARITHMETIC = ("float32", "float16", "bfloat16")
DTYPES = ("keep", *ARITHMETIC, "int8", "int4")
ROUNDED = ("int8", "int4")
DEFAULT_BLOCK_SIZE = 32
BLOCK_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """``checkpoint``: directory, ``.gguf`` file or ``package:NAME``. ``output``: the plan directory.

    ``dtype``: what the weights of linears and the embedding are kept in. "keep": the blocks that a GGUF file
    stores; "int8", "int4": rounded to blocks of ``block_size``, whose minima are kept too unless
    ``symmetric`` (default: only int8 beside 16-bit arithmetic is); None: keep for a file that has blocks, the
    arithmetic's dtype for the rest.
    ``arithmetic``: what values between operations and the KV cache are, and the weights that are in no
    blocks; None: the same as ``dtype`` where that is a float dtype, else float32.
    ``compensate``: linears multiply what rounding their inputs left over too, so that only the weights are
    rounded (compensate-rounding); default: those of int8 in float32 do.
    ``max_seq_len``: the largest cache the plan may be opened with; None: the model's own, at most 8192.
    ``place``: which device holds which layers; empty: all on cpu:0. ``greedy_head``: the program also gives
    the likeliest next token. ``pass_pipeline`` replaces the default one whole, so it excludes ``attention``,
    ``place`` and ``greedy_head``. ``dump_ir``: a directory for the IR after each
    pass. ``packed``: also make the program for machines like this one, where there is something to gain
    (packed_program.py). ``example_cached_len`` shapes the trace's example and must change nothing.
    """

    checkpoint: str
    output: Path
    dtype: str | None = None
    arithmetic: str | None = None
    block_size: int = DEFAULT_BLOCK_SIZE
    symmetric: bool | None = None
    compensate: bool | None = None
    max_seq_len: int | None = None
    attention: str = "auto"
    place: str = ""
    greedy_head: bool = False
    pass_pipeline: str | None = None
    dump_ir: Path | None = None
    weights: WeightMode = WeightMode.EMBED
    force: bool = False
    self_check: bool = True
    packed: bool = True
    example_cached_len: int = 8

    def check(self) -> None:
        """What can be refused before anything is opened. Raises CompileError."""
        if self.max_seq_len is not None and self.max_seq_len < 1:
            raise CompileError(
                "The maximum sequence length must be at least 1.",
                found=str(self.max_seq_len),
                where="--max-seq-len",
            )
        if self.dtype is not None and self.dtype not in DTYPES:
            raise CompileError(
                "Weights cannot be kept in this dtype.",
                found=self.dtype,
                expected=", ".join(DTYPES),
                where="--dtype",
                todo="Checkpoints in another dtype are converted as they are compiled.",
            )
        self._check_arithmetic()
        if self.block_size not in BLOCK_SIZES:
            raise CompileError(
                "There are no blocks of this size.",
                found=str(self.block_size),
                expected=", ".join(str(each) for each in BLOCK_SIZES),
                where="--block-size",
            )
        if self.attention not in ATTENTION:
            raise CompileError(
                "There is no such attention arm.",
                found=self.attention,
                expected=", ".join(ATTENTION),
                where="--attention",
            )
        if self.pass_pipeline is not None and self.place:
            raise CompileError(
                "--place and --pass-pipeline exclude each other.",
                found=f"--place {self.place}",
                todo='Write assign-placement{place="..."} into the pipeline, before select-attention.',
            )
        if self.place:
            # An unreadable policy is refused before the checkpoint is opened.
            from planonce.passes.placement_policy import parse_policy

            parse_policy(self.place)
        if self.pass_pipeline is not None and self.dtype in ROUNDED:
            raise CompileError(
                "--dtype and --pass-pipeline exclude each other.",
                found=f"--dtype {self.dtype}",
                todo=f"Write quantize-weights{{scheme={self.dtype} block={self.block_size}}} into it.",
            )
        if self.pass_pipeline is not None and self.attention != "auto":
            raise CompileError(
                "--attention and --pass-pipeline exclude each other.",
                found=f"--attention {self.attention}",
                todo=f"Write select-attention{{arm={self.attention}}} into the pipeline.",
            )
        if self.pass_pipeline is not None and self.compensate is not None:
            raise CompileError(
                "--compensate and --pass-pipeline exclude each other.",
                found="--compensate" if self.compensate else "--no-compensate",
                todo="Write compensate-rounding into the pipeline after quantize-weights, or leave it out.",
            )
        if self.pass_pipeline is not None and self.greedy_head:
            raise CompileError(
                "--greedy-head and --pass-pipeline exclude each other.",
                found="--greedy-head",
                todo="Write append-greedy-head into the pipeline, before insert-copies.",
            )

    @property
    def is_symmetric(self) -> bool:
        """``symmetric``, or the default: without minima 8 bits lose little, and with them a linear that no
        packed program computes is slower."""
        if self.symmetric is not None:
            return self.symmetric
        return self.dtype == "int8" and not self._is_plain_int8

    @property
    def compensates(self) -> bool:
        return self._is_plain_int8 if self.compensate is None else self.compensate

    @property
    def _is_plain_int8(self) -> bool:
        return self.dtype == "int8" and choose_arithmetic(self.dtype, self.arithmetic) == "float32"

    def _check_arithmetic(self) -> None:
        if self.arithmetic is not None and self.arithmetic not in ARITHMETIC:
            raise CompileError(
                "There is no arithmetic in this dtype.",
                found=self.arithmetic,
                expected=", ".join(ARITHMETIC),
                where="--arithmetic",
            )
        if self.dtype in ARITHMETIC and self.arithmetic not in (None, self.dtype):
            # A product has one dtype: another for its weights would be a conversion at every token.
            raise CompileError(
                "Weights that are in no blocks have the dtype of the arithmetic.",
                found=f"--dtype {self.dtype} --arithmetic {self.arithmetic}",
                expected="one dtype for both, or --dtype keep, int8 or int4",
                todo=f"Leave out --dtype, or --arithmetic for {self.dtype}.",
            )
        if not self.place and self.pass_pipeline is None:
            refuse_without_kernels(choose_arithmetic(self.dtype, self.arithmetic), ["cpu:0"])


@dataclass(frozen=True, slots=True)
class CompileReport:
    """A finished compile. ``seconds`` by phase in order; sizes and ``peak_rss`` in bytes.

    ``dtype``, ``arithmetic``: as asked for or chosen; ``weight_formats``: the quantised formats in the plan.
    ``written_bytes``: weights laid out anew; ``linked_bytes``: checkpoint files that the plan shares or
    holds a copy of; ``referenced_bytes``: weights that stay with the checkpoint.
    """

    path: Path
    family: str
    architecture: str
    n_layers: int
    dtype: str
    arithmetic: str
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
    weight_formats: tuple[str, ...] = ()
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


def choose_arithmetic(dtype: str | None, wanted: str | None) -> str:
    """``wanted``, or the weights' own dtype where they are to be floats, else float32."""
    if wanted is not None:
        return wanted
    return dtype if dtype in ARITHMETIC else "float32"


def choose_dtype(weights: WeightIndex, wanted: str | None, arithmetic: str) -> str:
    """``wanted``, or "keep" for a checkpoint that stores weights in blocks, ``arithmetic`` for any other."""
    if wanted is not None:
        return wanted
    return "keep" if any(entry.block_type is not None for entry in weights.values()) else arithmetic


def refuse_without_kernels(arithmetic: str, devices: Iterable[str]) -> None:
    """Raises UnsupportedPlan for bfloat16 on a CPU: ONNX Runtime has hardly a kernel for it there.

    For float16 it has some, and converts to float32 and back around the operators that lack one.
    """
    on_cpu = sorted({device for device in devices if device.startswith("cpu:")})
    if arithmetic == "bfloat16" and on_cpu:
        raise UnsupportedPlan(
            "ONNX Runtime cannot compute in bfloat16 on a CPU.",
            found=f"bfloat16 on {', '.join(on_cpu)}",
            expected="bfloat16 on CUDA devices only; float32 or float16 on a CPU",
            todo="Place everything on a CUDA device (--place cuda:0), or compile in float32 or float16.",
        )
