"""Which engines a bench runs, and what is missing for those it cannot."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ..errors import PlanonceError, RequestError
from ..manifest import Manifest

__all__ = ["DESCRIPTION", "OURS", "PEERS", "Engine", "Missing", "find_engines", "plan_weights"]

OURS = "planonce"
PEERS = ("genai", "llama.cpp", "transformers")
DESCRIPTION = "peers.json"
_SCRIPTS = Path(__file__).parent / "peers"
_TITLES = {"genai": "onnxruntime-genai", "llama.cpp": "llama.cpp", "transformers": "transformers"}
_INSTALL = "Run `make bench-peers` in planonce's repository, and give its directory with --peers."


@dataclass(frozen=True, slots=True)
class Engine:
    """``command`` starts its worker; ``model`` is what it loads; ``weights`` says in which format."""

    name: str
    command: tuple[str, ...]
    model: Path
    weights: str


@dataclass(frozen=True, slots=True)
class Missing:
    """An engine that was asked for and cannot run; the others do."""

    name: str
    why: str
    todo: str


def plan_weights(manifest: Manifest) -> str:
    """``float32``; or, when most of the weights' bytes are quantised blocks, ``int4``, ``int8`` or ``gguf``:
    rounded by us, or kept as the checkpoint stores them."""
    sizes: dict[str, int] = {}
    for tensor in manifest.tensors:
        if not tensor.constant:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    for weight in manifest.checkpoint.weights:
        sizes[weight.dtype] = sizes.get(weight.dtype, 0) + weight.nbytes
    largest = max(sizes, key=lambda dtype: sizes[dtype], default=manifest.model.dtype)
    if largest not in ("uint8", "int8"):
        return largest
    return next((scheme for scheme in ("int4", "int8") if f"scheme={scheme}" in manifest.pipeline), "gguf")


def find_engines(
    plan: Path, weights: str, wanted: Iterable[str], peers: Path, peer_weights: str | None = None
) -> tuple[list[Engine], list[Missing]]:
    """Ours first, then ``wanted`` in their order.

    ``peers`` holds peers.json, which `make bench-peers` writes: per engine the program that runs it and its
    models by weight format; paths are relative to it. ``peer_weights``: the format to run the others in,
    by default the plan's, else the nearest each has. Raises RequestError for an unknown name.
    """
    python = os.fspath(sys.executable)
    engines = [Engine(OURS, (python, str(_SCRIPTS / "planonce_worker.py")), plan.resolve(), weights)]
    missing: list[Missing] = []
    described = _read(peers / DESCRIPTION)
    for name in wanted:
        if name not in PEERS:
            raise RequestError("--against names an unknown engine.", found=name, expected=", ".join(PEERS))
        title = _TITLES[name]
        entry = described.get(name)
        if not isinstance(entry, dict):
            missing.append(Missing(title, f"not installed in {peers}", _INSTALL))
            continue
        entry = cast("dict[str, object]", entry)
        program = peers / str(entry.get("program", ""))
        models = cast("dict[str, str]", entry.get("models", {}))
        chosen = next((w for w in _preferred(peer_weights or weights) if w in models), None)
        if not program.is_file() or chosen is None or not (peers / models[chosen]).exists():
            missing.append(Missing(title, f"its program or model is gone from {peers}", _INSTALL))
            continue
        engines.append(_engine(name, program, (peers / models[chosen]).resolve(), chosen))
    return engines, missing


def _preferred(weights: str) -> tuple[str, ...]:
    """Formats in the order in which they compare with ``weights``."""
    quantised = ("int4", "gguf", "int8", "float32")
    return (weights, *(reversed(quantised) if weights == "float32" else quantised))


def _engine(name: str, program: Path, model: Path, weights: str) -> Engine:
    script = str(_SCRIPTS / f"{name.replace('.', '_')}_worker.py")
    # Not resolved: a virtual environment's python is a link, and finds its packages by where the link is.
    path = os.fspath(program.absolute())
    command = (sys.executable, script, path) if name == "llama.cpp" else (path, script)
    return Engine(_TITLES[name], command, model, weights)


def _read(path: Path) -> Mapping[str, object]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanonceError(
            "The description of the bench's engines cannot be read.",
            found=str(error),
            where=str(path),
            todo="Run `make bench-peers` again.",
        ) from None
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
