"""A Jinja environment for chat templates, which come from strangers with the checkpoint.

Jinja's immutable sandbox keeps templates away from Python's internals. On top of it every loop turn and
call is counted and every value is measured before it is copied, joined or formatted, so that a hostile
template ends in an error instead of taking the process with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, cast

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["ChatEnvironment", "TemplateTooExpensive"]

MAX_STEPS = 200_000  # loop turns, calls and filters of one rendering
MAX_SECONDS = 10.0
MAX_CHARACTERS = 16_000_000  # of any one value, and of the output
_MAX_INT_BITS = 4096
_MAX_WIDTH = 10_000

# Filters seen in published chat templates, and their plain neighbours. Others are refused at parse time.
_FILTERS = frozenset(
    (
        *("abs", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float"),
        *("format", "forceescape", "groupby", "indent", "int", "items", "join", "last", "length", "list"),
        *("lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe"),
        *("select", "selectattr", "slice", "sort", "string", "sum", "title", "tojson", "trim", "truncate"),
        *("unique", "upper", "wordcount"),
    )
)


class TemplateTooExpensive(SecurityError):
    """The template went past a limit of this environment."""


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's tokens for training; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment transformers gives a template, with limits. One rendering at a time."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _Generation],
            finalize=self._printed,
        )
        self._steps = 0
        self._deadline = 0.0
        self.filters = {
            name: self._guarded(function) for name, function in self.filters.items() if name in _FILTERS
        }
        self.filters["tojson"] = self._guarded(_to_json)
        self.filters["_turns"] = self._turns
        self.filters["_measured"] = self._measured
        names = cast("dict[str, Any]", self.globals)  # pyright: ignore[reportUnknownMemberType]
        names.pop("lipsum", None)
        names["raise_exception"] = _raise_exception
        names["strftime_now"] = _strftime_now

    def start(self) -> None:
        """Begin a rendering: the limits are fresh."""
        self._steps = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def spend(self, n: int = 1) -> None:
        """Count work. Raises TemplateTooExpensive."""
        self._steps += n
        if self._steps > MAX_STEPS:
            raise TemplateTooExpensive(f"more than {MAX_STEPS} steps")
        if self._steps % 256 == 0 and time.monotonic() > self._deadline:
            raise TemplateTooExpensive(f"longer than {MAX_SECONDS:g} seconds")

    # --- hooks of Jinja's ------------------------------------------------------------------------------

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        # Jinja has no hook for a loop's turn nor for `~`: send both through a filter of ours.
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(cast("nodes.Expr", loop.iter), "_turns")
        for concat in list(tree.find_all(nodes.Concat)):
            concat.nodes = [_filtered(part, "_measured") for part in concat.nodes]
        return tree

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore
        self.spend()
        self._check_call(args, kwargs)
        if isinstance(__obj, LoopContext) and args:  # a recursive loop's inner turns
            args = (self._turns(args[0]), *args[1:])
        # The sandbox wraps str.format; the method itself is behind the wrapper.
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, str):
            name = getattr(__obj, "__name__", "")
            if name in ("format", "format_map"):
                _check_format(owner)
            elif (
                name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str)
            ):
                _check_size(len(owner) + owner.count(args[0]) * len(args[1]))
            elif name == "join" and args:
                items = list(cast("Iterable[Any]", args[0]))
                _check_size(sum(map(_size, items)) + len(owner) * len(items))
                args = (items, *args[1:])
            elif name == "translate":
                raise SecurityError("str.translate is not available")
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.spend()
        if operator == "**":
            _check_bits(_bits(left) * (abs(right) if isinstance(right, int) else 1))
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(_bits(left) + _bits(right))
            else:
                times = right if isinstance(right, int) else left if isinstance(left, int) else 1
                _check_size(max(_size(left), _size(right)) * max(times, 1))
        elif operator == "+":
            _check_size(_size(left) + _size(right))
        elif isinstance(left, str):
            _check_format(left)
            _check_size(len(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    # --- measuring -------------------------------------------------------------------------------------

    def _check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MAX_WIDTH * 10:
                raise TemplateTooExpensive(
                    f"an argument of {value}" if _bits(value) < 64 else "a huge argument"
                )
            _check_size(_size(value))

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` as a filter whose arguments are measured first; Jinja's own first argument is not."""
        skip = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            self.spend()
            values = args[skip:]
            self._check_call(values, kwargs)
            name = getattr(function, "__name__", "")
            if name in ("do_replace", "do_indent", "do_format", "do_mark_safe") and values:
                _check_filter(name, values, kwargs)
            return function(*args, **kwargs)

        return checked

    def _turns(self, values: Any) -> Iterator[Any]:
        for value in values:
            self.spend()
            yield value

    def _measured(self, value: Any) -> Any:
        self.spend()
        _check_size(_size(value) * 2)
        return value

    def _printed(self, value: Any) -> Any:
        _check_size(_size(value))
        return value


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _size(value: object) -> int:
    """Characters it may take to print ``value``, generously; shared parts count each time.

    Raises TemplateTooExpensive past the limit.
    """
    total = 0
    stack: list[object] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            total += 16
            for key, entry in cast("Mapping[object, object]", item).items():
                stack += (key, entry)
        elif isinstance(item, list | tuple | set | frozenset):
            total += 16
            stack.extend(cast("Iterable[object]", item))
        else:
            # Also a bound on the walk itself: a list of small numbers is looked at one by one.
            total += 8 + (_bits(item) // 3 if isinstance(item, int) else 0)
        if total > MAX_CHARACTERS or len(stack) > MAX_CHARACTERS:
            raise TemplateTooExpensive(f"a value of more than {MAX_CHARACTERS} characters")
    return total


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 64


def _check_size(characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise TemplateTooExpensive(f"a value of more than {MAX_CHARACTERS} characters")


def _check_bits(bits: int) -> None:
    if bits > _MAX_INT_BITS:
        raise TemplateTooExpensive(f"a number of more than {_MAX_INT_BITS} bits")


def _check_format(text: str) -> None:
    """Refuse widths that would pad to gigabytes, and ``*``, which takes the width from an argument."""
    run = 0
    for character in text:
        run = run + 1 if character.isdigit() else 0
        if run > 4:
            raise TemplateTooExpensive("a format with a width of more than 4 digits")
    if "%" in text and "*" in text.split("%", 1)[1]:
        raise TemplateTooExpensive("a format whose width is an argument")


def _check_filter(name: str, values: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    text = values[0]
    if not isinstance(text, str):
        return
    if name == "do_format":
        _check_format(text)
    elif name == "do_replace" and len(values) >= 3:
        old, new = str(values[1]), str(values[2])
        _check_size(len(text) + text.count(old) * len(new))
    elif name == "do_indent":
        width: object = values[1] if len(values) > 1 else kwargs.get("width", 4)
        by = len(width) if isinstance(width, str) else width if isinstance(width, int) else 4
        _check_size(len(text) + (text.count("\n") + 1) * by)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # transformers replaces Jinja's filter, which escapes HTML; templates rely on plain JSON.
    if isinstance(indent, int) and indent > 16:
        raise TemplateTooExpensive(f"an indent of {indent}")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(template: str) -> str:
    _check_format(template)
    return datetime.now().strftime(template)
