"""The per-token inputs: numpy arrays owned here and rewritten in place, bound once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .device import DeviceLocation
from .manifest import ArgumentRole
from .ort import Tensor
from .sym_env import SymEnv

__all__ = ["StepInputs"]


class StepInputs:
    """token_ids i64 [B, S], write_offset i64 [B], logit_positions i64 [L] for one shape of step, and on the
    symbol path cached_len and attended_len, i64 scalars.

    On the host the arrays *are* the bound tensors' memory, so writing them is the whole update. Another
    device holds its own copy, which :meth:`send` refreshes in place.
    """

    __slots__ = (
        "_elsewhere", "_follows_symbols", "_tensors", "attended_len", "cached_len", "logit_positions",
        "token_ids", "write_offset",
    )  # fmt: skip

    def __init__(self, batch: int, sequence: int, logits: int) -> None:
        self.token_ids = np.zeros((batch, sequence), dtype=np.int64)
        self.write_offset = np.zeros((batch,), dtype=np.int64)
        self.cached_len = np.zeros((), dtype=np.int64)
        self.attended_len = np.zeros((), dtype=np.int64)
        self._follows_symbols = False
        # By default the last positions, which is what decode and a prompt's last chunk want.
        self.logit_positions = np.arange(sequence - logits, sequence, dtype=np.int64)
        self._tensors: dict[tuple[ArgumentRole, DeviceLocation], Tensor] = {}
        self._elsewhere: list[Tensor] = []

    def tensor(self, role: ArgumentRole, location: DeviceLocation) -> Tensor:
        """The tensor to bind for ``role`` on ``location``; one a device, however many stages ask."""
        key = (role, location)
        if key not in self._tensors:
            array = {
                ArgumentRole.TOKEN_IDS: self.token_ids,
                ArgumentRole.WRITE_OFFSET: self.write_offset,
                ArgumentRole.CACHED_LEN: self.cached_len,
                ArgumentRole.ATTENDED_LEN: self.attended_len,
                ArgumentRole.LOGIT_POSITIONS: self.logit_positions,
            }[role]
            self._follows_symbols |= role in (ArgumentRole.CACHED_LEN, ArgumentRole.ATTENDED_LEN)
            tensor = Tensor.step_input(array, location)
            self._tensors[key] = tensor
            if not tensor.on_host:
                self._elsewhere.append(tensor)
        return self._tensors[key]

    def set_one(self, token: int, position: int, symbols: SymEnv | None = None) -> None:
        """One token at ``position`` of the only row. Raises SymbolError."""
        if self._follows_symbols:
            self._bind_symbols(position, 1, symbols)
        self.token_ids[0, 0] = token
        self.write_offset[0] = position
        if self._elsewhere:
            self.send()

    def set_chunk(self, tokens: Sequence[int] | np.ndarray, position: int, logits_from: int) -> None:
        """A chunk starting at ``position``; logits for this step's positions from ``logits_from`` on."""
        if self._follows_symbols:
            self._bind_symbols(position, self.token_ids.shape[1], None)
        self.token_ids[0, :] = tokens
        self.write_offset[0] = position
        self.logit_positions[:] = np.arange(logits_from, logits_from + self.logit_positions.size)
        self.send()

    def _bind_symbols(self, position: int, count: int, symbols: SymEnv | None) -> None:
        """The lengths of this pass: a caller's own, or what follows from the position."""
        env = SymEnv(cached_len=position, attended_len=position + count) if symbols is None else symbols
        cached, attended = env["cached_len"], env["attended_len"]  # both, before either is written
        self.cached_len[...] = cached
        self.attended_len[...] = attended

    def send(self) -> None:
        """Refresh what lies on other devices."""
        for tensor in self._elsewhere:
            tensor.refresh()
