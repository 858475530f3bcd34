"""Fixtures for pass tests: one MLIR context a test, and modules from text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch_mlir import ir

from planonce.passes.ir.context import make_context, parse_module


@pytest.fixture
def context() -> ir.Context:
    return make_context()


@pytest.fixture
def parse(context: ir.Context) -> Callable[[str], ir.Module]:
    """MLIR text -> verified module."""
    return lambda text: parse_module(text, context)
