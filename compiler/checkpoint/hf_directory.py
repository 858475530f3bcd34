"""A Hugging Face directory: which files hold the weights, and what each contains."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planonce.runtime.errors import CheckpointError, UnsupportedModel

from .safetensors_file import read_safetensors_header
from .stored import StoredTensor

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["SafetensorsFiles", "load_config", "read_json", "read_weight_files", "text_config"]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class SafetensorsFiles:
    """tensors by stored name; files: name in the directory to the resolved path (hub caches link out)."""

    tensors: dict[str, StoredTensor]
    files: dict[str, Path]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a checkpoint's file. Raises CheckpointError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path.name}: {error.strerror or error}",
            where=str(path),
            todo="check the path and its permissions",
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name} is not JSON", found=str(error)[:200], where=str(path), todo="fetch the file again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path.name} is not a JSON object",
            found=type(value).__name__,
            expected="an object",
            where=str(path),
            todo="fetch the file again",
        )
    return value


def read_weight_files(directory: Path) -> SafetensorsFiles:
    """Index every tensor of the directory's safetensors files. Raises CheckpointError.

    As in transformers, model.safetensors wins over an index.
    """
    if (directory / SINGLE).exists():
        path = (directory / SINGLE).resolve()
        return SafetensorsFiles(read_safetensors_header(path), {SINGLE: path})
    if (directory / INDEX).exists():
        return _read_shards(directory)
    held = sorted(entry.name for entry in directory.iterdir())
    other = [name for name in held if name.endswith((".bin", ".pt", ".pth", ".safetensors", ".gguf"))]
    todo = "put model.safetensors (or its shards and index) into the directory"
    if any(name.endswith((".bin", ".pt", ".pth")) for name in other):
        todo = "convert the weights to safetensors: save_pretrained(..., safe_serialization=True)"
    elif any(name.endswith(".gguf") for name in other):
        todo = "give the .gguf file itself instead of its directory"
    elif any(name.endswith(".safetensors") for name in other):
        todo = f"the shards need their index: put {INDEX} into the directory"
    raise CheckpointError(
        "no weights in this directory",
        found=", ".join(other or held)[:500] or "an empty directory",
        expected=f"{SINGLE}, or {INDEX} and its shards",
        where=str(directory),
        todo=todo,
    )


def _read_shards(directory: Path) -> SafetensorsFiles:
    index = directory / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(
            f"{INDEX} has no weight_map",
            found=type(weight_map).__name__,
            expected="an object: tensor name to file name",
            where=str(index),
            todo="fetch the file again",
        )
    names = sorted(set(weight_map.values()))
    outside = [name for name in names if Path(name).name != name or name in ("", ".", "..")]
    if outside:
        raise CheckpointError(
            f"{INDEX} names a file outside its directory",
            found=", ".join(outside)[:300],
            expected="plain file names",
            where=str(index),
            todo="do not use this checkpoint unless you trust it",
        )
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(names)} shards are missing",
            found=f"missing: {', '.join(missing)}"[:1000],
            expected=f"every file that {INDEX} names",
            where=str(directory),
            todo="fetch the missing files",
        )
    tensors: dict[str, StoredTensor] = {}
    files: dict[str, Path] = {}
    for name in names:
        files[name] = (directory / name).resolve()
        for tensor_name, tensor in read_safetensors_header(files[name]).items():
            if tensor_name in tensors:
                raise CheckpointError(
                    f"tensor {tensor_name} is in two shards",
                    found=f"{tensors[tensor_name].file.name} and {tensor.file.name}",
                    expected="each tensor once",
                    where=str(directory),
                    todo="the directory mixes two checkpoints; fetch it again into an empty one",
                )
            tensors[tensor_name] = tensor
    absent = [
        f"{tensor_name} in {file_name}"
        for tensor_name, file_name in weight_map.items()
        if tensor_name not in tensors or tensors[tensor_name].file != files[file_name]
    ]
    if absent:
        raise CheckpointError(
            f"{INDEX} names tensors that their shards do not hold",
            found=", ".join(absent)[:1000],
            expected="each tensor in the shard that the index gives for it",
            where=str(directory),
            todo="index and shards come from different checkpoints; fetch them again",
        )
    return SafetensorsFiles(tensors, files)


def load_config(directory: Path) -> PretrainedConfig:
    """The directory's config.json as transformers has it. Raises CheckpointError, UnsupportedModel."""
    path = directory / "config.json"
    values = read_json(path)
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(
            "config.json does not say what model this is",
            found="no model_type",
            expected='"model_type": "llama", for instance',
            where=str(path),
            todo="use the checkpoint's own config.json",
        )
    method = (values.get("quantization_config") or {}).get("quant_method")
    if "quantization_config" in values:
        raise UnsupportedModel(
            "the weights are quantised in a format that is not supported",
            found=f"quantization_config with quant_method {method!r}",
            expected="float weights, or a GGUF file",
            where=str(path),
            todo="use the unquantised checkpoint, or a GGUF file of the model",
        )
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(model_type, list(CONFIG_MAPPING), n=1)
        remote = " (the checkpoint brings its own code, which is not run)" if "auto_map" in values else ""
        raise UnsupportedModel(
            f"transformers has no model type {model_type!r}{remote}",
            found=model_type,
            expected=f"a model of transformers; the nearest name is {near[0]}" if near else "a known model",
            where=str(path),
            todo="use a checkpoint of a supported architecture, or a newer transformers",
        )
    try:
        config = AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a config class objects to
        raise CheckpointError(
            "config.json does not describe a valid model",
            found=f"{type(error).__name__}: {error}"[:500],
            expected=f"a valid {model_type} config",
            where=str(path),
            todo="use the checkpoint's own config.json",
        ) from error
    # transformers notes the path here; a plan must not depend on where its checkpoint lay.
    config.name_or_path = ""
    return config


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """The language model's config of a multimodal one; a text model's config is returned as it is."""
    return config.get_text_config(decoder=True)
