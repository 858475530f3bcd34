"""What the KV tests share: the cache-free reference, and a source of KV buffers that is not a KvCache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from handmade_plan import Tiny, reference_logits

from planonce.runtime import DecodeSession, DeviceLocation, Encoding, KvCache, Plan, RebindBusy, Storage
from planonce.runtime.kv_alloc_id import KvAllocId, next_alloc_id
from planonce.runtime.ort import Tensor

CLOSE = 5e-5  # float32 arithmetic in another order
WRONG = 1e-2  # another context moves some logit by more than this
HERE = DeviceLocation.parse("cpu:0")
ELSEWHERE = DeviceLocation.parse("cpu:1")
PROMPT = [5, 17, 3, 96, 0, 44, 8, 8, 61, 30]
OTHER = [70, 2, 2, 51, 88, 13, 9]


class Reference:
    """The last token's logits of a history, recomputed from nothing, and remembered."""

    def __init__(self, tiny: Tiny) -> None:
        self.tiny = tiny
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def __call__(self, tokens: Sequence[int]) -> np.ndarray:
        key = tuple(tokens)
        if key not in self._known:
            if len(self._known) > 50_000:
                self._known.clear()
            rows = reference_logits(self.tiny, list(key))
            for n in range(1, len(key) + 1):
                self._known.setdefault(key[:n], rows[n - 1])
        return self._known[key]


def distance(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference; infinite when something is not a number."""
    difference = np.abs(got.astype(np.float64) - expected).max()
    return float("inf") if np.isnan(difference) else float(difference)


def filled(plan: Plan, tokens: Sequence[int], capacity: int | None = None) -> KvCache:
    """A cache that holds ``tokens``."""
    session = plan.open(capacity=capacity)
    if tokens:
        session.prefill(list(tokens))
    assert session.cache is not None
    return session.cache


def decode(session: DecodeSession, tokens: Sequence[int]) -> np.ndarray:
    """Logits of each token, ``[n, vocab]``."""
    return np.stack([session.realize_token(t).copy() for t in tokens])


def greedy(session: DecodeSession, token: int, n: int) -> list[int]:
    """``n`` tokens, each the likeliest after the one before."""
    made = []
    for _ in range(n):
        token = int(session.realize_token(token).argmax())
        made.append(token)
    return made


def bound_tensors(session: DecodeSession) -> list[Tensor | None]:
    """Every KV tensor that is bound, inputs and outputs, in a fixed order."""
    step = session._step
    return [
        tensor
        for slot in session.program.slots
        for binding in [step.bindings[session.program.stage_of[slot.input]]]
        for tensor in (binding.bound_input(slot.input), binding.bound_output(slot.output))
    ]


class Lender:
    """A third party's KV buffers: nothing of KvCache, only the protocol."""

    def __init__(self, slots: dict[tuple[int, str], Storage], location: DeviceLocation | None = HERE) -> None:
        self.slots: dict[tuple[int, str], Storage | None] = dict(slots)
        self.location = location
        self.id = next_alloc_id()
        self.busy = False

    @staticmethod
    def copy_of(cache: KvCache, *, location: DeviceLocation | None = HERE, **storage: object) -> Lender:
        """Its own buffers with ``cache``'s bytes; ``storage`` goes to every Storage."""
        slots = {
            (layer, which): Storage(
                Tensor.over(cache.host_array(layer, which).copy()), location=location, **storage
            )
            for layer in range(cache.n_layers)
            for which in ("key", "value")
        }
        return Lender(slots, location)

    def alloc_id(self) -> KvAllocId:
        return self.id

    def rebind_location(self) -> DeviceLocation | None:
        return self.location

    def rebind_slot(self, layer: int, which: str) -> Storage | None:
        if self.busy:
            raise RebindBusy
        return self.slots.get((layer, which))

    def replace(self, layer: int, which: str, array: np.ndarray, **storage: object) -> None:
        """Another buffer in one slot."""
        location = storage.pop("location", self.location)
        assert location is None or isinstance(location, DeviceLocation)
        self.slots[layer, which] = Storage(Tensor.over(array), location=location, **storage)


def position_major(array: np.ndarray) -> np.ndarray:
    """The same bytes' count and shape, laid out ``[position, head, dim]``: what a block buffer holds."""
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(array.shape)


__all__ = ["Encoding"]
