"""Tiny random-weight Hugging Face directories, one per architecture, for tests of the whole compiler.

Weights are scaled up (transformers initialises with 0.02, at which attention is nearly uniform and a wrong
mask or scale moves nothing), biases and norms are made non-trivial, and sliding windows are shorter than
the sequences tests feed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FAMILIES", "TinyModel", "make_tiny_model", "save_tiny_tokenizer", "tiny_config"]

GAIN = 4.0
# At this width, scores need more than that to leave the flat part of softmax.
ATTENTION_GAIN = 2.5
ATTENTION_INPUTS = ("q_proj", "k_proj", "qkv_proj", "c_attn", "query_key_value")
VOCAB = 320  # 256 bytes, the special tokens, and ids no text produces
MAX_POSITIONS = 256
WINDOW = 8
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>")
PAD, BOS, EOS = 256, 257, 258
CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A saved checkpoint. ``model`` is the transformers model in float32, eval mode, eager attention."""

    directory: Path
    model: Any
    config: Any


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": MAX_POSITIONS,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        **more,
    }


def _without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _llama(t: Any) -> Any:
    return t.LlamaConfig(**_sizes(tie_word_embeddings=False))


def _mistral(t: Any) -> Any:
    return t.MistralConfig(**_sizes(sliding_window=WINDOW))


def _qwen2(t: Any) -> Any:
    return t.Qwen2Config(**_without(_sizes(tie_word_embeddings=True), "head_dim"))


def _qwen3(t: Any) -> Any:
    return t.Qwen3Config(**_sizes(tie_word_embeddings=True))


def _phi(t: Any) -> Any:
    return t.PhiConfig(**_without(_sizes(partial_rotary_factor=0.5), "head_dim"))


def _phi3(t: Any) -> Any:
    return t.Phi3Config(
        **_without(_sizes(sliding_window=WINDOW, original_max_position_embeddings=MAX_POSITIONS), "head_dim")
    )


def _gemma2(t: Any) -> Any:
    return t.Gemma2Config(
        **_sizes(sliding_window=WINDOW, query_pre_attn_scalar=16, attn_logit_softcapping=5.0)
    )


def _gemma3(t: Any) -> Any:
    layers = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    return t.Gemma3TextConfig(
        **_sizes(num_hidden_layers=4, sliding_window=WINDOW, query_pre_attn_scalar=16, layer_types=layers)
    )


def _gpt2(t: Any) -> Any:
    return t.GPT2Config(
        vocab_size=VOCAB, n_positions=MAX_POSITIONS, n_embd=64, n_layer=2, n_head=4,
        bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip


def _gpt_neox(t: Any) -> Any:
    return t.GPTNeoXConfig(
        **_without(_sizes(rotary_pct=0.25), "head_dim", "num_key_value_heads"), tie_word_embeddings=False
    )


# family -> what makes its config from the transformers module
FAMILIES: dict[str, Callable[[Any], Any]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi": _phi,
    "phi3": _phi3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}


def tiny_config(family: str) -> Any:
    """The config alone: head_dim 16, two layers (gemma3: four, windows alternating)."""
    import transformers

    return FAMILIES[family](transformers)


def make_tiny_model(
    family: str,
    directory: Path,
    *,
    seed: int = 0,
    gain: float = GAIN,
    dtype: str = "float32",
    tokenizer: bool = True,
    max_shard_size: str = "5GB",
    adjust: Callable[[Any], None] | None = None,
    config: Any = None,
) -> TinyModel:
    """Write a checkpoint of ``family`` into ``directory`` and return the model it holds.

    adjust(config) may change the config first; config: another one than the family's own. The returned
    model's weights are what was stored, in float32.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = config or tiny_config(family)
    if adjust is not None:
        adjust(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                attends = any(part in name for part in ATTENTION_INPUTS)
                parameter.mul_(gain * ATTENTION_GAIN if attends else gain)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    stored = getattr(torch, dtype)
    model = model.to(stored).eval()
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    if tokenizer:
        save_tiny_tokenizer(directory)
    return TinyModel(directory, model.to(torch.float32), model.config)


def save_tiny_tokenizer(directory: Path) -> None:
    """tokenizer.json (one token a byte, ids 0-255, then the special ones) and tokenizer_config.json."""
    import json

    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": MAX_POSITIONS,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
