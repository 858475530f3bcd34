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
_OUTPUT_ROLES = {ArgumentRole.KV, ArgumentRole.LOGITS, ArgumentRole.STAGE_VALUE}
_INT64_RANK = {
    ArgumentRole.TOKEN_IDS: 2,
    ArgumentRole.WRITE_OFFSET: 1,
    ArgumentRole.CACHED_LEN: 0,
    ArgumentRole.ATTENDED_LEN: 0,
    ArgumentRole.LOGIT_POSITIONS: 1,
}


def _require(condition: bool, message: str, where: str, found: object = "", expected: object = "") -> None:
    if not condition:
        raise PlanFormatError(
            message,
            where=where,
            found=str(found),
            expected=str(expected),
            todo="Compile the plan again.",
        )


def _unique(names: Iterable[object], what: str, where: str) -> None:
    seen: set[object] = set()
    for name in names:
        _require(name not in seen, f"The manifest names {what} twice.", where, found=name)
        seen.add(name)


def version_tuple(text: str, where: str = "minimum_onnxruntime") -> tuple[int, ...]:
    """``"1.31.1"`` -> ``(1, 31, 1)``; a suffix such as ``.dev3`` is dropped. Raises PlanFormatError."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", text)
    _require(match is not None, "This is not a version number.", where, found=repr(text))
    assert match is not None
    return tuple(int(part) for part in match[0].split("."))


def check_manifest(manifest: ManifestFields) -> None:
    """Raises PlanFormatError at the first thing that does not hold."""
    _require(
        manifest.format_version == FORMAT_VERSION,
        "Unknown format version.",
        "format_version",
        manifest.format_version,
        FORMAT_VERSION,
    )
    _require(bool(manifest.shape_key), "The shape key is empty.", "shape_key")
    version_tuple(manifest.minimum_onnxruntime)
    _check_model(manifest)
    _check_files(manifest.files, "files", forbidden=MANIFEST_NAME)
    _check_stages(manifest)
    _check_kv_slots(manifest)
    _check_copies(manifest)
    _unique((t.name for t in manifest.tensors), "a tensor", "tensors")
    _check_bytes(manifest.tensors, manifest.files, "tensors")
    _check_checkpoint(manifest)
    _check_packed(manifest)
    _unique((choice.layer for choice in manifest.attention), "a layer's attention", "attention")
    for i, choice in enumerate(manifest.attention):
        where = f"attention[{i}]"
        _require(0 <= choice.layer < manifest.model.n_layers, "No such layer.", where, choice.layer)
        _require(bool(choice.arm), "The attention arm has no name.", where)


def _check_model(manifest: ManifestFields) -> None:
    model = manifest.model
    for name in ("n_layers", "vocab_size", "hidden_size", "max_seq_len"):
        value: int = getattr(model, name)
        _require(value >= 1, "A size of the model is not positive.", f"model.{name}", value, ">= 1")
    _dtype(model.dtype, "model.dtype")
    for token in (*model.eos_token_ids, *([] if model.bos_token_id is None else [model.bos_token_id])):
        _require(token >= 0, "A special token id is negative.", "model", token, ">= 0")


def _dtype(name: str, where: str, known: Iterable[str] = ITEM_SIZE) -> None:
    _require(name in known, "Unknown dtype.", where, repr(name), ", ".join(known))


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
    _require(inside, "A path is not a plain path inside the plan's directory.", where, repr(path))


def _check_files(files: tuple[FileRecord, ...], where: str, forbidden: str = "") -> None:
    _unique((f.path for f in files), "a file", where)
    for i, record in enumerate(files):
        here = f"{where}[{i}]"
        _check_path(record.path, f"{here}.path")
        _require(record.path != forbidden, "A manifest cannot list itself.", f"{here}.path", record.path)
        _require(record.size >= 0, "A file's size is negative.", f"{here}.size", record.size)
        _require(bool(_SHA256.fullmatch(record.sha256)), "Not a sha256.", f"{here}.sha256", record.sha256)
        sample_ok = not record.sample or bool(_SHA256.fullmatch(record.sample))
        _require(sample_ok, "Not a sha256.", f"{here}.sample", record.sample)


def _check_argument(argument: Argument, allowed: set[ArgumentRole], where: str) -> None:
    _require(bool(argument.name), "An argument has no name.", where)
    if argument.role in _PAGED_ROLES:
        raise PlanFormatError(
            "The plan keeps its KV in pools of blocks; this runtime does not execute paged plans.",
            where=where,
            found=f"{argument.name} with the role {argument.role.value}",
            todo="Compile it with another arm of attention.",
        )
    _require(argument.role in allowed, "An argument's role is on the wrong side.", where, argument.role.value)
    _dtype(argument.dtype, f"{where}.dtype")
    for dim in argument.shape:
        ok = bool(dim) if isinstance(dim, str) else dim >= 1
        _require(ok, "A dimension is neither a positive number nor a name.", f"{where}.shape", repr(dim))
    rank = _INT64_RANK.get(argument.role)
    if rank is not None:
        ok = argument.dtype == "int64" and len(argument.shape) == rank
        found = f"{argument.dtype} {list(argument.shape)}"
        _require(ok, f"{argument.role.value} has the wrong type.", where, found, f"int64 of rank {rank}")


def _check_stages(manifest: ManifestFields) -> None:
    _require(bool(manifest.stages), "The plan has no stage.", "stages")
    paths = {f.path for f in manifest.files}
    logits: list[Argument] = []
    for i, stage in enumerate(manifest.stages):
        where = f"stages[{i}]"
        _check_path(stage.program, f"{where}.program")
        _require(stage.program in paths, "A stage's program is not among the files.", where, stage.program)
        _device(stage.device, f"{where}.device")
        _unique((a.name for a in stage.inputs), "an input", where)
        _unique((a.name for a in stage.outputs), "an output", where)
        for j, argument in enumerate(stage.inputs):
            _check_argument(argument, _INPUT_ROLES, f"{where}.inputs[{j}]")
        for j, argument in enumerate(stage.outputs):
            _check_argument(argument, _OUTPUT_ROLES, f"{where}.outputs[{j}]")
        single = [a.role for a in stage.inputs if a.role in _INT64_RANK]
        _unique(single, "a role", f"{where}.inputs")
        logits += [a for a in stage.outputs if a.role is ArgumentRole.LOGITS]
    _unique((s.program for s in manifest.stages), "a program", "stages")
    roles = {a.role for stage in manifest.stages for a in stage.inputs}
    for role in (ArgumentRole.TOKEN_IDS, ArgumentRole.WRITE_OFFSET, ArgumentRole.LOGIT_POSITIONS):
        _require(
            role in roles, "No stage takes an argument that every step has.", "stages", expected=role.value
        )
    _require(len(logits) == 1, "Exactly one stage must produce logits.", "stages", len(logits), 1)
    shape, vocab = logits[0].shape, manifest.model.vocab_size
    ok = len(shape) == 3 and shape[2] == vocab and logits[0].dtype in ("float32", "float16", "bfloat16")
    _require(
        ok,
        "The logits have the wrong type.",
        "stages",
        f"{logits[0].dtype} {list(shape)}",
        f"[B, n, {vocab}]",
    )


def _check_packed(manifest: ManifestFields) -> None:
    packed = manifest.packed
    if packed is None:
        return
    _require(len(manifest.stages) == 1, "A plan of several stages has a packed program.", "packed")
    _check_path(packed.program, "packed.program")
    listed = packed.program in {f.path for f in manifest.files}
    _require(listed, "The packed program is not among the files.", "packed.program", packed.program)
    own = packed.program != manifest.stages[0].program
    _require(own, "The packed program is the stage's own.", "packed.program", packed.program)
    _require(bool(packed.processor), "The packed program is for no processor.", "packed.processor")
    probe, vocab = packed.probe, manifest.model.vocab_size
    _require(0 <= probe.token < vocab, "No such token.", "packed.probe.token", probe.token)
    _require(bool(probe.ids), "A probe of nothing proves nothing.", "packed.probe.ids")
    _require(len(probe.ids) == len(probe.logits), "Not a logit for each id.", "packed.probe")
    for one in probe.ids:
        _require(0 <= one < vocab, "No such token.", "packed.probe.ids", one)
    for number in (probe.tolerance, *probe.logits):
        _require(abs(number) < float("inf"), "Not a finite number.", "packed.probe", number)
    _require(probe.tolerance >= 0, "A tolerance is negative.", "packed.probe.tolerance", probe.tolerance)


def _check_kv_slots(manifest: ManifestFields) -> None:
    slots = manifest.kv_slots
    _unique(((s.layer, s.which) for s in slots), "a KV slot", "kv_slots")
    _unique((s.input for s in slots), "a KV input", "kv_slots")
    _unique((s.output for s in slots), "a KV output", "kv_slots")
    for i, slot in enumerate(slots):
        where = f"kv_slots[{i}]"
        _require(0 <= slot.layer < manifest.model.n_layers, "No such layer.", where, slot.layer)
        _require(slot.which in KV_WHICH, "Unknown KV slot.", where, slot.which, " or ".join(KV_WHICH))
        _dtype(slot.dtype, f"{where}.dtype", KV_DTYPES)
        _device(slot.device, f"{where}.device")
        _require(slot.n_kv_heads >= 1 and slot.head_dim >= 1, "A KV slot has no size.", where)
        _require(slot.window is None or slot.window >= 1, "A window is not positive.", where, slot.window)
        holders = [s for s in manifest.stages if any(a.name == slot.input for a in s.inputs if _is_kv(a))]
        _require(len(holders) == 1, "A KV slot must be an input of exactly one stage.", where, slot.input)
        _check_slot_in_stage(slot, holders[0], where)
    names = {s.input for s in slots}, {s.output for s in slots}
    for i, stage in enumerate(manifest.stages):
        for arguments, known in ((stage.inputs, names[0]), (stage.outputs, names[1])):
            for a in arguments:
                ok = not _is_kv(a) or a.name in known
                _require(ok, "A KV argument has no KV slot.", f"stages[{i}]", a.name)


def _is_kv(argument: Argument) -> bool:
    return argument.role is ArgumentRole.KV


def _check_slot_in_stage(slot: KvSlotSpec, stage: Stage, where: str) -> None:
    _require(
        slot.device == stage.device,
        "A KV slot lies elsewhere than its stage.",
        where,
        slot.device,
        stage.device,
    )
    given = next(a for a in stage.inputs if a.name == slot.input)
    result = next((a for a in stage.outputs if a.name == slot.output and _is_kv(a)), None)
    _require(result is not None, "A KV slot's output is not in its input's stage.", where, slot.output)
    assert result is not None
    for argument in (given, result):
        shape = argument.shape
        ok = len(shape) == 4 and shape[1] == slot.n_kv_heads and shape[3] == slot.head_dim
        expected = f"[batch, {slot.n_kv_heads}, capacity, {slot.head_dim}]"
        _require(ok, "A KV argument's shape disagrees with its slot.", where, list(shape), expected)
        ok = isinstance(shape[2], str)
        _require(ok, "A KV argument's capacity is fixed.", where, list(shape), "a symbolic capacity")
        _require(
            argument.dtype == slot.dtype,
            "A KV argument's dtype disagrees.",
            where,
            argument.dtype,
            slot.dtype,
        )


def _check_copies(manifest: ManifestFields) -> None:
    stages = manifest.stages
    fed: set[tuple[int, str]] = set()
    to_host = 0
    for i, edge in enumerate(manifest.copies):
        where = f"copies[{i}]"
        _require(0 <= edge.source_stage < len(stages), "No such stage.", where, edge.source_stage)
        outputs = {a.name: a for a in stages[edge.source_stage].outputs}
        source = outputs.get(edge.source)
        _require(source is not None, "A copy's source is not an output of its stage.", where, edge.source)
        assert source is not None
        if edge.target_stage is None:
            ok = source.role is ArgumentRole.LOGITS and edge.target == "logits"
            _require(ok, "Only the logits are copied to the host.", where, f"{edge.source} -> {edge.target}")
            to_host += 1
            continue
        ok = edge.source_stage < edge.target_stage < len(stages)
        _require(ok, "A copy must go to a later stage.", where, edge.target_stage)
        target = next((a for a in stages[edge.target_stage].inputs if a.name == edge.target), None)
        ok = target is not None and target.role is source.role is ArgumentRole.STAGE_VALUE
        _require(ok, "A copy must join two stage values.", where, f"{edge.source} -> {edge.target}")
        assert target is not None
        ok = (target.dtype, target.shape) == (source.dtype, source.shape)
        _require(ok, "A copy joins values of different types.", where, f"{edge.source} -> {edge.target}")
        key = (edge.target_stage, edge.target)
        _require(key not in fed, "A stage value is copied to twice.", where, edge.target)
        fed.add(key)
    _require(to_host == 1, "The logits' copy to the host must be there once.", "copies", to_host, 1)
    for i, stage in enumerate(stages):
        for a in stage.inputs:
            ok = a.role is not ArgumentRole.STAGE_VALUE or (i, a.name) in fed
            _require(ok, "Nothing is copied to a stage value.", f"stages[{i}]", a.name)


def _check_checkpoint(manifest: ManifestFields) -> None:
    checkpoint = manifest.checkpoint
    where = "checkpoint"
    _require(checkpoint.mode in ("embedded", "reference"), "Unknown checkpoint mode.", where, checkpoint.mode)
    _check_files(checkpoint.files, f"{where}.files")
    reference = checkpoint.mode == "reference"
    _require(reference == (checkpoint.root is not None), "Only a reference has a root, and needs one.", where)
    _require(reference or not checkpoint.weights, "Only a reference lists weights.", where)
    _unique(((w.stage, w.name) for w in checkpoint.weights), "a weight", f"{where}.weights")
    for i, weight in enumerate(checkpoint.weights):
        ok = 0 <= weight.stage < len(manifest.stages)
        _require(ok, "No such stage.", f"{where}.weights[{i}]", weight.stage)
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
        _require(tensor.file in sizes, "A tensor's file is not among those listed.", here, tensor.file)
        _require(all(d >= 0 for d in tensor.shape), "A tensor has a negative dimension.", here, tensor.shape)
        expected = math.prod(tensor.shape) * ITEM_SIZE[tensor.dtype]
        _require(
            tensor.nbytes == expected,
            "A tensor's size disagrees with its shape.",
            here,
            tensor.nbytes,
            expected,
        )
        ok = tensor.offset >= 0 and tensor.offset + tensor.nbytes <= sizes[tensor.file]
        _require(ok, "A tensor lies outside its file.", here, f"{tensor.offset}+{tensor.nbytes}")
