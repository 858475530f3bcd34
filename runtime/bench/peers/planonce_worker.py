"""A plan as an engine of the bench."""

# pyright: basic
from __future__ import annotations

import time
from typing import Any

from serve import prompt, serve


class Planonce:
    def op_load(self, model: str, threads: int, capacity: int) -> dict[str, Any]:
        begin = time.perf_counter()
        import numpy as np

        from planonce.runtime import Plan
        from planonce.runtime.ort import version

        imported = time.perf_counter()
        self.plan, self.fresh = Plan.load_and_open(model, capacity=capacity, threads=threads)
        loaded = time.perf_counter()
        self.argmax = np.argmax
        self.capacity = capacity
        manifest = self.plan.manifest
        self.vocab = manifest.model.vocab_size
        self.tokens = prompt(capacity, self.vocab)
        self.session = None
        # By place: a tied weight that two operations read lies in the file once.
        stored = {(t.file, t.offset): t.nbytes for t in manifest.tensors if not t.constant}
        return {
            "imports": imported - begin,
            "seconds": loaded - imported,
            "version": f"onnxruntime {version()}",
            "weight_bytes": sum(stored.values()) + sum(w.nbytes for w in manifest.checkpoint.weights),
            "kv_bytes_per_position": self.plan.kv_bytes(1),
        }

    def op_first_token(self, n: int) -> dict[str, Any]:
        begin = time.perf_counter()
        session = self._fresh_session()
        int(self.argmax(session.prefill(self.tokens[:n])[-1]))
        return {"seconds": time.perf_counter() - begin}

    def op_prefill(self, n: int) -> dict[str, Any]:
        session = self._session()
        session.cache.truncate_to(0)
        begin = time.perf_counter()
        session.prefill(self.tokens[:n])
        return {"seconds": time.perf_counter() - begin}

    def op_decode(self, live: int, n: int) -> dict[str, Any]:
        """Seconds for ``n`` greedy tokens after ``live`` positions; two more before them are not timed."""
        session = self._session()
        session.cache.truncate_to(live - 2)
        if session.position < live - 2:
            session.prefill(self.tokens[session.position : live - 2])
        token = self.tokens[live]
        for _ in range(2):
            token = int(self.argmax(session.realize_token(token)))
        begin = time.perf_counter()
        for _ in range(n):
            token = int(self.argmax(session.realize_token(token)))
        return {"seconds": time.perf_counter() - begin}

    def _session(self) -> Any:
        if self.session is None:
            self.session = self._fresh_session()
        return self.session

    def _fresh_session(self) -> Any:
        """A new session over a new cache; the first was opened with the plan."""
        session, self.fresh = self.fresh, None
        return session or self.plan.open(capacity=self.capacity)


if __name__ == "__main__":
    serve(Planonce())
