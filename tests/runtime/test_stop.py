"""Stop strings: what is shown must not depend on how the text was cut, and never hold part of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planonce.runtime.stop import StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.feed(piece) for piece in pieces)
    return shown + ("" if matcher.matched else matcher.flush()), matcher.matched


def oracle(stops: list[str], text: str) -> tuple[str, str | None]:
    """A character at a time: the first stop string that is complete, the longest of several."""
    for end in range(1, len(text) + 1):
        done = [s for s in stops if text[:end].endswith(s)]
        if done:
            stop = max(done, key=len)
            return text[: end - len(stop)], stop
    return text, None


letters = st.text(alphabet="ab€", max_size=24)


@given(st.lists(st.text(alphabet="ab€", min_size=1, max_size=4), max_size=3), letters, st.data())
def test_text_shown_does_not_depend_on_where_it_was_cut(
    stops: list[str], text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(stops, pieces) == oracle(stops, text)


def test_part_of_a_stop_string_is_held_until_it_is_none() -> None:
    matcher = StopMatcher(["<end>"])
    assert matcher.feed("text <e") == "text "
    assert matcher.feed("n") == ""
    assert matcher.feed("!") == "<en!"
    assert matcher.matched is None


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.feed("abxcd") == "ab"
    assert matcher.matched == "x"
    assert matcher.feed("more") == matcher.flush() == ""


def test_text_that_only_began_like_a_stop_string_is_flushed() -> None:
    assert run(["\n\nUser:"], ["hello\n", "\nUser"]) == ("hello\n\nUser", None)


@pytest.mark.parametrize("stops", [["abcd", "bc"], ["bc", "abcd"]])
def test_stop_string_complete_first_wins_whatever_the_order(stops: list[str]) -> None:
    assert run(stops, ["abcd"]) == ("a", "bc")
    assert run(stops, list("abcd")) == ("a", "bc")
