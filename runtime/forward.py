"""The easy call is the fast call: a loop over one function that reuses, re-binds or rebuilds by itself."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .decode_session import DecodeSession
from .errors import TopologyChanged
from .inference_context import InferenceContext
from .kv_cache import KvCache
from .plan import Plan
from .rebind import RebindRefusal
from .validity import PlanValidity

__all__ = ["ForwardPath", "ForwardStep", "forward_decode_step"]


class ForwardPath(enum.Enum):
    """How a step got its session. REUSED: the held one, as it was. REBOUND: the held one, over this cache's
    buffers. REBUILT: a new one; nothing was held, or what was held could not be proved to fit."""

    REUSED = "reused"
    REBOUND = "rebound"
    REBUILT = "rebuilt"


@dataclass(frozen=True, slots=True)
class ForwardStep:
    """``logits`` ``[vocab]`` of the last token fed: a read-only view that the session's next step overwrites.

    ``refusal`` says why the held session could not be re-bound, when that was tried.
    """

    logits: NDArray[np.float32]
    path: ForwardPath
    refusal: RebindRefusal | None = None


def forward_decode_step(
    plan: Plan,
    tokens: SupportsIndex | Sequence[int] | NDArray[np.integer],
    cache: KvCache,
    context: InferenceContext,
) -> ForwardStep:
    """Feed ``tokens`` at the cache's live length; whatever session ``context`` holds afterwards serves it.

    Raises RequestError, CapacityExceeded, LayoutError (the cache is not one of this plan's); the held session
    then stays held. TopologyChanged: nothing is held any more, and the caller loads the plan again.
    """
    held = context.take_session()
    try:
        session, path, refusal = _session_for(plan, cache, held)
    except TopologyChanged:
        raise
    except BaseException:
        if held is not None:
            context.put_session(held)
        raise
    try:
        logits = _feed(session, tokens)
    except TopologyChanged:
        raise
    except BaseException:
        context.put_session(session)
        raise
    context.put_session(session)
    return ForwardStep(logits, path, refusal)


def _session_for(
    plan: Plan, cache: KvCache, held: DecodeSession | None
) -> tuple[DecodeSession, ForwardPath, RebindRefusal | None]:
    if held is None or not plan.opened(held):
        return plan.open(cache), ForwardPath.REBUILT, None
    validity = held.validity_for(cache)
    if validity is PlanValidity.VALID:
        return held, ForwardPath.REUSED, None
    refusal = None
    if validity is PlanValidity.ALLOCATION_CHANGED:
        refusal = held.rebind_kv(cache)
        if refusal is None:
            return held, ForwardPath.REBOUND, None
    return plan.open(cache), ForwardPath.REBUILT, refusal


def _feed(
    session: DecodeSession, tokens: SupportsIndex | Sequence[int] | NDArray[np.integer]
) -> NDArray[np.float32]:
    if isinstance(tokens, SupportsIndex) and not isinstance(tokens, np.ndarray):
        return session.realize_token(tokens)
    ids = np.asarray(tokens)
    return session.realize_token(ids) if ids.size == 1 else session.prefill(ids)[-1]
