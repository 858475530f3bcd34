"""The packed program: exact where it runs, and refused wherever it would not be."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from planonce.compiler import packed_check, packed_program
from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions
from planonce.compiler.packed_program import PACKED_PROGRAM, UnknownLayout
from planonce.passes.pipeline import DEFAULT_PIPELINE
from planonce.runtime import Manifest, Plan
from planonce.runtime.errors import CompileError, PlanFormatError
from planonce.runtime.manifest import MANIFEST_NAME

sys.path.insert(0, str(Path(__file__).parent))
from packing import NOT_HERE, linear, packs_here
from quantised_gguf import write_quantised_llama
from tiny_models import make_tiny_model

needs_packing = pytest.mark.skipif(not packs_here(), reason=NOT_HERE)

TOKENS = [3, 141, 59, 26, 53, 58, 97, 93, 23, 84]


def compiled(checkpoint: Path, output: Path, **options: object) -> Path:
    compile_checkpoint(CompileOptions(str(checkpoint), output, self_check=False, **options))  # type: ignore[arg-type]
    return output


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model("llama", tmp_path_factory.mktemp("tiny") / "llama").directory


@pytest.fixture(scope="module")
def plan(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """int4 with minima, which is what --dtype int4 means, so that every linear of a layer is folded."""
    return compiled(tiny, tmp_path_factory.mktemp("packed") / "plan", dtype="int4")


def logits(plan: Plan) -> np.ndarray:
    return plan.open(capacity=32).prefill(TOKENS, chunk=4, num_logits=len(TOKENS))


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def values(tensors: dict[str, np.ndarray], bits: int) -> np.ndarray:
    """The matrix [n, k] in float64."""
    data = tensors["data"]
    codes = data if bits == 8 else np.stack([data & 15, data >> 4], -1).reshape(*data.shape[:2], -1)
    moved = (codes.astype(np.float64) - (1 << (bits - 1))) * tensors["scales"][..., None]
    return (moved + tensors["offset"][..., None]).reshape(len(data), -1)


@needs_packing
@pytest.mark.parametrize(
    ("n", "k", "bits", "block"),
    [(48, 64, 4, 32), (40, 96, 4, 32), (24, 64, 4, 32), (64, 128, 4, 64), (33, 256, 4, 128), (48, 64, 8, 32),
     (64, 64, 4, 16)],
)  # fmt: skip
def test_a_packed_linear_is_exact_for_inputs_that_need_no_rounding(
    n: int, k: int, bits: int, block: int, tmp_path: Path
) -> None:
    node, tensors = linear(n, k, bits=bits, block=block)
    key, packed = packed_program._pack(node, tensors["data"], tensors["scales"])
    packed_program._write_offsets(
        packed, tensors["data"], tensors["scales"], tensors["offset"], zero=1 << (bits - 1)
    )
    (tmp_path / "weights.bin").write_bytes(tensors["data"].tobytes() + packed.tobytes())
    start = tensors["data"].nbytes
    data = TensorProto(name="data", data_type=TensorProto.UINT8, dims=tensors["data"].shape)
    data.data_location = TensorProto.EXTERNAL
    entries = {"location": "weights.bin", "offset": "0", "length": str(start)}
    entries["prepacked_0"] = f"{key}|{start};{packed.nbytes};0"
    for name, value in entries.items():
        data.external_data.add(key=name, value=value)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", n])],
        [data, onnx.numpy_helper.from_array(tensors["scales"], "scales")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=opsets), tmp_path / "linear.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "linear.onnx", providers=["CPUExecutionProvider"])
    # Whole numbers with 127 in each block: rounding a block to int8 changes none of them.
    x = np.random.default_rng(0).integers(-127, 128, (3, k)).astype(np.float32)
    x[:, ::block] = 127
    for rows in (x[:1], x):
        (y,) = session.run(None, {"x": rows})
        expected = rows.astype(np.float64) @ values(tensors, bits).T
        assert relative(y, expected) < 2e-6
        without = {**tensors, "offset": np.zeros_like(tensors["offset"])}
        assert relative(y, rows.astype(np.float64) @ values(without, bits).T) > 0.01


@needs_packing
def test_another_layout_is_refused_not_written_into() -> None:
    node, tensors = linear(48, 64, bits=4, block=32)
    _, packed = packed_program._pack(node, tensors["data"], tensors["scales"])
    before = packed.copy()
    packed[tensors["data"].nbytes] ^= 1
    with pytest.raises(UnknownLayout):
        packed_program._write_offsets(packed, *(tensors[n] for n in ("data", "scales", "offset")), zero=8)
    packed[tensors["data"].nbytes] ^= 1
    assert np.array_equal(packed, before)


@needs_packing
def test_the_packed_program_runs_and_agrees_with_the_portable_one(plan: Path) -> None:
    packed, portable = Plan.load(plan, threads=1), Plan.load(plan, threads=1, packed=False)
    assert (packed.program, portable.program) == ("packed", "portable: asked for")
    assert packed.ort_sessions == 1
    operations = [
        {node.op_type for node in onnx.load(plan / name, load_external_data=False).graph.node}
        for name in (PACKED_PROGRAM, "program.onnx")
    ]
    assert "ReduceSum" in operations[1]
    assert "ReduceSum" not in operations[0]
    one, other = logits(packed), logits(portable)
    assert 0 < relative(one, other) < 0.05
    assert (one.argmax(-1) == other.argmax(-1)).mean() >= 0.8


@needs_packing
def test_prompts_in_chunks_and_tokens_alone_give_the_same_logits_packed(plan: Path) -> None:
    loaded = Plan.load(plan, threads=1)
    session = loaded.open(capacity=32)
    alone = np.stack([session.realize_token(token).copy() for token in TOKENS])
    assert relative(alone, logits(loaded)) < 1e-5


@needs_packing
@pytest.mark.parametrize("other", ["processor", "version", "unknown processor"])
def test_on_another_machine_the_portable_program_runs(
    plan: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if other == "version":
        monkeypatch.setattr("planonce.runtime.packed.ort.version", lambda: "1.99.0")
    else:
        key = "x86_64-0000" if other == "processor" else ""
        monkeypatch.setattr("planonce.runtime.packed.processor_key", lambda: key)
    loaded = Plan.load(plan, threads=1)
    assert loaded.program.startswith("portable: made ")
    assert np.array_equal(logits(loaded), logits(Plan.load(plan, threads=1, packed=False)))


def without_one_packed_weight(plan: Path, copy: Path, index: int) -> None:
    """A copy in which ONNX Runtime does not find the packed form of one weight and packs it anew."""
    copy.mkdir()
    for path in plan.iterdir():
        (copy / path.name).hardlink_to(path)
    model = onnx.load(plan / PACKED_PROGRAM, load_external_data=False)
    packed = [t for t in model.graph.initializer if any(e.key == "prepacked_0" for e in t.external_data)]
    for entry in packed[index].external_data:
        if entry.key == "prepacked_0":
            entry.value = "MatMulNBits+1|" + entry.value.partition("|")[2]
    (copy / PACKED_PROGRAM).unlink()
    onnx.save(model, copy / PACKED_PROGRAM)
    resigned(copy)


def resigned(plan: Path) -> None:
    """The manifest's records of the programs, as a compiler would have written them."""
    from planonce.compiler.plan_file import record_of

    manifest = Manifest.load(plan)
    files = tuple(record_of(plan / f.path, f.path) if f.path == PACKED_PROGRAM else f for f in manifest.files)
    (plan / MANIFEST_NAME).unlink()
    (plan / MANIFEST_NAME).write_text(replace(manifest, files=files).to_json(), encoding="utf-8")


