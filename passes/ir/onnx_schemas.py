"""The operators the ``onnx`` dialect knows, read from the ONNX schema registry and the ms table.

An operator's IR name is its ONNX name in snake case: ``MatMul`` is ``onnx.mat_mul``; those of
ONNX Runtime's own domain carry the prefix ``ms_``: ``onnx.ms_group_query_attention``.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence

from onnx import defs

from planonce.runtime.errors import PassError

from .attributes import AttributeKind
from .ms_schemas import MS_SCHEMAS
from .op_schema import MAX_VARIADIC, MS_DOMAIN, AttributeSpec, OpSchema, Parameter, ir_name

__all__ = [
    "MAX_VARIADIC",
    "MS_DOMAIN",
    "OPSET",
    "AttributeSpec",
    "OpSchema",
    "Parameter",
    "all_schemas",
    "find_schema",
    "ir_name",
    "schema_for",
]

OPSET = 24

_KINDS = {
    defs.OpSchema.AttrType.INT: AttributeKind.INT,
    defs.OpSchema.AttrType.INTS: AttributeKind.INTS,
    defs.OpSchema.AttrType.FLOAT: AttributeKind.FLOAT,
    defs.OpSchema.AttrType.FLOATS: AttributeKind.FLOATS,
    defs.OpSchema.AttrType.STRING: AttributeKind.STRING,
    defs.OpSchema.AttrType.STRINGS: AttributeKind.STRINGS,
    defs.OpSchema.AttrType.TENSOR: AttributeKind.TENSOR,
}


def _parameters(formals: Sequence[defs.OpSchema.FormalParameter]) -> tuple[Parameter, ...]:
    option = defs.OpSchema.FormalParameterOption
    return tuple(
        Parameter(p.name, p.option == option.Optional, p.option == option.Variadic, p.min_arity)
        for p in formals
    )


def _from_registry(schema: defs.OpSchema) -> OpSchema | None:
    """None for control flow and sequence types: a decode step has neither."""
    graph = defs.OpSchema.AttrType.GRAPH
    if any(attribute.type == graph for attribute in schema.attributes.values()):
        return None
    if any(t.startswith(("seq(", "optional(", "map(")) for p in schema.inputs for t in p.types):
        return None
    attributes = {
        name: AttributeSpec(_KINDS[attribute.type], bool(attribute.required))
        for name, attribute in sorted(schema.attributes.items())
        if attribute.type in _KINDS
    }
    return OpSchema(
        schema.name,
        "",
        _parameters(schema.inputs),
        _parameters(schema.outputs),
        attributes,
        schema.since_version,
    )


@functools.cache
def all_schemas() -> Mapping[str, OpSchema]:
    """Every operator by its name in the dialect (without ``onnx.``), in the order of the names."""
    newest: dict[str, defs.OpSchema] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain or schema.since_version > OPSET:
            continue
        if schema.name not in newest or newest[schema.name].since_version < schema.since_version:
            newest[schema.name] = schema
    found = [_from_registry(schema) for schema in newest.values() if not schema.deprecated]
    table: dict[str, OpSchema] = {}
    for schema in (*(s for s in found if s is not None), *MS_SCHEMAS):
        if schema.name in table:
            raise AssertionError(f"two operators share the IR name {schema.name!r}")
        table[schema.name] = schema
    return dict(sorted(table.items()))


def find_schema(name: str) -> OpSchema | None:
    """Schema by IR operation name (``onnx.mat_mul``), or None when it is not an onnx operation."""
    if not name.startswith("onnx."):
        return None
    return all_schemas().get(name.removeprefix("onnx."))


def schema_for(op_type: str, domain: str = "") -> OpSchema:
    """Schema by ONNX name and domain. Raises PassError, with the nearest name, when there is none."""
    schema = all_schemas().get(ir_name(op_type, domain))
    if schema is not None and schema.op_type == op_type and schema.domain == domain:
        return schema
    known = [s.op_type for s in all_schemas().values() if s.domain == domain]
    elsewhere = [s.domain or "ai.onnx" for s in all_schemas().values() if s.op_type == op_type]
    near = difflib.get_close_matches(op_type, known, 1)
    hint = f"it is in domain {elsewhere[0]}" if elsewhere else (f"did you mean {near[0]}?" if near else "")
    raise PassError(
        f"the onnx dialect has no operator {op_type}",
        found=f"{domain or 'ai.onnx'}::{op_type}",
        expected=f"an operator of opset {OPSET}, or one of passes/ir/ms_schemas.py",
        todo=hint,
    )
