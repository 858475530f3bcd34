"""The one table of passes, and making a pass from its name and the text of its options."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import importlib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from planonce.runtime.errors import PassError

from .base import Pass
from .cpp_pass import CPP_PASSES, CppPass

__all__ = [
    "PASSES",
    "OptionInfo",
    "create_pass",
    "load_pass_class",
    "option_values",
    "pass_names",
    "pass_options",
    "pass_summary",
    "pass_table",
]


def pass_table(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Name -> "module:Class". Raises PassError on a name given twice, or taken by a C++ pass."""
    table: dict[str, str] = {}
    for name, target in rows:
        if name in table or name in CPP_PASSES:
            raise PassError(f"two passes are named {name!r}", found=target, expected="one row a name")
        table[name] = target
    return table


# Modules are relative to planonce.passes; a pass's module is imported when the pass is first asked for.
PASSES: Mapping[str, str] = pass_table(
    (
        ("convert-torch-to-onnx", "convert_torch_to_onnx:ConvertTorchToOnnx"),
        ("tabulate-positions", "tabulate_positions:TabulatePositions"),
        ("fuse-rms-norm", "fuse_rms_norm:FuseRmsNorm"),
        ("fuse-activation", "fuse_activation:FuseActivation"),
        ("fuse-rope", "fuse_rope:FuseRope"),
        ("move-logit-gather", "move_logit_gather:MoveLogitGather"),
        ("fuse-skip-norm", "fuse_skip_norm:FuseSkipNorm"),
        ("merge-linears", "merge_linears:MergeLinears"),
        ("quantize-weights", "quantize_weights:QuantizeWeights"),
        ("compensate-rounding", "compensate_rounding:CompensateRounding"),
        ("symbol-lengths", "symbol_lengths:SymbolLengths"),
        ("select-attention", "select_attention:SelectAttention"),
        ("assign-placement", "assign_placement:AssignPlacement"),
        ("append-greedy-head", "append_greedy_head:AppendGreedyHead"),
        ("insert-copies", "insert_copies:InsertCopies"),
        ("alias-kv", "alias_kv:AliasKv"),
        ("fold-offsets", "fold_offsets:FoldOffsets"),
        ("verify-plan", "verify_plan:VerifyPlan"),
        ("verify-capture", "verify_capture:VerifyCapture"),
    )
)


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option as the documentation and ``planonce passes`` show it; ``default`` as pipeline text."""

    name: str
    type: str
    default: str
    help: str


def pass_names() -> tuple[str, ...]:
    """Our passes in pipeline order, then MLIR's own."""
    return (*PASSES, *CPP_PASSES)


@functools.cache
def load_pass_class(name: str) -> type[Pass]:
    """The class of one of our passes. Raises PassError when the name is unknown or not the class's own."""
    if name not in PASSES:
        near = difflib.get_close_matches(name, pass_names(), 1)
        raise PassError(
            f"there is no pass {name!r}",
            expected=", ".join(pass_names()),
            todo=f"did you mean {near[0]}?" if near else "see `planonce passes`",
        )
    module_name, class_name = PASSES[name].split(":")
    module = importlib.import_module(f".{module_name}", __package__)
    found: Any = getattr(module, class_name)
    if found.name != name:
        raise PassError(
            f"pass table: {PASSES[name]} is registered under another name", found=name, expected=found.name
        )
    if not hasattr(found, "__dataclass_fields__"):
        raise PassError(f"pass table: {PASSES[name]} is not a dataclass", found=str(found))
    return found


def create_pass(name: str, options: Mapping[str, str] | None = None) -> Pass:
    """A pass from its name and options as text. Raises PassError on an unknown name, option or value."""
    options = options or {}
    if name in CPP_PASSES:
        return CppPass.create(name, options)
    class_ = load_pass_class(name)
    hints = typing.get_type_hints(class_)
    known = {_spelled(f.name): f.name for f in dataclasses.fields(class_)}  # pyright: ignore[reportArgumentType]
    values: dict[str, Any] = {}
    for key, text in options.items():
        spelled = _spelled(key)
        if spelled not in known:
            near = difflib.get_close_matches(spelled, known, 1)
            raise PassError(
                f"pass {name} has no option {key!r}",
                expected=", ".join(known) or "no options at all",
                todo=f"did you mean {near[0]}?" if near else "",
            )
        values[known[spelled]] = _parse(text, hints[known[spelled]], f"{name}{{{key}}}")
    return class_(**values)


def pass_options(name: str) -> tuple[OptionInfo, ...]:
    """The options of a pass, in the order of its fields; none for MLIR's own passes."""
    if name in CPP_PASSES:
        return ()
    class_ = load_pass_class(name)
    hints = typing.get_type_hints(class_)
    return tuple(
        OptionInfo(
            _spelled(f.name), _type_name(hints[f.name]), _format(f.default), str(f.metadata.get("help", ""))
        )
        for f in dataclasses.fields(class_)  # pyright: ignore[reportArgumentType]
    )


def pass_summary(name: str) -> str:
    """One line about a pass. Raises PassError when the name is unknown."""
    return CPP_PASSES[name] if name in CPP_PASSES else create_pass(name).summary


def option_values(pass_: Pass) -> dict[str, str]:
    """All options of a made pass as pipeline text, defaults included."""
    if isinstance(pass_, CppPass):
        return dict(pass_.options)
    fields = dataclasses.fields(pass_)  # pyright: ignore[reportArgumentType]
    return {_spelled(f.name): _format(getattr(pass_, f.name)) for f in fields}


def _spelled(name: str) -> str:
    return name.replace("_", "-")


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _type_name(hint: Any) -> str:
    if _is_list(hint):
        return "list"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " | ".join(str(member.value) for member in hint)
    return str(getattr(hint, "__name__", hint))  # pyright: ignore


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(_format(item) for item in typing.cast("tuple[Any, ...]", value))
    if isinstance(value, enum.Enum):
        return str(value.value)
    return "" if value is dataclasses.MISSING else str(value)


def _parse(text: str, hint: Any, what: str) -> Any:
    if _is_list(hint):
        item = typing.get_args(hint)[0]
        return tuple(_parse(part, item, what) for part in text.split(",")) if text else ()
    if hint is bool:
        if text in ("true", "false"):
            return text == "true"
    elif hint is str:
        return text
    else:
        try:
            return hint(text)
        except (TypeError, ValueError):
            pass
    raise PassError(f"option {what} has an unusable value", found=repr(text), expected=_type_name(hint))
