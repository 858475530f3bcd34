"""The program for this machine: the same step, with weights' offsets in the form that its kernels pack.

ONNX Runtime re-packs the weights of MatMulNBits when a program is loaded, and can take the packed bytes from
the plan instead (``session.save_external_prepacked_constant_initializers``). In them lies one float a block
that the kernel multiplies with the sum of the input's block: ``-zero * scale``. With the block's offset added
to it the linear computes ``scale * code + offset`` exactly, without the operations that the portable program
needs for that.

The layout is ONNX Runtime's own and differs by processor. So nothing is assumed of it: the floats must stand
where they are looked for, bit for bit, or there is no packed program; what comes out is compared with the
portable program (packed_check.py); and the runtime takes it only with the same version, on the same
processor, after it has repeated the logits that were noted here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import NodeProto, TensorProto, helper
from torch_mlir import ir

from planonce.passes.driver import run_pipeline
from planonce.passes.ir.nbits import WeightForm
from planonce.runtime.errors import CompileError

from .emit import EmittedProgram, EmittedStage, emit
from .plan_file import PlanFile
from .tensor_use import TensorUse
from .weights_writer import ALIGNMENT, Location, aligned

__all__ = [
    "PACKED_PROGRAM", "PackedBytes", "UnknownLayout", "emit_packed", "pack_weights", "packed_bytes",
    "refuse_folded",
]  # fmt: skip

PACKED_PROGRAM = "packed.onnx"
_TILE = 16  # columns whose floats lie side by side
_SAVE = "session.save_external_prepacked_constant_initializers"
_FILE = "session.optimized_model_external_initializers_file_name"
_LEAST = "session.optimized_model_external_initializers_min_size_in_bytes"


class UnknownLayout(Exception):
    """ONNX Runtime packs weights here in a way that offsets cannot be written into. Not the user's concern:
    the plan then has the portable program alone."""


@dataclass(frozen=True, slots=True)
class PackedBytes:
    """A packed weight in ``weights.bin``. ``key``: ONNX Runtime's name for what it was packed from."""

    key: str
    offset: int
    nbytes: int

    @property
    def external_data(self) -> tuple[str, str]:
        """The entry of an initializer that says where its packed form lies."""
        return "prepacked_0", f"{self.key}|{self.offset};{self.nbytes};0"


def emit_packed(module: ir.Module, program: EmittedProgram) -> EmittedStage | None:
    """The program with folded offsets, or None where no linear has any. Changes ``module``.

    Only for a program of one stage on the CPU.
    """
    if len(program.stages) != 1 or not program.stages[0].stage.device.startswith("cpu"):
        return None
    if not run_pipeline(module, "fold-offsets,canonicalize,cse").passes[0].changed:
        return None
    (stage,) = emit(module).stages
    return replace(stage, stage=replace(stage.stage, program=PACKED_PROGRAM))


def refuse_folded(program: EmittedProgram) -> None:
    """Raises CompileError for folded weights in the portable program, which would leave out their offsets."""
    for use in program.tensors:
        if use.encoding is not None and use.encoding.form is WeightForm.FOLDED:
            raise CompileError(
                "The pipeline folds offsets into packed weights, which a portable program does not have.",
                found=use.name,
                todo="Leave fold-offsets out of it: the packed program is made beside, where it is of use.",
            )


def packed_bytes(stage: EmittedStage) -> int:
    """About what :func:`pack_weights` appends: codes, scales, and as many floats for the codes' zero."""
    uses = {use.name: use for use in stage.tensors}
    names = {node.input[1]: node.input[2] for node in _folded(stage, uses)}
    return sum(uses[data].nbytes + 2 * uses[scales].nbytes + 2 * ALIGNMENT for data, scales in names.items())


