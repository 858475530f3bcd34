"""What a manifest must satisfy beyond its fields' types. Standard library only.

Each check is a function of the manifest that raises :class:`PlanFormatError` naming the offending place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from .device import DeviceLocation
from .dtypes import ITEM_SIZE, KV_DTYPES
from .errors import LayoutError, PlanFormatError
from .manifest_require import require, unique
from .manifest_results import HOST_ROLES, check_copies, check_results
from .manifest_schema import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    Argument,
    ArgumentRole,
    FileRecord,
    KvSlotSpec,
    ManifestFields,
    Stage,
    StoredTensor,
    WeightReference,
)

__all__ = ["KV_WHICH", "check_manifest", "version_tuple"]

KV_WHICH = ("key", "value")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_INPUT_ROLES = {
    ArgumentRole.TOKEN_IDS,
    ArgumentRole.WRITE_OFFSET,
    ArgumentRole.CACHED_LEN,
    ArgumentRole.ATTENDED_LEN,
    ArgumentRole.LOGIT_POSITIONS,
    ArgumentRole.KV,
    ArgumentRole.STAGE_VALUE,
}
# Of a paged program, which a compile can make and this runtime cannot run.
_PAGED_ROLES = {ArgumentRole.KV_POOL, ArgumentRole.BLOCK_TABLE}
_OUTPUT_ROLES = {ArgumentRole.KV, ArgumentRole.STAGE_VALUE, *HOST_ROLES}
_INT64_RANK = {
    ArgumentRole.TOKEN_IDS: 2,
    ArgumentRole.WRITE_OFFSET: 1,
    ArgumentRole.CACHED_LEN: 0,
    ArgumentRole.ATTENDED_LEN: 0,
    ArgumentRole.LOGIT_POSITIONS: 1,
    ArgumentRole.NEXT_TOKENS: 2,
}


def version_tuple(text: str, where: str = "minimum_onnxruntime") -> tuple[int, ...]:
    """``"1.31.1"`` -> ``(1, 31, 1)``; a suffix such as ``.dev3`` is dropped. Raises PlanFormatError."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", text)
    require(match is not None, "This is not a version number.", where, found=repr(text))
    assert match is not None
    return tuple(int(part) for part in match[0].split("."))


def check_manifest(manifest: ManifestFields) -> None:
    """Raises PlanFormatError at the first thing that does not hold."""
    require(
        manifest.format_version == FORMAT_VERSION,
        "Unknown format version.",
        "format_version",
        manifest.format_version,
        FORMAT_VERSION,
    )
    require(bool(manifest.shape_key), "The shape key is empty.", "shape_key")
    version_tuple(manifest.minimum_onnxruntime)
    _check_model(manifest)
    _check_files(manifest.files, "files", forbidden=MANIFEST_NAME)
    _check_stages(manifest)
    check_results(manifest)
    _check_kv_slots(manifest)
    check_copies(manifest)
    unique((t.name for t in manifest.tensors), "a tensor", "tensors")
    _check_bytes(manifest.tensors, manifest.files, "tensors")
    _check_checkpoint(manifest)
    _check_packed(manifest)
    unique((choice.layer for choice in manifest.attention), "a layer's attention", "attention")
    for i, choice in enumerate(manifest.attention):
        where = f"attention[{i}]"
        require(0 <= choice.layer < manifest.model.n_layers, "No such layer.", where, choice.layer)
        require(bool(choice.arm), "The attention arm has no name.", where)


def _check_model(manifest: ManifestFields) -> None:
    model = manifest.model
    for name in ("n_layers", "vocab_size", "hidden_size", "max_seq_len"):
        value: int = getattr(model, name)
        require(value >= 1, "A size of the model is not positive.", f"model.{name}", value, ">= 1")
    _dtype(model.dtype, "model.dtype")
    for token in (*model.eos_token_ids, *([] if model.bos_token_id is None else [model.bos_token_id])):
        require(token >= 0, "A special token id is negative.", "model", token, ">= 0")


def _dtype(name: str, where: str, known: Iterable[str] = ITEM_SIZE) -> None:
    require(name in known, "Unknown dtype.", where, repr(name), ", ".join(known))


def _device(text: str, where: str) -> None:
    try:
        DeviceLocation.parse(text)
    except LayoutError as error:
        raise PlanFormatError(
            "Unknown device.", where=where, found=error.found, expected=error.expected
        ) from None


def _check_path(path: str, where: str) -> None:
    pure = PurePosixPath(path)
    inside = (
        bool(path)
        and "\\" not in path
        and "\0" not in path
        and not pure.is_absolute()
        and ".." not in pure.parts
        and str(pure) == path
        and path != "."
    )
    require(inside, "A path is not a plain path inside the plan's directory.", where, repr(path))


