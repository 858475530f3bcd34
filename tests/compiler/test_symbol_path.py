"""P11: the two ways a step learns its lengths, and that a wrong one is seen in the logits."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from placed_program import load, open_session
from traced_models import converted, tiny_weights

from planonce.passes.driver import run_pipeline
from planonce.runtime import DecodeSession, SymEnv
from planonce.runtime.errors import SymbolError

PROMPT, NEXT = [1, 250, 3, 44, 5], 7
HERE = len(PROMPT)
WRONG = 1e-2
REST = "assign-placement,insert-copies,alias-kv,canonicalize,cse,verify-plan"
ABSORBED = "tabulate-positions{max-seq-len=64},fuse-rope,"  # the fused arm then rotates by itself


@functools.cache
def program(path: str, arm: str, family: str = "llama", before: str = ""):
    module = converted(family).operation.clone()
    symbols = "symbol-lengths," if path == "symbol" else ""
    run_pipeline(module, f"{before}{symbols}select-attention{{arm={arm}}},{REST}", check_changed=True)
    return load(module, tiny_weights(family))[1]


def filled(path: str, arm: str, **kinds: str) -> DecodeSession:
    session = open_session(program(path, arm, **kinds))
    session.prefill(PROMPT)
    return session


def moved(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got - expected).max())


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("arm", ["fused", "portable"])
def test_both_paths_give_the_same_logits(arm: str, family: str) -> None:
    offset, symbol = (filled(path, arm, family=family) for path in ("offset", "symbol"))
    for token in (NEXT, 310, 0):
        np.testing.assert_array_equal(symbol.realize_token(token), offset.realize_token(token))
    np.testing.assert_array_equal(symbol.prefill([9, 8, 7], chunk=2), offset.prefill([9, 8, 7], chunk=2))


def test_the_symbols_are_arguments_and_no_length_is_left_to_the_offset() -> None:
    names = [a.name for a in program("symbol", "fused").stages[0].stage.inputs]
    assert names[-2:] == ["cached_len", "attended_len"]
    session = filled("symbol", "fused")
    expected = filled("symbol", "fused").realize_token(NEXT).copy()
    inputs = session._step.inputs
    original = type(inputs).set_one

    def wrong_offset(self, token: int, position: int, symbols=None) -> None:
        original(self, token, position, symbols)
        self.write_offset[0] = 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(inputs), "set_one", wrong_offset)
        np.testing.assert_array_equal(session.realize_token(NEXT), expected)


@pytest.mark.parametrize(
    ("arm", "cached", "attended"),
    [
        ("fused", HERE, HERE),  # one short: written over the last position
        ("fused", HERE, HERE + 2),  # one far: a position of zeros is attended
        ("fused", HERE - 2, HERE + 1),  # rotated as if earlier
        ("portable", HERE - 1, HERE + 1),
        ("portable", HERE + 1, HERE + 2),
        ("portable", HERE, HERE - 1),  # the last positions are not seen
    ],
)
def test_a_wrong_symbol_moves_the_logits(arm: str, cached: int, attended: int) -> None:
    session, right = filled("symbol", arm), filled("symbol", arm)
    expected = right.realize_token(NEXT, SymEnv(cached_len=HERE, attended_len=HERE + 1)).copy()
    np.testing.assert_array_equal(expected, filled("symbol", arm).realize_token(NEXT))
    got = session.realize_token(NEXT, SymEnv(cached_len=cached, attended_len=attended))
    assert moved(got, expected) > WRONG


def test_cached_len_is_inert_where_the_fused_arm_rotates_by_itself() -> None:
    session = filled("symbol", "fused", before=ABSORBED)
    expected = filled("symbol", "fused", before=ABSORBED).realize_token(NEXT).copy()
    got = session.realize_token(NEXT, SymEnv(cached_len=0, attended_len=HERE + 1))
    np.testing.assert_array_equal(got, expected)
    # Control: attended_len is not.
    wrong = filled("symbol", "fused", before=ABSORBED).realize_token(
        NEXT, SymEnv(cached_len=0, attended_len=HERE)
    )
    assert moved(wrong, expected) > WRONG


@pytest.mark.parametrize("arm", ["fused", "portable"])
def test_symbols_are_inert_on_the_device_offset_path_and_a_wrong_offset_is_not(arm: str) -> None:
    expected = filled("offset", arm).realize_token(NEXT).copy()
    got = filled("offset", arm).realize_token(NEXT, SymEnv(cached_len=1, attended_len=2))
    np.testing.assert_array_equal(got, expected)
    for wrong in (HERE - 1, HERE + 1):
        session = filled("offset", arm)
        session._step.inputs.set_one(NEXT, wrong)
        assert moved(session._step.run()[0, 0], expected) > WRONG


@pytest.mark.parametrize("missing", ["cached_len", "attended_len"])
def test_an_unbound_symbol_is_refused_before_anything_is_touched(missing: str) -> None:
    session = filled("symbol", "fused")
    bound = {"cached_len": HERE, "attended_len": HERE + 1}
    del bound[missing]
    with pytest.raises(SymbolError, match="unbound") as caught:
        session.realize_token(NEXT, SymEnv(**bound))
    assert caught.value.expected == missing
    assert session.position == HERE
    np.testing.assert_array_equal(session.realize_token(NEXT), filled("symbol", "fused").realize_token(NEXT))


def test_a_conflicting_bind_is_refused() -> None:
    env = SymEnv(cached_len=HERE)
    env.bind("cached_len", HERE)
    with pytest.raises(SymbolError, match="bound twice"):
        env.bind("cached_len", HERE + 1)
