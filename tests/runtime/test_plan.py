"""Loading a plan: what is checked, in which order, and what each failure is called."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from handmade_plan import Tiny, build, reference_logits

from planonce.runtime import DeviceLocation, Plan, local_devices, ort
from planonce.runtime import plan as plan_module
from planonce.runtime.errors import (
    CapacityExceeded,
    LayoutError,
    PlanError,
    PlanFormatError,
    PlanIntegrityError,
    TopologyChanged,
)
from planonce.runtime.manifest import Manifest
from planonce.runtime.plan_files import Verify

TOKENS = [5, 17, 3, 96, 0, 44, 8, 8, 61, 30]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split": 1},
        {"head_dims": (16, 32, 16)},
        {"reference_weights": True},
        {"reference_weights": True, "split": 1},
        {"external_weights": True},
        {"external_weights": True, "split": 1},
    ],
    ids=[
        *("one stage", "two stages", "layers differ", "reference", "reference in two stages"),
        *("weights beside it", "weights beside two stages"),
    ],
)
def test_every_kind_of_plan_equals_the_history_reference(tmp_path: Path, options: dict) -> None:
    tiny = Tiny(**options)
    session = Plan.load(build(tmp_path / "plan", tiny), threads=1, verify="full").open()
    expected = reference_logits(tiny, TOKENS)
    got = session.prefill(TOKENS[:6], chunk=4, num_logits=6)
    rest = np.stack([session.realize_token(t).copy() for t in TOKENS[6:]])
    assert np.abs(np.concatenate([got, rest]) - expected).max() < 2e-5


def test_a_plan_loaded_with_its_first_cache_decodes_as_one_loaded_alone(tiny_plan_dir: Path) -> None:
    alone = Plan.load(tiny_plan_dir, threads=1).open(capacity=24)
    plan, session = Plan.load_and_open(tiny_plan_dir, capacity=24, threads=1)
    assert plan.opened(session)
    assert (session.cache.capacity, session.cache.length) == (24, 0)
    assert session.cache.state.shape_key == plan.shape_key
    assert not session.cache.host_array(0, "key").any()
    assert np.array_equal(session.prefill(TOKENS), alone.prefill(TOKENS))
    assert Plan.load_and_open(tiny_plan_dir, threads=1)[1].cache.capacity == plan.default_capacity


def test_the_first_cache_is_made_beside_the_programs(
    tiny_plan_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for the other to begin, so one after the other would end in BrokenBarrierError."""
    both = threading.Barrier(2, timeout=20)
    made, opened = plan_module._new_cache, plan_module.OrtProgram

    def cache(*arguments: object) -> object:
        both.wait()
        return made(*arguments)  # type: ignore[arg-type]

    def program(*arguments: object) -> object:
        both.wait()
        return opened(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(plan_module, "_new_cache", cache)
    monkeypatch.setattr(plan_module, "OrtProgram", program)
    Plan.load_and_open(tiny_plan_dir, threads=1)


def test_a_plan_and_its_first_cache_are_refused_as_each_alone(
    copy_of_plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CapacityExceeded, match="cannot use a cache of this capacity"):
        Plan.load_and_open(copy_of_plan, capacity=1 << 40, threads=1)
    (copy_of_plan / "program.onnx").write_bytes(b"")
    asked: list[object] = []
    monkeypatch.setattr(plan_module, "_new_cache", lambda *a: asked.append(a))
    with pytest.raises(PlanIntegrityError):
        Plan.load_and_open(copy_of_plan, threads=1)
    assert not asked, "memory was taken for a plan that is not what its manifest says"


@pytest.fixture
def copy_of_plan(tiny_plan_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_plan_dir, tmp_path / "plan"))


def test_moved_directory_still_loads(copy_of_plan: Path, tmp_path: Path) -> None:
    moved = copy_of_plan.rename(tmp_path / "elsewhere")
    Plan.load(moved, threads=1, verify="full")


@pytest.mark.parametrize("level", list(Verify))
def test_missing_and_resized_files_are_seen_at_every_level(copy_of_plan: Path, level: Verify) -> None:
    program = copy_of_plan / "program.onnx"
    data = program.read_bytes()
    program.write_bytes(data + b"x")
    with pytest.raises(PlanIntegrityError, match="another size"):
        Plan.load(copy_of_plan, verify=level)
    program.unlink()
    with pytest.raises(PlanIntegrityError, match="lacks a file"):
        Plan.load(copy_of_plan, verify=level)


