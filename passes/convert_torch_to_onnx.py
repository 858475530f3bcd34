"""convert-torch-to-onnx: the torch dialect, as imported, becomes the onnx and plan dialects."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import func

from planonce.runtime.errors import UnsupportedOp

from .base import fail
from .ir.builder import OnnxBuilder, tensor_type
from .ir.locations import describe_location
from .ir.tensors import DTYPES
from .lowerings import lowering_table
from .lowerings.sizes import Size, sizes_from_map
from .lowerings.state import Lowering
from .lowerings.table import Call, LoweringTable, NotLowered, as_list
from .remarks import Remarks

__all__ = ["ConvertTorchToOnnx"]

_TENSOR = re.compile(r"!torch\.v?tensor<\[([^\]]*)\],(\w+)>")
_MODEL_FRAME = re.compile(r'"([^"]*/models/[^"]+/modeling_[^"]+\.py)":(\d+)')
_SIGNED = re.compile(r"^si(\d+)$")


@dataclass(frozen=True, slots=True)
class ConvertTorchToOnnx:
    """Writes every function of the torch dialect anew with builtin tensors, one operation at a time.

    An operation without a lowering, or in a form that its lowering does not cover, does not stop the
    pass: all of them are collected into one UnsupportedOp with counts and the model's source lines.
    """

    name: ClassVar[str] = "convert-torch-to-onnx"
    summary: ClassVar[str] = (
        "lower the imported program to onnx and plan operations, or list all that cannot be"
    )

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises UnsupportedOp, naming all operations that have no lowering."""
        table = lowering_table()
        functions = [op for op in module.body.operations if isinstance(op, func.FuncOp) and _is_torch(op)]
        refused: dict[str, list[str]] = {}
        for function in functions:
            _Conversion(function, table, refused).convert()
        if refused:
            raise _unsupported(refused)
        return bool(functions)


def _is_torch(function: func.FuncOp) -> bool:
    types = [*function.type.inputs, *function.type.results]
    if any(str(type_).startswith("!torch.") for type_ in types):
        return True
    return any(op.operation.name.startswith("torch.") for block in function.regions[0] for op in block)


def _unsupported(refused: dict[str, list[str]]) -> UnsupportedOp:
    lines: list[str] = []
    for name, places in sorted(refused.items()):
        shown = list(dict.fromkeys(place for place in places if place))
        more = f" and {len(shown) - 3} more places" if len(shown) > 3 else ""
        lines.append(f"{name} (x{len(places)}) at {', '.join(shown[:3]) or 'an unknown place'}{more}")
    return UnsupportedOp(
        f"{len(refused)} operation{'s' if len(refused) > 1 else ''} of this model cannot be lowered",
        found="\n    ".join(["", *lines]).rstrip() if len(lines) > 1 else lines[0],
        expected="operations in the tables of planonce.passes.lowerings",
        todo="add a row for each to the table of its family",
    )


class _Refused:
    """Stands for the result of an operation that could not be lowered; what uses it is skipped."""


_REFUSED = _Refused()


