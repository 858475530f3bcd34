"""verify-capture: what must be true of a program before its runs may be recorded as one CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from .base import fail
from .ir.devices import HOST, copy_target, device_of_op, is_placed
from .ir.roles import body_of, function_of
from .remarks import Remarks

__all__ = ["READ_ON_HOST", "VerifyCapture"]

# Operands that ONNX Runtime's CUDA kernels read on the host: sizes and bounds.
READ_ON_HOST: Mapping[str, tuple[int, ...]] = {
    "onnx.constant_of_shape": (0,),
    "onnx.cum_sum": (1,),
    "onnx.expand": (1,),
    "onnx.ms_group_query_attention": (6,),
    "onnx.ms_paged_attention": (16,),
    "onnx.pad": (1, 2, 3),
    "onnx.range": (0, 1, 2),
    "onnx.reshape": (1,),
    "onnx.slice": (1, 2, 3, 4),
    "onnx.split": (1,),
    "onnx.squeeze": (1,),
    "onnx.tile": (1,),
    "onnx.top_k": (1,),
    "onnx.unsqueeze": (1,),
    **{f"onnx.reduce_{kind}": (1,) for kind in ("max", "mean", "min", "prod", "sum")},
}
_SHAPES = frozenset({"onnx.shape", "onnx.size"})
_DATA = frozenset({"onnx.constant", "onnx.no_value"})


@dataclass(frozen=True, slots=True)
class VerifyCapture:
    """Changes nothing; refuses what ONNX Runtime cannot record as a CUDA graph, naming the operation.

    A recorded graph is replayed as it is: all of it runs on one CUDA device, nothing is copied inside it, and
    the host computes nothing that depends on the step. Sizes are the host's: an operation may take a shape
    where its kernel reads one, but not as data, and what is computed on the device may not become a size.
    The logits' copy to the host comes after the replay.
    """

    name: ClassVar[str] = "verify-capture"
    summary: ClassVar[str] = "refuse a program that cannot be recorded as a CUDA graph"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError at the first operation that cannot be recorded."""
        del remarks
        on_host: set[ir.Value] = set()
        home: str | None = None
        for view in body_of(function_of(module)).operations:
            op = view.operation
            if op.name == "plan.copy" and copy_target(op) != HOST:
                raise fail(
                    op,
                    "copies between devices inside the program",
                    found=f"a copy to {copy_target(op)}",
                    expected="one device",
                    todo="place the whole model on one CUDA device",
                )
            if not is_placed(op):
                continue
            device = device_of_op(op)
            home = home or device
            if device is None or not device.startswith("cuda:") or device != home:
                expected = home if home is not None and home.startswith("cuda:") else "a CUDA device"
                raise fail(op, "does not run on the captured device", found=str(device), expected=expected)
            _check_operands(op, on_host)
        return False


def _check_operands(op: ir.Operation, on_host: set[ir.Value]) -> None:
    """Sort the op's results into the host's and the device's. Raises PassError where the two would meet."""
    if op.name in _SHAPES:
        on_host.update(op.results)
        return
    reads = READ_ON_HOST.get(op.name, ())
    computed = [(i, value) for i, value in enumerate(op.operands) if not _is_data(value)]
    sizes = [(i, value) for i, value in computed if value in on_host]
    if sizes and len(sizes) == len(computed):
        on_host.update(op.results)  # arithmetic on shapes stays on the host
        return
    for i, value in computed:
        if i in reads and value not in on_host:
            raise fail(
                op,
                "needs on the host what is computed on the device",
                found=f"operand {i} follows from the step's inputs",
                expected="a constant or a shape",
                todo="take the fused arm, whose cost follows the live length without the host knowing it",
            )
        if i not in reads and value in on_host:
            raise fail(
                op,
                "takes a shape, which is on the host, as data",
                found=f"operand {i} is a shape",
                expected="a value on the device",
                todo="compute it from the step's inputs on the device",
            )


def _is_data(value: ir.Value) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.name in _DATA
