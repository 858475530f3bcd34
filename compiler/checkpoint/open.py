"""Opening a checkpoint: from what the user typed to a ``Checkpoint``, or an error that says what is wrong.

Cheap checks come first: paths, headers and names are checked before transformers is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planonce.runtime.errors import CheckpointError, UnsupportedModel

from . import tokenizer_assets
from .blocks import check_readable
from .checkpoint import Checkpoint, CheckpointKind, untie
from .gguf_file import GgufHeader, read_gguf_header
from .hf_directory import load_config, read_json, read_weight_files, text_config
from .package_source import find_in_package
from .stored import PLAIN_FORMATS
from .weights import WeightEntry, WeightIndex

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from .skeleton import ModelSkeleton

__all__ = ["open_checkpoint"]

PACKAGE = "package:"
READABLE = ("float32", "float16", "bfloat16", "float64")
SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
)


def open_checkpoint(spec: str | Path) -> Checkpoint:
    """Open a Hugging Face directory, a .gguf file, or ``package:NAME``. No weight is read.

    Raises CheckpointError (missing, damaged, or not what its own config describes) and UnsupportedModel.
    """
    text = str(spec)
    path = find_in_package(text[len(PACKAGE) :]) if text.startswith(PACKAGE) else Path(text).expanduser()
    try:
        exists, is_directory = path.exists(), path.is_dir()
    except (OSError, ValueError) as error:  # no permission, a name too long, a NUL in it
        raise CheckpointError(
            "cannot look at this path",
            found=f"{getattr(error, 'strerror', None) or error}: {text[:200]!r}",
            todo="give a Hugging Face directory, a .gguf file, or package:NAME",
        ) from error
    if not exists:
        raise CheckpointError(
            "no such checkpoint",
            found=text[:500],
            expected="a Hugging Face directory, a .gguf file, or package:NAME",
            todo="a model's name on a hub is not a path: fetch the checkpoint first, then give its directory",
        )
    if not is_directory:
        return _open_file(text, path)
    if (path / "config.json").exists():
        return _open_directory(text, path)
    inside = sorted(path.glob("*.gguf"))
    if len(inside) == 1:
        return _open_gguf(text, inside[0])
    held = ", ".join(sorted(entry.name for entry in path.iterdir()))[:500]
    raise CheckpointError(
        "this directory is not a checkpoint: it has no config.json",
        found=f"several GGUF files: {held}" if inside else held or "an empty directory",
        expected="config.json and safetensors files, or one .gguf file",
        where=str(path),
        todo="give the .gguf file you want" if inside else "give the directory that holds config.json",
    )


def _open_file(text: str, path: Path) -> Checkpoint:
    if path.suffix == ".gguf":
        return _open_gguf(text, path)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path.name}: {error.strerror or error}",
            where=str(path),
            todo="check its permissions",
        ) from error
    if magic == b"GGUF":
        return _open_gguf(text, path)
    raise CheckpointError(
        "this file is not a checkpoint",
        found=path.name,
        expected="a Hugging Face directory, a .gguf file, or package:NAME",
        where=str(path),
        todo="give the directory that holds the file and its config.json",
    )


def _open_directory(text: str, directory: Path) -> Checkpoint:
    read_json(directory / "config.json")
    stored = read_weight_files(directory)
    config = load_config(directory)
    tensors = stored.tensors

    from .hf_names import map_safetensors, text_part
    from .skeleton import build_skeleton

    if (own := text_config(config)) is not config:
        config, tensors = own, text_part(tensors)
    skeleton = build_skeleton(config, len(tensors))
    entries, unexpected = map_safetensors(tensors, skeleton)
    resolved = _resolve(config, entries, unexpected, skeleton)
    tokenizer = tokenizer_assets.from_directory(directory)
    generation_path = directory / "generation_config.json"
    side = {name: (directory / name).resolve() for name in SIDE_FILES if (directory / name).exists()}
    return Checkpoint(
        source=text,
        kind=CheckpointKind.HUGGING_FACE,
        root=directory.absolute(),
        config=resolved.config,
        weights=resolved.weights,
        tokenizer=tokenizer,
        generation=tokenizer_assets.generation_defaults(
            config, tokenizer, read_json(generation_path) if generation_path.exists() else {}
        ),
        file_paths={**stored.files, **side},
        remarks=resolved.remarks,
    )


def _open_gguf(text: str, path: Path) -> Checkpoint:
    resolved_path = path.resolve()
    header = read_gguf_header(resolved_path)

    from .gguf_config import gguf_config
    from .gguf_names import map_gguf
    from .skeleton import build_skeleton

    config, values = gguf_config(header)
    skeleton = build_skeleton(config, len(header.tensors))
    entries, unexpected = map_gguf(header, values, skeleton)
    unexpected = _drop_neutral_rope_factors(header, unexpected)
    resolved = _resolve(config, entries, unexpected, skeleton)
    tokenizer = tokenizer_assets.from_gguf(header)
    return Checkpoint(
        source=text,
        kind=CheckpointKind.GGUF,
        root=path.absolute().parent,
        config=resolved.config,
        weights=resolved.weights,
        tokenizer=tokenizer,
        generation=tokenizer_assets.generation_defaults(
            config, tokenizer, {}, (header.get("tokenizer.ggml.eot_token_id"),)
        ),
        file_paths={path.name: resolved_path},
        remarks=resolved.remarks,
    )


def _drop_neutral_rope_factors(header: GgufHeader, unexpected: list[str]) -> list[str]:
    """Factors of one change nothing; others do, and transformers' GGUF reader would silently drop them."""
    factors = [name for name in unexpected if name.startswith("rope_f")]
    if not factors:
        return unexpected
    for name in factors:
        tensor = header.tensors[name]
        values = WeightIndex({name: WeightEntry(name, tensor.dtype, tensor.shape, (tensor,))}).read(name)
        if not (values == 1).all():
            raise UnsupportedModel(
                "the file scales rotary frequencies in a way that its metadata does not describe",
                found=f"tensor {name} with factors from {values.min():g} to {values.max():g}",
                expected="no rope_freqs / rope_factors tensor",
                where=str(header.path),
                todo="use the original Hugging Face checkpoint, whose config says how positions are scaled",
            )
    return [name for name in unexpected if name not in factors]


