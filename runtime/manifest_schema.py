"""The plan directory's schema as dataclasses. Standard library only; import it through ``manifest``."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = [
    "CHAT_TEMPLATE_FILE",
    "FORMAT_VERSION",
    "GENERATION_FILE",
    "MANIFEST_NAME",
    "TOKENIZER_FILE",
    "Argument",
    "ArgumentRole",
    "AttentionChoice",
    "CheckpointReference",
    "CopyEdge",
    "FileRecord",
    "KvSlotSpec",
    "ManifestFields",
    "ModelFacts",
    "PackedProgram",
    "Probe",
    "Stage",
    "StoredTensor",
    "WeightReference",
]

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
# What a plan brings along for text, each only where the checkpoint had it.
TOKENIZER_FILE = "tokenizer.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
GENERATION_FILE = "generation_config.json"


class ArgumentRole(enum.Enum):
    """What a program's argument or result is for; the runtime binds by role, never by name."""

    TOKEN_IDS = "token_ids"  # int64 [batch, sequence]
    WRITE_OFFSET = "write_offset"  # int64 [batch], first position written by this step
    CACHED_LEN = "cached_len"  # int64 [], a symbol: positions before this step
    ATTENDED_LEN = "attended_len"  # int64 [], a symbol: positions after it
    LOGIT_POSITIONS = "logit_positions"  # int64 [n], indices into this step's sequence
    KV = "kv"
    KV_POOL = "kv_pool"  # blocks [blocks, block_size, heads, head_dim] that sequences share
    BLOCK_TABLE = "block_table"  # int32 [batch, blocks a row], which blocks of the pools are a row's
    LOGITS = "logits"  # float32 [batch, n, vocab]
    NEXT_TOKENS = "next_tokens"  # int64 [batch, n], the likeliest; -1: to be picked from the logits
    STAGE_VALUE = "stage_value"  # crosses from one stage to the next


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument or result of a stage. ``shape`` holds ints and symbolic names."""

    name: str
    role: ArgumentRole
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class KvSlotSpec:
    """One KV buffer ``[batch, n_kv_heads, capacity, head_dim]`` and the two names it is bound to."""

    layer: int
    which: str  # "key" or "value"
    n_kv_heads: int
    head_dim: int
    dtype: str
    device: str
    input: str
    output: str
    window: int | None = None  # positions a query sees, itself included; None is all


@dataclass(frozen=True, slots=True)
class Stage:
    """One ONNX program on one device, run in the order listed."""

    program: str
    device: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class CopyEdge:
    """A ``plan.copy`` the runtime executes: stage result -> another stage's argument, or the host."""

    source_stage: int
    source: str
    target_stage: int | None  # None: the host
    target: str


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of the plan (or checkpoint): path relative to its directory, bytes, sha256 hex.

    ``sample`` is :func:`planonce.runtime.file_digest.sample_digest`: cheap to check at every load even for
    gigabytes of weights. Empty: not recorded.
    """

    path: str
    size: int
    sha256: str
    sample: str = ""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """An initializer whose bytes lie in one of the plan's own files, row-major and little-endian.

    ``constant``: the program's own (a mask, a table) and no weight of the checkpoint, so that infinities
    may be meant.
    """

    name: str
    file: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    constant: bool = False


@dataclass(frozen=True, slots=True)
class WeightReference:
    """An initializer of ``stage`` that the runtime maps from a referenced checkpoint file."""

    name: str
    file: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    stage: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointReference:
    """Where the weights came from. ``mode`` is "embedded" or "reference"; root is set for the latter."""

    mode: str
    root: str | None
    files: tuple[FileRecord, ...]
    weights: tuple[WeightReference, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a caller needs to know of the model without opening the checkpoint."""

    family: str
    architecture: str
    n_layers: int
    vocab_size: int
    hidden_size: int
    max_seq_len: int  # the largest capacity this plan may be opened with
    dtype: str
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    weight_formats: tuple[str, ...] = ()  # of quantised weights, such as int4/32+offset; the others are dtype


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """The arm chosen for one layer and why."""

    layer: int
    arm: str
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What a program gives for one token at position 0: ``logits`` of the vocabulary's ``ids``, each to be
    met within ``tolerance``."""

    token: int
    ids: tuple[int, ...]
    logits: tuple[float, ...]
    tolerance: float


@dataclass(frozen=True, slots=True)
class PackedProgram:
    """Another program of a plan of one stage, with the same arguments, for one machine: its weights lie in
    the plan as this version of ONNX Runtime packs them on this ``processor`` (processor.py)."""

    program: str
    onnxruntime: str
    processor: str
    probe: Probe


@dataclass(frozen=True, slots=True)
class ManifestFields:
    """Everything about a plan, as data; :class:`planonce.runtime.manifest.Manifest` adds text and checks."""

    model: ModelFacts
    shape_key: str
    kv_slots: tuple[KvSlotSpec, ...]
    stages: tuple[Stage, ...]
    copies: tuple[CopyEdge, ...]
    attention: tuple[AttentionChoice, ...]
    pipeline: str
    tool_versions: dict[str, str]
    minimum_onnxruntime: str
    files: tuple[FileRecord, ...]
    # Every initializer outside the programs: those in the plan's files here, in the checkpoint's there.
    tensors: tuple[StoredTensor, ...]
    checkpoint: CheckpointReference
    format_version: int = FORMAT_VERSION
    remarks: tuple[str, ...] = field(default=())
    packed: PackedProgram | None = None
