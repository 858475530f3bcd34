"""Pipeline strings: what prints parses back, and bad ones are refused before anything runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planonce.passes import DEFAULT_PIPELINE, PassCall, Pipeline
from planonce.runtime.errors import PassError

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,12}", fullmatch=True)
# Any text at all, with the characters that mean something in a pipeline string more often.
VALUES = st.one_of(st.text(), st.text(alphabet='ab,{}= "\\\n0'))
OPTIONS = st.dictionaries(NAMES, VALUES, max_size=4).map(lambda options: tuple(options.items()))
PIPELINES = st.lists(st.builds(PassCall, NAMES, OPTIONS), max_size=5).map(
    lambda calls: Pipeline(tuple(calls))
)


@given(PIPELINES)
def test_what_prints_parses_back(pipeline: Pipeline) -> None:
    assert Pipeline.parse(str(pipeline)) == pipeline


def test_default_pipeline_parses_back() -> None:
    pipeline = Pipeline.parse(DEFAULT_PIPELINE)
    assert str(pipeline) == DEFAULT_PIPELINE
    assert PassCall("select-attention", (("arm", "auto"), ("device", "cpu:0"))) in pipeline.calls


def test_space_between_passes_and_options_is_free() -> None:
    assert str(Pipeline.parse(' a , b{ x=1   y=2,3 } ,c{z="p q"}')) == 'a,b{x=1 y=2,3},c{z="p q"}'


@pytest.mark.parametrize(
    ("text", "expected", "at"),
    [
        ("a,", "a pass name after the comma", 3),
        (",a", "a pass name", 1),
        ("a b", "','", 3),
        ("a{x}", "'='", 4),
        ("a{x=1", "an option name or '}'", 6),
        ("a{x=}", "an option value", 5),
        ('a{x="1}', "the closing quote", 5),
        ('a{x="\\q"}', "a JSON string", 9),
        ("a{x=1 x=2}", "option 'x' once", 8),
        ("a}", "','", 2),
        ("1a", "a pass name", 1),
    ],
)
def test_bad_syntax_is_refused_with_its_place(text: str, expected: str, at: int) -> None:
    with pytest.raises(PassError) as caught:
        Pipeline.parse(text)
    assert caught.value.expected == expected
    assert caught.value.where.startswith(f"character {at} of ")


def test_empty_pipeline_has_no_passes() -> None:
    assert Pipeline.parse("  ").passes() == []


def test_unknown_pass_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(PassError) as caught:
        Pipeline.parse("cse,canonicalise").passes()
    assert caught.value.todo == "did you mean canonicalize?"


def test_option_of_a_cpp_pass_is_checked_before_anything_runs() -> None:
    with pytest.raises(PassError, match="MLIR does not accept"):
        Pipeline.parse("cse,canonicalize{no-such=1}").passes()
    assert str(Pipeline.of(Pipeline.parse("canonicalize{max-iterations=3}").passes())) == (
        "canonicalize{max-iterations=3}"
    )
