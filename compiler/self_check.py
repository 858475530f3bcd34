"""Does the plan that was just written load and decode? Asked in a process of its own.

Its own, because there the plan meets only what a user of the runtime has, a crash of a kernel is a message
instead of the end of the compile, and the memory it needs is not added to the compiler's.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from planonce.runtime.errors import CompileError

__all__ = ["SELF_CHECK_TOKENS", "check_plan", "self_check"]

SELF_CHECK_TOKENS = 2
_CAPACITY = 8


def check_plan(plan: Path) -> dict[str, float]:
    """Load ``plan`` in a fresh process and decode two tokens. Returns load and decode seconds, peak RSS.

    Empty when the plan is placed on devices that are not here: it is for another machine. Raises CompileError
    when it does not load, crashes, or gives logits that are not finite.
    """
    # -P: the caller's working directory must not be able to shadow a module.
    command = [sys.executable, "-P", "-m", "planonce.compiler.self_check", str(plan)]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=dict(os.environ), check=False
    )
    if result.returncode == 0:
        return dict(json.loads(result.stdout.splitlines()[-1]))
    if result.returncode < 0:
        number = -result.returncode
        found = f"the process was ended by {signal.Signals(number).name}"
        todo = "Was memory short? --no-self-check skips this." if number == signal.SIGKILL else ""
    else:
        found, todo = "\n".join(result.stderr.strip().splitlines()[-8:]), ""
    raise CompileError(
        "The plan was written but does not decode; it was thrown away.",
        found=found,
        todo=todo or "This is a fault of planonce unless the checkpoint's weights are damaged.",
    )


def self_check(path: Path) -> dict[str, float]:
    """Load the plan and decode two tokens, in this process, through the runtime's public API."""
    import numpy as np

    from planonce.runtime import Manifest, Plan, local_devices

    from .memory import peak_rss

    here = {str(device) for device in local_devices()}
    if any(stage.device not in here for stage in Manifest.load(path).stages):
        return {}
    begin = time.perf_counter()
    plan = Plan.load(path)
    loaded = time.perf_counter()
    session = plan.open(capacity=min(_CAPACITY, plan.model.max_seq_len))
    token = plan.model.bos_token_id or 0
    for step in range(min(SELF_CHECK_TOKENS, plan.model.max_seq_len)):
        logits = session.realize_token(token)
        if not bool(np.isfinite(logits).all()):
            bad = int(logits.size - np.isfinite(logits).sum())
            raise CompileError(
                "The plan's logits are not finite.",
                found=f"{bad} of {logits.size} at position {step}",
                todo="Compile with --no-self-check; then `planonce inspect PLAN` names the weights at fault.",
            )
        token = int(logits.argmax())
    end = time.perf_counter()
    seconds = {"load_seconds": loaded - begin, "decode_seconds": end - loaded}
    assert all(math.isfinite(value) for value in seconds.values())
    return {**seconds, "peak_rss": float(peak_rss())}


if __name__ == "__main__":
    from planonce.runtime.errors import PlanonceError

    try:
        print(json.dumps(self_check(Path(sys.argv[1]))))
    except PlanonceError as error:
        sys.exit(str(error))
