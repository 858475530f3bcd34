"""The manifest of a plan, from what the compile found out."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from planonce.passes.remarks import Remark
from planonce.runtime.file_digest import sample_digest
from planonce.runtime.manifest import (
    AttentionChoice,
    CheckpointReference,
    FileRecord,
    Manifest,
    ModelFacts,
    StoredTensor,
    WeightReference,
)

from .structure import CompiledStructure

if TYPE_CHECKING:
    from .checkpoint import Checkpoint

__all__ = [
    "MINIMUM_ONNXRUNTIME", "attention_choices", "build_manifest", "checkpoint_reference", "model_facts",
    "plain_remarks",
]  # fmt: skip

# Opset 24's Attention changed its causal rule without a new number; this is the first release that we tested.
MINIMUM_ONNXRUNTIME = "1.31.0"
_TOOLS = ("planonce", "torch", "torch-mlir", "transformers", "onnx")
_CHOICE = re.compile(r"layer (\d+): (?:the )?(\S+?)(?: arm)?(?:[:,;]| because| \() ?(.*?)\)?$", re.DOTALL)


def model_facts(checkpoint: Checkpoint, structure: CompiledStructure, *, max_seq_len: int) -> ModelFacts:
    config = checkpoint.config
    architectures = getattr(config, "architectures", None) or [_causal_lm(config.model_type)]
    return ModelFacts(
        family=structure.family,
        architecture=str(architectures[0]),
        n_layers=int(config.num_hidden_layers),
        vocab_size=structure.vocab_size,
        hidden_size=int(config.hidden_size),
        max_seq_len=max_seq_len,
        dtype=structure.arithmetic,
        bos_token_id=checkpoint.generation.bos_token_id,
        eos_token_ids=checkpoint.generation.eos_token_ids,
        weight_formats=tuple(
            sorted(
                {str(use.encoding.format) for use in structure.program.tensors if use.encoding is not None}
            )
        ),
    )


def _causal_lm(model_type: str) -> str:
    """The class that transformers builds, for a checkpoint (a GGUF file) that does not name it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type, model_type))


def checkpoint_reference(
    checkpoint: Checkpoint, weights: tuple[WeightReference, ...], *, by_reference: bool
) -> CheckpointReference:
    """Where the weights came from; the checkpoint's own directory only if the plan still needs it."""
    if not by_reference:
        return CheckpointReference("embedded", None, checkpoint.files)
    files = tuple(
        replace(record, sample=sample_digest(checkpoint.file_paths[record.path]))
        for record in checkpoint.files
    )
    return CheckpointReference("reference", str(checkpoint.root.resolve()), files, weights)


def build_manifest(
    structure: CompiledStructure,
    model: ModelFacts,
    *,
    shape_key: str,
    files: tuple[FileRecord, ...],
    tensors: tuple[StoredTensor, ...],
    checkpoint: CheckpointReference,
    remarks: Iterable[str],
) -> Manifest:
    """Everything in it follows from checkpoint, options and tool versions: no time, no user, no path."""
    return Manifest(
        model=model,
        shape_key=shape_key,
        kv_slots=structure.program.kv_slots,
        stages=tuple(stage.stage for stage in structure.program.stages),
        copies=structure.program.copies,
        attention=attention_choices(structure.report.remarks),
        pipeline=structure.report.pipeline,
        tool_versions={name: importlib.metadata.version(name) for name in _TOOLS},
        minimum_onnxruntime=MINIMUM_ONNXRUNTIME,
        files=files,
        tensors=tensors,
        checkpoint=checkpoint,
        remarks=tuple(remarks),
    )


def plain_remarks(remarks: Iterable[Remark]) -> list[str]:
    """Without source lines: they hold this machine's paths, and a plan is the same wherever it is made."""
    return [f"{remark.pass_name}: {remark.message}" for remark in remarks]


def attention_choices(remarks: Iterable[Remark]) -> tuple[AttentionChoice, ...]:
    """The arm of each layer, as select-attention reported it."""
    choices: dict[int, AttentionChoice] = {}
    for remark in remarks:
        match = _CHOICE.match(remark.message) if remark.pass_name == "select-attention" else None
        if match is not None:
            layer = int(match[1])
            choices[layer] = AttentionChoice(layer, match[2], match[3])
    return tuple(choices[layer] for layer in sorted(choices))
