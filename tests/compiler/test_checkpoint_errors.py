"""What is wrong with a checkpoint is said by name, as a typed error, before anything is built from it."""

from __future__ import annotations

import json
import random
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from planonce.compiler.checkpoint import open_checkpoint
from planonce.compiler.checkpoint.safetensors_file import read_safetensors_header
from planonce.runtime.errors import CheckpointError, PlanonceError, UnsupportedModel

sys.path.insert(0, str(Path(__file__).parent))
from tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return make_tiny_model("llama", tmp_path_factory.mktemp("llama"), seed=3).directory


@pytest.fixture
def directory(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "model"))


def _refused(spec, *words, kind=CheckpointError):
    with pytest.raises(kind) as caught:
        open_checkpoint(spec)
    text = str(caught.value)
    for word in words:
        assert word in text, text
    assert caught.value.todo, "says what to do"
    return caught.value


def _edit_config(directory, **changes):
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def _raw(path, header, data=b"", length=None):
    blob = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(blob) if length is None else length) + blob + data)


# -- paths ---------------------------------------------------------------------------------------------


def test_no_such_path(tmp_path):
    _refused(tmp_path / "nowhere", "no such checkpoint")
    _refused("meta-llama/Some-Model", "no such checkpoint", "fetch the checkpoint first")
    _refused("x" * 5000, "found")
    _refused("a\0b", "found")


def test_not_a_checkpoint(tmp_path):
    _refused(tmp_path, "no config.json", "an empty directory")
    (tmp_path / "notes.txt").write_text("hello")
    _refused(tmp_path, "no config.json", "notes.txt")
    _refused(tmp_path / "notes.txt", "not a checkpoint", "notes.txt")


def test_directory_without_weights(directory):
    (directory / "model.safetensors").unlink()
    _refused(directory, "no weights", "model.safetensors", "config.json")
    (directory / "pytorch_model.bin").write_bytes(b"x")
    _refused(directory, "no weights", "pytorch_model.bin", "convert the weights to safetensors")


def test_shards_without_their_index(directory):
    (directory / "model.safetensors").rename(directory / "model-00001-of-00002.safetensors")
    _refused(directory, "need their index")


def test_unreadable_config(directory):
    (directory / "config.json").write_text("{ not json")
    _refused(directory, "config.json is not JSON")
    (directory / "config.json").write_text("[1]")
    _refused(directory, "config.json is not a JSON object")
    (directory / "config.json").write_text("{}")
    _refused(directory, "does not say what model this is")


# -- safetensors files ---------------------------------------------------------------------------------


def test_truncated_data(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    _refused(directory, "truncated: data is missing", "model.safetensors")


def test_truncated_header(directory):
    path = directory / "model.safetensors"
    for length in (0, 7, 8, 300):
        path.write_bytes(path.read_bytes()[:length] if length else b"")
        _refused(directory, "model.safetensors", "found")


def test_trailing_data(directory):
    with (directory / "model.safetensors").open("ab") as file:
        file.write(b"more")
    _refused(directory, "data follows the last tensor")


F4 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "data", "length", "words"),
    [
        (b"garbage!", b"", None, "not JSON"),
        (b"\xff\xfe\x00", b"", None, "not JSON"),
        (b"[1, 2]", b"", None, "not a JSON object"),
        (b"{}", b"", 1 << 62, "length makes no sense"),
        (b"{}", b"", 99_000_000, "truncated inside its header"),
        (b"[" * 100_000, b"", None, "not JSON"),
        ({"a": 5}, b"", None, "is not an object"),
        ({"a": F4 | {"dtype": "F31"}}, b"1234", None, "unknown dtype"),
        ({"a": F4 | {"dtype": ["F32"]}}, b"1234", None, "unknown dtype"),
        ({"a": F4 | {"shape": [-1]}}, b"1234", None, "malformed shape"),
        ({"a": F4 | {"shape": [True]}}, b"1234", None, "malformed shape"),
        ({"a": F4 | {"shape": [1.0]}}, b"1234", None, "malformed shape"),
        ({"a": F4 | {"data_offsets": [0]}}, b"1234", None, "malformed offsets"),
        ({"a": F4 | {"data_offsets": [4, 0]}}, b"1234", None, "disagree"),
        ({"a": F4 | {"shape": [2**40, 2**40]}}, b"1234", None, "disagree"),
        ({"a": F4, "b": F4}, b"1234", None, "overlap"),
        ({"a": F4, "b": F4 | {"data_offsets": [8, 12]}}, b"1" * 12, None, "leave a hole"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],'
         b'"data_offsets":[4,8]}}', b"12345678", None, "names a tensor twice"),
    ],
)  # fmt: skip
def test_hostile_header(header, data, length, words, directory):
    _raw(directory / "model.safetensors", header, data, length)
    _refused(directory, words, "model.safetensors")