@needs_packing
def test_one_weight_that_is_not_taken_from_the_plan_is_noticed_at_load(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(plan / PACKED_PROGRAM, load_external_data=False)
    n = sum(e.key == "prepacked_0" for t in model.graph.initializer for e in t.external_data)
    assert n >= 6
    expected = logits(Plan.load(plan, threads=1))
    for index in range(n):
        copy = tmp_path / str(index)
        without_one_packed_weight(plan, copy, index)
        loaded = Plan.load(copy, threads=1)
        assert loaded.program == "portable: it does not repeat the logits noted when it was made"
    # The control: without that check the same plan would be served, and it is wrong.
    monkeypatch.setattr("planonce.runtime.packed.repeats", lambda *_: True)
    loaded = Plan.load(copy, threads=1)
    assert loaded.program == "packed"
    assert relative(logits(loaded), expected) > 0.01


@needs_packing
def test_packed_bytes_that_rotted_are_noticed_at_load(plan: Path, tmp_path: Path) -> None:
    copy = tmp_path / "plan"
    copy.mkdir()
    for path in plan.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    model = onnx.load(plan / PACKED_PROGRAM, load_external_data=False)
    place = next(e.value for t in model.graph.initializer for e in t.external_data if e.key == "prepacked_0")
    offset, nbytes, _ = (int(number) for number in place.partition("|")[2].split(";"))
    with (copy / "weights.bin").open("r+b") as file:
        file.seek(offset)
        file.write(bytes(nbytes))
    assert Plan.load(copy, threads=1, verify="size").program.startswith("portable: it does not repeat")


@needs_packing
def test_a_layout_that_is_not_known_leaves_the_portable_program_alone_and_says_so(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_program, "_TILE", 8)
    output = compiled(tiny, tmp_path / "plan", dtype="int4")
    manifest = Manifest.load(output)
    assert manifest.packed is None
    assert not (output / PACKED_PROGRAM).exists()
    assert "packed program: left out, the numbers for the codes' zero" in manifest.remarks[-1]
    assert Plan.load(output, threads=1, verify="full").program == "portable"


@needs_packing
def test_a_packed_program_that_computes_something_else_is_left_out(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = packed_program._write_offsets

    def shifted(packed: np.ndarray, data: np.ndarray, scales: np.ndarray, offset: np.ndarray, *, zero: int):  # type: ignore[no-untyped-def]
        wrong(packed, data, scales, np.roll(offset, 1, axis=0), zero=zero)

    monkeypatch.setattr(packed_program, "_write_offsets", shifted)
    output = compiled(tiny, tmp_path / "plan", dtype="int4")
    manifest = Manifest.load(output)
    assert manifest.packed is None
    assert "from the portable program's" in manifest.remarks[-1]
    assert Plan.load(output, threads=1, verify="full").program == "portable"


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "int4", "packed": False},
        {"dtype": "int4", "symmetric": True},
        {"dtype": "int8", "symmetric": True},
        {"dtype": "float32"},
        {"dtype": "int4", "place": "layers[0:1]=cpu:0,layers[1:]=cpu:1"},
        {"dtype": "int4", "arithmetic": "float16"},
    ],
    ids=["not asked for", "symmetric", "int8, symmetric", "float32", "two devices", "float16"],
)
def test_without_anything_to_gain_there_is_no_packed_program(
    options: dict[str, object], tiny: Path, tmp_path: Path
) -> None:
    output = compiled(tiny, tmp_path / "plan", **options)
    assert Manifest.load(output).packed is None
    assert not (output / PACKED_PROGRAM).exists()
    assert Plan.load(output, threads=1).program == "portable"


