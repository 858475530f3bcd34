"""Memory: of a compile, of a structure far larger than this machine, of decoding."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

MB = 1 << 20

STRUCTURE_8B = """
import json, time
from transformers import LlamaConfig
from planonce.compiler.memory import peak_rss
from planonce.compiler.structure import compile_structure
config = LlamaConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
    num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072,
)
begin = time.perf_counter()
structure = compile_structure(config, max_seq_len=8192)
weights = sum(use.nbytes for use in structure.program.tensors)
print(json.dumps({"seconds": time.perf_counter() - begin, "peak_rss": peak_rss(), "weights": weights}))
"""

GROWTH = """
import json, sys
from pathlib import Path
from planonce.runtime import Plan
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
session = Plan.load(sys.argv[1], threads=2).open(capacity=512)
session.prefill(list(range(100, 132)))
for token in range(8):
    session.realize_token(token)
before = resident()
for token in range(256):
    session.realize_token(token)
print(json.dumps({"growth": resident() - before}))
"""


def run(script: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.real_model
def test_compiling_smollm_peaks_below_one_and_a_half_gigabytes(smollm: Callable[[str], Any]) -> None:
    assert smollm("fused").report["peak_rss"] < 1500 * MB


@pytest.mark.real_model
def test_resident_memory_stands_still_while_decoding(smollm: Callable[[str], Any]) -> None:
    assert run(GROWTH, str(smollm("fused").path))["growth"] < 8 * MB


def test_an_8b_structure_needs_no_memory_for_its_weights_and_less_than_a_minute() -> None:
    measured = run(STRUCTURE_8B)
    assert measured["weights"] > 30_000 * MB
    assert measured["peak_rss"] < 1500 * MB
    assert measured["seconds"] < 60  # some 10 where nothing else runs
