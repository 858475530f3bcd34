"""onnxruntime-genai as an engine of the bench: a directory that its model builder wrote."""

# pyright: basic
from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from serve import prompt, serve


class Genai:
    def op_load(self, model: str, threads: int, capacity: int) -> dict[str, Any]:
        begin = time.perf_counter()
        import onnxruntime
        import onnxruntime_genai as og  # pyright: ignore

        imported = time.perf_counter()
        config = og.Config(model)
        # Its default is one thread on a machine whose cores are virtual; a comparison must set it. The end
        # token is moved away because a generator that has met it makes no more tokens.
        options = {"intra_op_num_threads": threads}
        described = json.loads((Path(model) / "genai_config.json").read_text(encoding="utf-8"))["model"]
        self.vocab = described["vocab_size"]
        config.overlay(
            json.dumps({"model": {"eos_token_id": [self.vocab - 1], "decoder": {"session_options": options}}})
        )
        self.model = og.Model(config)
        loaded = time.perf_counter()
        self.og = og
        self.capacity = capacity
        self.tokens = prompt(capacity, self.vocab)
        self.generator: Any = None
        decoder = described["decoder"]
        row = decoder["num_key_value_heads"] * decoder["head_size"] * 4
        return {
            "imports": imported - begin,
            "seconds": loaded - imported,
            "version": f"{og.__version__}, onnxruntime {onnxruntime.__version__}",
            "weight_bytes": sum(f.stat().st_size for f in Path(model).glob("*.onnx.data")),
            "kv_bytes_per_position": 2 * decoder["num_hidden_layers"] * row,
        }

    def op_first_token(self, n: int) -> dict[str, Any]:
        begin = time.perf_counter()
        generator = self._new()
        generator.append_tokens(self.tokens[:n])
        generator.generate_next_token()
        return {"seconds": time.perf_counter() - begin}

    def op_prefill(self, n: int) -> dict[str, Any]:
        generator = self._at(0)
        begin = time.perf_counter()
        generator.append_tokens(self.tokens[:n])
        return {"seconds": time.perf_counter() - begin}

    def op_decode(self, live: int, n: int) -> dict[str, Any]:
        """Seconds for ``n`` greedy tokens after ``live`` positions; two more before them are not timed.

        append_tokens computes the logits of the first token, so a run belongs to each token after it.
        """
        generator = self._at(live - 2)
        if generator.token_count() < live - 1:
            generator.append_tokens(self.tokens[generator.token_count() : live - 1])
        for _ in range(2):
            generator.generate_next_token()
        begin = time.perf_counter()
        for _ in range(n):
            generator.generate_next_token()
        return {"seconds": time.perf_counter() - begin}

    def _new(self) -> Any:
        params = self.og.GeneratorParams(self.model)
        params.set_search_options(max_length=self.capacity, do_sample=False)
        return self.og.Generator(self.model, params)

    def _at(self, position: int) -> Any:
        """The held generator, rewound to ``position`` or less."""
        if self.generator is None:
            self.generator = self._new()
        if self.generator.token_count() > position:
            self.generator.rewind_to(position)
        return self.generator


if __name__ == "__main__":
    serve(Genai())