def test_a_header_with_random_damage_is_read_rightly_or_refused(original, tmp_path):
    blob = (original / "model.safetensors").read_bytes()
    header_end = 8 + int.from_bytes(blob[:8], "little")
    rng = random.Random(0)
    target = tmp_path / "damaged.safetensors"
    refused = 0
    for _ in range(300):
        damaged = bytearray(blob)
        for _ in range(rng.choice((1, 2, 8))):
            damaged[rng.randrange(header_end)] = rng.randrange(256)
        target.write_bytes(damaged)
        try:
            read_safetensors_header(target)
        except PlanonceError:
            refused += 1
    assert refused > 100


# -- shards --------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path):
    return make_tiny_model("llama", tmp_path / "sharded", seed=3, max_shard_size="60KB").directory


def test_missing_shards_are_all_named(sharded):
    shards = sorted(sharded.glob("*.safetensors"))
    for shard in shards[1:3]:
        shard.unlink()
    _refused(sharded, f"2 of {len(shards)} shards are missing", shards[1].name, shards[2].name)


def test_index_names_a_tensor_its_shard_does_not_hold(sharded):
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.extra.weight"] = min(content["weight_map"].values())
    index.write_text(json.dumps(content))
    _refused(sharded, "names tensors that their shards do not hold", "model.extra.weight")


def test_index_must_not_point_outside(sharded):
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["x"] = "../../etc/passwd"
    index.write_text(json.dumps(content))
    _refused(sharded, "outside its directory", "../../etc/passwd")
    index.write_text('{"weight_map": [1]}')
    _refused(sharded, "no weight_map")


def test_tensor_in_two_shards(sharded):
    shards = sorted(sharded.glob("*.safetensors"))
    tensors = load_file(shards[1])
    tensors |= load_file(shards[0])
    save_file(tensors, shards[1])
    _refused(sharded, "is in two shards", shards[0].name, shards[1].name)


# -- the model -----------------------------------------------------------------------------------------


def test_all_differences_from_the_model_are_listed_at_once(directory):
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.weight"] = np.zeros((64, 32), np.float32)
    tensors["model.layers.0.self_attn.q_norm.weight"] = np.ones(16, np.float32)
    save_file(tensors, directory / "model.safetensors")
    _refused(
        directory,
        "2 missing",
        "model.norm.weight [64]",
        "model.layers.1.mlp.up_proj.weight [112, 64]",
        "1 not part of the model",
        "model.layers.0.self_attn.q_norm.weight",
        "1 of another shape",
        "model.layers.0.self_attn.q_proj.weight: checkpoint [64, 32], model [64, 64]",
    )


def test_check_against_a_model_of_ones_own(directory):
    weights = open_checkpoint(directory).weights
    weights.check_against({name: entry.shape for name, entry in weights.items()})
    with pytest.raises(CheckpointError, match=r"1 missing(.|\n)*other \[2\]"):
        weights.check_against({name: e.shape for name, e in weights.items()} | {"other": (2,)})
    with pytest.raises(CheckpointError, match="no such weight"):
        weights.read("other")


def test_unknown_architecture(directory):
    _edit_config(directory, model_type="lama")
    error = _refused(directory, "no model type 'lama'", "nearest name is llama", kind=UnsupportedModel)
    assert error.code == "unsupported-model"


def test_an_encoder_decoder_is_not_a_causal_language_model(directory):
    _edit_config(directory, model_type="t5")
    _refused(directory, "not a causal language model", kind=UnsupportedModel)