def pack_weights(
    stage: EmittedStage, locations: Mapping[str, Location], file: PlanFile
) -> dict[str, PackedBytes]:
    """Append the packed form of each folded weight to ``file``, which holds all tensors already.

    One weight at a time is in memory. Raises UnknownLayout; the file then has some bytes that nothing names.
    """
    uses = {use.name: use for use in stage.tensors}
    found: dict[str, PackedBytes] = {}
    for node in _folded(stage, uses):
        name = node.input[1]
        if name in found:
            continue
        data = _read(file, uses[name], locations[name])
        scales_use = uses[node.input[2]]
        scales = _read(file, scales_use, locations[scales_use.name])
        # A tensor of the portable program, of the scales' dtype and shape.
        offset_name = name.removesuffix(WeightForm.FOLDED.value) + WeightForm.OFFSET.value
        offset = _read(file, scales_use, locations[offset_name])
        key, packed = _pack(node, data, scales)
        _write_offsets(packed, data, scales, offset, zero=_zero(uses[name]))
        file.pad_to(aligned(file.position))
        found[name] = PackedBytes(key, file.position, packed.nbytes)
        file.write(packed.data)
    return found


def _folded(stage: EmittedStage, uses: Mapping[str, TensorUse]) -> Iterator[NodeProto]:
    for node in stage.model.graph.node:
        use = uses.get(node.input[1]) if node.op_type == "MatMulNBits" else None  # None: made by the program
        if use is not None and use.encoding is not None and use.encoding.form is WeightForm.FOLDED:
            yield node


def _zero(use: TensorUse) -> int:
    assert use.encoding is not None
    return use.encoding.format.zero


def _read(file: PlanFile, use: TensorUse, at: Location) -> np.ndarray:
    return np.fromfile(
        file.path, use.dtype, count=at.nbytes // np.dtype(use.dtype).itemsize, offset=at.offset
    ).reshape(use.shape)


def _pack(node: NodeProto, data: np.ndarray, scales: np.ndarray) -> tuple[str, np.ndarray]:
    """(key, bytes) as ONNX Runtime packs this weight on this machine. Raises UnknownLayout."""
    width = next(helper.get_attribute_value(a) for a in node.attribute if a.name == "K")
    linear = NodeProto()
    linear.CopyFrom(node)
    linear.input[:], linear.output[:] = ["x", "data", "scales"], ["y"]
    graph = helper.make_graph(
        [linear],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", len(data)])],
        [onnx.numpy_helper.from_array(data, "data"), onnx.numpy_helper.from_array(scales, "scales")],
    )
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, ir_version=12, opset_imports=opsets)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "linear.onnx"
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        settings.intra_op_num_threads = 1
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        settings.optimized_model_filepath = str(path)
        for name, value in ((_SAVE, "1"), (_FILE, "linear.bin"), (_LEAST, "1")):
            settings.add_session_config_entry(name, value)
        onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        saved = onnx.load(path, load_external_data=False)
        entry = next((_packed_entry(t) for t in saved.graph.initializer if t.name == "data"), "")
        key, _, place = entry.partition("|")
        numbers = place.split(";")
        if len(numbers) != 3:
            raise UnknownLayout(f"its packed form is {entry or 'not saved'!r}")
        start, nbytes = int(numbers[0]), int(numbers[1])
        return key, np.fromfile(path.with_name("linear.bin"), np.uint8, count=nbytes, offset=start)


def _packed_entry(tensor: TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key.startswith("prepacked")), "")


def _write_offsets(
    packed: np.ndarray, data: np.ndarray, scales: np.ndarray, offset: np.ndarray, *, zero: int
) -> None:
    """Add ``offset`` [N, blocks] to the floats ``-zero * scale`` behind the codes. Raises UnknownLayout."""
    rows = -(-len(scales) // _TILE) * _TILE
    floats = packed[data.nbytes : data.nbytes + rows * scales.shape[1] * 4].view(np.float32)
    expected = _tiled(np.float32(-zero) * scales, rows)
    if floats.shape != expected.shape or floats.tobytes() != expected.tobytes():
        raise UnknownLayout("the numbers for the codes' zero are not where they were looked for")
    moved = -zero * scales.astype(np.float64) + offset
    floats[:] = _tiled(moved.astype(np.float32), rows)


def _tiled(values: np.ndarray, rows: int) -> np.ndarray:
    """[N, blocks] as tiles of columns: block after block of 16 columns; the last tile filled with zeros."""
    padded = np.zeros((rows, values.shape[1]), np.float32)
    padded[: len(values)] = values
    return padded.reshape(rows // _TILE, _TILE, -1).transpose(0, 2, 1).reshape(-1)
