"""Placed IR to a decode session without a plan directory: programs in memory, weights handed over by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch_mlir import ir

from planonce.compiler.emit import EmittedProgram, emit
from planonce.compiler.weights_writer import Location
from planonce.runtime.decode_session import DecodeSession
from planonce.runtime.device import DeviceLocation
from planonce.runtime.kv_cache import KvCache
from planonce.runtime.manifest import CheckpointReference, Manifest, ModelFacts
from planonce.runtime.ort import OrtProgram, ProgramOptions, Tensor
from planonce.runtime.step_program import StageProgram, StepProgram
from planonce.runtime.topology import Topology

__all__ = ["DEVICES", "load", "manifest_of", "open_session"]

DEVICES = tuple(DeviceLocation.parse(f"cpu:{i}") for i in range(3))


def manifest_of(program: EmittedProgram, *, vocab: int, max_seq_len: int) -> Manifest:
    """What the runtime needs to know of ``program``; nothing of a directory."""
    n_layers = 1 + max(slot.layer for slot in program.kv_slots)
    return Manifest(
        model=ModelFacts("tiny", "Tiny", n_layers, vocab, 1, max_seq_len, "float32"),
        shape_key="tiny",
        kv_slots=program.kv_slots,
        stages=tuple(stage.stage for stage in program.stages),
        copies=program.copies,
        attention=(),
        pipeline="",
        tool_versions={},
        minimum_onnxruntime="1.31.0",
        files=(),
        tensors=(),
        checkpoint=CheckpointReference("embedded", None, ()),
    )


def load(
    module: ir.Module,
    weights: Mapping[str, np.ndarray],
    *,
    optimize: bool = False,
    max_seq_len: int = 64,
    vocab: int = 320,
) -> tuple[EmittedProgram, StepProgram]:
    """The module's programs, each a session of its own on its logical device."""
    program = emit(module)
    manifest = manifest_of(program, vocab=vocab, max_seq_len=max_seq_len)
    arrays = {
        use.name: np.ascontiguousarray(weights[use.weight] if use.constant is None else use.constant)
        for use in program.tensors
    }
    locations = {name: Location("given-by-name", 0, array.nbytes) for name, array in arrays.items()}
    stages: list[StageProgram] = []
    for stage in program.stages:
        options = ProgramOptions(
            DeviceLocation.parse(stage.stage.device), threads=1, spin=False, optimize=optimize
        )
        initializers = {use.name: Tensor.over(arrays[use.name]) for use in stage.tensors}
        stages.append(
            StageProgram(stage.stage, OrtProgram(stage.serialize(locations), options, initializers))
        )
    return program, StepProgram(manifest, tuple(stages), Topology.of(manifest, DEVICES))


def open_session(step: StepProgram, capacity: int = 32) -> DecodeSession:
    """A session over a cache of its own, on the devices that the program says."""
    return DecodeSession(step, KvCache.for_slots(step.slots, capacity))
