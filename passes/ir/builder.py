"""Building onnx and plan operations from Python values, checked against the tables as they are made."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch_mlir import ir

from planonce.runtime.errors import PassError

from .attributes import to_attribute
from .onnx_dialect import NO_VALUE
from .onnx_schemas import schema_for
from .op_schema import MAX_VARIADIC, AttributeSpec, Parameter
from .plan_dialect import PLAN_OPS
from .tensors import constant_array, dense_attribute, dtype_of, is_none, rank_of, shape_of, tensor_type

__all__ = [
    "OnnxBuilder",
    "constant_array",
    "dtype_of",
    "is_none",
    "rank_of",
    "shape_of",
    "tensor_type",
]


class OnnxBuilder:
    """Inserts operations at the current insertion point, or at the one given.

    ``location`` (default: the current one, else unknown) and ``device`` (``plan.device``, when not
    empty) are given to every operation made; set them anew for each operation being lowered.
    """

    __slots__ = ("device", "insertion_point", "location")

    def __init__(
        self,
        location: ir.Location | None = None,
        insertion_point: ir.InsertionPoint | None = None,
        device: str = "",
    ) -> None:
        self.location = location
        self.insertion_point = insertion_point
        self.device = device

    def op(
        self,
        op_type: str,
        operands: Sequence[ir.Value | None],
        result_types: Sequence[ir.Type | None],
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> list[ir.Value]:
        """An ONNX operator by its ONNX name. None operands, and trailing optional ones left out, are absent.

        ``result_types``: None, or left out at the end, is an absent optional output (a result of type
        none). Attribute values are Python values (int, float, str, lists, arrays) or MLIR attributes;
        one whose value is None is left out. Raises PassError on an unknown operator or attribute, a
        wrong kind, a missing required attribute or a wrong number of values.
        """
        schema = schema_for(op_type, domain)
        inputs = self._complete(op_type, "input", schema.inputs, list(operands))
        values = self._fill(inputs)
        outputs = self._complete(op_type, "output", schema.outputs, list(result_types))
        with self._where().context:
            types = [ir.NoneType.get() if type_ is None else type_ for type_ in outputs]
        return self._create(
            f"onnx.{schema.name}",
            values,
            types,
            self._attributes(op_type, schema.attributes, attributes or {}),
            _segments(schema.inputs, len(values)),
            _segments(schema.outputs, len(types)),
        )

    def one(
        self,
        op_type: str,
        operands: Sequence[ir.Value | None],
        result_type: ir.Type,
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> ir.Value:
        """``op`` for its first result alone."""
        return self.op(op_type, operands, [result_type], attributes, domain)[0]

    def constant(self, array: np.ndarray | np.generic | Sequence[Any] | int | float) -> ir.Value:
        """``onnx.constant`` of the array's shape and dtype; Python integers are i64, floats f32."""
        data = np.asarray(array)
        if not isinstance(array, np.ndarray | np.generic) and data.dtype == np.float64:
            data = data.astype(np.float32)
        with self._where().context:
            value = dense_attribute(data)
        return self._create("onnx.constant", [], [value.type], {"value": value})[0]

    def no_value(self) -> ir.Value:
        """The stand-in for an absent optional operand."""
        with self._where().context:
            return self._create(NO_VALUE, [], [ir.NoneType.get()], {})[0]

    def weight(self, name: str, type_: ir.Type, parts: Sequence[str] = ()) -> ir.Value:
        """``plan.weight``: a tensor of the checkpoint by its state-dict name, static shape.

        ``parts``: two or more names; the weight is those tensors one below the other, along axis 0.
        """
        return self.plan("weight", [], [type_], {"name": name, "parts": list(parts) or None})[0]

    def plan(
        self,
        name: str,
        operands: Sequence[ir.Value | None],
        result_types: Sequence[ir.Type],
        attributes: Mapping[str, Any] | None = None,
    ) -> list[ir.Value]:
        """A plan operation by its name (``"attention"``). Raises PassError like ``op``."""
        spec = PLAN_OPS.get(name)
        if spec is None:
            near = difflib.get_close_matches(name, PLAN_OPS, 1)
            raise PassError(
                f"the plan dialect has no operation {name}",
                expected=", ".join(PLAN_OPS),
                todo=f"did you mean {near[0]}?" if near else "",
            )
        parameters = tuple(Parameter(operand, operand in spec.optional) for operand in spec.operands)
        inputs = self._complete(f"plan.{name}", "input", parameters, list(operands))
        values = self._fill(inputs)
        made = self._attributes(f"plan.{name}", spec.attributes, attributes or {})
        return self._create(f"plan.{name}", values, list(result_types), made)

    def _fill(self, values: Sequence[ir.Value | None]) -> list[ir.Value]:
        absent = self.no_value() if any(value is None for value in values) else None
        filled = [absent if value is None else value for value in values]
        return [value for value in filled if value is not None]

    def _where(self) -> ir.Location:
        if self.location is not None:
            return self.location
        if ir.Location.current is not None:
            return ir.Location.current
        if self.insertion_point is not None:
            return ir.Location.unknown(self.insertion_point.block.owner.context)
        return ir.Location.unknown()

    def _create(
        self,
        name: str,
        operands: Sequence[ir.Value],
        types: Sequence[ir.Type],
        attributes: dict[str, ir.Attribute],
        operand_segments: Sequence[int] = (),
        result_segments: Sequence[int] = (),
    ) -> list[ir.Value]:
        location = self._where()
        with location.context:
            if operand_segments:
                attributes["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get(operand_segments)
            if result_segments:
                attributes["resultSegmentSizes"] = ir.DenseI32ArrayAttr.get(result_segments)
            if self.device:
                attributes["plan.device"] = ir.StringAttr.get(self.device)
            made = ir.Operation.create(
                name,
                results=types,
                operands=operands,
                attributes=attributes,
                loc=location,
                ip=self.insertion_point,
            )
        return list(made.results)

    def _attributes(
        self, op: str, specs: Mapping[str, AttributeSpec], given: Mapping[str, Any]
    ) -> dict[str, ir.Attribute]:
        made: dict[str, ir.Attribute] = {}
        with self._where().context:
            for name, value in given.items():
                if name not in specs:
                    near = difflib.get_close_matches(name, specs, 1)
                    raise PassError(
                        f"{op} has no attribute {name!r}",
                        expected=", ".join(specs) or "none at all",
                        todo=f"did you mean {near[0]}?" if near else "",
                    )
                if value is not None:
                    made[name] = to_attribute(value, specs[name].kind, f"{op}.{name}")
        missing = [name for name, spec in specs.items() if spec.required and name not in made]
        if missing:
            raise PassError(f"{op} needs the attribute {missing[0]!r}", expected=", ".join(missing))
        return made

    def _complete(self, op: str, what: str, parameters: Sequence[Parameter], values: list[Any]) -> list[Any]:
        """Fill up with None what is absent; the schema's own number of values comes back."""
        variadic = bool(parameters) and parameters[-1].variadic
        fixed = len(parameters) - variadic
        most = fixed + (MAX_VARIADIC if variadic else 0)
        least = fixed + (parameters[-1].minimum if variadic else 0)
        values = values + [None] * (fixed - len(values))
        names = ", ".join(parameter.name for parameter in parameters)
        if not least <= len(values) <= most:
            count = str(least) if least == most else f"{least} to {most}"
            raise PassError(
                f"{op} has a wrong number of {what}s", found=str(len(values)), expected=f"{count} ({names})"
            )
        for index, value in enumerate(values):
            parameter = parameters[min(index, len(parameters) - 1)]
            if value is None and not parameter.optional:
                raise PassError(f"{op}: {what} {parameter.name!r} is not optional", expected=names)
        return values


def _segments(parameters: Sequence[Parameter], count: int) -> list[int]:
    if not parameters or not parameters[-1].variadic:
        return []
    size = len(parameters) - 1 + MAX_VARIADIC
    return [1] * count + [0] * (size - count)
