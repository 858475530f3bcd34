"""Runs every ``tests/passes/<pass>.mlir`` in this process, and tests the runner with files that must fail.

A file is split at ``// -----``; every split runs through each RUN line by itself:
``// RUN: planonce opt %s --pass-pipeline='...' [--remarks] [--check-prefix=NAME]``. Every split needs CHECK
lines (matched against its own output, remarks first) or ``// expected-error {{text}}`` on the line that the
error names (``@+1``, ``@-2``, ``@above``, ``@below``; ``@unknown`` when it names no line of the file).
Whatever succeeds is run again and must not change.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from planonce.passes import run_pipeline
from planonce.passes.ir.context import make_context, parse_module, print_module
from planonce.runtime.errors import PlanonceError

FILES = sorted(Path(__file__).parent.rglob("*.mlir"))

_RUN = re.compile(r"^// RUN: planonce opt %s(.*)$", re.MULTILINE)
_SUFFIX = r"(?:-(?:DAG|COUNT-\d+|NOT|EMPTY|NEXT|SAME|LABEL))?(?:\{LITERAL\})?:"
_WORD = re.compile(r"//\s*([A-Za-z][\w-]*)(.*)")
_EXPECTED = re.compile(r"//\s*expected-error(?:@([+-]\d+|above|below|unknown))?\s*\{\{(.*?)\}\}")
_NAMED_LINE = re.compile(r"(?<![\w.])-:(\d+)\b")


@dataclass(frozen=True, slots=True)
class Run:
    """One RUN line."""

    pipeline: str
    prefix: str = "CHECK"
    remarks: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """One expected error; ``line`` is None when it must name no line of the file."""

    line: int | None
    text: str


def read_runs(text: str) -> list[Run]:
    runs: list[Run] = []
    for arguments in _RUN.findall(text):
        pipeline, prefix, remarks = "", "CHECK", False
        for argument in shlex.split(arguments):
            key, _, value = argument.partition("=")
            if key == "--pass-pipeline":
                pipeline = value
            elif key == "--check-prefix":
                prefix = value
            elif argument == "--remarks":
                remarks = True
            else:
                raise AssertionError(f"RUN line: unknown argument {argument!r}")
        runs.append(Run(pipeline, prefix, remarks))
    assert text.count("RUN:") == len(runs), "a RUN line that is not '// RUN: planonce opt %s ...'"
    assert runs, "no RUN line"
    return runs


def read_splits(text: str) -> Iterator[tuple[int, str]]:
    """(first line, text) of each split; the text is padded so that its lines keep their numbers."""
    first, lines = 1, []
    for number, line in enumerate([*text.splitlines(), "// -----"], 1):
        if re.fullmatch(r"//\s*-{5,}\s*", line):
            yield first, "\n" * (first - 1) + "\n".join(lines) + "\n"
            first, lines = number + 1, []
        else:
            lines.append(line)


def read_expected(split: str) -> list[Expected]:
    found: list[Expected] = []
    for number, line in enumerate(split.splitlines(), 1):
        for where, text in _EXPECTED.findall(line):
            offset = {"": 0, "above": -1, "below": 1, "unknown": None}.get(where)
            if where[:1] in ("+", "-"):
                offset = int(where)
            found.append(Expected(None if offset is None else number + offset, text))
    return found


def assert_known_spellings(text: str, prefixes: set[str]) -> None:
    """A directive that FileCheck would silently ignore must not look like a test."""
    for number, line in enumerate(text.splitlines(), 1):
        match = _WORD.search(line)
        if match is None:
            continue
        word, rest = match.groups()
        if word.startswith("expected"):
            assert _EXPECTED.search(line), f"line {number}: unknown spelling {line.strip()!r}"
        head = word.split("-")[0].upper()
        if difflib.get_close_matches(head, prefixes, 1, 0.75) and (":" in rest or head in prefixes):
            known = any(re.match(re.escape(prefix) + _SUFFIX, word + rest) for prefix in prefixes)
            assert known, f"line {number}: unknown spelling {line.strip()!r}"


def has_checks(text: str, prefix: str) -> bool:
    return re.search(rf"//\s*{re.escape(prefix)}{_SUFFIX}", text) is not None


def filecheck(checks: str, output: str, prefix: str) -> None:
    options = Options("checks.mlir", check_prefixes=[prefix])
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        parser = Parser(options, io.StringIO(checks), *pattern_for_opts(options))
        code = Matcher(options, FInput("output", output), parser).run()
    assert code == 0, f"{said.getvalue()}\n----- output -----\n{output}"


def run_split(run: Run, split: str) -> str:
    """Output of one split. The pass's word on having changed is checked, and so is a second run."""
    module = parse_module(split, make_context(), source="-")
    report = run_pipeline(module, run.pipeline, check_changed=True)
    once = print_module(module, elide_large=False)
    run_pipeline(module, run.pipeline, check_changed=True)
    assert print_module(module, elide_large=False) == once, "a second run changes the module"
    return "".join(f"{remark}\n" for remark in report.remarks if run.remarks) + once