@dataclass(slots=True)
class _Conversion:
    """The rewriting of one function."""

    old: func.FuncOp
    table: LoweringTable
    refused: dict[str, list[str]]
    # Value in the old function -> what stands for it: an ir.Value, a Size, a Python value or a list.
    mapped: dict[ir.Value, Any] = field(default_factory=dict[ir.Value, Any])
    shapes: dict[ir.Value, tuple[Size, ...]] = field(default_factory=dict[ir.Value, tuple[Size, ...]])

    def convert(self) -> None:
        old = self.old
        block = old.regions[0].blocks[0]
        self._read_symbols(block)
        inputs = [self._argument_type(type_) for type_ in old.type.inputs]
        with old.location, ir.InsertionPoint(old):
            # The results' types are known when the last operation is written.
            new = func.FuncOp(f"{old.name.value}", (inputs, []))
        entry = new.add_entry_block([argument.location for argument in block.arguments])
        low = Lowering(OnnxBuilder(insertion_point=ir.InsertionPoint(entry)))
        for before, after in zip(block.arguments, entry.arguments, strict=True):
            self._map(low, before, after)
        for op in block.operations:
            if op.operation.name == "func.return":
                self._finish(low, new, op)
            else:
                low.builder.location = op.location
                self._lower(low, op.operation)
        for key in ("arg_attrs", "res_attrs", "sym_visibility"):
            if key in old.attributes:
                new.attributes[key] = old.attributes[key]
        if self.refused:
            new.operation.erase()
        else:
            old.operation.erase()

    def _argument_type(self, type_: ir.Type) -> ir.Type:
        converted = _tensor_or_none(type_)
        if converted is None:
            raise fail(self.old, "has an argument that is no tensor of a known type", found=str(type_))
        return converted

    def _finish(self, low: Lowering, new: func.FuncOp, op: ir.OpView) -> None:
        values = [self.mapped[operand] for operand in op.operands]
        if any(value is _REFUSED for value in values):
            return
        with op.location, low.builder.insertion_point or ir.InsertionPoint(op):
            func.ReturnOp(values)
        types = ir.FunctionType.get([each.type for each in new.arguments], [each.type for each in values])
        new.attributes["function_type"] = ir.TypeAttr.get(types)

    def _read_symbols(self, block: ir.Block) -> None:
        """Collect what torch.bind_symbolic_shape says about the values of the old function."""
        names: dict[ir.Value, str] = {}
        for op in block.operations:
            operation = op.operation
            if operation.name == "torch.symbolic_int":
                names[operation.results[0]] = ir.StringAttr(operation.attributes["symbol_name"]).value
            elif operation.name == "torch.bind_symbolic_shape":
                value, *symbols = operation.operands
                shape = ir.AffineMapAttr(operation.attributes["shape_expressions"]).value
                fresh = f"d{len(self.shapes)}"
                self.shapes[value] = sizes_from_map(shape, [names[symbol] for symbol in symbols], fresh)

    def _map(self, low: Lowering, before: ir.Value, after: Any) -> None:
        self.mapped[before] = after
        if isinstance(after, ir.Value) and before in self.shapes:
            low.set_sizes(after, self.shapes[before])

    def _lower(self, low: Lowering, op: ir.Operation) -> None:
        if op.name in ("torch.symbolic_int", "torch.bind_symbolic_shape"):
            return
        arguments = [self.mapped.get(operand, _REFUSED) for operand in op.operands]
        name = op.name
        scalar = _SCALARS.get(name)
        if any(_holds_refused(argument) for argument in arguments):
            # It cannot be written, but whether it has a row is known: the list is of all that lack one.
            name = _called(op)
            if scalar is None and self.table.find(name) is None:
                self._refuse(low, op, name)
            else:
                self._map_results(low, op, [_REFUSED] * len(op.results))
            return
        if scalar is not None:
            try:
                self._map_results(low, op, scalar(low, op, arguments))
            except NotLowered as reason:
                self._refuse(low, op, f"{name}: {reason}")
            return
        name = _called(op)
        lower = self.table.find(name)
        if lower is None:
            self._refuse(low, op, name)
            return
        attributes = {key: op.attributes[key] for key in op.attributes}
        try:
            types = [_builtin_type(result.type) for result in op.results]
            results = lower(low, Call(name, arguments, types, attributes))
        except NotLowered as reason:
            self._refuse(low, op, f"{name}: {reason}")
            return
        if len(op.results) == 1 and str(op.results[0].type).startswith("!torch.list"):
            results = [results]
        self._map_results(low, op, as_list(results))

    def _map_results(self, low: Lowering, op: ir.Operation, values: list[Any]) -> None:
        for result, value in zip(op.results, values, strict=True):
            self._map(low, result, value)

    def _refuse(self, low: Lowering, op: ir.Operation, reason: str) -> None:
        self.refused.setdefault(reason, []).append(_model_line(op.location))
        self._map_results(low, op, [_REFUSED] * len(op.results))


