"""Plans with quantised weights: what is in them, and what they compute."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from planonce.compiler.checkpoint import open_checkpoint
from planonce.compiler.compile import compile_checkpoint
from planonce.compiler.compile_options import CompileOptions
from planonce.compiler.encoded_weights import EncodedWeights
from planonce.passes.ir.nbits import NBits, WeightForm
from planonce.passes.pipeline import DEFAULT_PIPELINE
from planonce.runtime import Manifest, Plan
from planonce.runtime.errors import CompileError, PassError

sys.path.insert(0, str(Path(__file__).parent))
from plan_weights import PlanWeights, check_exact
from quantised_gguf import write_quantised_llama
from tiny_models import make_tiny_model

TOKENS = np.random.default_rng(1).integers(0, 256, 40)
MIXED = {"attn_v": "q6_k", "ffn_down": "q5_0", "ffn_up": "q4_0", "token_embd": "q4_1", "attn_output": "q4_k"}


def compiled(checkpoint: Path, output: Path, *, quantize: str = "", **options: object) -> Path:
    """``quantize``: options of the pass, in the default pipeline."""
    if quantize:
        options["pass_pipeline"] = DEFAULT_PIPELINE.replace(
            "quantize-weights", f"quantize-weights{{{quantize}}}", 1
        )
    compile_checkpoint(CompileOptions(str(checkpoint), output, self_check=False, **options))  # type: ignore[arg-type]
    return output


def logits(plan: Path, tokens: np.ndarray = TOKENS, chunk: int = 16) -> np.ndarray:
    return Plan.load(plan, threads=1).open(capacity=64).prefill(tokens, chunk=chunk, num_logits=len(tokens))


def token_by_token(plan: Path, tokens: np.ndarray = TOKENS) -> np.ndarray:
    session = Plan.load(plan, threads=1).open(capacity=64)
    return np.stack([session.realize_token(int(token)).copy() for token in tokens])


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "mixed.gguf"
    return write_quantised_llama(path, MIXED, default="q4_1", tied=True)


@pytest.fixture(scope="module")
def kept(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(mixed, tmp_path_factory.mktemp("plans") / "kept")


@pytest.fixture(scope="module")
def as_float32(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(mixed, tmp_path_factory.mktemp("plans") / "f32", dtype="float32")


def test_every_tensor_of_a_gguf_file_is_kept_exactly(mixed: Path, kept: Path) -> None:
    assert check_exact(kept, mixed) == 2 * 7 + 1
    formats = Manifest.load(kept).model.weight_formats
    assert set(formats) == {"int4/32", "int4/32+offset", "int8/16", "int8/32"}
    weights = [tensor for tensor in Manifest.load(kept).tensors if not tensor.constant]
    plain = [tensor.name for tensor in weights if "@" not in tensor.name and len(tensor.shape) == 2]
    assert plain == [], "a matrix is still in the plan as float32"


def test_a_tied_embedding_and_head_are_one_copy(kept: Path) -> None:
    stored = {
        name: t for name, t in PlanWeights(kept).stored.items() if name.startswith("model.embed_tokens")
    }
    rows, data = (next(t for n, t in stored.items() if n.endswith(form)) for form in (".rows", ".data"))
    assert (rows.file, rows.offset, rows.nbytes) == (data.file, data.offset, data.nbytes)
    assert rows.shape != data.shape
    assert sum(name.endswith((".scales", ".offset")) for name in stored) == 2


def test_a_kept_plan_computes_what_its_dequantised_weights_compute(
    mixed: Path, as_float32: Path, tmp_path: Path
) -> None:
    exact = compiled(mixed, tmp_path / "exact", quantize="accuracy-level=0", dtype="keep")
    expected = logits(as_float32)
    assert relative(logits(exact), expected) < 2e-5
    assert relative(token_by_token(exact), expected) < 2e-5


def test_rounding_the_inputs_costs_little(kept: Path, as_float32: Path) -> None:
    expected = logits(as_float32)
    error = relative(logits(kept), expected)
    assert 1e-5 < error < 0.1, "0: accuracy level 4 did not reach the kernel"
    assert relative(token_by_token(kept), logits(kept)) < 0.1


def test_formats_and_their_rounding_are_part_of_the_shape_key(
    mixed: Path, kept: Path, as_float32: Path, tmp_path: Path
) -> None:
    int8 = compiled(mixed, tmp_path / "int8", dtype="int8")
    keys = [Manifest.load(plan).shape_key for plan in (kept, as_float32, int8)]
    assert len(set(keys)) == 3
    unmerged = compiled(mixed, tmp_path / "again", quantize="scheme=keep")
    assert Manifest.load(unmerged).shape_key == keys[0], "the default for a GGUF file is to keep it"


def test_a_format_without_an_exact_form_is_rounded_again_and_said(tmp_path: Path) -> None:
    gguf = write_quantised_llama(
        tmp_path / "odd.gguf", {"ffn_up": "iq2_xxs", "token_embd": "f32"}, default="q8_0", tied=True
    )
    plan = compiled(gguf, tmp_path / "plan", dump_ir=tmp_path / "ir")
    remarks = [remark for remark in Manifest.load(plan).remarks if remark.startswith("quantize-weights")]
    assert any("rounded again, from iq2_xxs" in remark for remark in remarks), remarks
    weights, of_plan = open_checkpoint(gguf).weights, PlanWeights(plan)
    name = next(name for name in of_plan.formats if "up_proj" in name)
    up = next(part for part in weights if part.endswith("0.mlp.up_proj.weight"))
    found = of_plan.dequantised(name)
    rows = found if name == up else found[-len(weights.read(up)) :]
    assert relative(rows, weights.read(up)) < 1 / 127
    # the float32 embedding was left alone: nobody asked for it to be rounded
    assert not any("embed_tokens" in name for name in of_plan.formats)


@pytest.mark.parametrize(
    ("family", "quantize", "formats"),
    [
        ("llama", "scheme=int4 accuracy-level=0", ("int4/32", "int8/32")),
        ("llama", "scheme=int4 symmetric=false head-bits=4 block=16 accuracy-level=0", ("int4/16+offset",)),
        ("gpt2", "scheme=int8 accuracy-level=0", ("int8/32", "int8/32+transposed")),
        ("gpt2", "scheme=int4 symmetric=false accuracy-level=0",
         ("int4/32+offset+transposed", "int8/32")),
    ],
)  # fmt: skip
def test_a_rounded_plan_computes_what_the_rounded_weights_compute(
    family: str, quantize: str, formats: tuple[str, ...], tmp_path: Path
) -> None:
    """transformers with the plan's own weights put in; biases, padded blocks, transposed weights included."""
    import torch

    tiny = make_tiny_model(family, tmp_path / "model")
    plan = compiled(tiny.directory, tmp_path / "plan", quantize=quantize + " skip=*k_proj*")
    of_plan = PlanWeights(plan)
    assert set(formats) <= set(Manifest.load(plan).model.weight_formats)
    original = tiny.model(torch.tensor([TOKENS.tolist()])).logits[0].detach().numpy()
    put_in = 0
    with torch.no_grad():
        for name, parameter in tiny.model.named_parameters():
            for weight, format in of_plan.formats.items():
                rows = _rows_of(name, weight, tiny.model)
                if rows is None:
                    continue
                found = of_plan.dequantised(weight)[rows]
                shape = tuple(reversed(parameter.shape)) if format.transposed else tuple(parameter.shape)
                found = found[:, : shape[1]]
                parameter.copy_(torch.from_numpy((found.T if format.transposed else found).copy()))
                put_in += 1
    assert put_in >= 9
    expected = tiny.model(torch.tensor([TOKENS.tolist()])).logits[0].detach().numpy()
    assert relative(logits(plan), expected) < 5e-5
    assert relative(original, expected) > 1e-3, "the rounding moved nothing: the test sees no weights"


