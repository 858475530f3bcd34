"""A step bound for one shape: every tensor in place, so that running it is a C call a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from .counters import SessionCounters
from .device import DeviceLocation
from .errors import PlanError
from .manifest import Argument, ArgumentRole
from .ort import Binding, Tensor, carrier
from .step_inputs import StepInputs
from .step_program import StageProgram, StepProgram, StepShape
from .storage import Storage

__all__ = ["BoundStep"]

KvBuffers = Mapping[tuple[int, str], Storage]


class BoundStep:
    """IO bindings of all stages for one (batch, sequence, logits, capacity).

    ``logits`` is a numpy-owned host array ``[batch, n, vocab]`` that :meth:`run` overwrites: the program's
    own result where that is on the host in float32, else a copy of it, the plan's copy edge to the host.
    Every result is bound, and a step brings to the host what it is asked for: with a greedy head that may be
    the next token alone, without another binding.
    """

    __slots__ = (
        "_copies",
        "_counters",
        "_landings",
        "_next_tokens",
        "_program",
        "_result",
        "_runs",
        "_travels",
        "_unread",
        "bindings",
        "inputs",
        "logits",
        "shape",
    )

    def __init__(
        self, program: StepProgram, shape: StepShape, kv: KvBuffers, counters: SessionCounters
    ) -> None:
        self._program = program
        self._counters = counters
        self.shape = shape
        self.inputs = StepInputs(shape.batch, shape.sequence, shape.logits)
        values: dict[tuple[int, str], Tensor] = {}  # what the stages make, by (stage, name)
        self._landings: dict[tuple[int, str, DeviceLocation], Tensor] = {}
        self.bindings: list[Binding] = []
        for i, stage in enumerate(program.stages):
            self.bindings.append(self._bind_stage(i, stage, values))
        self.bind_kv(kv)
        self._copies: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for (source_stage, source, _), landing in self._landings.items():
            self._copies.setdefault(source_stage, []).append((landing, values[source_stage, source]))
        self._runs = self._scheduled()
        self._next_tokens = None if program.next_tokens is None else values[program.next_tokens]
        self._result = values[program.logits]
        # From the host to the host nothing has to travel: the result's own array is where a caller reads.
        own = self._result.host_array if self._result.dtype == "float32" else None
        self._travels = own is None
        self._unread = False  # the last run's logits are not in ``logits`` yet
        self.logits: NDArray[np.float32] = (
            np.zeros(self._result.shape, dtype=np.float32) if own is None else own
        )
        counters.bindings_made += len(self.bindings)
        counters.bind_calls += sum(b.bind_calls for b in self.bindings)

    def _bind_stage(self, index: int, stage: StageProgram, values: dict[tuple[int, str], Tensor]) -> Binding:
        binding = stage.program.binding()
        for argument in stage.stage.inputs:
            if argument.role is ArgumentRole.KV:
                continue
            if argument.role is ArgumentRole.STAGE_VALUE:
                tensor = self._landing(index, argument, stage.location, values)
            else:
                tensor = self.inputs.tensor(argument.role, stage.location)
            binding.bind_input(argument.name, tensor)
        for argument in stage.stage.outputs:
            if argument.role is ArgumentRole.KV:
                continue
            tensor = self._buffer(argument.dtype, self._program.resolve(argument, self.shape), stage.location)
            values[index, argument.name] = tensor
            binding.bind_output(argument.name, tensor)
        return binding

    def _landing(
        self, stage: int, argument: Argument, location: DeviceLocation, values: dict[tuple[int, str], Tensor]
    ) -> Tensor:
        """Where a crossing value is read: one buffer a value and device, whichever stages read it there.

        On the device that made it that is the result's own buffer, and nothing is copied.
        """
        edge = self._program.incoming[stage, argument.name]
        if self._program.stages[edge.source_stage].location == location:
            return values[edge.source_stage, edge.source]
        key = (edge.source_stage, edge.source, location)
        if key not in self._landings:
            shape = self._program.resolve(argument, self.shape)
            self._landings[key] = self._buffer(argument.dtype, shape, location)
        return self._landings[key]

    def _scheduled(self) -> tuple[Callable[[], None], ...]:
        """Stages in order, each followed by the copies that leave it."""
        runs: list[Callable[[], None]] = []
        for i, binding in enumerate(self.bindings):
            runs.append(binding.run)
            for target, source in self._copies.get(i, []):
                runs.append(lambda target=target, source=source: target.copy_from(source))
        return tuple(runs)

    @property
    def device_copies(self) -> int:
        """Copies between devices in a step, the logits' to the host not counted."""
        return len(self._landings)

    @staticmethod
    def _buffer(dtype: str, shape: tuple[int, ...], location: DeviceLocation) -> Tensor:
        """A result's memory. On the host numpy owns it: a view of ONNX Runtime's would die with it."""
        if location.ort_device[0] == "cpu":
            return Tensor.over(np.zeros(shape, dtype=carrier(dtype)), dtype)
        return Tensor.empty(shape, dtype, location)

    def bind_kv(self, kv: KvBuffers) -> None:
        """Bind every KV slot, input and output to one tensor."""
        for slot in self._program.slots:
            binding = self.bindings[self._program.stage_of[slot.input]]
            binding.bind_in_place(slot.input, slot.output, kv[slot.layer, slot.which].tensor)
            assert binding.bound_input(slot.input) is binding.bound_output(slot.output)

    def rebind_kv(self, kv: KvBuffers) -> None:
        """Bind other buffers of the same layout; everything else stays bound."""
        before = sum(b.bind_calls for b in self.bindings)
        self.bind_kv(kv)
        self._counters.bind_calls += sum(b.bind_calls for b in self.bindings) - before

    def use_graph(self, graph_id: int | None, release: int | None = None) -> None:
        """Record the next run of every stage and replay it from then on; None: no longer. ``release``: the
        recording to forget first."""
        if release is not None:
            for stage in self._program.stages:
                stage.program.release_graph(release)
        for binding in self.bindings:
            binding.use_graph(graph_id)
        self._runs = self._scheduled()

    @property
    def effective_target(self) -> Tensor:
        """The logits on the program's device, before their copy to the host."""
        return self._result

    def run(self) -> NDArray[np.float32]:
        """Run all stages and bring the logits to the host. Raises TopologyChanged, PlanError."""
        self.execute()
        return self.fetch_logits()

    def execute(self) -> None:
        """Run all stages and bring nothing to the host. Raises TopologyChanged, PlanError."""
        try:
            for run in self._runs:
                run()
        except Exception as error:
            # A lost device shows as some failure of ONNX Runtime's; what to do about it is another thing.
            self._program.topology.check_still_there()
            raise PlanError(
                "ONNX Runtime failed while running the plan.", found=str(error).strip()[:400]
            ) from None
        self._unread = True

    def fetch_logits(self) -> NDArray[np.float32]:
        """The last run's logits on the host, brought there if they are not yet."""
        if self._unread:
            if self._travels:
                self._result.copy_to_float32(self.logits)
            self._unread = False
            self._counters.host_copies += 1
        return self.logits

    @property
    def next_token(self) -> int:
        """What the greedy head picked for the last row of the last run; -1: it leaves that to the host."""
        tensor = self._next_tokens
        assert tensor is not None, "only a plan with a greedy head is asked"
        array = tensor.host_array
        return int((tensor.to_numpy() if array is None else array)[-1, -1])
