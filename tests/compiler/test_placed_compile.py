"""``--place`` from a checkpoint to a plan directory, and for devices that are not on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tiny_models import make_tiny_model

from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions
from planonce.runtime import Plan, local_devices
from planonce.runtime.errors import CompileError, PassError, TopologyChanged

PROMPT, NEXT = [1, 250, 3, 44, 5], (7, 310)
CUDA = any(str(device).startswith("cuda") for device in local_devices())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model("llama", tmp_path_factory.mktemp("checkpoint"), tokenizer=False).directory


def logits(plan: Plan) -> list[np.ndarray]:
    session = plan.open(capacity=16)
    return [session.prefill(PROMPT).copy(), *(session.realize_token(t).copy() for t in NEXT)]


def test_a_split_plan_decodes_as_the_whole_and_says_where_everything_is(
    checkpoint: Path, tmp_path: Path
) -> None:
    place = "layers[0:1]=cpu:0, layers[1:]=cpu:1"
    for name, text in (("whole", ""), ("split", place)):
        compile_checkpoint(CompileOptions(str(checkpoint), tmp_path / name, place=text, max_seq_len=64))
    whole, split = (Plan.load(tmp_path / name, threads=1) for name in ("whole", "split"))
    for got, want in zip(logits(split), logits(whole), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert split.shape_key == whole.shape_key  # the same computation, elsewhere
    assert [stage.device for stage in split.manifest.stages] == ["cpu:0", "cpu:1"]
    assert [slot.device for slot in split.manifest.kv_slots] == ["cpu:0"] * 2 + ["cpu:1"] * 2
    assert place in split.manifest.pipeline.replace('\\"', '"')
    assert any("layers 0 on cpu:0, 1 on cpu:1" in remark for remark in split.manifest.remarks)


def test_a_placement_by_budget_fits_it(checkpoint: Path, tmp_path: Path) -> None:
    # Embedding and head are 82 kB each, a layer 135 kB, its KV 256 bytes a position: half fits on each.
    place = "auto, cpu:0=260kB, cpu:1=260kB, positions=64"
    compile_checkpoint(CompileOptions(str(checkpoint), tmp_path / "plan", place=place, max_seq_len=64))
    plan = Plan.load(tmp_path / "plan", threads=1)
    assert [stage.device for stage in plan.manifest.stages] == ["cpu:0", "cpu:1"]
    assert [slot.device for slot in plan.manifest.kv_slots] == ["cpu:0"] * 2 + ["cpu:1"] * 2
    assert logits(plan)


@pytest.mark.parametrize("place", ["layers=npu:0", "layers[0:1=cpu:0", "auto"])
def test_an_unreadable_placement_is_refused_before_the_checkpoint_is_opened(
    tmp_path: Path, place: str
) -> None:
    with pytest.raises(PassError, match="placement policy"):
        compile_checkpoint(
            CompileOptions(str(tmp_path / "no such checkpoint"), tmp_path / "plan", place=place)
        )


def test_a_placement_of_another_model_leaves_no_plan(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(PassError, match="these layers do not exist"):
        compile_checkpoint(CompileOptions(str(checkpoint), tmp_path / "plan", place="layers[0:3]=cpu:0"))
    assert not (tmp_path / "plan").exists()


def test_a_placement_beside_a_pipeline_is_refused(tmp_path: Path) -> None:
    options = CompileOptions("x", tmp_path / "plan", place="cpu:1", pass_pipeline="canonicalize")
    with pytest.raises(CompileError, match="exclude each other"):
        compile_checkpoint(options)


@pytest.mark.skipif(CUDA, reason="this machine has a CUDA device")
def test_a_plan_for_a_gpu_elsewhere_compiles_and_does_not_load_here(checkpoint: Path, tmp_path: Path) -> None:
    report = compile_checkpoint(
        CompileOptions(str(checkpoint), tmp_path / "plan", place="cuda:0", max_seq_len=64)
    )
    assert report.self_check == {}
    # f32 has no fused kernel there, and the plan says so.
    assert {choice.arm for choice in report.attention} == {"portable"}
    assert "f32 on cuda" in report.attention[0].reason
    with pytest.raises(TopologyChanged, match="not there"):
        Plan.load(tmp_path / "plan")
