"""Make the runtime's KV programs: ``python tests/runtime/build_programs.py runtime/programs``."""

from __future__ import annotations

import sys
from pathlib import Path

from onnx import ModelProto, TensorProto, ValueInfoProto, helper

DTYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
}
INT64 = TensorProto.INT64


def _value(name: str, dtype: int, shape: list[str | int] | None = None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _model(name: str, nodes: list, inputs: list, outputs: list) -> ModelProto:
    graph = helper.make_graph(nodes, name, inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    model.producer_name = "planonce"
    return model


def programs() -> dict[str, bytes]:
    """File name -> bytes of every program the runtime ships."""
    made: dict[str, bytes] = {}
    for name, dtype in DTYPES.items():
        zero = helper.make_tensor("zero", dtype, [1], [0])
        node = helper.make_node("ConstantOfShape", ["shape"], ["out"], value=zero)
        model = _model("zero_fill", [node], [_value("shape", INT64, ["rank"])], [_value("out", dtype)])
        made[f"zero_fill.{name}.onnx"] = model.SerializeToString(deterministic=True)
        for axis in (1, 2):
            node = helper.make_node("TensorScatter", ["past", "new", "write_offset"], ["present"], axis=axis)
            inputs = [_value("past", dtype), _value("new", dtype), _value("write_offset", INT64, ["batch"])]
            model = _model("write_slice", [node], inputs, [_value("present", dtype)])
            made[f"write_slice_{axis}.{name}.onnx"] = model.SerializeToString(deterministic=True)
        node = helper.make_node("Slice", ["data", "start", "end", "axis"], ["out"])
        inputs = [_value("data", dtype), *(_value(n, INT64, [1]) for n in ("start", "end", "axis"))]
        model = _model("read_slice", [node], inputs, [_value("out", dtype)])
        made[f"read_slice.{name}.onnx"] = model.SerializeToString(deterministic=True)
    return made


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(exist_ok=True)
    for file_name, data in programs().items():
        (directory / file_name).write_bytes(data)
