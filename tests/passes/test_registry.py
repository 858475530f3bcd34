"""The table of passes: names, options, and that every pass has its test and its row in the documentation."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import ClassVar

import pytest
from torch_mlir import ir

from planonce.passes import PASSES, Remarks, create_pass, option, registry
from planonce.passes.docs import passes_page
from planonce.passes.registry import load_pass_class, option_values, pass_names, pass_options, pass_table
from planonce.runtime.errors import PassError

ROOT = Path(__file__).parents[2]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """A pass with one option of each kind."""

    name: ClassVar[str] = "example"
    summary: ClassVar[str] = "does nothing"
    colour: Colour = option(Colour.RED, "an enum")
    devices: tuple[str, ...] = option((), "a list")
    block_size: int = option(32, "an integer")
    scale: float = option(1.0, "a float")
    loud: bool = option(False, "a flag")
    label: str = option("", "text")

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        del module, remarks
        return False


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    # Registered under a row of its own; the class is found as if its module had been imported.
    monkeypatch.setattr(registry, "load_pass_class", {"example": Example}.__getitem__)


@pytest.mark.parametrize("name", PASSES)
def test_name_is_the_class_s_own(name: str) -> None:
    assert load_pass_class(name).name == name


@pytest.mark.parametrize("name", PASSES)
def test_pass_is_frozen_and_slotted_so_that_it_keeps_nothing_between_runs(name: str) -> None:
    class_ = load_pass_class(name)
    made = create_pass(name)
    assert class_.__dataclass_params__.frozen
    assert not hasattr(made, "__dict__") or not vars(made)
    assert class_.summary and class_.__doc__
    assert all(info.help for info in pass_options(name)), "an option has no line of help"


def test_duplicate_row_fails() -> None:
    with pytest.raises(PassError, match="two passes are named 'a'"):
        pass_table([("a", "m:A"), ("b", "m:B"), ("a", "m:C")])


def test_row_that_takes_a_cpp_pass_s_name_fails() -> None:
    with pytest.raises(PassError, match="two passes are named 'cse'"):
        pass_table([("cse", "m:A")])


def test_row_with_another_name_than_its_class_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PASSES", {"misnamed": next(iter(PASSES.values()))})
    with pytest.raises(PassError, match="registered under another name"):
        load_pass_class("misnamed")


@pytest.mark.usefixtures("example")
def test_options_are_typed_and_print_back() -> None:
    text = {"colour": "blue", "devices": "cpu:0,cpu:1", "block-size": "64", "loud": "true"}
    made = create_pass("example", text)
    assert made == Example(Colour.BLUE, ("cpu:0", "cpu:1"), 64, 1.0, True)
    assert option_values(made) == {**text, "scale": "1.0", "label": ""}
    assert create_pass("example", option_values(made)) == made
    assert create_pass("example", {"block_size": "8"}) == Example(block_size=8)


@pytest.mark.usefixtures("example")
def test_options_are_described() -> None:
    infos = {info.name: info for info in pass_options("example")}
    assert infos["colour"].type == "red | blue"
    assert (infos["devices"].type, infos["devices"].default) == ("list", "")
    assert (infos["loud"].type, infos["loud"].default, infos["loud"].help) == ("bool", "false", "a flag")


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"color": "red"}, "did you mean colour?"),
        ({"colour": "green"}, "red | blue"),
        ({"block-size": "many"}, "'many'"),
        ({"loud": "yes"}, "'yes'"),
        ({"scale": ""}, "''"),
    ],
)
def test_bad_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(PassError) as caught:
        create_pass("example", options)
    assert message in str(caught.value)


def test_every_pass_has_a_filecheck_test_and_every_test_its_pass() -> None:
    tested = {path.name.split(".")[0] for path in Path(__file__).parent.rglob("*.mlir")}
    assert tested == set(pass_names())


def test_documentation_is_made_from_the_passes() -> None:
    written = (ROOT / "docs" / "passes.md").read_text(encoding="utf-8")
    assert written == passes_page(), "run: python -m planonce.passes.docs > docs/passes.md"
    for name in pass_names():
        assert f"\n| [{name}](#{name}) | " in written or f"\n| {name} | " in written
