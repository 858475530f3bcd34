"""The per-token inputs: numpy arrays owned here and rewritten in place, bound once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .device import DeviceLocation
from .manifest import ArgumentRole
from .ort import Tensor

__all__ = ["StepInputs"]


class StepInputs:
    """token_ids i64 [B, S], write_offset i64 [B], logit_positions i64 [L] for one shape of step.

    On the host the arrays *are* the bound tensors' memory, so writing them is the whole update. Another
    device holds its own copy, which :meth:`send` refreshes in place.
    """

    __slots__ = ("_elsewhere", "_tensors", "logit_positions", "token_ids", "write_offset")

    def __init__(self, batch: int, sequence: int, logits: int) -> None:
        self.token_ids = np.zeros((batch, sequence), dtype=np.int64)
        self.write_offset = np.zeros((batch,), dtype=np.int64)
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
                ArgumentRole.LOGIT_POSITIONS: self.logit_positions,
            }[role]
            tensor = Tensor.step_input(array, location)
            self._tensors[key] = tensor
            if not tensor.on_host:
                self._elsewhere.append(tensor)
        return self._tensors[key]

    def set_one(self, token: int, position: int) -> None:
        """One token at ``position`` of the only row."""
        self.token_ids[0, 0] = token
        self.write_offset[0] = position
        if self._elsewhere:
            self.send()

    def set_chunk(self, tokens: Sequence[int] | np.ndarray, position: int, logits_from: int) -> None:
        """A chunk starting at ``position``; logits for this step's positions from ``logits_from`` on."""
        self.token_ids[0, :] = tokens
        self.write_offset[0] = position
        self.logit_positions[:] = np.arange(logits_from, logits_from + self.logit_positions.size)
        self.send()

    def send(self) -> None:
        """Refresh what lies on other devices."""
        for tensor in self._elsewhere:
            tensor.refresh()
