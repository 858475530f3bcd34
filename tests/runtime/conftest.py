"""Fixtures over plans made by hand; compiled plans are tested in tests/end_to_end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode: test modules import their neighbours by name

from handmade_plan import Tiny, build
from text_files import text_tiny

from planonce.runtime import Plan


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture(scope="session")
def tiny_plan_dir(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Path:
    return build(tmp_path_factory.mktemp("plans") / "tiny", tiny)


@pytest.fixture(scope="session")
def tiny_plan(tiny_plan_dir: Path) -> Plan:
    return Plan.load(tiny_plan_dir, threads=1)


@pytest.fixture(scope="session")
def text_plan_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny, with a tokenizer of bytes, a chat template and its weights in a file of their own."""
    return build(tmp_path_factory.mktemp("plans") / "text", text_tiny(external_weights=True))


@pytest.fixture(scope="session")
def text_plan(text_plan_dir: Path) -> Plan:
    return Plan.load(text_plan_dir, threads=1)
