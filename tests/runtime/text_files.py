"""A tiny tokenizer and a chat template for plans made by hand."""

from __future__ import annotations

import json

from handmade_plan import Tiny
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["<unk>", "<s>", "<|im_end|>", "<|im_start|>"]  # ids 0..3; handmade plans have bos 1 and eos 2
FIRST_BYTE = len(SPECIAL)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token a byte, so that a model of random weights says half characters all the time."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), key=_byte_of)
    vocab = {name: i for i, name in enumerate(SPECIAL + letters)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return tokenizer


def _byte_of(letter: str) -> int:
    """The byte that GPT-2's alphabet spells with ``letter``."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if ord(letter) < 256:
        return ord(letter)
    return [b for b in range(256) if b not in printable][ord(letter) - 256]


def token_of(byte: int) -> int:
    return FIRST_BYTE + byte


def text_files(
    *, template: str | None = CHATML, sampling: dict[str, object] | None = None
) -> dict[str, bytes]:
    files = {"tokenizer.json": byte_tokenizer().to_str().encode()}
    if template is not None:
        files["chat_template.jinja"] = template.encode()
    config = {"bos_token": "<s>", "eos_token": "<|im_end|>", **(sampling or {})}
    files["generation_config.json"] = json.dumps(config).encode()
    return files


def text_tiny(**changes: object) -> Tiny:
    """A plan with the tokenizer above, and room for a dialogue."""
    options: dict[str, object] = {"vocab": FIRST_BYTE + 256, "max_seq_len": 1024, "files": text_files()}
    return Tiny(**{**options, **changes})  # type: ignore[arg-type]