def _check_files(files: tuple[FileRecord, ...], where: str, forbidden: str = "") -> None:
    unique((f.path for f in files), "a file", where)
    for i, record in enumerate(files):
        here = f"{where}[{i}]"
        _check_path(record.path, f"{here}.path")
        require(record.path != forbidden, "A manifest cannot list itself.", f"{here}.path", record.path)
        require(record.size >= 0, "A file's size is negative.", f"{here}.size", record.size)
        require(bool(_SHA256.fullmatch(record.sha256)), "Not a sha256.", f"{here}.sha256", record.sha256)
        sample_ok = not record.sample or bool(_SHA256.fullmatch(record.sample))
        require(sample_ok, "Not a sha256.", f"{here}.sample", record.sample)


def _check_argument(argument: Argument, allowed: set[ArgumentRole], where: str) -> None:
    require(bool(argument.name), "An argument has no name.", where)
    if argument.role in _PAGED_ROLES:
        raise PlanFormatError(
            "The plan keeps its KV in pools of blocks; this runtime does not execute paged plans.",
            where=where,
            found=f"{argument.name} with the role {argument.role.value}",
            todo="Compile it with another arm of attention.",
        )
    require(argument.role in allowed, "An argument's role is on the wrong side.", where, argument.role.value)
    _dtype(argument.dtype, f"{where}.dtype")
    for dim in argument.shape:
        ok = bool(dim) if isinstance(dim, str) else dim >= 1
        require(ok, "A dimension is neither a positive number nor a name.", f"{where}.shape", repr(dim))
    rank = _INT64_RANK.get(argument.role)
    if rank is not None:
        ok = argument.dtype == "int64" and len(argument.shape) == rank
        found = f"{argument.dtype} {list(argument.shape)}"
        require(ok, f"{argument.role.value} has the wrong type.", where, found, f"int64 of rank {rank}")


def _check_stages(manifest: ManifestFields) -> None:
    require(bool(manifest.stages), "The plan has no stage.", "stages")
    paths = {f.path for f in manifest.files}
    for i, stage in enumerate(manifest.stages):
        where = f"stages[{i}]"
        _check_path(stage.program, f"{where}.program")
        require(stage.program in paths, "A stage's program is not among the files.", where, stage.program)
        _device(stage.device, f"{where}.device")
        unique((a.name for a in stage.inputs), "an input", where)
        unique((a.name for a in stage.outputs), "an output", where)
        for j, argument in enumerate(stage.inputs):
            _check_argument(argument, _INPUT_ROLES, f"{where}.inputs[{j}]")
        for j, argument in enumerate(stage.outputs):
            _check_argument(argument, _OUTPUT_ROLES, f"{where}.outputs[{j}]")
        single = [a.role for a in stage.inputs if a.role in _INT64_RANK]
        unique(single, "a role", f"{where}.inputs")
    unique((s.program for s in manifest.stages), "a program", "stages")
    roles = {a.role for stage in manifest.stages for a in stage.inputs}
    for role in (ArgumentRole.TOKEN_IDS, ArgumentRole.WRITE_OFFSET, ArgumentRole.LOGIT_POSITIONS):
        require(
            role in roles, "No stage takes an argument that every step has.", "stages", expected=role.value
        )


def _check_packed(manifest: ManifestFields) -> None:
    packed = manifest.packed
    if packed is None:
        return
    require(len(manifest.stages) == 1, "A plan of several stages has a packed program.", "packed")
    _check_path(packed.program, "packed.program")
    listed = packed.program in {f.path for f in manifest.files}
    require(listed, "The packed program is not among the files.", "packed.program", packed.program)
    own = packed.program != manifest.stages[0].program
    require(own, "The packed program is the stage's own.", "packed.program", packed.program)
    require(bool(packed.processor), "The packed program is for no processor.", "packed.processor")
    probe, vocab = packed.probe, manifest.model.vocab_size
    require(0 <= probe.token < vocab, "No such token.", "packed.probe.token", probe.token)
    require(bool(probe.ids), "A probe of nothing proves nothing.", "packed.probe.ids")
    require(len(probe.ids) == len(probe.logits), "Not a logit for each id.", "packed.probe")
    for one in probe.ids:
        require(0 <= one < vocab, "No such token.", "packed.probe.ids", one)
    for number in (probe.tolerance, *probe.logits):
        require(abs(number) < float("inf"), "Not a finite number.", "packed.probe", number)
    require(probe.tolerance >= 0, "A tolerance is negative.", "packed.probe.tolerance", probe.tolerance)


