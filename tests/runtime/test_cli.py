"""The command line as a user meets it: processes, exit codes, streams."""

from __future__ import annotations

import importlib.metadata
import io
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from handmade_plan import Tiny, build, reference_logits
from text_files import text_files, text_tiny

from planonce.runtime.cli import main

CLI = [sys.executable, "-m", "planonce.runtime.cli"]


def process(
    *args: str | Path, text: str | None = None, code: int | None = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*CLI, *map(str, args)], input=text or "", capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def greedy(tiny: Tiny, tokens: list[int], n: int) -> list[int]:
    history = list(tokens)
    for _ in range(n):
        history.append(int(reference_logits(tiny, history)[-1].argmax()))
    return history[len(tokens) :]


def planonce(*args: str | Path, text: str = "", code: int | None = 0) -> subprocess.CompletedProcess[str]:
    """The command in this process, which saves the imports; :func:`process` is the real thing."""
    streams = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"), io.StringIO(), io.StringIO()
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr
    sys.argv, (sys.stdin, sys.stdout, sys.stderr) = ["planonce", *map(str, args)], streams
    found = None
    try:
        main()
    except SystemExit as end:
        found = end.code
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = before
    done = subprocess.CompletedProcess(
        list(args), int(found or 0), streams[1].getvalue(), streams[2].getvalue()
    )
    assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


# --- the program ---------------------------------------------------------------------------------------


def test_help_lists_the_commands_of_all_rooms_with_their_own_summaries() -> None:
    text = process("--help").stdout
    for name in ("run", "inspect", "compile", "opt", "passes"):
        assert f"\n  {name} " in text
    for entry in importlib.metadata.entry_points(group="planonce.commands"):
        summary = (entry.load().__doc__ or "").strip().splitlines()[0]
        assert any(line.split(maxsplit=1) == [entry.name, summary] for line in text.splitlines()), entry.name


def test_version_is_the_packages() -> None:
    assert process("--version").stdout == f"planonce {importlib.metadata.version('planonce')}\n"


def test_lazy_command_is_the_rooms_own() -> None:
    assert "--pass-pipeline" in process("compile", "--help").stdout


