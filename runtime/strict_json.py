"""Turn JSON into frozen dataclasses, refusing whatever the types do not allow. Standard library only.

Strict in both directions: a missing key, an unknown key, a wrong type (a bool is not an int) or an
unknown enum value is a :class:`PlanFormatError` that names the place, as in ``stages[0].inputs[3].dtype``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar, cast

from .errors import PlanFormatError

__all__ = ["decode", "encode"]

T = TypeVar("T")

# Where a value stands, as its parent's place and one step: made for every value, written out for errors only.
_Place = tuple["_Place | None", str]
_Decoder = Callable[[object, _Place], object]


def decode(cls: type[T], value: object, where: str = "manifest") -> T:
    """Build ``cls`` (a dataclass) from a parsed JSON object. Raises PlanFormatError."""
    return cast("T", _decoder(cls)(value, (None, where)))


def _text(place: _Place) -> str:
    parent, step = place
    return step if parent is None else _text(parent) + step


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _wrong(value: object, expected: str, place: _Place) -> PlanFormatError:
    text = repr(value)
    return PlanFormatError(
        "A field of the manifest has the wrong type or value.",
        found=f"{text[:80]} ({type(value).__name__})",
        expected=expected,
        where=_text(place),
        todo="Compile the plan again; a manifest is not meant to be edited by hand.",
    )


@functools.cache
def _decoder(kind: Any) -> _Decoder:
    """What turns a parsed value into ``kind``; once a type, because a manifest holds thousands of values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if origin is tuple:
        return _tuple(_decoder(arguments[0]))
    if origin is dict:
        return _dict(_decoder(arguments[1]))
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum(kind)
    return _plain(kind)


def _union(options: tuple[Any, ...]) -> _Decoder:
    plain = [option for option in options if _is_plain(option)]
    others = [_decoder(option) for option in options if not _is_plain(option)]

    def union(value: object, place: _Place) -> object:
        for option in plain:
            if _fits(option, value):
                return value
        for other in others:
            return other(value, place)
        raise _wrong(value, " or ".join(_name(option) for option in options), place)

    return union


def _tuple(item: _Decoder) -> _Decoder:
    def items(value: object, place: _Place) -> object:
        if not isinstance(value, list):
            raise _wrong(value, "a list", place)
        given = cast("list[object]", value)
        return tuple([item(each, (place, f"[{i}]")) for i, each in enumerate(given)])

    return items


def _dict(item: _Decoder) -> _Decoder:
    def table(value: object, place: _Place) -> object:
        if not isinstance(value, dict):
            raise _wrong(value, "an object", place)
        given = cast("dict[str, object]", value)
        return {key: item(each, (place, f"[{key!r}]")) for key, each in given.items()}

    return table


def _dataclass(cls: Any) -> _Decoder:
    hints = typing.get_type_hints(cls)
    fields = {f.name: (_decoder(hints[f.name]), f".{f.name}") for f in dataclasses.fields(cls)}
    missing = dataclasses.MISSING
    needed = [
        f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing
    ]

    def record(value: object, place: _Place) -> object:
        if not isinstance(value, dict):
            raise _wrong(value, f"an object ({_name(cls)})", place)
        given = cast("dict[str, object]", value)
        if not given.keys() <= fields.keys():
            raise PlanFormatError(
                "The manifest holds a field that this version does not know.",
                found=", ".join(sorted(given.keys() - fields.keys())),
                expected=", ".join(fields),
                where=_text(place),
                todo="Use the planonce version that compiled this plan, or compile it again.",
            )
        for name in needed:
            if name not in given:
                raise PlanFormatError(
                    "The manifest lacks a field.",
                    found="nothing",
                    expected=name,
                    where=_text(place),
                    todo="Compile the plan again.",
                )
        made: dict[str, object] = {}
        for name, each in given.items():
            read, step = fields[name]
            made[name] = read(each, (place, step))
        return cls(**made)

    return record


def _enum(kind: type[enum.Enum]) -> _Decoder:
    def member(value: object, place: _Place) -> object:
        for each in kind:
            if each.value == value and type(each.value) is type(value):
                return each
        raise _wrong(value, "one of " + ", ".join(str(each.value) for each in kind), place)

    return member


def _plain(kind: Any) -> _Decoder:
    def plain(value: object, place: _Place) -> object:
        if _fits(kind, value):
            return value
        raise _wrong(value, _name(kind), place)

    return plain


def _is_plain(kind: Any) -> bool:
    return kind is type(None) or kind in (str, int, float, bool)


def _fits(kind: Any, value: object) -> bool:
    """A bool is not an int; an int is a float."""
    return type(value) in (int, float) if kind is float else type(value) is kind


def encode(value: object) -> object:
    """The inverse of :func:`decode`: keys in field order, dictionaries sorted, enums by value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [encode(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        return {key: encode(table[key]) for key in sorted(table)}
    return value