@pytest.mark.parametrize(
    ("family", "quantize"),
    [
        ("llama", "scheme=int8 block=16"),
        ("llama", "scheme=int8 block=16 symmetric=false"),
        ("llama", "scheme=int4 block=16 symmetric=false head-bits=4"),
        ("gemma3", "scheme=int8 block=16"),
        ("gpt2", "scheme=int8"),
    ],
)
def test_with_compensation_rounded_inputs_count_as_unrounded(
    family: str, quantize: str, tmp_path: Path
) -> None:
    tiny = make_tiny_model(family, tmp_path / "model")  # rows of 112: whole blocks of 16, not of 32
    unrounded = compiled(tiny.directory, tmp_path / "unrounded", quantize=f"{quantize} accuracy-level=0")
    rounded = compiled(tiny.directory, tmp_path / "rounded", quantize=quantize)
    compensated = compiled(tiny.directory, tmp_path / "both", quantize=f"{quantize}}},compensate-rounding{{")
    expected = logits(unrounded)
    assert relative(logits(compensated), expected) < relative(logits(rounded), expected) / 20
    assert relative(token_by_token(compensated), expected) < relative(logits(rounded), expected) / 20


def _rows_of(name: str, weight: str, model: object) -> slice | None:
    """Which rows of the plan's ``weight`` are the parameter ``name``; None for none."""
    first, *others = weight.split("+")
    if not others:
        return slice(None) if first == name else None
    stem = first.removesuffix(".".join(first.split(".")[-len(others[0].split(".")) :]))
    top = 0
    for part in (first, *(stem + other for other in others)):
        n = model.get_parameter(part).shape[0]  # type: ignore[attr-defined]
        if part == name:
            return slice(top, top + n)
        top += n
    return None


