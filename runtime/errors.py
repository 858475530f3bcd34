"""Every error planonce raises on purpose. Standard library only, so that any room may import it.

An error says what was found, what was expected and what to do next, and carries a stable ``code``
that scripts and tests can match without reading English.
"""

from __future__ import annotations

__all__ = [
    "CapacityExceeded",
    "CheckpointError",
    "CompileError",
    "KvError",
    "LayoutError",
    "OutputError",
    "PassError",
    "PlanError",
    "PlanFormatError",
    "PlanIntegrityError",
    "PlanonceError",
    "RequestError",
    "SymbolError",
    "TopologyChanged",
    "UnsupportedModel",
    "UnsupportedOp",
    "UnsupportedPlan",
]


class PlanonceError(Exception):
    """Root of all deliberate errors. ``found``/``expected``/``todo``/``where`` complete the message."""

    code = "planonce"
    exit_code = 1

    def __init__(
        self, message: str, *, found: str = "", expected: str = "", todo: str = "", where: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.found = found
        self.expected = expected
        self.todo = todo
        self.where = where

    def document(self) -> dict[str, object]:
        """For JSON; every key is always there."""
        return {
            "code": self.code,
            "message": self.message,
            "found": self.found,
            "expected": self.expected,
            "where": self.where,
            "todo": self.todo,
            "notes": list(getattr(self, "__notes__", ())),
        }

    def __str__(self) -> str:
        parts = [self.message]
        for label, text in (
            ("found", self.found),
            ("expected", self.expected),
            ("where", self.where),
            ("what to do", self.todo),
        ):
            if text:
                parts.append(f"  {label}: {text}")
        return "\n".join(parts)


class CompileError(PlanonceError):
    """A checkpoint could not be compiled."""

    code = "compile"


class CheckpointError(CompileError):
    """The checkpoint is missing, damaged, or does not hold what its own description says."""

    code = "checkpoint"


class UnsupportedModel(CompileError):
    """The model's architecture, or a feature of it, cannot be traced."""

    code = "unsupported-model"


class UnsupportedOp(CompileError):
    """Traced operations that no lowering covers; the message lists all of them."""

    code = "unsupported-op"


class UnsupportedPlan(CompileError):
    """The compiled program is sound, but the runtime has no way to execute it."""

    code = "unsupported-plan"


class OutputError(CompileError):
    """The plan could not be written (disk full, no permission, target exists)."""

    code = "output"


class PassError(PlanonceError):
    """A pass, a pipeline string or an IR file is wrong."""

    code = "pass"


class PlanError(PlanonceError):
    """A plan directory cannot be used."""

    code = "plan"


class PlanFormatError(PlanError):
    """The manifest is malformed, of another version, or names something unknown."""

    code = "plan-format"


class PlanIntegrityError(PlanError):
    """A file of the plan (or the checkpoint it refers to) is missing or altered."""

    code = "plan-integrity"


class TopologyChanged(PlanError):
    """The devices or providers a plan was placed for are gone or different."""

    code = "topology-changed"


class KvError(PlanonceError):
    """A KV cache cannot do what was asked of it."""

    code = "kv"


class CapacityExceeded(KvError):
    """More positions were asked for than the cache holds."""

    code = "capacity-exceeded"


class LayoutError(KvError):
    """Bytes, shapes, dtypes or devices do not match the cache's layout."""

    code = "layout"


class SymbolError(PlanonceError):
    """A symbol is unbound, or bound twice to different values."""

    code = "symbol"


class RequestError(PlanonceError):
    """A caller's request is out of range (sampling options, token ids, prompts)."""

    code = "request"