@needs_packing
@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_offsets_fold_where_rounding_is_compensated(dtype: str, tiny: Path, tmp_path: Path) -> None:
    # Blocks of 16, for the model's rows of 112 are no whole blocks of 32.
    output = compiled(tiny, tmp_path / "plan", dtype=dtype, block_size=16, compensate=True)
    packed, portable = Plan.load(output, threads=1), Plan.load(output, threads=1, packed=False)
    assert packed.program == "packed"
    # Inputs count as unrounded in both: far closer than two programs that round them (above).
    assert relative(logits(packed), logits(portable)) < 1e-3


@needs_packing
def test_a_gguf_that_is_kept_is_packed_where_its_inputs_are_rounded(tmp_path: Path) -> None:
    gguf = write_quantised_llama(tmp_path / "tiny.gguf", {}, default="q4_1", tied=True)
    output = compiled(gguf, tmp_path / "plan", packed=True)
    remarks = Manifest.load(output)
    assert remarks.packed is not None
    loaded = Plan.load(output, threads=1)
    assert loaded.program == "packed"
    assert relative(logits(loaded), logits(Plan.load(output, threads=1, packed=False))) < 0.05


def test_offsets_folded_in_the_portable_program_are_refused(tiny: Path, tmp_path: Path) -> None:
    """It would run, with every offset left out."""
    pipeline = DEFAULT_PIPELINE.replace("quantize-weights", "quantize-weights{scheme=int4 symmetric=false}")
    with pytest.raises(CompileError, match="portable program does not have"):
        compiled(tiny, tmp_path / "plan", pass_pipeline=f"{pipeline},fold-offsets")
    assert not (tmp_path / "plan").exists()


@needs_packing
def test_room_is_asked_for_with_the_packed_weights(
    plan: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("planonce.compiler.compile.require_free_space", lambda _, n: asked.append(n))
    output = compiled(tiny, tmp_path / "plan", dtype="int4")
    size = (output / "weights.bin").stat().st_size
    assert size <= asked[0] < 1.5 * size


def test_same_compile_twice_gives_the_same_bytes(tiny: Path, plan: Path, tmp_path: Path) -> None:
    again = compiled(tiny, tmp_path / "again", dtype="int4")
    for path in sorted(plan.iterdir()):
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name


@needs_packing
@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("program",), "../packed.onnx"),
        (("program",), "program.onnx"),
        (("program",), "gone.onnx"),
        (("processor",), ""),
        (("probe", "token"), 1 << 30),
        (("probe", "ids"), []),
        (("probe", "logits"), [0.5]),
        (("probe", "tolerance"), -1.0),
    ],
)
def test_a_manifest_with_an_impossible_packed_program_is_refused(
    where: tuple[str, ...], value: object, plan: Path
) -> None:
    document = json.loads((plan / MANIFEST_NAME).read_text(encoding="utf-8"))
    at = document["packed"]
    for step in where[:-1]:
        at = at[step]
    at[where[-1]] = value
    with pytest.raises(PlanFormatError):
        Manifest.from_json(json.dumps(document))


@needs_packing
def test_what_a_probe_could_not_tell_apart_is_not_trusted(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = replace(Manifest.load(plan), packed=None)
    assert packed_check._check(plan, PACKED_PROGRAM, manifest)["why_not"] == ""
    monkeypatch.setattr(packed_check, "_NOTICED", 1e6)
    assert "too little" in str(packed_check._check(plan, PACKED_PROGRAM, manifest)["why_not"])
