"""The final IR to ONNX programs, one to one: an ``onnx`` op is a node, a ``plan.weight`` an initializer.

No decision is made here. What is left of the ``plan`` dialect is either data (``plan.weight``) or an edge
between programs (``plan.copy``); anything else means that the pipeline ended too early, and is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, helper
from torch_mlir import ir

from planonce.passes.ir.onnx_schemas import OPSET
from planonce.passes.ir.roles import HOST_ROLES, KV_ROLES, ArgumentInfo, ResultInfo, Role, arguments, results
from planonce.runtime.errors import CompileError
from planonce.runtime.manifest import Argument, ArgumentRole, CopyEdge, KvSlotSpec, Stage

from .emit_dims import symbolic_dims
from .emit_graph import Graph, GraphOp, read_graph
from .emit_stages import StageNode, assign_stages
from .emit_values import (
    attribute_protos,
    dtype_name,
    external_tensor,
    inline_tensor,
    value_info,
    value_shape,
)
from .tensor_use import TensorUse
from .weights_writer import Location

__all__ = ["EmittedProgram", "EmittedStage", "emit"]

# The first IR version that knows opset 24; onnxruntime refuses versions newer than it knows.
IR_VERSION = 12


@dataclass(frozen=True, slots=True)
class EmittedStage:
    """One ONNX program without the data of its ``tensors`` (names of TensorUse)."""

    stage: Stage
    model: ModelProto
    tensors: tuple[TensorUse, ...]

    def serialize(
        self,
        locations: Mapping[str, Location],
        entries: Mapping[str, tuple[str, str]] | None = None,
    ) -> bytes:
        """The ``.onnx`` file's bytes, its large initializers pointing to ``locations``. ``entries``: one more
        (key, value) of an initializer's external data."""
        model = ModelProto()
        model.CopyFrom(self.model)
        for use in self.tensors:
            at = locations[use.name]
            tensor = external_tensor(use.name, use.dtype, use.shape, at.file, at.offset, at.nbytes)
            if entries is not None and use.name in entries:
                key, value = entries[use.name]
                tensor.external_data.add(key=key, value=value)
            model.graph.initializer.append(tensor)
        return model.SerializeToString(deterministic=True)


@dataclass(frozen=True, slots=True)
class EmittedProgram:
    """Stages in running order, the copies between them, the KV slots, and every tensor once.

    A paged program has no slot: its pools and block table are arguments like others, see ``is_paged``.
    """

    stages: tuple[EmittedStage, ...]
    copies: tuple[CopyEdge, ...]
    kv_slots: tuple[KvSlotSpec, ...]
    tensors: tuple[TensorUse, ...]

    @property
    def is_paged(self) -> bool:
        """Whether the KV is in pools of blocks."""
        arguments = [argument for stage in self.stages for argument in stage.stage.inputs]
        return any(argument.role is ArgumentRole.KV_POOL for argument in arguments)


def emit(module: ir.Module, *, windows: Mapping[int, int] | None = None) -> EmittedProgram:
    """Programs of a module whose pipeline has run. ``windows``: sliding window by layer, for the KV slots.

    Raises CompileError for an operation that ONNX has no word for and for a missing copy.
    """
    return _Emitter(read_graph(module)).run(windows or {})


