"""Checkpoints as planonce sees them: indexed, checked, and read one weight at a time."""

from __future__ import annotations

from .checkpoint import Checkpoint, CheckpointKind, Progress
from .open import open_checkpoint
from .scan import NonFinite, scan_non_finite
from .tokenizer_assets import GenerationDefaults, TokenizerAssets
from .weights import WeightEntry, WeightIndex

__all__ = [
    "Checkpoint",
    "CheckpointKind",
    "GenerationDefaults",
    "NonFinite",
    "Progress",
    "TokenizerAssets",
    "WeightEntry",
    "WeightIndex",
    "open_checkpoint",
    "scan_non_finite",
]
