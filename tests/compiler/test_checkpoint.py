"""Hugging Face directories: what is indexed equals what transformers loads, and tying follows the bytes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from planonce.compiler.checkpoint import CheckpointKind, open_checkpoint, scan_non_finite
from planonce.runtime.errors import CheckpointError

sys.path.insert(0, str(Path(__file__).parent))
from tiny_models import BOS, EOS, FAMILIES, make_tiny_model


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_tiny_model("llama", tmp_path_factory.mktemp("llama"), seed=3)


@pytest.fixture
def copied(llama, tmp_path):
    """A private copy of the llama directory, to be damaged."""
    return Path(shutil.copytree(llama.directory, tmp_path / "model"))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_equals_transformers_bit_for_bit(family, tmp_path):
    tiny = make_tiny_model(family, tmp_path, seed=1)
    checkpoint = open_checkpoint(tmp_path)
    state = tiny.model.state_dict()
    assert checkpoint.kind is CheckpointKind.HUGGING_FACE
    for name, value in state.items():
        read = checkpoint.weights.read(name)
        assert read.tobytes() == value.numpy().tobytes(), name
        assert read.flags.c_contiguous and read.flags.owndata
    assert set(checkpoint.weights) | set(checkpoint.weights.aliases) == set(state)
    tied = len(tiny.model.all_tied_weights_keys)
    assert len(checkpoint.weights.aliases) == tied
    assert len(checkpoint.weights) == len(state) - tied


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_weights_widen_exactly_and_in_chunks(dtype, tmp_path):
    tiny = make_tiny_model("llama", tmp_path, seed=2, dtype=dtype)
    weights = open_checkpoint(tmp_path).weights
    for name, value in tiny.model.state_dict().items():
        assert weights[name].dtype == dtype
        assert weights.read(name, "float32").tobytes() == value.numpy().tobytes()
        chunks = list(weights.chunks(name, "float32", chunk_bytes=500))
        assert np.concatenate(chunks).tobytes() == value.numpy().tobytes()
        assert len(chunks) > 1 or weights[name].n_elements * 4 <= 500
        assert weights.raw_location(name, "float32") is None
        file, offset, nbytes = weights.raw_location(name, dtype)
        assert file.read_bytes()[offset : offset + nbytes] == weights.read(name, dtype).tobytes()


def test_narrowing_rounds_as_torch_does(llama):
    import torch

    weights = open_checkpoint(llama.directory).weights
    name = "model.embed_tokens.weight"
    expected = llama.model.state_dict()[name].to(torch.bfloat16).view(torch.int16).numpy()
    assert weights.read(name, "bfloat16").tobytes() == expected.tobytes()
    expected = llama.model.state_dict()[name].to(torch.float16).numpy()
    assert weights.read(name, "float16").tobytes() == expected.tobytes()


def test_shards_and_symlinks_give_the_same_weights(llama, tmp_path):
    sharded = make_tiny_model("llama", tmp_path / "sharded", seed=3, max_shard_size="60KB")
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    names = sorted(path.name for path in sharded.directory.glob("*.safetensors"))
    assert len(names) > 2
    for name in names:  # as a hub cache does it
        (sharded.directory / name).rename(blobs / f"blob-{name}")
        (sharded.directory / name).symlink_to(blobs / f"blob-{name}")
    checkpoint = open_checkpoint(sharded.directory)
    single = open_checkpoint(llama.directory)
    for name in single.weights:
        assert checkpoint.weights.read(name).tobytes() == single.weights.read(name).tobytes()
        assert not checkpoint.weights[name].file.is_symlink()
        assert checkpoint.relative_name(checkpoint.weights[name].file) in names


def test_identity_follows_the_bytes_not_the_path(llama, copied):
    first, second = open_checkpoint(llama.directory), open_checkpoint(copied)
    assert first.identity == second.identity
    assert first.files == second.files
    tensors = load_file(copied / "model.safetensors")
    tensors["model.norm.weight"][5] += 1e-3
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    assert open_checkpoint(copied).identity != first.identity


def test_hashing_streams_with_progress_once(llama):
    import hashlib

    checkpoint = open_checkpoint(llama.directory)
    seen: list[tuple[str, int, int]] = []
    records = checkpoint.hash_files(lambda *event: seen.append(event))
    assert seen[-1][1] == seen[-1][2] == sum(record.size for record in records)
    for record in records:
        content = (llama.directory / record.path).read_bytes()
        assert (record.size, record.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    count = len(seen)
    assert checkpoint.hash_files(lambda *event: seen.append(event)) is records
    assert checkpoint.identity and len(seen) == count


def test_tokenizer_template_and_generation_defaults(copied):
    (copied / "generation_config.json").write_text(
        json.dumps({"temperature": 0.6, "top_p": 0.9, "do_sample": True, "eos_token_id": [7, EOS], "x": 1})
    )
    checkpoint = open_checkpoint(copied)
    assert checkpoint.tokenizer is not None
    assert checkpoint.tokenizer.tokenizer_json == (copied / "tokenizer.json").read_bytes()
    assert (checkpoint.tokenizer.bos_token, checkpoint.tokenizer.bos_token_id) == ("<bos>", BOS)
    assert (checkpoint.tokenizer.eos_token, checkpoint.tokenizer.eos_token_id) == ("<eos>", EOS)
    assert "add_generation_prompt" in checkpoint.tokenizer.chat_template
    assert checkpoint.generation.sampling == {"temperature": 0.6, "top_p": 0.9, "do_sample": True}
    assert checkpoint.generation.eos_token_ids == (7, EOS)
    assert checkpoint.generation.bos_token_id == BOS
    (copied / "chat_template.jinja").write_text("jinja file wins")
    assert open_checkpoint(copied).tokenizer.chat_template == "jinja file wins"


def test_no_tokenizer_is_allowed(tmp_path):
    make_tiny_model("llama", tmp_path, tokenizer=False)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tokenizer is None
    assert checkpoint.generation.eos_token_ids == (EOS,)


def test_config_does_not_remember_its_path(llama):
    assert str(llama.directory) not in open_checkpoint(llama.directory).config.to_json_string(use_diff=False)


# -- tying ---------------------------------------------------------------------------------------------


def _retie(directory: Path, tie: bool, change) -> None:
    config = json.loads((directory / "config.json").read_text())
    config["tie_word_embeddings"] = tie
    (directory / "config.json").write_text(json.dumps(config))
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def test_different_bytes_are_never_tied_whatever_the_config_says(copied):
    from transformers import AutoModelForCausalLM

    _retie(copied, True, lambda tensors: None)  # llama's two are different
    checkpoint = open_checkpoint(copied)
    assert checkpoint.weights.aliases == {}
    assert checkpoint.config.tie_word_embeddings is False
    assert "not tied" in checkpoint.remarks[0]
    head, embedding = (checkpoint.weights.read(n) for n in ("lm_head.weight", "model.embed_tokens.weight"))
    assert not np.array_equal(head, embedding)
    model = AutoModelForCausalLM.from_pretrained(copied)
    assert np.array_equal(model.lm_head.weight.detach().numpy(), head)
    assert np.array_equal(model.model.embed_tokens.weight.detach().numpy(), embedding)


def test_equal_bytes_under_both_names_are_kept_once(copied):
    def equal(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    for tie in (True, False):
        _retie(copied, tie, equal)
        checkpoint = open_checkpoint(copied)
        assert checkpoint.weights.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
        assert "lm_head.weight" not in list(checkpoint.weights)
        assert checkpoint.weights["lm_head.weight"] is checkpoint.weights["model.embed_tokens.weight"]
        assert checkpoint.config.tie_word_embeddings is tie
        assert checkpoint.remarks == ()


def test_one_flipped_bit_in_the_last_row_unties(copied):
    def almost(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        tensors["lm_head.weight"].view(np.uint32)[-1, -1] ^= 1

    _retie(copied, True, almost)
    assert open_checkpoint(copied).weights.aliases == {}


def test_only_the_head_stored_gives_the_embedding_too(copied):
    def head_only(tensors):
        del tensors["model.embed_tokens.weight"]

    expected = load_file(copied / "model.safetensors")["lm_head.weight"]
    _retie(copied, True, head_only)
    weights = open_checkpoint(copied).weights
    assert np.array_equal(weights.read("model.embed_tokens.weight"), expected)
    assert np.array_equal(weights.read("lm_head.weight"), expected)
    assert list(weights).count("model.embed_tokens.weight") == 1


def test_missing_head_of_an_untied_model_is_an_error_not_a_tie(copied):
    def no_head(tensors):
        del tensors["lm_head.weight"]

    _retie(copied, False, no_head)
    with pytest.raises(CheckpointError, match=r"1 missing(.|\n)*lm_head.weight \[320, 64\]"):
        open_checkpoint(copied)


# -- names ---------------------------------------------------------------------------------------------


def test_checkpoint_of_the_base_model_without_its_prefix(tmp_path):
    tiny = make_tiny_model("gpt2", tmp_path, seed=5)
    tensors = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    bare["h.0.attn.bias"] = np.ones((1, 1, 4, 4), np.uint8)  # the causal mask that old files hold
    save_file(bare, tmp_path / "model.safetensors", metadata={"format": "pt"})
    weights = open_checkpoint(tmp_path).weights
    assert "h.0.attn.bias" not in weights
    for name, value in tiny.model.state_dict().items():
        assert weights.read(name).tobytes() == value.numpy().tobytes(), name


def test_experts_stored_one_by_one_are_read_as_transformers_combines_them(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    config = Qwen3MoeConfig(
        vocab_size=320, hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=4, num_experts_per_tok=2,
        decoder_sparse_step=1,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert any(".experts.3." in name for name in stored), "the file holds single experts"
    state = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    checkpoint = open_checkpoint(tmp_path)
    for name, value in state.items():
        assert checkpoint.weights[name].shape == tuple(value.shape)
        assert checkpoint.weights.read(name).tobytes() == value.numpy().tobytes(), name
    assert any(len(entry.sources) == 8 for entry in checkpoint.weights.values())


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_multimodal_gemma3_opens_as_its_language_model(prefix, tmp_path):
    tiny = make_tiny_model("gemma3", tmp_path, seed=6)
    text = json.loads((tmp_path / "config.json").read_text())
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}
    config |= {"text_config": text, "vision_config": {"model_type": "siglip_vision_model", **vision}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {prefix + name.removeprefix("model."): value for name, value in tensors.items()}
    renamed["model.vision_tower.vision_model.post_layernorm.weight"] = np.ones(16, np.float32)
    renamed["multi_modal_projector.mm_soft_emb_norm.weight"] = np.ones(16, np.float32)
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.model_type == "gemma3_text"
    assert checkpoint.config.layer_types == tiny.config.layer_types
    for name, value in tiny.model.state_dict().items():
        assert checkpoint.weights.read(name).tobytes() == value.numpy().tobytes(), name


# -- scan, memory, imports -----------------------------------------------------------------------------


def test_scan_finds_every_weight_that_is_not_finite(copied):
    assert scan_non_finite(open_checkpoint(copied).weights) == []

    def poison(tensors):
        tensors["model.norm.weight"][3] = np.nan
        tensors["lm_head.weight"][319, 62] = -np.inf
        tensors["lm_head.weight"][319, 63] = np.nan

    _retie(copied, False, poison)
    seen: list[int] = []
    found = scan_non_finite(open_checkpoint(copied).weights, lambda name, done, total: seen.append(done))
    assert [(f.name, f.n_nan, f.n_inf, f.first) for f in found] == [
        ("lm_head.weight", 1, 1, 319 * 64 + 62),
        ("model.norm.weight", 1, 0, 3),
    ]
    assert seen == list(range(1, 22))


def test_reading_all_weights_holds_one_at_a_time(tmp_path):
    tracked = """
import sys, tracemalloc
from planonce.compiler.checkpoint import open_checkpoint, scan_non_finite
weights = open_checkpoint(sys.argv[1]).weights
tracemalloc.start()
for name in weights:
    weights.read(name)
scan_non_finite(weights)
print(tracemalloc.get_traced_memory()[1], max(e.n_elements for e in weights.values()) * 4)
"""

    def larger(config):
        config.num_hidden_layers, config.intermediate_size = 8, 8192

    make_tiny_model("llama", tmp_path, dtype="bfloat16", adjust=larger)
    done = subprocess.run(
        [sys.executable, "-c", tracked, str(tmp_path)], capture_output=True, text=True, check=True
    )
    peak, largest = map(int, done.stdout.split())
    assert peak < 4 * largest < (tmp_path / "model.safetensors").stat().st_size


def test_a_wrong_path_fails_without_importing_torch():
    code = """
import sys
from planonce.compiler.checkpoint import open_checkpoint
from planonce.runtime.errors import CheckpointError
try:
    open_checkpoint("/no/such/place")
except CheckpointError:
    print(sorted(m for m in ("torch", "transformers", "gguf", "tokenizers") if m in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
