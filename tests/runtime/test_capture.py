"""P13: what capture refuses, by name; what a recording does is for a machine with a GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from handmade_plan import Tiny, build

from planonce.runtime import (
    CapturedDecodeSession,
    CaptureReason,
    CaptureRefusal,
    CaptureRefused,
    DeviceLocation,
    Manifest,
    Plan,
    local_devices,
)
from planonce.runtime.capture import capture_refusal
from planonce.runtime.device import DeviceKind
from planonce.runtime.errors import TopologyChanged
from planonce.runtime.ort import HostNode, ProgramOptions, cuda_options
from planonce.runtime.topology import check_on_device

CUDA = [d for d in local_devices() if d.kind is DeviceKind.CUDA]
on_gpu = pytest.mark.skipif(not CUDA, reason="this machine has no CUDA device: not yet run on a GPU")
GPU_MACHINE = tuple(DeviceLocation.parse(d) for d in ("cpu:0", "cuda:0", "cuda:1"))


def placed(manifest: Manifest, *devices: str) -> Manifest:
    """The manifest as if its stages were on ``devices``."""
    stages = tuple(dataclasses.replace(s, device=d) for s, d in zip(manifest.stages, devices, strict=True))
    return dataclasses.replace(manifest, stages=stages)


@pytest.fixture(scope="module")
def split_manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return Manifest.load(build(tmp_path_factory.mktemp("plans") / "split", Tiny(split=1)))


@pytest.mark.skipif(bool(CUDA), reason="this machine has a CUDA device")
def test_without_a_gpu_capture_is_refused_and_the_session_still_decodes(tiny_plan: Plan) -> None:
    session = tiny_plan.open()
    with pytest.raises(CaptureRefused) as caught:
        CapturedDecodeSession(session)
    assert caught.value.refusal.reason is CaptureReason.NO_CUDA
    assert "cpu:0" in str(caught.value)
    assert session.realize_token(5) is not None


def test_a_plan_on_the_host_is_refused_by_the_name_of_its_stage(tiny_plan: Plan) -> None:
    found = capture_refusal(tiny_plan.manifest, {}, GPU_MACHINE)
    assert found == CaptureRefusal(CaptureReason.OTHER_DEVICE, "stage 0 (program.onnx) runs on cpu:0")


def test_a_copy_inside_is_refused_by_the_name_of_its_value(split_manifest: Manifest) -> None:
    found = capture_refusal(placed(split_manifest, "cuda:0", "cuda:1"), {}, GPU_MACHINE)
    assert found == CaptureRefusal(CaptureReason.COPY_INSIDE, "x1 from cuda:0 to cuda:1")


def test_a_host_operator_is_refused_by_its_name_and_shapes_are_not(tiny_plan: Plan) -> None:
    manifest = placed(tiny_plan.manifest, "cuda:0")
    shapes = [HostNode("Shape", "a"), HostNode("Squeeze", "b")]
    assert capture_refusal(manifest, {0: shapes}, GPU_MACHINE) is None
    found = capture_refusal(manifest, {0: [*shapes, HostNode("GroupQueryAttention", "layer_3")]}, GPU_MACHINE)
    assert found == CaptureRefusal(
        CaptureReason.HOST_OP, "GroupQueryAttention 'layer_3' of stage 0 runs on the host"
    )


def test_part_of_a_cuda_program_on_the_host_is_no_silent_fallback(tiny_plan: Plan) -> None:
    stage = placed(tiny_plan.manifest, "cuda:0").stages[0]
    check_on_device(stage, [HostNode("Shape", "a")])
    with pytest.raises(TopologyChanged, match="part of a program on the host") as caught:
        check_on_device(stage, [HostNode("Shape", "a"), HostNode("MatMul", "up_proj")])
    assert "'up_proj'" in caught.value.found and "Shape" not in caught.value.found


def test_provider_options_say_which_device_and_whether_to_record() -> None:
    options = ProgramOptions(DeviceLocation.parse("cuda:3"))
    assert cuda_options(options)["device_id"] == "3"
    assert cuda_options(options)["enable_cuda_graph"] == "0"
    assert cuda_options(dataclasses.replace(options, capture=True))["enable_cuda_graph"] == "1"


@pytest.mark.skipif(bool(CUDA), reason="this machine has a CUDA device")
def test_a_plan_for_a_gpu_that_is_not_there_says_so_before_its_weights_are_read(tmp_path: Path) -> None:
    path = build(tmp_path / "plan", Tiny(split=1, second_device="cuda:0", external_weights=True))
    (path / "weights.bin").unlink()  # the control: reading them would be another error
    with pytest.raises(TopologyChanged, match="not there") as caught:
        Plan.load(path)
    assert caught.value.expected == "cuda:0" and "cpu:1" in caught.value.found


@pytest.mark.skipif(bool(CUDA), reason="this machine has a CUDA device")
def test_a_device_said_to_be_there_and_is_not_is_never_replaced_by_the_cpu(tmp_path: Path) -> None:
    """ONNX Runtime would run the program on the CPU with a line in its log."""
    path = build(tmp_path / "plan", Tiny(split=1, second_device="cuda:0"))
    with pytest.raises(TopologyChanged, match="fell back"):
        Plan.load(path, devices=GPU_MACHINE)


def test_the_program_that_a_gpu_would_record_is_itself_right(tmp_path: Path) -> None:
    """Its lengths are computed in another way than the CPU's: the same tokens, on the CPU."""
    tiny = Tiny(first_device="cuda:0", kv_dtype="float16")
    path = build(tmp_path / "cuda", tiny)
    manifest = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(manifest.replace("cuda:0", "cpu:0"))
    there = Plan.load(path, threads=1).open()
    here = Plan.load(build(tmp_path / "cpu", Tiny(kv_dtype="float16")), threads=1).open()
    assert np.array_equal(there.prefill([5, 17, 3, 96]), here.prefill([5, 17, 3, 96]))
    for token in (7, 8, 9):
        assert np.array_equal(there.realize_token(token), here.realize_token(token))