@pytest.mark.parametrize(
    "args", [["run"], ["frobnicate"], ["run", "x", "--frobnicate"], ["inspect", "x", "--verify", "some"]]
)
def test_wrong_command_line_is_exit_2(args: list[str]) -> None:
    assert "Error" in planonce(*args, code=2).stderr


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--prompt", "x", "--chat"],
        ["--prompt", "x", "--tokens", "1"],
        ["--chat", "--raw"],
        ["--prompt", "x", "--raw", "--system", "y"],
        ["--prompt", "x", "--greedy", "--temperature", "1"],
    ],
    ids=" ".join,
)
def test_options_that_contradict_are_exit_2(text_plan_dir: Path, args: list[str]) -> None:
    planonce("run", text_plan_dir, *args, code=2)


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "torch_mlir", "onnx", "transformers", "safetensors", "gguf"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from planonce.runtime.cli import main
main()
"""


def without_compiler(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_without_the_extra_help_works_and_other_rooms_say_what_to_install(tmp_path: Path) -> None:
    assert "compile" in without_compiler("--help").stdout
    for args in (["compile", tmp_path, "-o", tmp_path / "plan"], ["passes"], ["opt", "-"]):
        done = without_compiler(*args)
        assert done.returncode == 1, done
        assert "pip install 'planonce[compiler]'" in done.stderr
        assert "Traceback" not in done.stderr


def test_without_the_extra_a_plan_runs_and_is_inspected(text_plan_dir: Path) -> None:
    done = without_compiler("run", text_plan_dir, "--tokens", "5,6", "--max-new-tokens", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert without_compiler("inspect", text_plan_dir).returncode == 0


# --- run -----------------------------------------------------------------------------------------------


def test_tokens_in_tokens_out_without_a_tokenizer(tiny_plan_dir: Path, tiny: Tiny) -> None:
    done = planonce("run", tiny_plan_dir, "--tokens", "5,17,3", "--max-new-tokens", "5")
    assert list(map(int, done.stdout.split())) == greedy(tiny, [5, 17, 3], 5)


def test_prompt_goes_through_the_chat_template_and_raw_does_not(text_plan_dir: Path) -> None:
    def prompt_tokens(*more: str) -> int:
        args = ("run", text_plan_dir, "--prompt", "hi", "--max-new-tokens", "1", "--json", *more)
        return json.loads(planonce(*args).stdout)["prompt_tokens"]

    assert prompt_tokens("--raw") == 2
    # <|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n
    assert prompt_tokens() == 1 + 5 + 2 + 1 + 1 + 1 + 10
    assert prompt_tokens("--system", "x") == 1 + 7 + 1 + 1 + 1 + 21


def test_text_and_json_say_the_same_and_the_reference_agrees(text_plan_dir: Path) -> None:
    args = ("run", text_plan_dir, "--prompt", "hé", "--raw", "--max-new-tokens", "12")
    document = json.loads(planonce(*args, "--json").stdout)
    assert planonce(*args).stdout == document["text"] + "\n"
    prompt = [4 + b for b in "hé".encode()]
    expected = greedy(text_tiny(), prompt, 12)
    if 2 in expected:
        expected = expected[: expected.index(2) + 1]
    assert document["tokens"] == expected
    assert document["finish_reason"] in ("length", "stop_token")


def test_the_program_itself_streams_text_and_explains_errors(text_plan_dir: Path) -> None:
    args = ("run", text_plan_dir, "--prompt", "hi", "--raw", "--max-new-tokens", "12")
    assert process(*args).stdout == planonce(*args).stdout
    assert process("run", text_plan_dir / "nothing", "--tokens", "1", code=1).stderr.startswith("error: ")


def test_prompt_from_standard_input_loses_one_newline_only(text_plan_dir: Path) -> None:
    args = ("run", text_plan_dir, "--prompt", "-", "--raw", "--max-new-tokens", "1", "--json")
    assert json.loads(planonce(*args, text="ab\n\n").stdout)["prompt_tokens"] == 3


def test_stats_prove_that_nothing_is_made_after_the_first_token(text_plan_dir: Path) -> None:
    args = ("run", text_plan_dir, "--prompt", "hi", "--max-new-tokens", "9", "--temperature", "1")
    args = (*args, "--seed", "1", "--threads", "1", "--capacity", "100")
    stats = json.loads(planonce(*args, "--json").stdout)["stats"]
    for name in ("ort_sessions_after_load", "bindings_after_first_token", "bind_calls_after_first_token"):
        assert stats[name] == 0, name
    assert stats["traces"] == stats["pass_runs"] == 0
    assert stats["runs_after_first_token"] == stats["decode_steps"] > 0
    assert (stats["threads"], stats["capacity"]) == (1, 100)
    assert stats["kv_bytes"] == 2 * 2 * 2 * 100 * 16 * 4
    assert 0 < stats["median_step_seconds"] < stats["first_token_seconds"] + 1
    assert 0 < stats["host_share"] < 1
    shown = planonce(*args, "--stats")
    for word in ("tok/s", "ms a token", "why fast", "0 ONNX Runtime sessions", "threads      1"):
        assert word in shown.stderr
    assert "tok/s" not in shown.stdout


def test_stop_and_seed_reach_the_generation(text_plan_dir: Path) -> None:
    args = ("run", text_plan_dir, "--prompt", "hi", "--temperature", "1", "--max-new-tokens", "60", "--json")
    whole = json.loads(planonce(*args, "--seed", "5").stdout)["text"]
    assert json.loads(planonce(*args, "--seed", "6").stdout)["text"] != whole
    stop = whole[8:10]
    cut = json.loads(planonce(*args, "--seed", "5", "--stop", "never", "--stop", stop).stdout)
    assert cut["text"] == whole[: whole.index(stop)]
    assert (cut["finish_reason"], cut["stop_string"]) == ("stop_string", stop)


def test_plans_own_sampling_counts_until_greedy_is_asked_for(tmp_path: Path) -> None:
    files = text_files(sampling={"do_sample": True, "temperature": 2.0, "top_k": 0})
    plan = build(tmp_path / "plan", text_tiny(files=files))

    def tokens(*more: str) -> list[int]:
        args = ("run", plan, "--prompt", "hi", "--max-new-tokens", "8", "--json")
        return json.loads(planonce(*args, *more).stdout)["tokens"]

    assert tokens("--seed", "1") == tokens("--seed", "1") != tokens("--greedy")
    assert tokens("--greedy") == tokens("--temperature", "0", "--seed", "3")


# --- errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["run", "nowhere", "--tokens", "1"], "plan-integrity"),
        (["inspect", "nowhere"], "plan-integrity"),
        (["run", "PLAN", "--tokens", "1,x"], "request"),
        (["run", "PLAN", "--tokens", "999999"], "request"),
        (["run", "PLAN", "--tokens", "1", "--top-p", "2"], "request"),
        (["run", "PLAN", "--tokens", "1", "--capacity", "0"], "request"),
        (["run", "PLAN", "--tokens", "1", "--capacity", "99999"], "capacity-exceeded"),
        (["run", "PLAN", "--prompt", "too long", "--capacity", "3"], "capacity-exceeded"),
        (["run", "PLAN", "--prompt", ""], None),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else str(v),
)
def test_error_is_text_or_json_and_exit_1(text_plan_dir: Path, args: list[str], code: str | None) -> None:
    args = [str(text_plan_dir) if a == "PLAN" else a for a in args]
    if code is None:  # an empty message is a message
        planonce(*args, "--max-new-tokens", "1")
        return
    done = planonce(*args, code=1)
    assert done.stderr.startswith("error: ")
    assert done.stdout == ""
    done = planonce(*args, "--json", code=1)
    assert done.stderr == ""
    error = json.loads(done.stdout)["error"]
    assert error["code"] == code
    assert error["message"] and isinstance(error["notes"], list)


def test_notes_of_an_error_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from planonce.runtime.cli_errors import deliberate_exits
    from planonce.runtime.errors import PlanError

    for as_json in (False, True):
        with pytest.raises(SystemExit) as caught, deliberate_exits(as_json=as_json):
            error = PlanError("broken", found="this")
            error.add_note("seen in stage 3")
            raise error
        assert caught.value.code == 1
    out, err = capsys.readouterr()
    assert err == "error: broken\n  found: this\n  note: seen in stage 3\n"
    assert json.loads(out)["error"]["notes"] == ["seen in stage 3"]


def test_bug_keeps_its_traceback_and_its_import_error() -> None:
    from planonce.runtime.cli_errors import deliberate_exits

    for bug in (ZeroDivisionError(), ModuleNotFoundError("No module named 'numpi'", name="numpi")):
        with pytest.raises(type(bug)), deliberate_exits():
            raise bug


def test_altered_plan_is_refused_and_verify_size_lets_it_through(tmp_path: Path) -> None:
    plan = build(tmp_path / "plan", text_tiny(external_weights=True))
    data = bytearray((plan / "weights.bin").read_bytes())
    data[-2] ^= 1
    (plan / "weights.bin").write_bytes(bytes(data))
    assert "other contents" in planonce("run", plan, "--tokens", "1", code=1).stderr
    planonce("run", plan, "--tokens", "1", "--max-new-tokens", "1", "--verify", "size")


# --- chat ----------------------------------------------------------------------------------------------


def test_chat_over_a_pipe_feeds_only_new_tokens(text_plan_dir: Path) -> None:
    lines = [f"turn {i}" for i in range(10)]
    args = ("run", text_plan_dir, "--chat", "--max-new-tokens", "4", "--json")
    document = json.loads(planonce(*args, text="\n".join(lines) + "\n").stdout)
    assert [turn["prompt"] for turn in document["turns"]] == lines
    fed = [turn["prompt_tokens"] for turn in document["turns"]]
    plain = 0
    for turn, following in itertools.pairwise(document["turns"]):
        # Random weights say special tokens too; such an answer is not what its text says, and is told again.
        if not {0, 1, 3} & set(turn["tokens"]):
            plain += 1
            assert following["prompt_tokens"] < fed[0] + 8  # its own text and the end of the turn before
    assert plain > 5
    assert document["stats"]["prompt_tokens"] == sum(fed)
    assert document["stats"]["bind_calls_after_first_token"] == 0


def test_chat_streams_answers_and_knows_reset_and_quit(text_plan_dir: Path) -> None:
    args = ("run", text_plan_dir, "--chat", "--max-new-tokens", "4", "--json")
    turns = json.loads(planonce(*args, text="one\n\n/reset\none\n/quit\nnever\n").stdout)["turns"]
    assert len(turns) == 2
    assert turns[0]["tokens"] == turns[1]["tokens"]
    assert turns[0]["prompt_tokens"] == turns[1]["prompt_tokens"]
    plain = planonce(*args[:-1], text="one\n/quit\n")
    assert plain.stdout == turns[0]["text"] + ("\n" if turns[0]["text"] else "")
    assert "--max-new-tokens" in plain.stderr  # why the answer ended


def test_chat_over_a_pipe_ends_at_the_first_error(text_plan_dir: Path) -> None:
    args = ("run", text_plan_dir, "--chat", "--capacity", "40", "--max-new-tokens", "2")
    assert "does not fit" in planonce(*args, text="x" * 50 + "\nhi\n", code=1).stderr


def test_chat_needs_a_template(tmp_path: Path, tiny_plan_dir: Path) -> None:
    plan = build(tmp_path / "plan", text_tiny(files=text_files(template=None)))
    for directory in (plan, tiny_plan_dir):
        assert "no chat template" in planonce("run", directory, "--chat", code=1).stderr
    assert "no chat template" in planonce("run", plan, "--prompt", "x", "--system", "y", code=1).stderr
    planonce("run", plan, "--prompt", "x", "--max-new-tokens", "1")


# --- Ctrl-C and pipes ----------------------------------------------------------------------------------


def _start(*args: str | Path, **pipes: int) -> subprocess.Popen[bytes]:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
    # Unbuffered: what a buffer has read ahead, communicate() would not see.
    return subprocess.Popen([*CLI, *map(str, args)], bufsize=0, **streams)  # type: ignore[call-overload]


def _read(process: subprocess.Popen[bytes], n: int) -> bytes:
    """At least ``n`` bytes of its output."""
    assert process.stdout is not None
    got = b""
    while len(got) < n:
        piece = process.stdout.read(n)
        assert piece, (got, process.stderr and process.stderr.read())
        got += piece
    return got


def test_ctrl_c_in_a_generation_is_a_clean_line_and_130(tmp_path: Path) -> None:
    plan = build(tmp_path / "plan", Tiny(max_seq_len=60_000))
    process = _start("run", plan, "--tokens", "1,2,3", "--max-new-tokens", "59000", "--capacity", "60000")
    first = _read(process, 4)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.decode() == "interrupted\n"
    assert (first + out).endswith(b"\n")


def test_ctrl_c_at_the_chats_prompt_is_130(text_plan_dir: Path) -> None:
    process = _start("run", text_plan_dir, "--chat", "--max-new-tokens", "2", "--stats")
    assert process.stdin is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    _read(process, 1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert b"why fast" in err  # what was measured is still told


def test_ctrl_c_cuts_a_persons_answer_short_and_the_chat_goes_on(tmp_path: Path) -> None:
    plan = build(tmp_path / "plan", text_tiny(max_seq_len=60_000))
    person, terminal = pty.openpty()
    args = ("--chat", "--max-new-tokens", "59000", "--capacity", "60000", "--temperature", "1", "--seed", "1")
    process = _start("run", plan, *args, stdin=terminal)
    os.close(terminal)
    os.write(person, b"hello\n")
    _read(process, 8)  # the prompt, and some of the answer
    process.send_signal(signal.SIGINT)
    os.write(person, b"/nothing\n/quit\n")
    _, err = process.communicate(timeout=60)
    os.close(person)
    assert process.returncode == 0, err
    assert b"[interrupted]" in err
    assert b"no command /nothing" in err


@pytest.mark.parametrize("command", ["inspect", "run", "help"])
def test_reader_that_went_away_is_silent(text_plan_dir: Path, command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    args: dict[str, list[str | Path]] = {
        "inspect": ["inspect", text_plan_dir],
        "run": ["run", text_plan_dir, "--tokens", "40,50", "--max-new-tokens", "50"],
        "help": ["--help"],
    }
    process = _start(*args[command], stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=60)
    assert err == b""
    assert process.returncode in (1, 141)


# --- inspect -------------------------------------------------------------------------------------------


def test_inspect_tells_what_the_plan_is(text_plan_dir: Path) -> None:
    text = planonce("inspect", text_plan_dir).stdout
    for fact in (
        "TinyForCausalLM, 2 layers, float32",
        "1 stage on cpu:0",
        "[batch, 2, capacity, 16]",
        "0-1",
        "fused",
        "made by hand",
        "by-hand",
        "weights.bin",
        "tokenizer.json",
        "524.3 kB at the default 1024 positions",
        "files: all as the manifest says",
        "none with NaN or infinity",
    ):
        assert fact in text, fact


def test_inspect_json_holds_the_whole_manifest(text_plan_dir: Path) -> None:
    document = json.loads(planonce("inspect", text_plan_dir, "--json").stdout)
    assert document["ok"] is True
    assert document["manifest"] == json.loads((text_plan_dir / "manifest.json").read_text())
    assert document["cache"] == {"default_capacity": 1024, "bytes": 2 * 2 * 2 * 1024 * 16 * 4}
    assert document["weights"]["tensors"] == len(document["manifest"]["tensors"]) == 10


def test_inspect_folds_remarks_of_layers_that_say_the_same() -> None:
    from planonce.runtime.plan_report import _folded

    remarks = ["a: layer 0: x", "a: layer 1: x", "a: layer 2: y", "b: z", "b: z 1"]
    assert list(_folded(remarks)) == ["a: layers 0-1: x", "a: layer 2: y", "b: z", "b: z 1"]


def test_inspect_groups_layers_that_are_alike(tmp_path: Path) -> None:
    plan = build(tmp_path / "plan", Tiny(head_dims=(16, 16, 32, 16), split=2))
    rows = [line.split() for line in planonce("inspect", plan).stdout.splitlines()]
    slots = [row[0] for row in rows if "capacity," in row]
    assert slots == ["0-1", "2", "3"]


@pytest.mark.parametrize("mode", ["external_weights", "reference_weights"])
def test_inspect_names_weights_that_are_not_numbers(tmp_path: Path, mode: str) -> None:
    poison = (("q1", 40, float("nan")), ("q1", 41, float("-inf")), ("head", 96, float("inf")))
    plan = build(tmp_path / "plan", text_tiny(poison=poison, **{mode: True}))
    text = planonce("inspect", plan, code=1).stdout
    assert "q1 in weights.bin: 1 NaN, 1 infinite, the first at [0, 40]" in text
    assert "head in weights.bin: 0 NaN, 1 infinite, the first at [0, 96]" in text
    document = json.loads(planonce("inspect", plan, "--json", code=1).stdout)
    assert document["ok"] is False
    assert {w["name"] for w in document["weights"]["non_finite"]} == {"q1", "head"}
    planonce("inspect", plan, "--no-scan")  # the control: nothing else is wrong with it


def test_inspect_reports_every_bad_file_and_still_tells_the_rest(tmp_path: Path) -> None:
    plan = build(tmp_path / "plan", text_tiny(external_weights=True))
    (plan / "tokenizer.json").unlink()
    (plan / "chat_template.jinja").write_text("other")
    done = planonce("inspect", plan, code=1)
    assert "files: 2 wrong" in done.stdout
    assert "[batch, 2, capacity, 16]" in done.stdout
    problems = json.loads(planonce("inspect", plan, "--json", code=1).stdout)["problems"]
    assert [p["code"] for p in problems] == ["plan-integrity"] * 2
    assert {Path(p["where"]).name for p in problems} == {"tokenizer.json", "chat_template.jinja"}


def test_inspect_verify_levels_see_what_they_promise(tmp_path: Path) -> None:
    plan = build(tmp_path / "plan", text_tiny(external_weights=True))
    data = bytearray((plan / "weights.bin").read_bytes())
    data[100] ^= 1
    (plan / "weights.bin").write_bytes(bytes(data))
    planonce("inspect", plan, "--verify", "size")
    for level in ("standard", "full"):
        assert "other contents" in planonce("inspect", plan, "--verify", level, code=1).stdout


def test_inspect_of_missing_weights_is_an_answer_and_not_a_crash(tmp_path: Path) -> None:
    plan = build(tmp_path / "plan", text_tiny(external_weights=True))
    (plan / "weights.bin").unlink()
    assert "lacks a file" in planonce("inspect", plan, code=1).stdout
    plan = build(tmp_path / "other", text_tiny(reference_weights=True))
    (tmp_path / "other-checkpoint").rename(tmp_path / "moved")
    assert "has moved" in planonce("inspect", plan, code=1).stdout


def test_a_plan_is_not_run_on_another_device_than_asked_for(tiny_plan_dir: Path) -> None:
    run = ("run", tiny_plan_dir, "--tokens", "5", "--max-new-tokens", "2", "--greedy")
    assert planonce(*run, "--device", "cpu").stdout == planonce(*run, "--device", "cpu:0").stdout
    for other in ("cuda", "cpu:1"):
        refused = planonce(*run, "--device", other, code=None)
        assert refused.returncode != 0
        assert refused.stdout == ""
        for text in ("placed on other devices", "cpu:0", f"--place {other}"):
            assert text in refused.stderr
