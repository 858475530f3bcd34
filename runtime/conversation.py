"""A token history and how much of it the cache holds: each turn feeds only what is new.

The last token that a generation picks has not been fed when it ends: there is no KV for it yet. It
stays in the history as *pending* and goes in with the next turn, so that generate, append, generate
equals one long prefill of the same tokens. A stop token that ends a generation is not part of the
history at all: what closes a turn is for the next turn's text (its chat template) to say, and a cached
end-of-text would sit in front of every later turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .decode_session import DecodeSession
from .errors import CapacityExceeded, KvError, RequestError

__all__ = ["Conversation"]


class Conversation:
    """The tokens said so far over one decode session; not thread-safe.

    Positions that were live in the session before belong to whoever fed them and are never rewound.
    """

    def __init__(self, session: DecodeSession, *, prefill_chunk: int = 512) -> None:
        self._session = session
        self._chunk = prefill_chunk
        self._base = session.position
        self._tokens: list[int] = []
        self._fed = 0
        self.tokens_fed = 0  # over the conversation's life; a token fed twice counts twice

    @property
    def session(self) -> DecodeSession:
        return self._session

    @property
    def tokens(self) -> tuple[int, ...]:
        """The whole history, pending tokens included."""
        return tuple(self._tokens)

    @property
    def fed(self) -> int:
        """How many tokens of the history the cache holds."""
        return self._fed

    @property
    def pending(self) -> int:
        """How many tokens of the history the next feed will bring."""
        return len(self._tokens) - self._fed

    @property
    def full(self) -> bool:
        """No further token can be fed."""
        return self._session.position >= self._session.capacity

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the history. Raises CapacityExceeded, before anything changes."""
        self._check_room(len(self._tokens) + len(tokens))
        self._tokens.extend(int(t) for t in tokens)

    def replace(self, tokens: Sequence[int]) -> None:
        """Make ``tokens`` the history; the cache keeps the part that they share with the old one.

        Raises CapacityExceeded, before anything changes.
        """
        self._check_room(len(tokens))
        common = 0
        for old, new in zip(self._tokens, tokens, strict=False):
            if old != new:
                break
            common += 1
        self.truncate_to(common)
        self._tokens.extend(int(t) for t in tokens[common:])

    def truncate_to(self, length: int) -> None:
        """Forget the history from ``length`` on; the cache keeps its first ``length`` tokens. Never grows."""
        del self._tokens[max(length, 0) :]
        self._sync()
        if self._fed > len(self._tokens):
            self._rewind(len(self._tokens))

    def feed(self) -> NDArray[np.float32]:
        """Feed what is pending; the last token's logits ``[vocab]``, valid until the next step.

        With nothing pending the last token is fed again, over itself. Raises RequestError when there is no
        token at all, CapacityExceeded.
        """
        if not self._tokens:
            raise RequestError(
                "the prompt is empty", expected="at least one token", todo="give a prompt, or a bos token"
            )
        self._sync()
        if self._fed == len(self._tokens):
            self._rewind(self._fed - 1)
        new = self._tokens[self._fed :]
        before = self._session.position
        try:
            if len(new) == 1:
                return self._session.realize_token(new[0])
            return self._session.prefill(np.asarray(new, np.int64), chunk=self._chunk)[-1]
        finally:
            # Also after Ctrl-C or an error half way: whole chunks are in, in order, and the session's own
            # position says how many.
            self._fed = self._session.position - self._base
            self.tokens_fed += self._session.position - before

    def accept(self, token: int) -> None:
        """Add a token that was just picked from :meth:`feed`'s logits. It is pending until fed."""
        self._tokens.append(token)

    def step(self, token: int) -> NDArray[np.float32]:
        """Feed ``token``, the one pending: the inner loop's step. Logits ``[vocab]`` as :meth:`feed`."""
        logits = self._session.realize_token(token)
        self._fed += 1
        self.tokens_fed += 1
        return logits

    def step_greedy(self, token: int) -> int:
        """Feed ``token`` as :meth:`step`; the likeliest next one, as the plan's greedy head picks it."""
        before = self._session.position
        try:
            return self._session.step_greedy(token)
        finally:
            # NaN logits are an error of the pick: the token is fed by then.
            fed = self._session.position - before
            self._fed += fed
            self.tokens_fed += fed

    def _sync(self) -> None:
        """Believe the session: a step that was interrupted, or a caller's truncate, moved its position."""
        live = self._session.position - self._base
        if live < 0:
            raise KvError(
                "the cache was truncated below the start of this conversation",
                found=f"{self._session.position} live positions",
                expected=f">= {self._base}",
                todo="begin a new conversation over the session",
            )
        if live > self._fed:
            self._rewind(self._fed)  # not ours: whatever was fed is not in the history
        self._fed = min(self._fed, live)

    def _rewind(self, length: int) -> None:
        cache = self._session.cache
        if cache is None:
            raise KvError(
                "the conversation cannot be rewound: its session is bound to another kind of KV source",
                todo="rebind the session to a KvCache",
            )
        cache.truncate_to(self._base + length)
        self._fed = min(self._fed, length)

    def _check_room(self, length: int) -> None:
        capacity = self._session.capacity - self._base
        if length > capacity:
            raise CapacityExceeded(
                "the prompt does not fit into the KV cache",
                found=f"{length} tokens",
                expected=f"at most {capacity}",
                todo="shorten it, or open the plan with a larger capacity (planonce run --capacity N)",
            )
