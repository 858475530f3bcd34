"""What a plan needs of a checkpoint's tokenizer: tokenizer.json, chat template, special tokens, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planonce.runtime.errors import CheckpointError

from .gguf_file import GgufHeader
from .hf_directory import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PretrainedConfig

__all__ = ["GenerationDefaults", "TokenizerAssets", "from_directory", "from_gguf", "generation_defaults"]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tokenizer_config.json")
SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the checkpoint recommends. sampling: those of do_sample, temperature, top_k, top_p, min_p and
    repetition_penalty that it sets. eos_token_ids: every id that ends a text, the model's own first."""

    sampling: Mapping[str, float | int | bool] = field(default_factory=dict)
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenizerAssets:
    """tokenizer_json: for ``tokenizers.Tokenizer.from_buffer``. chat_template: Jinja, or None."""

    tokenizer_json: bytes
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None


def from_directory(directory: Path) -> TokenizerAssets | None:
    """The tokenizer of a Hugging Face directory, or None if it has none. Raises CheckpointError."""
    if not any((directory / name).exists() for name in TOKENIZER_FILES[:-1]):
        return None
    config_path = directory / "tokenizer_config.json"
    config = read_json(config_path) if config_path.exists() else {}
    path = directory / "tokenizer.json"
    blob = path.read_bytes() if path.exists() else _convert_slow(directory)
    tokenizer = _check(blob, str(path))
    bos, eos = _token_text(config.get("bos_token")), _token_text(config.get("eos_token"))
    return TokenizerAssets(
        tokenizer_json=blob,
        chat_template=_directory_template(directory, config),
        bos_token=bos,
        eos_token=eos,
        bos_token_id=tokenizer.token_to_id(bos) if bos else None,
        eos_token_id=tokenizer.token_to_id(eos) if eos else None,
    )


def from_gguf(header: GgufHeader) -> TokenizerAssets | None:
    """The tokenizer in a GGUF file's metadata, or None if it has none. Raises CheckpointError."""
    if not isinstance(header.get("tokenizer.ggml.tokens"), list):
        return None
    from transformers import TokenizersBackend
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        convert_gguf_tokenizer,
        get_gguf_tokenizer,
    )

    try:
        architecture, values, config = get_gguf_tokenizer(str(header.path))
        backend, _ = convert_gguf_tokenizer(architecture, values)
        # The wrapper adds to the backend what the flags ask for: a leading BOS, a trailing EOS.
        config.pop("chat_template", None)
        wrapped = TokenizersBackend(tokenizer_object=backend, **config)
        blob = wrapped.backend_tokenizer.to_str().encode("utf-8")
    except Exception as error:  # whatever a malformed vocabulary provokes in the conversion
        raise CheckpointError(
            "the file's tokenizer cannot be converted",
            found=f"{type(error).__name__}: {error}"[:300],
            expected="a byte-level or sentencepiece vocabulary",
            where=str(header.path),
            todo="use the original Hugging Face checkpoint",
        ) from error
    template = header.get("tokenizer.chat_template")
    return TokenizerAssets(
        tokenizer_json=blob,
        chat_template=template if isinstance(template, str) else None,
        bos_token=config.get("bos_token"),
        eos_token=config.get("eos_token"),
        bos_token_id=header.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=header.get("tokenizer.ggml.eos_token_id"),
    )


def generation_defaults(
    config: PretrainedConfig,
    tokenizer: TokenizerAssets | None,
    generation_config: Mapping[str, Any],
    extra_eos: tuple[Any, ...] = (),
) -> GenerationDefaults:
    """From generation_config.json where it speaks, else the model's config, then the tokenizer."""
    sampling = {
        key: generation_config[key]
        for key in SAMPLING
        if isinstance(generation_config.get(key), bool | int | float)
    }
    eos = [*_ids(generation_config.get("eos_token_id", getattr(config, "eos_token_id", None)))]
    # A chat model's turn ends with the tokenizer's EOS even where its config names only the text's end.
    eos += [*_ids(tokenizer.eos_token_id if tokenizer else None)]
    for extra in extra_eos:
        eos += [*_ids(extra)]
    candidates = (
        generation_config.get("bos_token_id"),
        getattr(config, "bos_token_id", None),
        tokenizer.bos_token_id if tokenizer else None,
    )
    bos = next((i for candidate in candidates for i in _ids(candidate)), None)
    return GenerationDefaults(sampling, bos, tuple(dict.fromkeys(eos)))


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0)


def _token_text(value: Any) -> str | None:
    """A special token is a string, or an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _directory_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    # transformers' own order: the separate file wins over the field.
    path = directory / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    path = directory / "chat_template.json"
    template: Any = read_json(path).get("chat_template") if path.exists() else config.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _convert_slow(directory: Path) -> bytes:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
        return tokenizer.backend_tokenizer.to_str().encode("utf-8")
    except Exception as error:  # whatever the conversion objects to
        raise CheckpointError(
            "the tokenizer has no tokenizer.json and cannot be converted to one",
            found=f"{type(error).__name__}: {error}"[:300],
            where=str(directory),
            todo="save the tokenizer with transformers so that tokenizer.json is written",
        ) from error


def _check(blob: bytes, where: str) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_buffer(blob)
    except Exception as error:  # tokenizers raises bare Exception
        raise CheckpointError(
            "tokenizer.json cannot be loaded",
            found=str(error)[:200],
            where=where,
            todo="fetch the file again",
        ) from error
