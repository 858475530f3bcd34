"""Pipeline strings: ``a,b{x=1 y=2,3},canonicalize``. ``Pipeline.parse(str(p)) == p``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from planonce.runtime.errors import PassError

from .base import Pass
from .registry import create_pass, option_values

__all__ = ["DEFAULT_PIPELINE", "PassCall", "Pipeline"]

DEFAULT_PIPELINE = (
    "convert-torch-to-onnx,canonicalize,cse,tabulate-positions,fuse-rms-norm,fuse-activation,fuse-rope,"
    "move-logit-gather,fuse-skip-norm,merge-linears,quantize-weights,canonicalize,cse,"
    "select-attention{arm=auto device=cpu:0},"
    "assign-placement{device=cpu:0},insert-copies,alias-kv,canonicalize,cse,verify-plan"
)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_BARE = re.compile(r"[^\s{}\"=]+")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class PassCall:
    """A pass by name with its options as written, in their order."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return f"{self.name}{{{' '.join(f'{key}={_quote(value)}' for key, value in self.options)}}}"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Passes in the order in which they run."""

    calls: tuple[PassCall, ...] = ()

    def __str__(self) -> str:
        return ",".join(str(call) for call in self.calls)

    @staticmethod
    def parse(text: str) -> Pipeline:
        """Read a pipeline string; names and options are looked up by ``passes``.

        An option value with spaces, braces, quotes or ``=`` is written as a JSON string. Raises PassError,
        pointing at the place, on bad syntax and on an option given twice.
        """
        return Pipeline(tuple(_Reader(text).pipeline()))

    def passes(self) -> list[Pass]:
        """Make every pass. Raises PassError on an unknown pass, option or value, before anything runs."""
        return [create_pass(call.name, dict(call.options)) for call in self.calls]

    @staticmethod
    def of(passes: Iterable[Pass]) -> Pipeline:
        """The pipeline of these passes with every option spelled out, as the manifest records it."""
        return Pipeline(tuple(PassCall(p.name, tuple(option_values(p).items())) for p in passes))


def _quote(value: str) -> str:
    return value if _BARE.fullmatch(value) else json.dumps(value)


class _Reader:
    """Recursive descent over one string; ``at`` is the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def pipeline(self) -> list[PassCall]:
        calls: list[PassCall] = []
        self._skip()
        while self.at < len(self.text):
            calls.append(self._call())
            self._skip()
            if self.at < len(self.text):
                self._expect(",")
                self._skip()
                if self.at == len(self.text):
                    raise self._error("a pass name after the comma")
        return calls

    def _call(self) -> PassCall:
        name = self._take(_NAME, "a pass name")
        options: dict[str, str] = {}
        if self._peek("{"):
            self.at += 1
            self._skip()
            while not self._peek("}"):
                key = self._take(_NAME, "an option name or '}'")
                if key in options:
                    raise self._error(f"option {key!r} once")
                self._expect("=")
                options[key] = self._value()
                self._skip()
            self.at += 1
        return PassCall(name, tuple(options.items()))

    def _value(self) -> str:
        if not self._peek('"'):
            return self._take(_BARE, "an option value")
        quoted = self._take(_QUOTED, "the closing quote")
        try:
            return str(json.loads(quoted))
        except json.JSONDecodeError:
            raise self._error("a JSON string") from None

    def _peek(self, character: str) -> bool:
        return self.text.startswith(character, self.at)

    def _expect(self, character: str) -> None:
        if not self._peek(character):
            raise self._error(repr(character))
        self.at += 1

    def _take(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self._error(what)
        self.at = match.end()
        return match.group()

    def _skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def _error(self, expected: str) -> PassError:
        return PassError(
            "the pipeline string does not parse",
            found=repr(self.text[self.at : self.at + 20]) if self.at < len(self.text) else "its end",
            expected=expected,
            where=f"character {self.at + 1} of {self.text!r}",
        )
