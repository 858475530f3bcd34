"""The nouns of an operator's schema: its name, formal inputs and outputs, and attributes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .attributes import AttributeKind

__all__ = ["MAX_VARIADIC", "MS_DOMAIN", "AttributeSpec", "OpSchema", "Parameter", "ir_name"]

MS_DOMAIN = "com.microsoft"
# IRDL wants every operand of a variadic to have one type, so a variadic is this many optional operands.
MAX_VARIADIC = 16

# The snake-case rule below would split these in the middle of a word.
_IRREGULAR = {"MoE": "moe", "QMoE": "qmoe", "IsNaN": "is_nan"}
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One formal input or output. ``variadic`` ones are last or nearly so, with at least ``minimum``."""

    name: str
    optional: bool = False
    variadic: bool = False
    minimum: int = 1


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """One declared attribute; ``required`` means that the operator has no default for it."""

    kind: AttributeKind
    required: bool = False


@dataclass(frozen=True, slots=True)
class OpSchema:
    """One operator: where it lives in ONNX, and its formal inputs, outputs and attributes."""

    op_type: str
    domain: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    attributes: Mapping[str, AttributeSpec] = field(default_factory=dict[str, AttributeSpec])
    since_version: int = 1

    @property
    def name(self) -> str:
        """The operator's name inside the dialect, without ``onnx.``."""
        return ir_name(self.op_type, self.domain)

    @property
    def variadic_input(self) -> bool:
        """Whether the number of inputs is open."""
        return any(parameter.variadic for parameter in self.inputs)

    @property
    def variadic_output(self) -> bool:
        """Whether the number of outputs is open."""
        return any(parameter.variadic for parameter in self.outputs)


def ir_name(op_type: str, domain: str = "") -> str:
    """``MatMul`` -> ``mat_mul``; ``com.microsoft`` gets the prefix ``ms_``."""
    snake = _IRREGULAR.get(op_type) or _WORD_START.sub("_", op_type).lower()
    return f"ms_{snake}" if domain == MS_DOMAIN else snake
