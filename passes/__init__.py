"""The middle room: dialects, passes over them, and the tool that runs a pass on a text file.

Needs torch-mlir and onnx; never torch, never ONNX Runtime.
"""

from __future__ import annotations

from .base import Pass, fail, option
from .driver import PassRun, PipelineReport, run_pipeline
from .pipeline import DEFAULT_PIPELINE, PassCall, Pipeline
from .registry import PASSES, create_pass
from .remarks import Remark, Remarks

__all__ = [
    "DEFAULT_PIPELINE",
    "PASSES",
    "Pass",
    "PassCall",
    "PassRun",
    "Pipeline",
    "PipelineReport",
    "Remark",
    "Remarks",
    "create_pass",
    "fail",
    "option",
    "run_pipeline",
]
