"""The plan directory's schema: what ``manifest.json`` says. Standard library only.

The compiler writes it and the runtime trusts nothing else; ``Manifest.from_json`` therefore
checks every field's type, every name it knows, and every path before anything is opened.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from . import strict_json
from .errors import PlanFormatError, PlanIntegrityError
from .manifest_checks import check_manifest
from .manifest_schema import (
    CHAT_TEMPLATE_FILE,
    FORMAT_VERSION,
    GENERATION_FILE,
    MANIFEST_NAME,
    TOKENIZER_FILE,
    Argument,
    ArgumentRole,
    AttentionChoice,
    CheckpointReference,
    CopyEdge,
    FileRecord,
    KvSlotSpec,
    ManifestFields,
    ModelFacts,
    PackedProgram,
    Probe,
    Stage,
    StoredTensor,
    WeightReference,
)

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
    "Manifest",
    "ModelFacts",
    "PackedProgram",
    "Probe",
    "Stage",
    "StoredTensor",
    "WeightReference",
]


@dataclass(frozen=True, slots=True)
class Manifest(ManifestFields):
    """Everything about a plan. ``to_json``/``from_json`` are inverse and byte-stable."""

    def to_json(self) -> str:
        """The manifest's text, byte-stable. Raises PlanFormatError when it would not load again."""
        check_manifest(self)
        return json.dumps(strict_json.encode(self), indent=1, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Parse and check every field. Raises PlanFormatError."""
        try:
            parsed: object = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise PlanFormatError(
                "The manifest is not JSON.", found=str(error), todo="Compile the plan again."
            ) from None
        if not isinstance(parsed, dict):
            raise PlanFormatError("The manifest is not a JSON object.", found=type(parsed).__name__)
        version = cast("dict[str, object]", parsed).get("format_version")
        # Before any other field: another version may mean anything by the rest.
        if type(version) is not int or version != FORMAT_VERSION:
            raise PlanFormatError(
                "The plan's format version is not one this planonce can read.",
                found=repr(version),
                expected=str(FORMAT_VERSION),
                todo="Use the planonce version that compiled this plan, or compile it again.",
            )
        manifest = strict_json.decode(Manifest, cast("object", parsed))
        check_manifest(manifest)
        return manifest

    @staticmethod
    def load(directory: Path | str) -> Manifest:
        """Read ``manifest.json`` of a plan directory. Raises PlanIntegrityError, PlanFormatError."""
        path = Path(directory) / MANIFEST_NAME
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise PlanIntegrityError(
                "This is not a plan directory.",
                found=f"no {MANIFEST_NAME}" if Path(directory).is_dir() else "no such directory",
                where=str(directory),
                todo="Give the directory that `planonce compile CHECKPOINT -o DIRECTORY` wrote.",
            ) from None
        except UnicodeDecodeError as error:
            raise PlanFormatError("The manifest is not UTF-8.", found=str(error), where=str(path)) from None
        except OSError as error:
            raise PlanIntegrityError(
                "The manifest cannot be read.", found=str(error), where=str(path)
            ) from None
        try:
            return Manifest.from_json(text)
        except PlanFormatError as error:
            error.where = f"{path}: {error.where}" if error.where else str(path)
            raise


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
