"""The ``onnx`` dialect: one op per ONNX operator, so that emitting it is a table look-up.

Every formal input is an operand; an absent optional one is the value of ``onnx.no_value``. Every formal
output is a result; an absent optional one has type ``none``. Attributes keep ONNX's names; one left
out has ONNX's default.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from planonce.runtime.errors import PassError

from .attributes import kind_matches
from .irdl import Arity, OpShape, load_dialect
from .onnx_schemas import OpSchema, Parameter, all_schemas, find_schema
from .op_schema import MAX_VARIADIC

__all__ = ["NO_VALUE", "SEGMENT_ATTRIBUTES", "load_onnx_dialect"]

NO_VALUE = "onnx.no_value"
# Bookkeeping of IRDL for optional operands and results, never ONNX attributes.
SEGMENT_ATTRIBUTES = frozenset({"operandSegmentSizes", "resultSegmentSizes"})


def load_onnx_dialect(context: ir.Context) -> None:
    """Load the dialect into a context that does not have it yet."""
    shapes = [
        OpShape(name, _arity(schema.inputs), _arity(schema.outputs)) for name, schema in all_schemas().items()
    ]
    no_value = OpShape(NO_VALUE.removeprefix("onnx."), Arity(0), Arity(1))
    load_dialect("onnx", [*shapes, no_value], _verify, context)


def _arity(parameters: Sequence[Parameter]) -> Arity:
    variadic = sum(parameter.variadic for parameter in parameters)
    return Arity(len(parameters) - variadic, variadic * MAX_VARIADIC)


def _verify(op: ir.OpView) -> None:
    if op.name == NO_VALUE:
        if len(op.results) != 1 or not isinstance(op.results[0].type, ir.NoneType):
            raise PassError("must have one result of type none")
        return
    schema = find_schema(op.name)
    assert schema is not None, op.name
    _check_values("operand", schema.inputs, [value.type for value in op.operands])
    _check_values("result", schema.outputs, [value.type for value in op.results])
    _check_attributes(op, schema)
    if op.name == "onnx.constant":
        _check_constant(op)


def _check_values(what: str, parameters: Sequence[Parameter], types: Sequence[ir.Type]) -> None:
    variadic = parameters[-1] if parameters and parameters[-1].variadic else None
    least = len(parameters) if variadic is None else len(parameters) - 1 + variadic.minimum
    most = len(parameters) if variadic is None else len(parameters) - 1 + MAX_VARIADIC
    if not least <= len(types) <= most:
        names = ", ".join(
            p.name + ("?" if p.optional else "...") * (p.optional or p.variadic) for p in parameters
        )
        count = str(least) if least == most else f"{least} to {most}"
        raise PassError(
            f"wrong number of {what}s",
            found=str(len(types)),
            expected=f"{count} ({names})",
            todo="give onnx.no_value for an absent optional one" if what == "operand" else "",
        )
    for parameter, type_ in zip(parameters, types, strict=False):
        if isinstance(type_, ir.NoneType) and not parameter.optional:
            raise PassError(f"{what} {parameter.name!r} is not optional", found="none")


def _check_attributes(op: ir.OpView, schema: OpSchema) -> None:
    seen: set[str] = set()
    for name in op.attributes:
        if "." in name or name in SEGMENT_ATTRIBUTES:
            continue
        seen.add(name)
        spec = schema.attributes.get(name)
        if spec is None:
            raise PassError(
                f"unknown attribute {name!r}", expected=", ".join(schema.attributes) or "none at all"
            )
        attribute = op.attributes[name]
        if not kind_matches(attribute, spec.kind):
            raise PassError(
                f"attribute {name!r} has the wrong kind", found=str(attribute)[:80], expected=spec.kind.value
            )
    for name, spec in schema.attributes.items():
        if spec.required and name not in seen:
            raise PassError(f"attribute {name!r} is missing", expected=spec.kind.value)


def _check_constant(op: ir.OpView) -> None:
    if "value" not in op.attributes:
        raise PassError("attribute 'value' is missing", expected="dense<...>")
    found, expected = op.attributes["value"].type, op.results[0].type
    if found != expected:
        raise PassError("value and result differ in type", found=str(found), expected=str(expected))
