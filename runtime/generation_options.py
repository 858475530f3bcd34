"""What a caller may ask of a generation, checked once, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, cast

from .errors import RequestError

__all__ = ["GenerationOptions"]

_MAX_STOP_STRINGS = 64


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Greedy by default. Filters apply in transformers' order and by its definitions.

    ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and ``repetition_penalty`` 1 are off.
    ``seed`` None draws fresh entropy. ``stop`` strings end the text before they are shown;
    ``stop_token_ids`` end it too and are not shown. Raises RequestError naming the option that is wrong.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: bool = False

    def __post_init__(self) -> None:
        _integer("max_new_tokens", self.max_new_tokens, minimum=1)
        _number("temperature", self.temperature, "a finite number >= 0 (0 is greedy)", lambda x: x >= 0)
        _integer("top_k", self.top_k, minimum=0)
        _number("top_p", self.top_p, "a number in (0, 1]", lambda x: 0 < x <= 1)
        _number("min_p", self.min_p, "a number in [0, 1]", lambda x: 0 <= x <= 1)
        _number("repetition_penalty", self.repetition_penalty, "a finite number > 0", lambda x: x > 0)
        if self.seed is not None:
            _integer("seed", self.seed, minimum=0)
        # As objects: callers pass what came in from outside, whatever the annotations say.
        stop = cast("object", self.stop)
        if not isinstance(stop, tuple) or not all(
            isinstance(s, str) and s for s in cast("tuple[object]", stop)
        ):
            raise _wrong("stop", self.stop, "a tuple of non-empty strings")
        if len(self.stop) > _MAX_STOP_STRINGS:
            raise _wrong("stop", f"{len(self.stop)} strings", f"at most {_MAX_STOP_STRINGS}")
        ids = cast("object", self.stop_token_ids)
        if not isinstance(ids, tuple):
            raise _wrong("stop_token_ids", self.stop_token_ids, "a tuple of token ids")
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, minimum=0)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def needs_logits(self) -> bool:
        """Whether to pick a token takes more than to know the likeliest one."""
        return not self.greedy or self.repetition_penalty != 1 or self.logprobs

    @classmethod
    def from_defaults(cls, defaults: Mapping[str, Any]) -> GenerationOptions:
        """Read a model's ``generation_config`` mapping (transformers' keys).

        As there, sampling parameters count only when ``do_sample`` is true; keys of other decoding
        methods (beams, penalties we do not have) are left alone.
        """
        chosen: dict[str, Any] = {}
        penalty = defaults.get("repetition_penalty")
        if penalty is not None:
            chosen["repetition_penalty"] = penalty
        limit = defaults.get("max_new_tokens")
        if limit is not None:
            chosen["max_new_tokens"] = limit
        if defaults.get("do_sample"):
            chosen["temperature"] = _given(defaults.get("temperature"), 1.0)
            # transformers applies top_k = 50 when a sampling model does not say otherwise.
            chosen["top_k"] = _given(defaults.get("top_k"), 50)
            chosen["top_p"] = _given(defaults.get("top_p"), 1.0)
            chosen["min_p"] = _given(defaults.get("min_p"), 0.0)
        return cls(**chosen)

    def updated(self, **changes: Any) -> GenerationOptions:
        """A copy with the options that are not None replaced. Raises RequestError on an unknown option."""
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise RequestError(
                    f"unknown generation option {name!r}", expected=f"one of {', '.join(sorted(known))}"
                )
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


def _given(value: Any, otherwise: float) -> Any:
    return otherwise if value is None else value


def _wrong(name: str, found: object, expected: str) -> RequestError:
    shown = found if isinstance(found, str) else repr(found)
    return RequestError(
        f"generation option {name} is out of range",
        found=f"{name} = {shown}",
        expected=expected,
        todo=f"set {name} to {expected}",
    )


def _integer(name: str, value: object, *, minimum: int) -> None:
    # bool is an int in Python; `top_k=True` is a mistake, not 1.
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < minimum:
        raise _wrong(name, value, f"an integer >= {minimum}")


def _number(name: str, value: object, expected: str, holds: Callable[[float], bool]) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong(name, value, expected)
    if not math.isfinite(float(value)) or not holds(float(value)):
        raise _wrong(name, value, expected)
