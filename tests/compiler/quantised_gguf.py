"""Tiny llama GGUF files with their matrices in a chosen block format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from tiny_models import BOS, EOS, MAX_POSITIONS, VOCAB

__all__ = ["HALVES", "random_blocks", "write_quantised_llama"]

# Where a block has float16 fields: random bytes there would be NaN or huge.
HALVES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "iq4_nl": (0,), "iq4_xs": (0,), "iq2_xxs": (0,),
}  # fmt: skip
# What a block's scale is multiplied with at most, so that weights of every format are of one size.
_REACH = {
    "q4_0": 8, "q4_1": 8, "q5_0": 16, "q5_1": 16, "q8_0": 127, "q2_k": 30, "q3_k": 128, "q4_k": 500,
    "q5_k": 1000, "q6_k": 2000, "iq4_nl": 127, "iq4_xs": 2000, "iq2_xxs": 40,
}  # fmt: skip


def random_blocks(
    rng: np.random.Generator, rows: int, k: int, block_type: str, size: float = 0.2
) -> np.ndarray:
    """uint8 [rows, bytes a row]: every code equally likely, values up to about ``size``."""
    elements, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[block_type.upper()]]
    raw = rng.integers(0, 256, (rows, k // elements, nbytes), dtype=np.uint8)
    for at in HALVES[block_type]:
        half = (size / _REACH[block_type] * rng.uniform(0.5, 1, raw.shape[:2])).astype(np.float16)
        if block_type in ("q4_1", "q5_1") and at == 2:
            half = (-size * rng.uniform(0.5, 1, raw.shape[:2])).astype(np.float16)
        raw[:, :, at : at + 2] = half[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


def write_quantised_llama(
    path: Path, formats: Mapping[str, str], *, default: str, tied: bool = False, seed: int = 0
) -> Path:
    """Two layers, hidden size 256 (a k-quant's block), vocabulary 320, random weights.

    formats: part of a GGUF name ("attn_v") to its block type; ``default`` for the other matrices.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "llama")
    hidden, inner, heads, kv_heads, head_dim = 256, 512, 4, 2, 64
    writer.add_block_count(2)
    writer.add_context_length(MAX_POSITIONS)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    _add_vocabulary(writer)
    layer: dict[str, tuple[int, ...]] = {
        "attn_q": (heads * head_dim, hidden), "attn_k": (kv_heads * head_dim, hidden),
        "attn_v": (kv_heads * head_dim, hidden), "attn_output": (hidden, heads * head_dim),
        "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
        "attn_norm": (hidden,), "ffn_norm": (hidden,),
    }  # fmt: skip
    shapes = {f"blk.{i}.{name}": shape for i in range(2) for name, shape in layer.items()}
    shapes |= {"token_embd": (VOCAB, hidden), "output_norm": (hidden,)}
    if not tied:
        shapes["output"] = (VOCAB, hidden)
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", rng.uniform(0.8, 1.2, shape).astype(np.float32))
            continue
        kind = next((value for part, value in formats.items() if part in name), default)
        if kind == "f32":
            writer.add_tensor(f"{name}.weight", rng.uniform(-0.2, 0.2, shape).astype(np.float32))
            continue
        raw = random_blocks(rng, *shape, kind)
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=GGMLQuantizationType[kind.upper()])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: Any) -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), "<pad>", "<bos>", "<eos>"]
    tokens += ["ab"] + [f"unused{i}" for i in range(VOCAB - len(tokens) - 1)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if 256 <= i < 259 else 1 for i in range(VOCAB)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
