"""The bench's side of a worker: a process that holds one engine and answers a JSON line a request."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, cast

from ..errors import PlanonceError

__all__ = ["Worker", "WorkerError"]


class WorkerError(PlanonceError):
    """An engine's process failed, or does not offer what was asked of it."""

    code = "bench-worker"


class Worker:
    """A started process. Use as a context manager, so that it ends with the bench.

    ``started``: the parent's clock when it was started; load times from outside count from there.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """Raises WorkerError when the program cannot be started."""
        self.name = name
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.started = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
            )
        except OSError as error:
            self._log.close()
            raise WorkerError(
                f"{name} cannot be started.",
                found=str(error),
                todo="Make the bench's engines again: make bench-peers.",
            ) from None

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        """One request. Raises WorkerError."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            stdin.flush()
            line = stdout.readline()
        if not line:
            raise WorkerError(f"{self.name} ended while asked for {op}.", found=self._last_words())
        answer = cast("dict[str, Any]", json.loads(line))
        if "error" in answer:
            raise WorkerError(f"{self.name} failed at {op}.", found=str(answer["error"]))
        return cast("dict[str, Any]", answer["ok"])

    def close(self) -> None:
        """End the process: by request, then by force."""
        process = self._process
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()  # the end of its input ends it
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._log.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read().strip()[-400:] or "no message"

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