def test_flipped_bit_is_seen_by_default_and_the_size_check_alone_would_miss_it(copy_of_plan: Path) -> None:
    program = copy_of_plan / "program.onnx"
    data = bytearray(program.read_bytes())
    data[len(data) // 2] ^= 1
    program.write_bytes(bytes(data))
    with pytest.raises(PlanIntegrityError, match="other contents"):
        Plan.load(copy_of_plan)
    # The control: without the digest the altered plan loads (or ONNX Runtime complains in its own words).
    try:
        Plan.load(copy_of_plan, verify="size")
    except PlanError as error:
        assert not isinstance(error, PlanIntegrityError)


def test_large_file_is_sampled_by_default_and_hashed_in_full(tmp_path: Path) -> None:
    size = 17 * 1024 * 1024
    path = build(tmp_path / "plan", Tiny(files={"big.bin": bytes(size)}))
    big = path / "big.bin"
    changed = np.zeros(size, np.uint8)
    changed[::1024] = 1  # trained on: changed nearly everywhere
    big.write_bytes(changed.tobytes())
    with pytest.raises(PlanIntegrityError):
        Plan.load(path)
    changed = bytearray(size)
    changed[size // 2 + 12345] = 1  # one byte between the samples: only the whole digest can see it
    big.write_bytes(bytes(changed))
    Plan.load(path)
    with pytest.raises(PlanIntegrityError):
        Plan.load(path, verify="full")


def test_link_out_of_the_directory_is_refused(copy_of_plan: Path, tmp_path: Path) -> None:
    outside = (copy_of_plan / "program.onnx").rename(tmp_path / "outside.onnx")
    (copy_of_plan / "program.onnx").symlink_to(outside)
    with pytest.raises(PlanIntegrityError, match="leaves"):
        Plan.load(copy_of_plan)


def test_moved_and_changed_checkpoints_are_named(tmp_path: Path) -> None:
    path = build(tmp_path / "plan", Tiny(reference_weights=True))
    root = tmp_path / "plan-checkpoint"
    weights = root / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[1000] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(PlanIntegrityError, match="checkpoint") as caught:
        Plan.load(path)
    assert str(weights) in str(caught.value)
    root.rename(tmp_path / "moved")
    with pytest.raises(PlanIntegrityError, match="has moved") as caught:
        Plan.load(path)
    assert str(root) in str(caught.value)


def test_older_onnxruntime_is_refused(copy_of_plan: Path) -> None:
    manifest = dataclasses.replace(Manifest.load(copy_of_plan), minimum_onnxruntime="99.0")
    (copy_of_plan / "manifest.json").write_text(manifest.to_json())
    with pytest.raises(PlanIntegrityError, match="newer ONNX Runtime"):
        Plan.load(copy_of_plan)


def test_missing_device_is_topology_changed_before_any_weight_is_read(tmp_path: Path, monkeypatch) -> None:
    path = build(tmp_path / "plan", Tiny(split=1, second_device="cpu:1"))
    only_first = [DeviceLocation.parse("cpu:0")]
    opened: list[object] = []
    monkeypatch.setattr("planonce.runtime.plan.verify_files", lambda *a: opened.append(a))
    with pytest.raises(TopologyChanged, match="device") as caught:
        Plan.load(path, devices=only_first)
    assert "cpu:1" in str(caught.value)
    assert not opened
    monkeypatch.undo()
    Plan.load(path, devices=local_devices(), threads=1)


def test_provider_that_falls_back_is_refused(tmp_path: Path) -> None:
    # CUDA is listed by this wheel with or without a GPU; pretend the device is there.
    cuda = DeviceLocation.parse("cuda:0")
    if cuda in local_devices() or "CUDAExecutionProvider" not in ort.available_providers():
        pytest.skip("needs the CUDA wheel on a machine without a GPU")
    path = build(tmp_path / "plan", Tiny(split=1, second_device="cuda:0"))
    with pytest.raises(TopologyChanged):
        Plan.load(path)
    with pytest.raises(PlanError) as caught:
        Plan.load(path, devices=[DeviceLocation.parse("cpu:0"), cuda])
    assert isinstance(caught.value, TopologyChanged) or "CUDA" in str(caught.value)


@pytest.mark.parametrize("change", ["name", "dtype"])
def test_program_that_is_not_the_manifests_is_refused(copy_of_plan: Path, change: str) -> None:
    document = json.loads((copy_of_plan / "manifest.json").read_text())
    if change == "name":
        document["stages"][0]["inputs"][0]["name"] = "tokens"
    else:
        for node in (
            *document["stages"][0]["inputs"],
            *document["stages"][0]["outputs"],
            *document["kv_slots"],
        ):
            if node.get("role", "kv") == "kv":
                node["dtype"] = "float16"
    (copy_of_plan / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(PlanIntegrityError, match="disagree"):
        Plan.load(copy_of_plan)


def test_unknown_dimension_name_is_a_format_error(copy_of_plan: Path) -> None:
    document = json.loads((copy_of_plan / "manifest.json").read_text())
    document["stages"][0]["outputs"][0]["shape"][1] = "mystery"
    (copy_of_plan / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(PlanFormatError, match="bound by no input"):
        Plan.load(copy_of_plan)


def test_capacity_is_bounded_by_default_and_its_bytes_known_before_allocating(tiny_plan: Plan) -> None:
    assert tiny_plan.default_capacity == 64
    assert tiny_plan.kv_bytes(10) == 2 * 2 * 2 * 10 * 16 * 4
    with pytest.raises(CapacityExceeded):
        tiny_plan.new_cache(65)
    with pytest.raises(LayoutError):
        tiny_plan.new_cache(0)


def test_opening_sessions_makes_no_ort_session(tiny_plan: Plan) -> None:
    from planonce.runtime import process_counters

    tiny_plan.open()
    before = process_counters().ort_sessions
    for _ in range(5):
        tiny_plan.open().realize_token(1)
    assert process_counters().ort_sessions == before


def test_importing_the_runtime_loads_no_compiler() -> None:
    code = (
        "import sys, planonce.runtime as r; [getattr(r, n) for n in r.__all__]; "
        "print({'torch','onnx','torch_mlir','transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_shipped_kv_programs_are_what_their_script_makes() -> None:
    from build_programs import programs

    from planonce.runtime import kv_programs

    shipped = {p.name: p.read_bytes() for p in Path(kv_programs.__file__).parent.glob("programs/*.onnx")}
    assert shipped == programs()
