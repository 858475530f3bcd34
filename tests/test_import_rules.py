"""Who may import whom, and what importing the runtime costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("runtime", "passes", "compiler")
FORBIDDEN_AT_RUN_TIME = ("torch", "torch_mlir", "onnx", "transformers", "safetensors", "gguf")

# The part of the runtime that needs the standard library only: what the other rooms share with it.
SHARED = {f"planonce.runtime.{name}" for name in ("errors", "manifest", "file_digest", "dtypes")}
STANDARD = set(sys.stdlib_module_names) | {"__future__"}
MAY_IMPORT = {
    "runtime": {"numpy", "onnxruntime", "tokenizers", "jinja2", "typer", "rich", "ml_dtypes"},
    "passes": {"numpy", "ml_dtypes", "torch_mlir", "onnx", "typer", "rich"},
    "compiler": {
        *("numpy", "ml_dtypes", "torch", "torch_mlir", "transformers", "safetensors", "gguf", "onnx"),
        *("tokenizers", "huggingface_hub", "typer", "rich"),
    },
}
BENCH = "planonce.runtime.bench"
BENCH_EXTRA = {"psutil", "matplotlib"}
# Scripts that an interpreter of their own runs, each with another engine: no part of the package's imports.
PEERS = f"{BENCH}.peers"
RUN_PLANS = (
    "planonce.compiler.self_check", "planonce.compiler.verify", "planonce.compiler.packed_check",
)  # fmt: skip
# ONNX Runtime alone knows how it packs weights; it is asked for one weight at a time.
PACKS_WEIGHTS = "planonce.compiler.packed_program"
OF_PLANONCE = {
    "runtime": lambda name, _: name.startswith("planonce.runtime"),
    "passes": lambda name, _: name.startswith("planonce.passes") or name == "planonce.runtime.errors",
    "compiler": lambda name, importer: (
        name.startswith(("planonce.compiler", "planonce.passes"))
        or name in SHARED
        # These run the plan as a user does: through the package's own names.
        or (name == "planonce.runtime" and importer in RUN_PLANS)
    ),
}


@dataclass(frozen=True)
class Import:
    """``importer`` imports ``name`` (``names`` from it) on ``line``; ``typing``: for annotations only."""

    importer: str
    name: str
    names: tuple[str, ...]
    line: int
    typing: bool


def imports_of(module: str, source: str, *, package: bool = False) -> Iterator[Import]:
    """Every import statement, also those inside functions."""
    tree = ast.parse(source)
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        typing = node in for_types
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, (), node.lineno, typing)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: None if package and node.level == 1 else -node.level + package]
                base = ".".join([*parents, base]) if base else ".".join(parents)
            yield Import(module, base, tuple(a.name for a in node.names), node.lineno, typing)


# Run as scripts by the Pythons of other engines, never imported by planonce.
OTHER_PYTHONS = ROOT / "runtime" / "bench" / "peers"


def modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if path.parent == OTHER_PYTHONS:
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(("planonce", *(p for p in parts if p != "__init__")))
            found[name] = path
    return found


MODULES = modules()
IMPORTS = [
    one
    for module, path in MODULES.items()
    for one in imports_of(module, path.read_text(encoding="utf-8"), package=path.name == "__init__.py")
]


def breaks_the_table(one: Import) -> bool:
    room = one.importer.split(".")[1]
    root = one.name.partition(".")[0]
    if _below(PEERS, one.importer):
        return False
    if _below(BENCH, one.importer) and root in BENCH_EXTRA:
        return False
    if root == "planonce":
        # `from planonce.runtime import errors` is an import of planonce.runtime.errors.
        names = [f"{one.name}.{n}" if f"{one.name}.{n}" in MODULES else one.name for n in one.names]
        return not all(OF_PLANONCE[room](name, one.importer) for name in names or [one.name])
    if one.importer == PACKS_WEIGHTS and root == "onnxruntime":
        return False
    return root not in STANDARD and root not in MAY_IMPORT[room]


def _below(package: str, module: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_no_module_imports_the_scripts_of_the_benchmarks_peers() -> None:
    outside = [one for one in IMPORTS if not _below(PEERS, one.importer)]
    assert [one for one in outside if any(_below(PEERS, target) for target in _targets(one))] == []


def test_rooms_import_what_the_table_allows() -> None:
    assert len(MODULES) > 80
    wrong = [f"{i.importer}:{i.line} imports {i.name} {i.names}" for i in IMPORTS if breaks_the_table(i)]
    assert wrong == []


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("runtime.plan", "import onnx"),
        ("runtime.plan", "def f():\n    import torch.nn"),
        ("runtime.plan", "from planonce.compiler import compile_checkpoint"),
        ("runtime.plan", "if TYPE_CHECKING:\n    from planonce.passes import Pass"),
        ("runtime.plan", "import matplotlib"),
        ("runtime.bench.plot", "import torch"),
        ("runtime.benchmark", "import psutil"),
        ("passes.opt", "import onnxruntime"),
        ("passes.opt", "import torch"),
        ("passes.opt", "from planonce.runtime.manifest import Manifest"),
        ("passes.opt", "from planonce.runtime import Plan"),
        ("compiler.emit", "from planonce.runtime import Plan"),
        ("compiler.emit", "from planonce.runtime import plan"),
        ("compiler.self_check", "from planonce.runtime.plan import Plan"),
        ("compiler.emit", "import onnxruntime as ort"),
        ("compiler.packed_check", "import onnxruntime"),
    ],
)
def test_table_has_teeth(importer: str, statement: str) -> None:
    found = list(imports_of(f"planonce.{importer}", statement))
    assert [breaks_the_table(one) for one in found] == [True]


def test_relative_imports_are_resolved() -> None:
    source = "from . import a\nfrom .b import c\nfrom ..d import e"
    assert [i.name for i in imports_of("planonce.x.y", source)] == [
        "planonce.x",
        "planonce.x.b",
        "planonce.d",
    ]
    names = [i.name for i in imports_of("planonce.x.y", source, package=True)]
    assert names == ["planonce.x.y", "planonce.x.y.b", "planonce.x.d"]


def test_shared_modules_need_the_standard_library_only() -> None:
    seen: set[str] = set()
    waiting = sorted(SHARED)
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        for one in IMPORTS:
            if one.importer == module and not one.typing:
                targets = [t for t in _targets(one) if t in MODULES]
                waiting += [t for t in targets if t != "planonce.runtime"]
                assert targets or one.name.partition(".")[0] in STANDARD, f"{module} imports {one.name}"
    code = f"import sys\nfor name in {sorted(SHARED)}: __import__(name)\nprint('numpy' in sys.modules)"
    assert _python(code).strip() == "False"


def _targets(one: Import) -> list[str]:
    """The modules an import statement names."""
    return [t if (t := f"{one.name}.{n}") in MODULES else one.name for n in one.names] or [one.name]


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Each cycle that a depth-first walk closes."""
    state: dict[str, int] = {}
    found: list[list[str]] = []

    def visit(module: str, path: list[str]) -> None:
        state[module] = 1
        for target in sorted(edges.get(module, ())):
            if state.get(target) == 1:
                found.append([*path[path.index(target) :], target])
            elif target not in state:
                visit(target, [*path, target])
        state[module] = 2

    for module in sorted(edges):
        if module not in state:
            visit(module, [module])
    return found