@dataclass(frozen=True, slots=True)
class _Resolved:
    config: PretrainedConfig
    weights: WeightIndex
    remarks: tuple[str, ...]


def _resolve(
    config: PretrainedConfig, entries: dict[str, WeightEntry], unexpected: list[str], skeleton: ModelSkeleton
) -> _Resolved:
    """Tie what is one, then hold the index against the model."""
    from .tying import resolve_tying

    _check_formats(entries)
    tying = resolve_tying(entries, skeleton)
    weights = WeightIndex(dict(sorted(tying.entries.items())), tying.aliases)
    weights.check_against(
        skeleton.shapes, may_miss=skeleton.may_miss, may_ignore=skeleton.may_ignore, unexpected=unexpected
    )
    remarks = tuple(
        f"{target} and {source} are stored with different values: not tied, although the config says so"
        for target, source in tying.untied
    )
    return _Resolved(untie(config) if tying.untied else config, weights, remarks)


def _check_formats(entries: dict[str, WeightEntry]) -> None:
    bad = sorted(
        {
            f"{source.name} ({source.dtype})"
            for entry in entries.values()
            for source in entry.sources
            if source.dtype not in READABLE
            and (source.dtype in PLAIN_FORMATS or not check_readable(source.dtype))
        }
    )
    if bad:
        raise CheckpointError(
            "weights are stored in a format that cannot be read",
            found=f"{len(bad)} tensors: {', '.join(bad[:20])}",
            expected=f"{', '.join(READABLE)}, or a GGUF block format",
            todo="convert the checkpoint to one of these, or use an unquantised one",
        )
