"""transformers on PyTorch's CPU kernels (sdpa attention) as an engine of the bench."""

# pyright: basic
from __future__ import annotations

import time
from typing import Any

from serve import prompt, serve


class Transformers:
    def op_load(self, model: str, threads: int, capacity: int) -> dict[str, Any]:
        begin = time.perf_counter()
        import torch
        import transformers
        from transformers import AutoModelForCausalLM, DynamicCache

        imported = time.perf_counter()
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.torch, self.new_cache = torch, DynamicCache
        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        ).eval()
        loaded = time.perf_counter()
        config = self.model.config
        self.tokens = torch.tensor([prompt(capacity, config.vocab_size)])
        self.cache: Any = None
        self.weight_bytes = sum(p.numel() * p.element_size() for p in self.model.parameters())
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return {
            "imports": imported - begin,
            "seconds": loaded - imported,
            "version": f"{transformers.__version__}, torch {torch.__version__}",
            "weight_bytes": self.weight_bytes,
            "kv_bytes_per_position": 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * 4,
        }

    def op_first_token(self, n: int) -> dict[str, Any]:
        begin = time.perf_counter()
        self._feed(self.tokens[:, :n], self.new_cache()).argmax().item()
        return {"seconds": time.perf_counter() - begin}

    def op_prefill(self, n: int) -> dict[str, Any]:
        self.cache = self.new_cache()
        begin = time.perf_counter()
        self._feed(self.tokens[:, :n], self.cache)
        return {"seconds": time.perf_counter() - begin}

    def op_decode(self, live: int, n: int) -> dict[str, Any]:
        """Seconds for ``n`` greedy tokens after ``live`` positions; two more before them are not timed."""
        if self.cache is None:
            self.cache = self.new_cache()
        cache = self.cache
        surplus = cache.get_seq_length() - (live - 2)
        if surplus > 0:
            cache.crop(-surplus)
        while (held := cache.get_seq_length()) < live - 2:
            self._feed(self.tokens[:, held : min(held + 512, live - 2)], cache)
        token = self.tokens[:, live : live + 1]
        for _ in range(2):
            token = self._feed(token, cache).argmax(-1)
        begin = time.perf_counter()
        for _ in range(n):
            token = self._feed(token, cache).argmax(-1)
        return {"seconds": time.perf_counter() - begin}

    def _feed(self, ids: Any, cache: Any) -> Any:
        """Logits [1, 1, V] of the last of ``ids``."""
        return self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits


if __name__ == "__main__":
    serve(Transformers())