def test_quantised_safetensors_are_refused(directory):
    _edit_config(directory, quantization_config={"quant_method": "gptq", "bits": 4})
    _refused(directory, "gptq", kind=UnsupportedModel)


@pytest.mark.parametrize(
    "changes",
    [{"num_attention_heads": 0}, {"hidden_size": -4}, {"hidden_size": "wide"}, {"num_hidden_layers": 10**9}],
)
def test_nonsense_in_the_config(changes, directory):
    _edit_config(directory, **changes)
    with pytest.raises((CheckpointError, UnsupportedModel)) as caught:
        open_checkpoint(directory)
    assert caught.value.todo


def test_unsupported_dtype_is_refused_only_where_it_is_used(directory):
    tensors = load_file(directory / "model.safetensors")
    tensors["model.rotary_emb.inv_freq"] = np.zeros(8, np.uint32)  # computed by the model: never read
    save_file(tensors, directory / "model.safetensors")
    open_checkpoint(directory)
    tensors["model.norm.weight"] = np.ones(64, np.int8)
    save_file(tensors, directory / "model.safetensors")
    _refused(directory, "cannot be read", "model.norm.weight (int8)")


def test_file_that_shrinks_after_opening_is_noticed_on_read(directory):
    weights = open_checkpoint(directory).weights
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4096])
    last = max(weights.values(), key=lambda entry: entry.offset)
    with pytest.raises(CheckpointError, match="file ends inside tensor"):
        weights.read(last.name)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        weights.read(last.name)
    with pytest.raises(CheckpointError, match="cannot convert"):
        weights.read(last.name, "float4")


def test_damaged_tokenizer(directory):
    (directory / "tokenizer.json").write_text("{}")
    _refused(directory, "tokenizer.json cannot be loaded")


# -- packages ------------------------------------------------------------------------------------------


def test_package_not_installed():
    _refused("package:surely-not-installed-anywhere", "is not installed", "pip install")
    _refused("package:", "is not installed")


def test_package_without_a_checkpoint():
    _refused("package:tokenizers", "holds no checkpoint", "files of kinds")


def _distribution(site, name, files, requires=()):
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"]
    lines += [f"Requires-Dist: {requirement}\n" for requirement in requires]
    (info / "METADATA").write_text("".join(lines))
    for file, content in files.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_bytes(content)
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_package_with_two_checkpoints_lists_them_and_takes_a_path(original, tmp_path, monkeypatch):
    files = {}
    for folder in ("two_models/a", "two_models/b"):
        for file in original.iterdir():
            files[f"{folder}/{file.name}"] = file.read_bytes()
    _distribution(tmp_path, "two-models", files)
    monkeypatch.syspath_prepend(str(tmp_path))
    _refused("package:two-models", "several checkpoints", "two_models/a", "two_models/b")
    assert open_checkpoint("package:two-models/b").root == tmp_path / "two_models" / "b"


def test_chunked_package_is_assembled_and_checked(tmp_path, monkeypatch):
    import hashlib

    from planonce.compiler.checkpoint.package_source import find_in_package

    content = b"GGUF" + bytes(range(256)) * 40
    sums = f"{hashlib.sha256(content).hexdigest()}  tiny.gguf\n".encode()
    _distribution(tmp_path, "chunky", {"chunky/SHA256SUMS": sums}, ("chunky-part1 (==1.0)", "chunky-part2"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _refused("package:chunky", "chunk packages that are not installed", "chunky-part1")
    _distribution(tmp_path, "chunky-part1", {"c1/tiny.gguf.part00": content[:5000]})
    _distribution(tmp_path, "chunky-part2", {"c2/tiny.gguf.part01": content[5000:]})
    path = find_in_package("chunky")
    assert path.read_bytes() == content
    assert find_in_package("chunky") == path
    assert [p.name for p in path.parent.iterdir()] == ["tiny.gguf"], "no temporary file is left"
    path.unlink()
    (tmp_path / "c2/tiny.gguf.part01").write_bytes(content[5000:-1] + b"?")
    _refused("package:chunky", "not the one its package describes")
    assert list(path.parent.iterdir()) == []
