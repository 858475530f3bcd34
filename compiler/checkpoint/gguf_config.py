"""A GGUF file's metadata as a transformers config, by transformers' own tables."""

from __future__ import annotations

import logging
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planonce.runtime.errors import CheckpointError, UnsupportedModel

from .gguf_file import GgufHeader

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["gguf_config"]


def gguf_config(header: GgufHeader) -> tuple[PretrainedConfig, dict[str, Any]]:
    """(config, the values transformers took from the metadata). Raises UnsupportedModel, CheckpointError."""
    from transformers.integrations.gguf.gguf_conversion_mapping import GGUF_ARCHS
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES, load_gguf_checkpoint
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    supported = sorted(set(GGUF_SUPPORTED_ARCHITECTURES) - set(GGUF_ARCHS))
    if header.architecture in GGUF_ARCHS:
        raise UnsupportedModel(
            f"GGUF architecture {header.architecture!r} keeps a recurrent state beside its KV cache",
            where=str(header.path),
            todo="choose a model with attention layers only",
        )
    with tempfile.TemporaryDirectory(prefix="planonce-") as directory:
        shadow = Path(directory) / "header.gguf"
        shadow.write_bytes(_without_vocabulary(header))
        # It warns that there is no vocabulary to count; that is done below.
        logger = logging.getLogger("transformers.modeling_gguf_pytorch_utils")
        quiet, logger.disabled = logger.disabled, True
        try:
            values: dict[str, Any] = load_gguf_checkpoint(str(shadow), return_tensors=False)["config"]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UnsupportedModel(
                f"transformers cannot read a model of GGUF architecture {header.architecture!r}",
                found=f"{error}"[:300],
                expected=", ".join(supported),
                where=str(header.path),
                todo="use the original Hugging Face checkpoint",
            ) from error
        finally:
            logger.disabled = quiet
    tokens = header.get("tokenizer.ggml.tokens")
    if "vocab_size" not in values and isinstance(tokens, list):
        values["vocab_size"] = len(tokens)
    model_type = values.get("model_type")
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModel(
            f"transformers has no model type {model_type!r}",
            where=str(header.path),
            todo="use the original Hugging Face checkpoint",
        )
    try:
        return CONFIG_MAPPING[str(model_type)].from_dict(dict(values)), values
    except Exception as error:  # whatever a config class objects to
        raise CheckpointError(
            "the file's metadata does not describe a valid model",
            found=f"{type(error).__name__}: {error}"[:300],
            where=str(header.path),
            todo="fetch the file again, or use the original Hugging Face checkpoint",
        ) from error


def _without_vocabulary(header: GgufHeader) -> bytes:
    """A GGUF file with the same metadata without the tokenizer's lists, and one-element tensors by name.

    gguf-py's reader makes an array object of every list element: seconds and hundreds of megabytes for a
    large vocabulary, of which the config needs only the length.
    """
    kept = [
        entry
        for key, entry in header.entries.items()
        if not (key.startswith("tokenizer.") and entry.is_array) and key != "general.alignment"
    ]
    parts = [b"GGUF", struct.pack("<IQQ", header.version, len(header.tensors), len(kept))]
    with header.path.open("rb") as file:
        for entry in kept:
            file.seek(entry.start)
            parts.append(file.read(entry.end - entry.start))
    for name in header.tensors:
        encoded = name.encode("utf-8")
        # one dimension of one element, type 0 (float32), offset 0 in the data
        parts.append(struct.pack("<Q", len(encoded)) + encoded + struct.pack("<IQIQ", 1, 1, 0, 0))
    blob = b"".join(parts)
    return blob + bytes(-len(blob) % 32 + 32)
