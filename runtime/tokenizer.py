"""The plan's own tokenizer: text to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import PlanFormatError, RequestError
from .manifest import TOKENIZER_FILE, Manifest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["PlanTokenizer"]


class PlanTokenizer:
    """A ``tokenizer.json``. Satisfies :class:`planonce.runtime.streaming.TokenDecoder`."""

    def __init__(self, data: bytes, *, where: str = TOKENIZER_FILE) -> None:
        """Raises PlanFormatError when the file cannot be read."""
        # Imported here: a caller that feeds token ids needs no tokenizer and pays nothing for one.
        from tokenizers import Tokenizer

        try:
            self._tokenizer: Tokenizer = Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises bare Exception
            raise PlanFormatError(
                "the plan's tokenizer cannot be read",
                found=str(error)[:300],
                where=where,
                todo="compile the plan again",
            ) from error
        # Limits on length stored in the file are for training; a prompt must never be cut in silence.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @classmethod
    def load(cls, directory: Path, manifest: Manifest) -> PlanTokenizer:
        """The tokenizer of a loaded plan. Raises RequestError when it has none, PlanFormatError."""
        if all(record.path != TOKENIZER_FILE for record in manifest.files):
            raise RequestError(
                "this plan has no tokenizer",
                found=f"no {TOKENIZER_FILE}",
                where=str(directory),
                todo="pass token ids (--tokens 1,2,3), or compile a checkpoint that has a tokenizer",
            )
        path = directory / TOKENIZER_FILE
        return cls(path.read_bytes(), where=str(path))

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Token ids. ``special_tokens``: add those the model's own prompts begin with (a chat template
        writes them itself). Raises RequestError on text that is not valid Unicode."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                "the text is not valid Unicode",
                found=f"a lone surrogate at character {error.start}",
                todo="check the terminal's or the file's encoding",
            ) from None
        return self._tokenizer.encode(text, add_special_tokens=special_tokens).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens; bytes that form no character become U+FFFD."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def decode_all(self, tokens: Sequence[int]) -> str:
        """Text with special tokens spelled out."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def token_text(self, token: int | None) -> str | None:
        """The token as the vocabulary spells it, e.g. ``<|im_end|>``; None for no such token."""
        return None if token is None else self._tokenizer.id_to_token(token)
