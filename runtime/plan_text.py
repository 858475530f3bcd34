"""What a plan's directory says about text: chat template and recommended sampling."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from .errors import PlanFormatError, RequestError
from .generation_options import GenerationOptions
from .manifest import CHAT_TEMPLATE_FILE, GENERATION_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from .manifest import Manifest

__all__ = [
    "default_options",
    "read_chat_template",
    "template_tokens",
]


def read_chat_template(directory: Path, manifest: Manifest) -> str | None:
    """The chat template's source, or None. Raises PlanFormatError."""
    data = _read(directory, manifest, CHAT_TEMPLATE_FILE)
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise _malformed(directory, CHAT_TEMPLATE_FILE, "not UTF-8") from None


def default_options(directory: Path, manifest: Manifest) -> GenerationOptions:
    """The sampling that the model's makers recommend (greedy where they say nothing) and its stop tokens.

    Raises PlanFormatError when the recommendation cannot be read or is out of range.
    """
    try:
        options = GenerationOptions.from_defaults(_generation_config(directory, manifest))
    except RequestError as error:
        raise _malformed(directory, GENERATION_FILE, error.found) from None
    return options.updated(stop_token_ids=manifest.model.eos_token_ids)


def template_tokens(directory: Path, manifest: Manifest) -> dict[str, str]:
    """``bos_token`` and ``eos_token`` as a chat template names them; missing where the model has none.

    Raises PlanFormatError.
    """
    config = _generation_config(directory, manifest)
    return {name: config[name] for name in ("bos_token", "eos_token") if isinstance(config.get(name), str)}


def _generation_config(directory: Path, manifest: Manifest) -> dict[str, Any]:
    data = _read(directory, manifest, GENERATION_FILE)
    if data is None:
        return {}
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _malformed(directory, GENERATION_FILE, str(error)) from None
    if not isinstance(value, dict):
        raise _malformed(directory, GENERATION_FILE, type(value).__name__)
    return cast("dict[str, Any]", value)


def _read(directory: Path, manifest: Manifest, name: str) -> bytes | None:
    # The manifest decides, not the directory: a file it does not list was not checked.
    if all(record.path != name for record in manifest.files):
        return None
    return (directory / name).read_bytes()


def _malformed(directory: Path, name: str, found: str) -> PlanFormatError:
    return PlanFormatError(
        f"the plan's {name} cannot be used",
        found=found,
        where=str(directory / name),
        todo="compile the plan again",
    )