def _check_kv_slots(manifest: ManifestFields) -> None:
    slots = manifest.kv_slots
    unique(((s.layer, s.which) for s in slots), "a KV slot", "kv_slots")
    unique((s.input for s in slots), "a KV input", "kv_slots")
    unique((s.output for s in slots), "a KV output", "kv_slots")
    for i, slot in enumerate(slots):
        where = f"kv_slots[{i}]"
        require(0 <= slot.layer < manifest.model.n_layers, "No such layer.", where, slot.layer)
        require(slot.which in KV_WHICH, "Unknown KV slot.", where, slot.which, " or ".join(KV_WHICH))
        _dtype(slot.dtype, f"{where}.dtype", KV_DTYPES)
        _device(slot.device, f"{where}.device")
        require(slot.n_kv_heads >= 1 and slot.head_dim >= 1, "A KV slot has no size.", where)
        require(slot.window is None or slot.window >= 1, "A window is not positive.", where, slot.window)
        holders = [s for s in manifest.stages if any(a.name == slot.input for a in s.inputs if _is_kv(a))]
        require(len(holders) == 1, "A KV slot must be an input of exactly one stage.", where, slot.input)
        _check_slot_in_stage(slot, holders[0], where)
    names = {s.input for s in slots}, {s.output for s in slots}
    for i, stage in enumerate(manifest.stages):
        for arguments, known in ((stage.inputs, names[0]), (stage.outputs, names[1])):
            for a in arguments:
                ok = not _is_kv(a) or a.name in known
                require(ok, "A KV argument has no KV slot.", f"stages[{i}]", a.name)


def _is_kv(argument: Argument) -> bool:
    return argument.role is ArgumentRole.KV


def _check_slot_in_stage(slot: KvSlotSpec, stage: Stage, where: str) -> None:
    require(
        slot.device == stage.device,
        "A KV slot lies elsewhere than its stage.",
        where,
        slot.device,
        stage.device,
    )
    given = next(a for a in stage.inputs if a.name == slot.input)
    result = next((a for a in stage.outputs if a.name == slot.output and _is_kv(a)), None)
    require(result is not None, "A KV slot's output is not in its input's stage.", where, slot.output)
    assert result is not None
    for argument in (given, result):
        shape = argument.shape
        ok = len(shape) == 4 and shape[1] == slot.n_kv_heads and shape[3] == slot.head_dim
        expected = f"[batch, {slot.n_kv_heads}, capacity, {slot.head_dim}]"
        require(ok, "A KV argument's shape disagrees with its slot.", where, list(shape), expected)
        ok = isinstance(shape[2], str)
        require(ok, "A KV argument's capacity is fixed.", where, list(shape), "a symbolic capacity")
        require(
            argument.dtype == slot.dtype,
            "A KV argument's dtype disagrees.",
            where,
            argument.dtype,
            slot.dtype,
        )


def _check_checkpoint(manifest: ManifestFields) -> None:
    checkpoint = manifest.checkpoint
    where = "checkpoint"
    require(checkpoint.mode in ("embedded", "reference"), "Unknown checkpoint mode.", where, checkpoint.mode)
    _check_files(checkpoint.files, f"{where}.files")
    reference = checkpoint.mode == "reference"
    require(reference == (checkpoint.root is not None), "Only a reference has a root, and needs one.", where)
    require(reference or not checkpoint.weights, "Only a reference lists weights.", where)
    unique(((w.stage, w.name) for w in checkpoint.weights), "a weight", f"{where}.weights")
    for i, weight in enumerate(checkpoint.weights):
        ok = 0 <= weight.stage < len(manifest.stages)
        require(ok, "No such stage.", f"{where}.weights[{i}]", weight.stage)
    _check_bytes(checkpoint.weights, checkpoint.files, f"{where}.weights")


def _check_bytes(
    tensors: tuple[StoredTensor, ...] | tuple[WeightReference, ...],
    files: tuple[FileRecord, ...],
    where: str,
) -> None:
    """Dtype, shape, size and place in the file agree."""
    sizes = {f.path: f.size for f in files}
    for i, tensor in enumerate(tensors):
        here = f"{where}[{i}]"
        _dtype(tensor.dtype, here)
        require(tensor.file in sizes, "A tensor's file is not among those listed.", here, tensor.file)
        require(all(d >= 0 for d in tensor.shape), "A tensor has a negative dimension.", here, tensor.shape)
        expected = math.prod(tensor.shape) * ITEM_SIZE[tensor.dtype]
        require(
            tensor.nbytes == expected,
            "A tensor's size disagrees with its shape.",
            here,
            tensor.nbytes,
            expected,
        )
        ok = tensor.offset >= 0 and tensor.offset + tensor.nbytes <= sizes[tensor.file]
        require(ok, "A tensor lies outside its file.", here, f"{tensor.offset}+{tensor.nbytes}")
