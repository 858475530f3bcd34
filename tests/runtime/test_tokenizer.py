"""The plan's tokenizer file: what it reads, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from handmade_plan import build
from text_files import byte_tokenizer, text_files, text_tiny

from planonce.runtime import Plan
from planonce.runtime.errors import PlanFormatError, RequestError
from planonce.runtime.manifest import Manifest
from planonce.runtime.plan_text import default_options, read_chat_template, template_tokens
from planonce.runtime.tokenizer import PlanTokenizer


@pytest.fixture(scope="module")
def tokenizer(text_plan: Plan) -> PlanTokenizer:
    return PlanTokenizer.load(text_plan.directory, text_plan.manifest)


@pytest.mark.parametrize("text", ["", "hello", "  two  spaces ", "€😀\u0000\n", "<|im_end|>"])
def test_text_comes_back(tokenizer: PlanTokenizer, text: str) -> None:
    assert tokenizer.decode_all(tokenizer.encode(text)) == text


def test_special_tokens_are_one_id_and_are_not_shown(tokenizer: PlanTokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b", special_tokens=False)
    assert len(ids) == 3
    assert tokenizer.token_text(ids[1]) == "<|im_end|>"
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.token_text(None) is tokenizer.token_text(10**6) is None


def test_limits_in_the_file_never_cut_or_pad_a_prompt() -> None:
    made = byte_tokenizer()
    made.enable_truncation(4)
    made.enable_padding(length=4)
    assert len(made.encode("a long prompt").ids) == 4  # the control: the file does cut
    tokenizer = PlanTokenizer(made.to_str().encode())
    assert len(tokenizer.encode("a long prompt")) == 13
    assert len(tokenizer.encode("a")) == 1


def test_lone_surrogate_is_a_request_error(tokenizer: PlanTokenizer) -> None:
    with pytest.raises(RequestError, match="Unicode") as caught:
        tokenizer.encode("ab\ud800")
    assert "character 2" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[1"])
def test_file_that_is_no_tokenizer_is_a_format_error(data: bytes) -> None:
    with pytest.raises(PlanFormatError, match="tokenizer"):
        PlanTokenizer(data)


def test_plan_without_a_tokenizer_says_what_to_do_instead(tiny_plan: Plan) -> None:
    with pytest.raises(RequestError, match="--tokens"):
        PlanTokenizer.load(tiny_plan.directory, tiny_plan.manifest)


def test_file_that_the_manifest_does_not_list_is_not_read(tmp_path: Path) -> None:
    directory = build(tmp_path / "plan", text_tiny(files={}))
    for name, data in text_files().items():
        (directory / name).write_bytes(data)
    manifest = Manifest.load(directory)
    assert read_chat_template(directory, manifest) is None
    assert template_tokens(directory, manifest) == {}
    with pytest.raises(RequestError):
        PlanTokenizer.load(directory, manifest)


def test_plans_own_sampling_and_stop_tokens(tmp_path: Path) -> None:
    files = text_files(sampling={"do_sample": True, "temperature": 0.6, "top_p": 0.9})
    directory = build(tmp_path / "plan", text_tiny(files=files))
    manifest = Manifest.load(directory)
    options = default_options(directory, manifest)
    assert (options.temperature, options.top_p, options.stop_token_ids) == (0.6, 0.9, (2,))
    assert template_tokens(directory, manifest) == {"bos_token": "<s>", "eos_token": "<|im_end|>"}


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", '{"do_sample": true, "top_k": -3}', "[" * 100_000, "\xff"]
)
def test_damaged_recommendation_is_a_format_error(tmp_path: Path, text: str) -> None:
    files = {**text_files(), "generation_config.json": text.encode("latin-1")}
    directory = build(tmp_path / "plan", text_tiny(files=files))
    with pytest.raises(PlanFormatError, match=r"generation_config\.json"):
        default_options(directory, Manifest.load(directory))


def test_template_that_is_not_text_is_a_format_error(tmp_path: Path) -> None:
    directory = build(
        tmp_path / "plan", text_tiny(files={**text_files(), "chat_template.jinja": b"\xff\xfe"})
    )
    with pytest.raises(PlanFormatError, match="chat_template"):
        read_chat_template(directory, Manifest.load(directory))


def test_special_tokens_of_another_type_are_left_out(tmp_path: Path) -> None:
    config = json.dumps({"bos_token": 7, "eos_token": None}).encode()
    directory = build(tmp_path / "plan", text_tiny(files={**text_files(), "generation_config.json": config}))
    assert template_tokens(directory, Manifest.load(directory)) == {}
