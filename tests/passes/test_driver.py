"""The driver does not trust passes: each guard is tested with a pass that breaks the rule it guards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch_mlir import ir

from planonce.passes import Remarks, fail, run_pipeline
from planonce.passes.ir.builder import OnnxBuilder
from planonce.passes.ir.context import make_context, parse_module, print_module, read_module
from planonce.passes.ir.roles import body_of, function_of
from planonce.runtime.errors import PassError

TEXT = """
func.func @step(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "onnx.neg"(%a) : (tensor<4xf32>) -> tensor<4xf32>
    loc(callsite("modeling_llama.py":88:0 at "trace.py":1:0))
  return %0 : tensor<4xf32>
}
"""
Parse = Callable[[str], ir.Module]


def mark(module: ir.Module) -> None:
    with module.context:
        module.operation.attributes["test.mark"] = ir.UnitAttr.get()


@dataclass(frozen=True, slots=True)
class Probe:
    """A pass that does what it is given and says what it is told to say."""

    act: Callable[[ir.Module, Remarks], object]
    says: bool = True
    name: str = "probe"
    summary: str = "for tests"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        self.act(module, remarks)
        return self.says


@pytest.mark.parametrize("says", [True, False])
def test_lie_about_having_changed_is_caught(parse: Parse, says: bool) -> None:
    act = (lambda module, _: None) if says else (lambda module, _: mark(module))
    with pytest.raises(PassError, match="pass probe reports wrongly") as caught:
        run_pipeline(parse(TEXT), [Probe(act, says)], check_changed=True)
    assert caught.value.found == f"changed = {says}"


@pytest.mark.parametrize("says", [True, False])
def test_truth_about_having_changed_is_reported(parse: Parse, says: bool) -> None:
    act = (lambda module, _: mark(module)) if says else (lambda module, _: None)
    report = run_pipeline(parse(TEXT), [Probe(act, says)], check_changed=True)
    assert [run.changed for run in report.passes] == [says]
    assert report.changed is says
    assert report.passes[0].seconds >= 0


def break_neg(module: ir.Module, _: Remarks) -> None:
    op = body_of(function_of(module)).operations[0]
    with module.context:
        op.attributes["axis"] = ir.Attribute.parse("1 : i64")


def test_invalid_ir_names_pass_op_and_model_line(parse: Parse) -> None:
    with pytest.raises(PassError) as caught:
        run_pipeline(parse(TEXT), [Probe(break_neg)])
    assert caught.value.message == (
        "the module is invalid after pass probe: 'onnx.neg' op unknown attribute 'axis'; "
        "expected: none at all"
    )
    assert caught.value.where == "modeling_llama.py:88"


def test_verification_can_be_switched_off_and_is_what_finds_the_fault(parse: Parse) -> None:
    module = parse(TEXT)
    run_pipeline(module, [Probe(break_neg)], verify=False)
    with pytest.raises(PassError, match="invalid after the input"):
        run_pipeline(module, "cse")


def test_refusal_of_a_pass_passes_through_with_a_note(parse: Parse, tmp_path: Path) -> None:
    def refuse(module: ir.Module, _: Remarks) -> None:
        raise fail(body_of(function_of(module)).operations[0], "is not wanted", found="one", expected="none")

    with pytest.raises(PassError) as caught:
        run_pipeline(parse(TEXT), [Probe(refuse)], reproducer_dir=tmp_path)
    assert caught.value.message == "'onnx.neg' op is not wanted"
    assert caught.value.where == "modeling_llama.py:88"
    assert caught.value.__notes__ == ["in pass probe"]
    assert not list(tmp_path.iterdir()), "a refusal is no bug: no reproducer"


def test_internal_error_writes_a_reproducer_of_the_ir_before_the_pass(parse: Parse, tmp_path: Path) -> None:
    def break_down(module: ir.Module, _: Remarks) -> None:
        mark(module)
        raise KeyError("a bug")

    module = parse(TEXT.replace("onnx.neg", "onnx.abs"))
    with pytest.raises(KeyError) as caught:
        run_pipeline(module, [Probe(break_down)], reproducer_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    assert str(path) in caught.value.__notes__[0]
    text = path.read_text(encoding="utf-8")
    assert text.startswith("// RUN: planonce opt %s --pass-pipeline='probe{")
    assert "// KeyError: 'a bug'" in text
    again = read_module(path, make_context())
    assert "onnx.abs" in print_module(again)
    assert "test.mark" not in print_module(again), "the IR is the one after the pass had touched it"


def test_unknown_pass_is_refused_before_the_first_one_runs(parse: Parse) -> None:
    seen: list[str] = []
    with pytest.raises(PassError, match="no pass 'nonsense'"):
        run_pipeline(parse(TEXT), "cse,nonsense", on_pass=lambda name, *_: seen.append(name))
    assert seen == []


def test_progress_ir_and_remarks_come_in_order(parse: Parse) -> None:
    def remark(module: ir.Module, remarks: Remarks) -> None:
        remarks.add("chosen", at=body_of(function_of(module)).operations[0])
        remarks.add("for all")

    progress: list[tuple[str, int, int]] = []
    printed: list[str] = []
    report = run_pipeline(
        parse(TEXT),
        [Probe(remark, says=False), Probe(lambda module, _: mark(module), name="second")],
        on_pass=lambda *event: progress.append(event),
        print_ir_after_all=printed.append,
    )
    assert progress == [("probe", 0, 2), ("second", 1, 2)]
    assert [str(item) for item in report.remarks] == [
        "modeling_llama.py:88: remark: chosen [probe]",
        "remark: for all [probe]",
    ]
    assert ["test.mark" in text for text in printed] == [False, True]
    assert printed[1].startswith("// ----- IR after second -----\n")


def test_builder_works_inside_a_pass_without_a_location(context: ir.Context) -> None:
    module = parse_module(TEXT, context)

    def negate(module: ir.Module, _: Remarks) -> None:
        block = body_of(function_of(module))
        ret = block.operations[1]
        builder = OnnxBuilder(insertion_point=ir.InsertionPoint(ret), device="cpu:1")
        ret.operands[0] = builder.one("Neg", [ret.operands[0]], ret.operands[0].type)

    run_pipeline(module, [Probe(negate)], check_changed=True)
    assert '"onnx.neg"(%0) {plan.device = "cpu:1"}' in print_module(module)
