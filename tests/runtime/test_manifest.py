"""The manifest is the only thing the runtime trusts, after checking it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from handmade_plan import Tiny, build

from planonce.runtime.errors import PlanFormatError, PlanIntegrityError
from planonce.runtime.manifest import Manifest


@pytest.fixture
def document(tiny_plan_dir: Path) -> dict[str, Any]:
    return json.loads((tiny_plan_dir / "manifest.json").read_text())


def test_text_and_manifest_are_inverse_and_byte_stable(tiny_plan_dir: Path) -> None:
    text = (tiny_plan_dir / "manifest.json").read_text()
    manifest = Manifest.from_json(text)
    assert manifest.to_json() == text
    assert Manifest.from_json(manifest.to_json()) == manifest


def _set(path: str, value: Any):
    def change(document: dict[str, Any]) -> None:
        *keys, last = [int(k) if k.isdigit() else k for k in path.split("/")]
        node: Any = document
        for key in keys:
            node = node[key]
        node[last] = value

    return change


def _drop(path: str):
    def change(document: dict[str, Any]) -> None:
        *keys, last = [int(k) if k.isdigit() else k for k in path.split("/")]
        node: Any = document
        for key in keys:
            node = node[key]
        del node[last]

    return change


SHA = "0" * 64
BAD = {
    "unknown version": _set("format_version", 2),
    "version of another type": _set("format_version", "1"),
    "version is a bool": _set("format_version", True),
    "no version": _drop("format_version"),
    "missing field": _drop("shape_key"),
    "unknown field": _set("surprise", 1),
    "unknown nested field": _set("model/surprise", 1),
    "wrong type": _set("model/n_layers", "2"),
    "bool for int": _set("model/n_layers", True),
    "float for int": _set("model/hidden_size", 32.0),
    "null where none is allowed": _set("model/family", None),
    "list expected": _set("stages", {}),
    "unknown role": _set("stages/0/inputs/0/role", "tokens"),
    "unknown dtype": _set("stages/0/inputs/0/dtype", "float31"),
    "unknown kv dtype": _set("kv_slots/0/dtype", "int64"),
    "unknown device": _set("stages/0/device", "tpu:0"),
    "unknown which": _set("kv_slots/0/which", "keys"),
    "zero sized model": _set("model/max_seq_len", 0),
    "negative dimension": _set("stages/0/inputs/0/shape", ["batch", -1]),
    "token ids of another type": _set("stages/0/inputs/0/dtype", "int32"),
    "no stage": _set("stages", []),
    "program not listed": _set("stages/0/program", "other.onnx"),
    "path leaves the directory": _set("files/0/path", "../program.onnx"),
    "absolute path": _set("files/0/path", "/etc/passwd"),
    "path not normal": _set("files/0/path", "./program.onnx"),
    "windows path": _set("files/0/path", "a\\b"),
    "negative size": _set("files/0/size", -1),
    "not a sha256": _set("files/0/sha256", "abc"),
    "duplicate file": lambda d: d["files"].append(copy.deepcopy(d["files"][0])),
    "duplicate slot": lambda d: d["kv_slots"].append(copy.deepcopy(d["kv_slots"][0])),
    "duplicate input": lambda d: d["stages"][0]["inputs"].append(copy.deepcopy(d["stages"][0]["inputs"][0])),
    "slot without argument": _set("kv_slots/0/input", "nothing"),
    "slot without result": _set("kv_slots/0/output", "logits"),
    "argument without slot": lambda d: d["kv_slots"].pop(),
    "slot of another size": _set("kv_slots/0/head_dim", 17),
    "slot of another layer": _set("kv_slots/0/layer", 9),
    "slot elsewhere": _set("kv_slots/0/device", "cpu:1"),
    "zero window": _set("kv_slots/0/window", 0),
    "no copy of the logits": _set("copies", []),
    "logits copied twice": lambda d: d["copies"].append(copy.deepcopy(d["copies"][0])),
    "copy of nothing": _set("copies/0/source", "nothing"),
    "copy from no stage": _set("copies/0/source_stage", 5),
    "kv copied to the host": _set("copies/0/source", "present.0.key"),
    "logits of another vocabulary": _set("model/vocab_size", 98),
    "unknown checkpoint mode": _set("checkpoint/mode", "elsewhere"),
    "reference without root": _set("checkpoint/mode", "reference"),
    "embedded with root": _set("checkpoint/root", "/x"),
    "bad minimum version": _set("minimum_onnxruntime", "new"),
    "attention of no layer": _set("attention/0/layer", 7),
    "empty shape key": _set("shape_key", ""),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_manifest_is_refused_with_its_place(document: dict[str, Any], case: str) -> None:
    Manifest.from_json(json.dumps(document))  # the control: unchanged, it loads
    BAD[case](document)
    with pytest.raises(PlanFormatError) as caught:
        Manifest.from_json(json.dumps(document))
    assert str(caught.value).strip()


def _another_pick(document: dict[str, Any]) -> None:
    more = {**document["stages"][0]["outputs"][-1], "name": "more"}
    document["stages"][0]["outputs"].append(more)


BAD_GREEDY = {
    "not copied to the host": lambda d: d["copies"].pop(),
    "copied to the host twice": lambda d: d["copies"].append(copy.deepcopy(d["copies"][-1])),
    "copied under another name": _set("copies/1/target", "logits"),
    "of another dtype": _set("stages/0/outputs/5/dtype", "int32"),
    "of another rank": _set("stages/0/outputs/5/shape", ["batch"]),
    "not one for each row of logits": _set("stages/0/outputs/5/shape", ["batch", "sequence"]),
    "picked twice": _another_pick,
    "on the wrong side": _set("stages/0/inputs/0/role", "next_tokens"),
}


@pytest.mark.parametrize("case", BAD_GREEDY)
def test_next_tokens_that_could_not_be_read_as_such_are_refused(tmp_path: Path, case: str) -> None:
    plan = build(tmp_path / "plan", Tiny(greedy_head=True))
    document = json.loads((plan / "manifest.json").read_text())
    assert document["stages"][0]["outputs"][5]["role"] == "next_tokens"
    Manifest.from_json(json.dumps(document))  # the control: unchanged, it loads
    BAD_GREEDY[case](document)
    with pytest.raises(PlanFormatError):
        Manifest.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("side", "role"), [("inputs", "block_table"), ("inputs", "kv_pool"), ("outputs", "kv_pool")]
)
def test_a_paged_plan_is_refused_because_nothing_here_runs_it(
    document: dict[str, Any], side: str, role: str
) -> None:
    document["stages"][0][side][-1]["role"] = role
    with pytest.raises(PlanFormatError, match="does not execute paged plans") as caught:
        Manifest.from_json(json.dumps(document))
    assert role in caught.value.found and side in caught.value.where


BAD_TENSORS = {
    "no list": _drop("tensors"),
    "twice": lambda d: d["tensors"].append(copy.deepcopy(d["tensors"][0])),
    "file not listed": _set("tensors/0/file", "other.bin"),
    "unknown dtype": _set("tensors/0/dtype", "float31"),
    "negative dimension": _set("tensors/0/shape", [-97, -32]),
    "size of another shape": _set("tensors/0/nbytes", 97 * 32 * 4 - 4),
    "before the file": _set("tensors/0/offset", -1),
    "past the file": _set("tensors/0/offset", 10**9),
    "constant of another type": _set("tensors/0/constant", 1),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_tensor_that_cannot_be_where_the_manifest_says_is_refused(tmp_path: Path, case: str) -> None:
    plan = build(tmp_path / "plan", Tiny(external_weights=True))
    document = json.loads((plan / "manifest.json").read_text())
    assert Manifest.from_json(json.dumps(document)).tensors[0].name == "embed"  # the control
    BAD_TENSORS[case](document)
    with pytest.raises(PlanFormatError, match="tensor"):
        Manifest.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format_version": NaN}', "1", "[" * 5000])
def test_what_is_not_a_manifest_is_refused(text: str) -> None:
    with pytest.raises(PlanFormatError):
        Manifest.from_json(text)


def test_a_manifest_that_would_not_load_is_not_written(tiny_plan_dir: Path) -> None:
    import dataclasses

    manifest = dataclasses.replace(Manifest.load(tiny_plan_dir), shape_key="")
    with pytest.raises(PlanFormatError):
        manifest.to_json()


def test_no_directory_and_no_manifest_are_integrity_errors(tmp_path: Path) -> None:
    with pytest.raises(PlanIntegrityError):
        Manifest.load(tmp_path / "nothing")
    with pytest.raises(PlanIntegrityError):
        Manifest.load(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanFormatError):
        Manifest.load(tmp_path)


def test_importing_the_manifest_loads_no_onnxruntime_or_numpy() -> None:
    heavy = {"numpy", "onnxruntime", "onnx", "torch"}
    code = f"import sys, planonce.runtime.manifest; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
