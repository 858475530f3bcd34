"""The command line: output, errors without a traceback, the report and the listing."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from planonce.passes import opt
from planonce.passes.registry import pass_names

TEXT = """func.func @step(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "onnx.neg"(%a) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "onnx.abs"(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.mlir"
    path.write_text(TEXT, encoding="utf-8")
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["planonce-opt", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        opt.main()
    return int(caught.value.code or 0)


def test_without_a_pipeline_the_ir_is_parsed_and_printed(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, file) == 0
    assert "onnx.abs" in capsys.readouterr().out


def test_pipeline_output_file_and_report(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, report = tmp_path / "out.mlir", tmp_path / "report.json"
    arguments = ["--pass-pipeline", "canonicalize,cse", "-o", out, "--json", report, "--print-ir-after-all"]
    assert run(monkeypatch, file, *arguments) == 0
    text = out.read_text(encoding="utf-8")
    assert "onnx.neg" in text and "onnx.abs" not in text
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("// ----- IR after ") == 2
    value = json.loads(report.read_text(encoding="utf-8"))
    assert [(p["name"], p["changed"]) for p in value["passes"]] == [("canonicalize", True), ("cse", False)]
    assert value["pipeline"] == "canonicalize,cse"


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(TEXT))
    assert run(monkeypatch, "-", "--locations") == 0
    assert "loc(" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO(TEXT.replace("(%a) :", "(%b) :", 1)))
    assert run(monkeypatch, "-") == 1
    assert "where: <stdin>:2:" in capsys.readouterr().err


def test_error_names_the_file_and_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(TEXT.replace('"onnx.abs"(%a)', '"onnx.abs"(%a) {axis = 1 : i64}'), encoding="utf-8")
    assert run(monkeypatch, file) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "unknown attribute 'axis'" in said.err
    assert f"where: {file}:3:" in said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pass-pipeline", "canonicalise"], "did you mean canonicalize?"),
        (["--pass-pipeline", "cse,"], "the pipeline string does not parse"),
        (["-o", "/no/such/directory/out.mlir"], "cannot write"),
    ],
)
def test_mistakes_are_messages(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert run(monkeypatch, file, *arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said


def test_missing_file_shows_no_traceback(tmp_path: Path) -> None:
    code = "import sys; from planonce.passes.opt import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "absent.mlir")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot read" in done.stderr and "Traceback" not in done.stderr


def test_listing_has_every_pass_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    opt.passes_command(as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert tuple(row["name"] for row in rows) == pass_names()
    assert all(row["summary"] for row in rows)
    opt.passes_command()
    table = capsys.readouterr().out
    assert all(name in table for name in pass_names())