class _StageParts:
    """A program under construction. Inputs and outputs are keyed by their place in the signature."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.nodes: list[NodeProto] = []
        self.inputs: dict[tuple[int, int], Argument] = {}
        self.outputs: dict[tuple[int, int], Argument] = {}
        self.constants: dict[str, None] = {}
        self.domains: set[str] = {""}


class _Emitter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.arguments: list[ArgumentInfo] = list(arguments(graph.function))
        self.results: list[ResultInfo] = list(results(graph.function))
        nodes = [StageNode(op.device, op.producers, op.is_copy, op.name) for op in graph.ops]
        assignment = assign_stages(nodes)
        self.stage_of = assignment.stage_of
        self.stages = [_StageParts(device) for device in assignment.devices]
        self.names = graph.value_names()
        self.copies: list[CopyEdge] = []
        self.crossing: dict[tuple[int, ir.Value], str] = {}
        self.claimed: dict[ir.Value, str] = {}
        # Lengths and masks are computed again in a later stage of their device: a mask is as long as the live
        # prefix, and a value that crosses needs a buffer of one size.
        self.recomputable = _from_step_inputs(graph, self.arguments)
        self.repeated: set[tuple[int, int]] = set()
        crosses = len(self.stages) > 1
        self.dims = symbolic_dims(graph, [info.dims for info in self.arguments]) if crosses else {}

    def run(self, windows: Mapping[int, int]) -> EmittedProgram:
        if not self.stages:
            raise CompileError("The program computes nothing.", found="no onnx operation")
        # A result's name replaces its value's own, so it has to be known before a node is written.
        for info, value in zip(self.results, self.graph.results, strict=True):
            root = self.graph.root(value)
            if root in self.graph.producer and root not in self.claimed:
                self.claimed[root] = self.names[root] = info.name
        for op, stage in zip(self.graph.ops, self.stage_of, strict=True):
            if not op.is_copy:
                self._emit_op(op, stage)
        for index in range(len(self.results)):
            self._emit_result(index)
        used = {key for stage in self.stages for key in stage.inputs}
        for index in range(len(self.arguments)):
            if (0, index) not in used:
                self._take_argument(0, index)
        stages = tuple(self._finish(i) for i in range(len(self.stages)))
        tensors = {use.name: use for stage in stages for use in stage.tensors}
        return EmittedProgram(stages, tuple(self.copies), self._kv_slots(windows), tuple(tensors.values()))

    def _emit_op(self, op: GraphOp, stage: int) -> None:
        assert op.schema is not None
        inputs = [self._name_in(stage, value) for value in op.operands]
        outputs: list[str] = []
        for i, value in enumerate(op.results):
            formal = op.schema.outputs[min(i, len(op.schema.outputs) - 1)]
            unused = formal.optional and value not in self.claimed and not any(True for _ in value.uses)
            outputs.append("" if unused else self.names[value])
        node = NodeProto(
            op_type=op.schema.op_type,
            name=op.name,
            domain=op.schema.domain,
            input=_without_trailing_blanks(inputs),
            output=_without_trailing_blanks(outputs),
        )
        node.attribute.extend(attribute_protos(op.schema, op.attributes))
        parts = self.stages[stage]
        parts.nodes.append(node)
        parts.domains.add(op.schema.domain)

    def _name_in(self, stage: int, value: ir.Value) -> str:
        """The name ``value`` goes by in ``stage``'s program; makes it an input or initializer if need be."""
        if self.graph.is_absent(value):
            return ""
        root = self.graph.root(value)
        if root in self.graph.constants:
            name = self.graph.constants[root]
            self.stages[stage].constants[name] = None
            return name
        producer = self.graph.producer.get(root)
        if producer is None:
            return self._take_argument(stage, self.graph.argument_index(root))
        source = self.stage_of[producer]
        if source == stage:
            return self.names[root]
        if self.recomputable[producer] and self.stages[source].device == self.stages[stage].device:
            if (stage, producer) not in self.repeated:
                self.repeated.add((stage, producer))
                self._emit_op(self.graph.ops[producer], stage)
            return self.names[root]
        return self._cross(source, stage, root)

    def _take_argument(self, stage: int, index: int) -> str:
        info = self.arguments[index]
        value = self.graph.arguments[index]
        self.stages[stage].inputs[0, index] = Argument(
            info.name, _ROLES[info.role], dtype_name(value), value_shape(value, info.dims, info.name)
        )
        return info.name

    def _cross(self, source: int, stage: int, value: ir.Value) -> str:
        """``value`` of stage ``source`` as an input of ``stage``, with the copy edge that brings it."""
        if (stage, value) in self.crossing:
            return self.crossing[stage, value]
        name, order = self.names[value], self.graph.order[value]
        if value in self.claimed:
            # A result of the program keeps its role; its copy onward is a value of its own.
            name = f"{name}.crossing"
            if (1, order) not in self.stages[source].outputs:
                self._identity(source, self.names[value], name)
        argument = Argument(name, ArgumentRole.STAGE_VALUE, dtype_name(value), self._crossing_shape(value))
        self.stages[source].outputs[1, order] = argument
        self.stages[stage].inputs[1, order] = argument
        self.copies.append(CopyEdge(source, name, stage, name))
        self.crossing[stage, value] = name
        return name

    def _crossing_shape(self, value: ir.Value) -> tuple[int | str, ...]:
        dims = self.dims[value]
        if any(dim is None or "*" in str(dim) for dim in dims):
            # It would need a buffer of another size at each token, and nothing says of which.
            raise CompileError(
                "A value crosses devices whose size no input of the step defines.",
                found=f"{self.names[value]}: {list(dims)}",
                expected="dimensions that are numbers or named by an argument (batch, sequence...)",
                where=str(value.owner.location)[:400],
                todo="Place what makes it and what reads it on one device; place before select-attention.",
            )
        return tuple(dim for dim in dims if dim is not None)

    def _emit_result(self, index: int) -> None:
        info, value = self.results[index], self.graph.results[index]
        root = self.graph.root(value)
        producer = self.graph.producer.get(root)
        stage = 0 if producer is None else self.stage_of[producer]
        if self.claimed.get(root) != info.name:
            # An argument handed back as it came, or one value returned twice: a name of its own.
            self._identity(stage, self._name_in(stage, root), info.name)
        self.stages[stage].outputs[0, index] = Argument(
            info.name, _ROLES[info.role], dtype_name(value), value_shape(value, info.dims, info.name)
        )
        to_host = self.graph.copied_to_host(value)
        if to_host:
            self.copies.append(CopyEdge(stage, info.name, None, info.name))
        elif info.role in HOST_ROLES:
            raise CompileError(
                f"The {info.name} are not copied to the host.",
                expected='plan.copy {to = "host"} before the return',
                todo="Run insert-copies after assign-placement.",
            )

    def _identity(self, stage: int, source: str, target: str) -> None:
        self.stages[stage].nodes.append(
            NodeProto(op_type="Identity", name=f"Identity.{target}", input=[source], output=[target])
        )

    def _finish(self, index: int) -> EmittedStage:
        parts = self.stages[index]
        program = "program.onnx" if len(self.stages) == 1 else f"stage-{index}.onnx"
        inputs = tuple(parts.inputs[key] for key in sorted(parts.inputs))
        outputs = tuple(parts.outputs[key] for key in sorted(parts.outputs))
        inline = [inline_tensor(n, self.graph.inline[n]) for n in parts.constants if n in self.graph.inline]
        graph = helper.make_graph(
            parts.nodes,
            program.removesuffix(".onnx"),
            [value_info(a.name, a.dtype, a.shape) for a in inputs],
            [value_info(a.name, a.dtype, a.shape) for a in outputs],
            inline,
        )
        opsets = [helper.make_opsetid(d, OPSET if d == "" else 1) for d in sorted(parts.domains)]
        model = helper.make_model(
            graph, ir_version=IR_VERSION, opset_imports=opsets, producer_name="planonce"
        )
        tensors = tuple(self.graph.tensors[n] for n in parts.constants if n in self.graph.tensors)
        return EmittedStage(Stage(program, parts.device, inputs, outputs), model, tensors)

    def _kv_slots(self, windows: Mapping[int, int]) -> tuple[KvSlotSpec, ...]:
        outputs = {(r.layer, r.which): r.name for r in self.results if r.role is Role.KV}
        slots: list[KvSlotSpec] = []
        for index, info in enumerate(self.arguments):
            if info.role is not Role.KV:
                continue
            assert info.layer is not None and info.which is not None
            stage = next(parts for parts in self.stages if (0, index) in parts.inputs)
            argument = stage.inputs[0, index]
            heads, head_dim = argument.shape[1], argument.shape[3]
            if not isinstance(heads, int) or not isinstance(head_dim, int):
                raise CompileError(
                    "A KV slot's heads or head dimension is symbolic.",
                    where=info.name,
                    found=str(list(argument.shape)),
                )
            slots.append(
                KvSlotSpec(
                    layer=info.layer,
                    which=info.which,
                    n_kv_heads=heads,
                    head_dim=head_dim,
                    dtype=argument.dtype,
                    device=stage.device,
                    input=info.name,
                    output=outputs[info.layer, info.which],
                    window=windows.get(info.layer) or None,
                )
            )
        return tuple(slots)