class _CountedReads:
    """Passes on to an index of weights and counts the slices that it gives."""

    def __init__(self, weights: object) -> None:
        self.weights = weights
        self.slices = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.weights, name)

    def chunks(self, name: str, dtype: str) -> Iterator[np.ndarray]:
        for each in self.weights.chunks(name, dtype, chunk_bytes=20_000):  # type: ignore[attr-defined]
            self.slices += 1
            yield each

    def block_chunks(self, name: str) -> Iterator[tuple[np.ndarray, str]]:
        for each in self.weights.block_chunks(name, chunk_bytes=5_000):  # type: ignore[attr-defined]
            self.slices += 1
            yield each


@pytest.mark.parametrize("format", [NBits(4, 32, offset=True), NBits(8, 128)])
def test_weights_are_made_in_slices_and_read_once(mixed: Path, format: NBits) -> None:
    counted = _CountedReads(open_checkpoint(mixed).weights)
    encoded = EncodedWeights(counted)  # type: ignore[arg-type]
    parts = ("model.layers.0.mlp.gate_proj.weight", "model.layers.1.mlp.gate_proj.weight")
    data = list(encoded.chunks(parts, format, WeightForm.DATA))
    assert len(data) == counted.slices > 8
    scales = list(encoded.chunks(parts, format, WeightForm.SCALES))
    assert counted.slices == len(data), "scales that were at hand were made again"
    assert np.concatenate(scales).shape == format.shape(WeightForm.SCALES, 1024, 256)
    again = list(encoded.chunks(parts, format, WeightForm.SCALES))
    assert np.array_equal(np.concatenate(again), np.concatenate(scales)), "made anew, they are the same"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "int3"}, "keep, float32, float16, bfloat16, int8, int4"),
        ({"dtype": "int4", "block_size": 48}, "--block-size"),
        ({"dtype": "int8", "pass_pipeline": "cse"}, "quantize-weights{scheme=int8 block=32} into it"),
        ({"compensate": True, "pass_pipeline": "cse"}, "Write compensate-rounding into the pipeline"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_opened(
    options: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(CompileError) as caught:
        compile_checkpoint(CompileOptions("nowhere", tmp_path / "plan", **options))  # type: ignore[arg-type]
    assert words in str(caught.value)


@pytest.mark.parametrize("options", ["block=48", "accuracy-level=5", "head-bits=5", "scheme=int2"])
def test_pass_options_that_cannot_be_are_refused(options: str) -> None:
    from planonce.passes import run_pipeline
    from planonce.passes.ir.context import make_context, parse_module

    module = parse_module("func.func @f() { return }", make_context())
    with pytest.raises(PassError):
        run_pipeline(module, f"quantize-weights{{{options}}}")


def test_manifest_of_a_plain_plan_names_no_format(tmp_path: Path) -> None:
    tiny = make_tiny_model("llama", tmp_path / "model")
    plan = compiled(tiny.directory, tmp_path / "plan")
    assert Manifest.load(plan).model.weight_formats == ()
    text = json.loads((plan / "manifest.json").read_text())
    assert text["model"]["dtype"] == "float32"
