"""Recording a decode step as one CUDA graph and replaying it: all launches of a token become one.

A recorded graph reads and writes the addresses it was recorded with, so everything it touches stays bound:
step inputs are rewritten on the device, KV is written in place, and a re-bind drops the recording *before*
the buffers change. ONNX Runtime runs a step more than once before it records; a KV write at one offset is
the same however often it is made, so that does no harm.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .decode_session import DecodeSession
from .device import DeviceKind, DeviceLocation, local_devices
from .errors import PlanError
from .manifest import Manifest
from .ort import HostNode
from .rebind import KvRebindSource, RebindRefusal
from .token_input import Tokens
from .topology import needs_device

__all__ = ["CaptureReason", "CaptureRefusal", "CaptureRefused", "CapturedDecodeSession", "capture_refusal"]

_graph_ids = itertools.count(1)  # 0 is what ONNX Runtime takes a run without an id for


class CaptureReason(enum.Enum):
    """Why a plan's steps cannot be recorded."""

    NO_CUDA = "no-cuda"
    OTHER_DEVICE = "other-device"
    COPY_INSIDE = "copy-inside"
    HOST_OP = "host-op"
    NOT_PREPARED = "not-prepared"


@dataclass(frozen=True, slots=True)
class CaptureRefusal:
    """``what`` is named: the devices of this machine, the stage, the copy, the operator."""

    reason: CaptureReason
    what: str

    def __str__(self) -> str:
        return f"capture refused ({self.reason.value}): {self.what}"


class CaptureRefused(PlanError):
    """The session cannot be recorded; ``refusal`` says why. It decodes as it is."""

    code = "capture-refused"

    def __init__(self, refusal: CaptureRefusal) -> None:
        super().__init__(
            "A decode step of this plan cannot be recorded as a CUDA graph.",
            found=str(refusal),
            expected="a plan on one CUDA device of this machine, with no copy and no host operator inside",
            todo="Decode with the session itself; or place the plan on one CUDA device and load it with"
            " capture=True.",
        )
        self.refusal = refusal


def capture_refusal(
    manifest: Manifest, host_nodes: Mapping[int, Sequence[HostNode]], devices: Sequence[DeviceLocation]
) -> CaptureRefusal | None:
    """Why a plan cannot be recorded on a machine with ``devices``; ``host_nodes``: by stage, as loaded."""
    if all(device.kind is not DeviceKind.CUDA for device in devices):
        return CaptureRefusal(CaptureReason.NO_CUDA, f"this machine has {', '.join(map(str, devices))}")
    for i, stage in enumerate(manifest.stages):
        if DeviceLocation.parse(stage.device).kind is not DeviceKind.CUDA:
            return CaptureRefusal(
                CaptureReason.OTHER_DEVICE, f"stage {i} ({stage.program}) runs on {stage.device}"
            )
    for edge in manifest.copies:
        if edge.target_stage is not None:
            stages = manifest.stages[edge.source_stage].device, manifest.stages[edge.target_stage].device
            return CaptureRefusal(CaptureReason.COPY_INSIDE, f"{edge.source} from {stages[0]} to {stages[1]}")
    for i, nodes in host_nodes.items():
        away = [node for node in nodes if needs_device(node)]
        if away:
            return CaptureRefusal(CaptureReason.HOST_OP, f"{away[0]} of stage {i} runs on the host")
    return None


class CapturedDecodeSession:
    """A decode session whose tokens are replays of one recording. Prefill runs node by node.

    Not yet run on a GPU: written against ONNX Runtime's documented contract for CUDA graphs.
    """

    __slots__ = ("_graph_id", "_session")

    def __init__(self, session: DecodeSession) -> None:
        """Over a session of a plan loaded with ``capture=True``. Raises CaptureRefused."""
        program = session.program
        nodes = {i: stage.program.host_nodes for i, stage in enumerate(program.stages)}
        refusal = capture_refusal(program.manifest, nodes, local_devices())
        if refusal is None and not all(stage.program.captures for stage in program.stages):
            refusal = CaptureRefusal(CaptureReason.NOT_PREPARED, "the plan was loaded without capture=True")
        if refusal is not None:
            raise CaptureRefused(refusal)
        self._session = session
        self._graph_id: int | None = None

    @property
    def captured(self) -> bool:
        """Whether the next token replays a recording, or makes one."""
        return self._graph_id is not None

    def realize_token(self, token: SupportsIndex | Tokens) -> NDArray[np.float32]:
        """As :meth:`DecodeSession.realize_token`; the first one after a (re-)bind records."""
        self._record()
        return self._session.realize_token(token)

    def step_greedy(self, token: SupportsIndex | Tokens) -> int:
        """As :meth:`DecodeSession.step_greedy`, by the same recording: what a step brings to the host comes
        after its replay."""
        self._record()
        return self._session.step_greedy(token)

    def _record(self) -> None:
        """Have the next run recorded, unless there is a recording."""
        if self._graph_id is None:
            # A new id each time: a recording under an old one would replay the old buffers' addresses.
            self._graph_id = next(_graph_ids)
            self._session.use_graph(self._graph_id)

    def prefill(self, tokens: Tokens, *, chunk: int = 512, num_logits: int = 1) -> NDArray[np.float32]:
        """As :meth:`DecodeSession.prefill`. The recording stays: it is of the decode step's own binding."""
        return self._session.prefill(tokens, chunk=chunk, num_logits=num_logits)

    def rebind_kv(self, source: KvRebindSource, *, length: int = 0) -> RebindRefusal | None:
        """As :meth:`DecodeSession.rebind_kv`. The recording goes first, even if the re-bind is refused then:
        it holds the old buffers' addresses."""
        self.drop()
        return self._session.rebind_kv(source, length=length)

    def drop(self) -> None:
        """Forget the recording; the next token makes another. Nothing happens when there is none."""
        if self._graph_id is not None:
            self._session.use_graph(None, release=self._graph_id)
            self._graph_id = None
