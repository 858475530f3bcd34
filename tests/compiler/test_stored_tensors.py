"""The manifest lists every initializer that lies outside the programs, where its bytes really are."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tiny_models import make_tiny_model

from planonce.compiler import CompileOptions, WeightMode, compile_checkpoint
from planonce.runtime.manifest import Manifest


@pytest.mark.parametrize(
    ("stored", "mode", "files"),
    [
        ("float32", "embed", {"model.safetensors"}),  # linked as it lies
        ("float32", "reference", set()),
        ("bfloat16", "embed", {"weights.bin"}),  # converted
    ],
)
def test_programs_external_data_and_manifest_agree(
    tmp_path: Path, stored: str, mode: str, files: set[str]
) -> None:
    tiny = make_tiny_model("llama", tmp_path / "llama", dtype=stored)
    plan = tmp_path / "plan"
    compile_checkpoint(
        CompileOptions(str(tmp_path / "llama"), plan, weights=WeightMode(mode), self_check=False)
    )
    manifest = Manifest.load(plan)
    listed = {t.name: t for t in (*manifest.tensors, *manifest.checkpoint.weights)}
    assert {t.file for t in manifest.tensors if not t.constant} == files
    assert bool(manifest.checkpoint.weights) == (mode == "reference")
    external = {
        tensor.name: tensor
        for stage in manifest.stages
        for tensor in onnx.load(plan / stage.program, load_external_data=False).graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    assert listed.keys() == external.keys() and listed
    for name, tensor in external.items():
        at, place = listed[name], {e.key: e.value for e in tensor.external_data}
        assert (place["location"], int(place["offset"]), int(place["length"])) == (
            at.file,
            at.offset,
            at.nbytes,
        )
        assert tuple(tensor.dims) == at.shape
        assert tensor.data_type == onnx.helper.np_dtype_to_tensor_dtype(np.dtype(at.dtype))
    weight = tiny.model.state_dict()["model.embed_tokens.weight"].numpy()
    at = listed["model.embed_tokens.weight"]
    root = plan if mode == "embed" else Path(manifest.checkpoint.root or "")
    data = (root / at.file).read_bytes()[at.offset : at.offset + at.nbytes]
    np.testing.assert_array_equal(np.frombuffer(data, at.dtype).reshape(at.shape), weight)