def _called(op: ir.Operation) -> str:
    """The traced operation's name, which for a custom one is an attribute."""
    return op.name if op.name != "torch.operator" else ir.StringAttr(op.attributes["name"]).value


def _model_line(location: ir.Location) -> str:
    """The line of the model's own file, when the location's call stack has one: more telling than the
    helper of transformers or torch that it calls."""
    found = _MODEL_FRAME.search(str(location))
    return f"{found[1]}:{found[2]}" if found else describe_location(location)


def _holds_refused(argument: Any) -> bool:
    return argument is _REFUSED or (
        isinstance(argument, list) and any(each is _REFUSED for each in as_list(argument))
    )


def _builtin_type(type_: ir.Type) -> ir.Type:
    """!torch.vtensor<[?,4],si64> -> tensor<?x4xi64>; a list stays as it is (no value ever has that type)."""
    converted = _tensor_or_none(type_)
    if converted is None and not str(type_).startswith("!torch.list"):
        raise NotLowered(f"a result of type {type_}")
    return converted or type_


def _tensor_or_none(type_: ir.Type) -> ir.Type | None:
    if isinstance(type_, ir.RankedTensorType):
        return type_
    found = _TENSOR.fullmatch(str(type_))
    if found is None:
        return None
    dims, dtype = found.groups()
    name = _SIGNED.sub(r"i\1", dtype)
    shape = [None if dim == "?" else int(dim) for dim in dims.split(",") if dim]
    return tensor_type(shape, name) if name in DTYPES else None


# Operations that make no tensor: constants of the torch dialect, sizes, arithmetic on them, and lists.
_Scalar = Callable[[Lowering, ir.Operation, list[Any]], list[Any]]


def _constant(convert: Callable[[ir.Attribute], Any]) -> _Scalar:
    return lambda low, op, arguments: [convert(op.attributes["value"])]


def _size(low: Lowering, op: ir.Operation, arguments: list[Any]) -> list[Any]:
    value, axis = arguments
    return [_folded(low.sizes(value)[int(axis)])]


def _folded(size: Size) -> int | Size:
    return size if size.constant is None else size.constant


def _arithmetic(apply: Callable[[Size, Size], Size]) -> _Scalar:
    def scalar(low: Lowering, op: ir.Operation, arguments: list[Any]) -> list[Any]:
        left, right = (each if isinstance(each, Size) else Size.of(each) for each in arguments)
        return [_folded(apply(left, right))]

    return scalar


def _quotient(left: Size, right: Size) -> Size:
    found = left.divided_by(right)
    if found is None:
        raise NotLowered(f"({left}) / ({right}) is no whole number for every size")
    return found


_SCALARS: dict[str, _Scalar] = {
    "torch.constant.int": _constant(lambda attribute: ir.IntegerAttr(attribute).value),
    "torch.constant.float": _constant(lambda attribute: ir.FloatAttr(attribute).value),
    "torch.constant.bool": _constant(lambda attribute: bool(ir.IntegerAttr(attribute).value)),
    "torch.constant.str": _constant(lambda attribute: ir.StringAttr(attribute).value),
    "torch.constant.device": _constant(lambda attribute: ir.StringAttr(attribute).value),
    "torch.constant.none": lambda low, op, arguments: [None],
    "torch.aten.size.int": _size,
    "torch.aten.add.int": _arithmetic(lambda left, right: left + right),
    "torch.aten.sub.int": _arithmetic(lambda left, right: left - right),
    "torch.aten.mul.int": _arithmetic(lambda left, right: left * right),
    "torch.aten.floordiv.int": _arithmetic(_quotient),
    "torch.prim.ListConstruct": lambda low, op, arguments: [arguments],
    "torch.prim.ListUnpack": lambda low, op, arguments: arguments[0],
}