def check_error(error: PlanonceError, expected: list[Expected]) -> None:
    text = str(error)
    named = {int(line) for line in _NAMED_LINE.findall(text)}
    for item in expected:
        assert item.text in text, f"expected the error to say {item.text!r}, it says:\n{text}"
        if item.line is None:
            assert not named, f"expected no line, the error names {named}:\n{text}"
        else:
            assert item.line in named, (
                f"expected line {item.line}, the error names {named or 'none'}:\n{text}"
            )


def check_text(text: str) -> None:
    """The whole test of one file. Raises AssertionError."""
    runs = read_runs(text)
    prefixes = {run.prefix for run in runs}
    assert_known_spellings(text, prefixes)
    for prefix in prefixes:
        assert has_checks(text, prefix), f"no {prefix} line: the file tests nothing"
    for first, split in read_splits(text):
        expected = read_expected(split)
        checked = [run for run in runs if has_checks(split, run.prefix)]
        assert checked or expected, f"the split at line {first} has neither CHECK nor expected-error"
        for run in runs:
            try:
                output = run_split(run, split)
            except PlanonceError as error:
                assert expected, f"the split at line {first} fails:\n{error}"
                check_error(error, expected)
                continue
            assert not expected, f"the split at line {first} does not fail with {run.pipeline!r}:\n{output}"
            if run in checked:
                filecheck(split, output, run.prefix)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_pass_file(path: Path) -> None:
    check_text(path.read_text(encoding="utf-8"))


GOOD = """// RUN: planonce opt %s --pass-pipeline='cse'
// CHECK: %[[A:.*]] = "onnx.add"(%arg0, %arg0)
// CHECK-NEXT: return %[[A]], %[[A]]
// CHECK-NOT: onnx.add
func.func @f(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "onnx.add"(%a, %a) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "onnx.add"(%a, %a) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
// -----
func.func @g(%a: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{wrong number of operands}}
  %0 = "onnx.add"(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def test_runner_accepts_a_good_file() -> None:
    check_text(GOOD)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("// CHECK", "// NOTE", "no CHECK line"),
        ("// RUN", "// LATER", "no RUN line"),
        ("--pass-pipeline='cse'", "--pass-pipelin='cse'", "unknown argument"),
        ("CHECK-NEXT", "CHECK-NXT", "unknown spelling"),
        ("CHECK-NEXT:", "CHECK-NEXT", "unknown spelling"),
        ("// CHECK-NOT", "// CHEKC-NOT", "unknown spelling"),
        ("// CHECK-NOT", "// Check-not", "unknown spelling"),
        ("expected-error@below", "expected-eror@below", "unknown spelling"),
        ("return %[[A]], %[[A]]", "return %[[A]], %arg0", "output"),
        ("'cse'", "'canonicalize'", "output"),
        ("CHECK-NEXT: return", "CHECK-NOT: return", "output"),
        ("wrong number of operands", "wrong number of results", "expected the error to say"),
        ("@below", "@above", "expected line"),
        ("@below", "@unknown", "expected no line"),
        (
            '"onnx.add"(%a) : (tensor<4xf32>)',
            '"onnx.add"(%a, %a) : (tensor<4xf32>, tensor<4xf32>)',
            "not fail",
        ),
        ("// expected-error@below {{wrong number of operands}}", "", "neither CHECK nor expected-error"),
    ],
)
def test_runner_refuses_a_broken_file(old: str, new: str, reason: str) -> None:
    assert old in GOOD
    with pytest.raises(AssertionError, match=re.escape(reason)):
        check_text(GOOD.replace(old, new))
