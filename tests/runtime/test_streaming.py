"""Streaming text: no half characters, and all pieces together are the decoded whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_files import byte_tokenizer, token_of
from tokenizers import Tokenizer, decoders, models

from planonce.runtime.streaming import TextStream
from planonce.runtime.tokenizer import PlanTokenizer

BYTES = PlanTokenizer(byte_tokenizer().to_str().encode())


def fallback_tokenizer() -> PlanTokenizer:
    """SentencePiece's way: words with a leading mark, and bytes as tokens of their own."""
    words = ["<unk>", "▁Hello", "▁world", "s", *(f"<0x{b:02X}>" for b in range(256))]
    tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PlanTokenizer(tokenizer.to_str().encode())


def pieces(decoder: PlanTokenizer, tokens: list[int]) -> list[str]:
    stream = TextStream(decoder)
    return [*(stream.push(t) for t in tokens), stream.flush()]


@pytest.mark.parametrize("text", ["a€b", "👩‍👩‍👧 ok", "naïve", "日本語", ""])
def test_characters_of_several_tokens_come_whole(text: str) -> None:
    got = pieces(BYTES, [token_of(b) for b in text.encode()])
    assert "".join(got) == text
    assert all("\ufffd" not in piece for piece in got)
    # The control: decoding token by token is what must not be done.
    if not text.isascii():
        assert "".join(BYTES.decode([token_of(b)]) for b in text.encode()) != text


def test_character_is_shown_with_its_last_byte_and_not_later() -> None:
    stream = TextStream(BYTES)
    shown = [stream.push(token_of(b)) for b in "€!".encode()]
    assert shown == ["", "", "€", "!"]


@given(st.binary(max_size=40))
def test_pieces_add_up_to_the_whole_for_any_bytes(data: bytes) -> None:
    tokens = [token_of(b) for b in data]
    assert "".join(pieces(BYTES, tokens)) == BYTES.decode(tokens)


@given(st.text(alphabet="aé€😀", max_size=12))
def test_bytes_of_a_sentencepiece_vocabulary_come_whole(text: str) -> None:
    decoder = fallback_tokenizer()
    tokens = [1, *(4 + b for b in text.encode()), 2, 3]
    got = pieces(decoder, tokens)
    assert "".join(got) == decoder.decode(tokens) == f"Hello{text} worlds"
    assert all("\ufffd" not in piece for piece in got)


def test_leading_spaces_survive_between_words() -> None:
    assert pieces(fallback_tokenizer(), [1, 2, 2]) == ["Hello", " world", " world", ""]


def test_incomplete_end_is_flushed_once() -> None:
    stream = TextStream(BYTES)
    assert [stream.push(token_of(b)) for b in b"a\xe2\x82"] == ["a", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_special_tokens_show_no_text() -> None:
    assert "".join(pieces(BYTES, [token_of(65), 2, 3, token_of(66)])) == "AB"