@on_gpu
@pytest.mark.cuda
def test_replays_give_the_tokens_of_an_uncaptured_session(tmp_path: Path) -> None:
    tiny = Tiny(first_device="cuda:0", kv_dtype="float16", max_seq_len=300)
    plan = Plan.load(build(tmp_path / "plan", tiny), capture=True)
    plain, recorded = plan.open(), CapturedDecodeSession(plan.open())
    for step in range(256):  # different tokens on consecutive replays
        token = (7 * step + 3) % tiny.vocab
        assert int(plain.realize_token(token).argmax()) == int(recorded.realize_token(token).argmax())


@on_gpu
@pytest.mark.cuda
def test_replays_pick_the_tokens_of_an_uncaptured_session(tmp_path: Path) -> None:
    tiny = Tiny(first_device="cuda:0", kv_dtype="float16", greedy_head=True)
    plan = Plan.load(build(tmp_path / "plan", tiny), capture=True)
    session = plan.open()
    plain, recorded = plan.open(), CapturedDecodeSession(session)
    for step in range(48):
        token = (7 * step + 3) % tiny.vocab
        assert recorded.step_greedy(token) == int(plain.realize_token(token).argmax())
    assert session.counters.host_copies == 0


@on_gpu
@pytest.mark.cuda
def test_a_rebind_drops_the_recording(tmp_path: Path) -> None:
    tiny = Tiny(first_device="cuda:0", kv_dtype="float16")
    plan = Plan.load(build(tmp_path / "plan", tiny), capture=True)
    recorded = CapturedDecodeSession(plan.open())
    recorded.realize_token(3)
    assert recorded.captured
    other = plan.open()
    other.prefill([1, 2, 3])
    assert other.cache is not None
    assert recorded.rebind_kv(other.cache.fork()) is None
    assert not recorded.captured
    assert int(recorded.realize_token(4).argmax()) == int(other.realize_token(4).argmax())