_ROLES = {
    Role.TOKEN_IDS: ArgumentRole.TOKEN_IDS,
    Role.WRITE_OFFSET: ArgumentRole.WRITE_OFFSET,
    Role.CACHED_LEN: ArgumentRole.CACHED_LEN,
    Role.ATTENDED_LEN: ArgumentRole.ATTENDED_LEN,
    Role.LOGIT_POSITIONS: ArgumentRole.LOGIT_POSITIONS,
    Role.KV: ArgumentRole.KV,
    Role.KV_POOL: ArgumentRole.KV_POOL,
    Role.BLOCK_TABLE: ArgumentRole.BLOCK_TABLE,
    Role.LOGITS: ArgumentRole.LOGITS,
    Role.NEXT_TOKENS: ArgumentRole.NEXT_TOKENS,
}


def _from_step_inputs(graph: Graph, arguments: Sequence[ArgumentInfo]) -> list[bool]:
    """By operation: whether it follows from the step's inputs and constants alone, without weight or KV."""
    found: list[bool] = []
    for op in graph.ops:
        alone = not op.is_copy
        for value in op.operands:
            if value in graph.producer:
                alone = alone and found[graph.producer[value]]
            elif value in graph.constants:
                use = graph.tensors.get(graph.constants[value])
                alone = alone and (use is None or use.weight is None)
            elif not graph.is_absent(value):
                is_argument = isinstance(value.owner, ir.Block)
                alone = alone and is_argument
                alone = alone and arguments[graph.argument_index(value)].role not in KV_ROLES
        found.append(alone)
    return found


def _without_trailing_blanks(names: list[str]) -> list[str]:
    while names and not names[-1]:
        names = names[:-1]
    return names
