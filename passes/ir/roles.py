"""What each argument and result of the step function is for, stored as ``plan.*`` attributes on it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import func

from planonce.runtime.errors import PassError

__all__ = [
    "HOST_ROLES",
    "KV_ROLES",
    "ArgumentInfo",
    "ResultInfo",
    "Role",
    "arguments",
    "body_of",
    "function_of",
    "results",
    "set_arguments",
    "set_results",
]


class Role(enum.Enum):
    """Role of an argument or result; LOGITS and NEXT_TOKENS for results only, the step inputs for arguments
    only."""

    TOKEN_IDS = "token_ids"
    WRITE_OFFSET = "write_offset"
    CACHED_LEN = "cached_len"
    ATTENDED_LEN = "attended_len"
    LOGIT_POSITIONS = "logit_positions"
    KV = "kv"  # one sequence's keys or values, or a batch's: [batch, heads, capacity, head_dim]
    KV_POOL = "kv_pool"  # blocks of any sequence's: [blocks, block_size, heads, head_dim]
    BLOCK_TABLE = "block_table"  # i32 [batch, blocks a row]: which blocks of the pools are a row's, in order
    LOGITS = "logits"
    NEXT_TOKENS = "next_tokens"  # i64 [batch, num_logits]: the likeliest; -1: left to the host


# What is written in place: a layer's keys or values, as a slot or as a pool of blocks.
KV_ROLES = frozenset({Role.KV, Role.KV_POOL})
# What the caller reads on the host.
HOST_ROLES = frozenset({Role.LOGITS, Role.NEXT_TOKENS})


@dataclass(frozen=True, slots=True)
class ArgumentInfo:
    """One argument. ``dims``: a name (symbolic) or a decimal for each dimension. ``which``: key or value."""

    name: str
    role: Role
    dims: tuple[str, ...]
    layer: int | None = None
    which: str | None = None


@dataclass(frozen=True, slots=True)
class ResultInfo:
    """One result. ``alias``: index of the argument whose buffer it shares, once alias-kv has run."""

    name: str
    role: Role
    dims: tuple[str, ...]
    layer: int | None = None
    which: str | None = None
    alias: int | None = None


def function_of(module: ir.Module) -> func.FuncOp:
    """The module's one function. Raises PassError when there is none or more than one."""
    found = [op for op in module.body.operations if isinstance(op, func.FuncOp)]
    if len(found) != 1:
        names = ", ".join(op.name.value for op in found) or "none"
        raise PassError("a program is one function", found=names, expected="one func.func")
    return found[0]


def body_of(function: func.FuncOp) -> ir.Block:
    """The function's only block. Raises PassError when it is a declaration or has control flow."""
    blocks = list(function.regions[0].blocks)
    if len(blocks) != 1:
        raise PassError("a step function has one block", found=str(len(blocks)), expected="1")
    return blocks[0]


def arguments(function: func.FuncOp) -> list[ArgumentInfo]:
    """The roles of all arguments, in order. Raises PassError when one is missing or malformed."""
    dicts = _dictionaries(function, "arg_attrs", len(function.type.inputs))
    return [ArgumentInfo(**_common(d, f"argument {i}")) for i, d in enumerate(dicts)]


def results(function: func.FuncOp) -> list[ResultInfo]:
    """The roles of all results, in order. Raises PassError when one is missing or malformed."""
    dicts = _dictionaries(function, "res_attrs", len(function.type.results))
    return [
        ResultInfo(**_common(d, f"result {i}"), alias=_integer(d, "plan.alias", f"result {i}"))
        for i, d in enumerate(dicts)
    ]


def set_arguments(function: func.FuncOp, infos: Sequence[ArgumentInfo]) -> None:
    """Write the roles of all arguments; their other attributes stay. Raises PassError on a wrong count."""
    _write(function, "arg_attrs", len(function.type.inputs), [_encode(info) for info in infos])


def set_results(function: func.FuncOp, infos: Sequence[ResultInfo]) -> None:
    """Write the roles of all results; their other attributes stay. Raises PassError on a wrong count."""
    encoded = [{**_encode(info), "plan.alias": info.alias} for info in infos]
    _write(function, "res_attrs", len(function.type.results), encoded)


def _dictionaries(function: func.FuncOp, key: str, count: int) -> list[dict[str, ir.Attribute]]:
    if key not in function.attributes:
        return [{} for _ in range(count)]
    return [{named.name: named.attr for named in entry} for entry in function.attributes[key]]


def _encode(info: ArgumentInfo | ResultInfo) -> dict[str, Any]:
    return {
        "plan.name": info.name,
        "plan.role": info.role.value,
        "plan.dims": info.dims,
        "plan.layer": info.layer,
        "plan.which": info.which,
    }


def _write(function: func.FuncOp, key: str, count: int, encoded: Sequence[Mapping[str, Any]]) -> None:
    if len(encoded) != count:
        raise PassError(f"wrong number of entries for {key}", found=str(len(encoded)), expected=str(count))
    with function.context:
        entries: list[ir.Attribute] = []
        for old, new in zip(_dictionaries(function, key, count), encoded, strict=True):
            merged = {k: v for k, v in old.items() if k not in new}
            merged.update({k: _attribute(v) for k, v in new.items() if v is not None})
            entries.append(ir.DictAttr.get(merged))
        function.attributes[key] = ir.ArrayAttr.get(entries)


def _attribute(value: str | int | Sequence[str]) -> ir.Attribute:
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    return ir.ArrayAttr.get([ir.StringAttr.get(item) for item in value])


def _common(attributes: Mapping[str, Any], what: str) -> dict[str, Any]:
    role = _string(attributes, "plan.role", what)
    if role not in {member.value for member in Role}:
        raise PassError(
            f"{what} has an unknown plan.role", found=role, expected=", ".join(r.value for r in Role)
        )
    dims = attributes.get("plan.dims")
    if (
        dims is None
        or not isinstance(dims, ir.ArrayAttr)
        or not all(isinstance(d, ir.StringAttr) for d in dims)
    ):
        raise PassError(f"{what} has no usable plan.dims", found=str(dims), expected="an array of strings")
    layer = _integer(attributes, "plan.layer", what)
    which = None
    if role in {member.value for member in KV_ROLES}:
        which = _string(attributes, "plan.which", what)
        if which not in ("key", "value") or layer is None:
            raise PassError(
                f"{what} is a KV slot without its place",
                found=f"plan.layer {layer}, plan.which {which!r}",
                expected='plan.layer, and plan.which "key" or "value"',
            )
    return {
        "name": _string(attributes, "plan.name", what),
        "role": Role(role),
        "dims": tuple(str(item.value) for item in dims),
        "layer": layer,
        "which": which,
    }


def _string(attributes: Mapping[str, Any], key: str, what: str) -> str:
    value = attributes.get(key)
    if value is None or not isinstance(value, ir.StringAttr):
        raise PassError(f"{what} has no usable {key}", found=str(value), expected="a string")
    return str(value.value)


def _integer(attributes: Mapping[str, Any], key: str, what: str) -> int | None:
    value = attributes.get(key)
    if value is None:
        return None
    if not isinstance(value, ir.IntegerAttr):
        raise PassError(f"{what} has no usable {key}", found=str(value), expected="an integer")
    return int(value.value)
