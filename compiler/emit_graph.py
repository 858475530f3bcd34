"""The final function's block, read once into plain records that emit works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import func

from planonce.passes.ir.nbits import NBits, WeightForm
from planonce.passes.ir.onnx_schemas import OpSchema, find_schema
from planonce.passes.ir.roles import function_of
from planonce.passes.ir.tensors import constant_array, shape_of
from planonce.passes.ir.weights import weight_ref
from planonce.runtime.errors import CompileError

from .emit_values import dtype_name
from .tensor_use import Encoding, TensorUse

__all__ = ["Graph", "GraphOp", "read_graph"]

DEFAULT_DEVICE = "cpu:0"
HOST = "host"
# Larger constants lie beside the weights: a program file that is small loads fast and reads well in a viewer.
INLINE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class GraphOp:
    """An ``onnx`` op, or a ``plan.copy`` (``schema`` None). ``producers``: indices into ``Graph.ops``."""

    name: str
    schema: OpSchema | None
    operands: tuple[ir.Value, ...]
    results: tuple[ir.Value, ...]
    attributes: Mapping[str, ir.Attribute]
    device: str
    producers: tuple[int, ...]

    @property
    def is_copy(self) -> bool:
        return self.schema is None


@dataclass(slots=True)
class Graph:
    """Everything in the function. IR objects live as long as the module and no pass runs in between."""

    function: func.FuncOp
    arguments: list[ir.Value]
    results: list[ir.Value] = field(default_factory=list)
    ops: list[GraphOp] = field(default_factory=list)
    producer: dict[ir.Value, int] = field(default_factory=dict)  # value -> index of the onnx op
    order: dict[ir.Value, int] = field(default_factory=dict)  # onnx op's result -> running number
    constants: dict[ir.Value, str] = field(default_factory=dict)  # value -> initializer name
    inline: dict[str, np.ndarray] = field(default_factory=dict)
    tensors: dict[str, TensorUse] = field(default_factory=dict)
    forwarded: dict[ir.Value, ir.Value] = field(default_factory=dict)  # plan.copy / contiguize -> its source
    copies: dict[ir.Value, int] = field(default_factory=dict)  # plan.copy's result -> its index in ops
    host: set[ir.Value] = field(default_factory=set)
    absent: set[ir.Value] = field(default_factory=set)

    def root(self, value: ir.Value) -> ir.Value:
        """The value that copies and contiguize hand on."""
        while value in self.forwarded:
            value = self.forwarded[value]
        return value

    def is_absent(self, value: ir.Value) -> bool:
        return value in self.absent

    def copied_to_host(self, value: ir.Value) -> bool:
        return value in self.host

    def argument_index(self, value: ir.Value) -> int:
        return ir.BlockArgument(value).arg_number

    def value_names(self) -> dict[ir.Value, str]:
        """``mat_mul_12`` for the first result of the 12th op, ``split_3.1`` for a second result."""
        names: dict[ir.Value, str] = {}
        for op in self.ops:
            if op.schema is not None:
                for i, value in enumerate(op.results):
                    names[value] = op.name if i == 0 else f"{op.name}.{i}"
        return names


def read_graph(module: ir.Module) -> Graph:
    """Read the module's function. Raises CompileError for an operation that cannot be emitted."""
    function = function_of(module)
    block = function.regions[0].blocks[0]
    graph = Graph(function, list(block.arguments))
    for view in block.operations:
        _read_op(graph, view.operation)
    return graph


def _read_op(graph: Graph, op: ir.Operation) -> None:
    match op.name:
        case "func.return":
            graph.results = list(op.operands)
        case "onnx.no_value":
            graph.absent.add(op.results[0])
        case "onnx.constant":
            _read_constant(graph, op)
        case "plan.weight":
            _read_weight(graph, op)
        case "plan.contiguize":
            # A value between ONNX nodes is always contiguous: the demand is met by its being a value.
            graph.forwarded[op.results[0]] = op.operands[0]
        case "plan.copy":
            to = ir.StringAttr(op.attributes["to"]).value
            graph.forwarded[op.results[0]] = op.operands[0]
            if to == HOST:
                graph.host.add(op.results[0])
            else:
                graph.copies[op.results[0]] = len(graph.ops)
                _append(graph, op, None, to)
        case _:
            schema = find_schema(op.name)
            if schema is None:
                raise CompileError(
                    "The pipeline left an operation that has no ONNX form.",
                    found=op.name,
                    expected="onnx operations, plan.weight and plan.copy",
                    where=str(op.location)[:400],
                    todo="Let the pipeline lower it: select-attention lowers attention and KV writes.",
                )
            for result in op.results:
                graph.producer[result] = len(graph.ops)
                graph.order[result] = len(graph.order)
            _append(graph, op, schema, _device(op))


def _append(graph: Graph, op: ir.Operation, schema: OpSchema | None, device: str) -> None:
    producers = sorted({p for value in op.operands if (p := _producer(graph, value)) is not None})
    name = op.name.removeprefix("onnx.")
    graph.ops.append(
        GraphOp(
            name=f"{name}_{len(graph.ops)}",
            schema=schema,
            operands=tuple(op.operands),
            results=tuple(op.results),
            attributes={key: op.attributes[key] for key in op.attributes},
            device=device,
            producers=tuple(producers),
        )
    )


def _producer(graph: Graph, value: ir.Value) -> int | None:
    """The nearest copy or onnx op behind ``value``; None for arguments, constants and weights."""
    root = graph.root(value)
    if root not in graph.producer:
        return None  # an argument or constant is bound on whichever device reads it
    while value not in graph.producer and value not in graph.copies:
        value = graph.forwarded[value]
    return graph.copies.get(value, graph.producer.get(value))


def _device(op: ir.Operation) -> str:
    if "plan.device" not in op.attributes:
        return DEFAULT_DEVICE
    return ir.StringAttr(op.attributes["plan.device"]).value


def _read_constant(graph: Graph, op: ir.Operation) -> None:
    value = op.results[0]
    array = constant_array(value)
    if array is None:
        raise CompileError("A constant has no data.", where=str(op.location)[:400])
    name = f"constant_{len(graph.constants)}"
    graph.constants[value] = name
    if array.nbytes <= INLINE_BYTES:
        graph.inline[name] = array
    else:
        graph.tensors[name] = TensorUse(name, array.dtype.name, array.shape, constant=array)


def _read_weight(graph: Graph, op: ir.Operation) -> None:
    value = op.results[0]
    ref = weight_ref(op)
    weight = ref.name
    shape = shape_of(value)
    if any(size is None for size in shape):
        raise CompileError("A weight's shape is not static.", where=weight, found=str(list(shape)))
    use = TensorUse(
        weight,
        dtype_name(value),
        tuple(size or 0 for size in shape),
        weight=None if ref.merged else weight,
        merged=ref.parts if ref.merged else (),
        encoding=_encoding(op),
    )
    if use.encoding is not None:
        use = replace(use, name=f"{weight}@{use.encoding.format}.{use.encoding.form.value}")
    if graph.tensors.get(use.name, use) != use:
        # The same weight in a second form: another initializer, named for what differs.
        use = replace(use, name=f"{weight}@{use.dtype}")
    graph.constants[value] = use.name
    graph.tensors[use.name] = use


def _encoding(op: ir.Operation) -> Encoding | None:
    if "form" not in op.attributes:
        return None
    format_, form = (ir.StringAttr(op.attributes[key]).value for key in ("format", "form"))
    return Encoding(NBits.parse(format_), WeightForm(form))
