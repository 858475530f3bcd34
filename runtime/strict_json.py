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
from typing import Any, TypeVar, cast

from .errors import PlanFormatError

__all__ = ["decode", "encode"]

T = TypeVar("T")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _wrong(value: object, expected: str, where: str) -> PlanFormatError:
    text = repr(value)
    return PlanFormatError(
        "A field of the manifest has the wrong type or value.",
        found=f"{text[:80]} ({type(value).__name__})",
        expected=expected,
        where=where,
        todo="Compile the plan again; a manifest is not meant to be edited by hand.",
    )


def decode(cls: type[T], value: object, where: str = "manifest") -> T:
    """Build ``cls`` (a dataclass) from a parsed JSON object. Raises PlanFormatError."""
    return cast("T", _value(cls, value, where))


def _dataclass(cls: Any, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise _wrong(value, f"an object ({_name(cls)})", where)
    given = cast("dict[str, object]", value)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(given.keys() - fields.keys())
    if unknown:
        raise PlanFormatError(
            "The manifest holds a field that this version does not know.",
            found=", ".join(unknown),
            expected=", ".join(fields),
            where=where,
            todo="Use the planonce version that compiled this plan, or compile it again.",
        )
    made: dict[str, object] = {}
    for name, field in fields.items():
        if name in given:
            made[name] = _value(_hints(cls)[name], given[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise PlanFormatError(
                "The manifest lacks a field.",
                found="nothing",
                expected=name,
                where=where,
                todo="Compile the plan again.",
            )
    return cls(**made)


def _value(kind: Any, value: object, where: str) -> object:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        for option in arguments:
            plain = option is type(None) or option in (str, int, float, bool)
            if plain and not _is_plain(option, value):
                continue
            return _value(option, value, where)
        raise _wrong(value, " or ".join(_name(a) for a in arguments), where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(value, "a list", where)
        items = cast("list[object]", value)
        return tuple(_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(value, "an object", where)
        table = cast("dict[str, object]", value)
        return {key: _value(arguments[1], item, f"{where}[{key!r}]") for key, item in table.items()}
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        for member in kind:
            if member.value == value and type(member.value) is type(value):
                return member
        raise _wrong(value, "one of " + ", ".join(str(m.value) for m in kind), where)
    if _is_plain(kind, value):
        return value
    raise _wrong(value, _name(kind), where)


def _is_plain(kind: Any, value: object) -> bool:
    if kind is type(None):
        return value is None
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


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
