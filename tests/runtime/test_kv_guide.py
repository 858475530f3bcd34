"""docs/kv-caches.md: its examples run, and it names every refusal, error and state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from handmade_plan import build

from planonce.runtime import KvImportError, PlanValidity, RebindReason
from planonce.runtime import kv_import_errors as errors

GUIDE = Path(__file__).parents[2] / "docs" / "kv-caches.md"


def test_examples_run_as_written(tmp_path: Path, monkeypatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) >= 6
    build(tmp_path / "my-plan")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, GUIDE.name, "exec"), names)


@pytest.mark.parametrize("section", ["Prefix injection", "Fork", "Rewind"])
def test_each_way_to_use_a_cache_has_an_example(section: str) -> None:
    body = re.search(rf"^## {section}$(.*?)^## ", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert body is not None
    assert "```python" in body[1]
    assert "assert" in body[1]


def test_guide_names_every_refusal_error_and_state() -> None:
    text = GUIDE.read_text()
    faults = [getattr(errors, name) for name in errors.__all__ if name != "KvImportError"]
    assert all(issubclass(fault, KvImportError) for fault in faults)
    for name in [*(f.__name__ for f in faults), *(f.code for f in faults), *(r.value for r in RebindReason)]:
        assert f"`{name}`" in text, name
    for state in PlanValidity:
        assert f"| {state.name} |" in text, state
    assert "| REFUSED |" in text
