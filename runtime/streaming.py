"""Text from tokens, one at a time, without ever showing half a character."""

from __future__ import annotations

from typing import Protocol

__all__ = ["TextStream", "TokenDecoder"]

_REPLACEMENT = "\ufffd"


class TokenDecoder(Protocol):
    """The one method of a tokenizer that streaming needs."""

    def decode(self, tokens: list[int]) -> str: ...


class TextStream:
    """Incremental detokenisation; the pieces and the final flush add up to the decoded whole.

    A character may span tokens, and a tokenizer shows the bytes it cannot complete as U+FFFD: text
    that ends so is held until later tokens settle it. Each piece is the difference of two decodes
    over a short window, because decoders look at neighbours (leading spaces, byte runs).
    """

    def __init__(self, decoder: TokenDecoder) -> None:
        self._decoder = decoder
        self._window: list[int] = []
        self._shown = 0  # tokens of the window whose text is out

    def push(self, token: int) -> str:
        """The text that this token settles; empty while a character is incomplete."""
        self._window.append(token)
        before = self._decoder.decode(self._window[: self._shown])
        text = self._decoder.decode(self._window)
        if text.endswith(_REPLACEMENT) or len(text) <= len(before):
            return ""
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        return text[len(before) :]

    def flush(self) -> str:
        """Whatever is still held, incomplete bytes as U+FFFD. The stream starts afresh."""
        before = self._decoder.decode(self._window[: self._shown])
        text = self._decoder.decode(self._window)
        self._window, self._shown = [], 0
        return text[len(before) :]