def test_no_two_modules_import_each_other_not_even_inside_functions() -> None:
    edges: dict[str, set[str]] = {}
    for one in IMPORTS:
        if not one.typing:
            edges.setdefault(one.importer, set()).update(t for t in _targets(one) if t in MODULES)
    assert sum(map(len, edges.values())) > 200
    assert cycles(edges) == []


def test_a_cycle_would_be_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c", "a"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


BLOCK = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        other_room = name.startswith(("planonce.compiler", "planonce.passes"))
        if name.split(".")[0] in {FORBIDDEN_AT_RUN_TIME!r} or other_room:
            raise ImportError(f"{{name}} is not for the runtime")
sys.meta_path.insert(0, Blocker())
"""


def _python(code: str, *args: str | Path) -> str:
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def plan_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(Path(__file__).parent / "runtime"))
    from handmade_plan import build
    from text_files import text_tiny

    return build(tmp_path_factory.mktemp("plans") / "text", text_tiny(external_weights=True))


def test_whole_runtime_imports_and_runs_a_plan_without_the_compilers_packages(plan_dir: Path) -> None:
    code = (
        BLOCK
        + """
import importlib, pkgutil
import planonce.runtime as runtime
for module in pkgutil.iter_modules(runtime.__path__):
    importlib.import_module(f"planonce.runtime.{module.name}")
for name in runtime.__all__:
    getattr(runtime, name)
from planonce.runtime.generate import generate
from planonce.runtime.generation_options import GenerationOptions
result = generate(runtime.Plan.load(sys.argv[1]).open(), [5, 6, 7], GenerationOptions(max_new_tokens=4)).run()
print(len(result.tokens))
"""
    )
    assert _python(code, plan_dir).strip() == "4"


def test_the_import_hook_is_live() -> None:
    code = (
        BLOCK
        + """
for name in ("onnx", "torch.nn", "planonce.compiler.emit", "planonce.passes"):
    try:
        __import__(name)
    except ImportError as error:
        assert "not for the runtime" in str(error), error
    else:
        raise SystemExit(f"{name} was imported")
"""
    )
    _python(code)


def test_importing_the_runtime_costs_little_beyond_onnxruntime() -> None:
    code = """
import time, numpy, onnxruntime
begin = time.perf_counter()
import planonce.runtime as runtime
for name in runtime.__all__:
    getattr(runtime, name)
print(time.perf_counter() - begin)
"""
    assert min(float(_python(code)) for _ in range(3)) < 0.5
