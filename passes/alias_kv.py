"""alias-kv: every KV result shares the buffer of its argument."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch_mlir import ir

from .base import fail
from .ir.kv_writes import kv_write_of
from .ir.roles import KV_ROLES, ResultInfo, arguments, body_of, function_of, results, set_results
from .remarks import Remarks

__all__ = ["AliasKv"]


@dataclass(frozen=True, slots=True)
class AliasKv:
    """Writes ``plan.alias`` on each KV result: the index of the argument whose buffer it is written into.

    From here on the write is in place, so the argument may have no reader but the write: whether such a
    reader saw the old bytes or the new ones would depend on the order of execution.
    """

    name: ClassVar[str] = "alias-kv"
    summary: ClassVar[str] = "tie each KV result to the argument whose buffer it is written into"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when a KV result is not one write of its own argument."""
        function = function_of(module)
        body = body_of(function)
        returned = list(body.operations)[-1].operation
        slots = {
            (a.role, a.layer, a.which): i for i, a in enumerate(arguments(function)) if a.role in KV_ROLES
        }
        before = results(function)
        after: list[ResultInfo] = []
        for position, info in enumerate(before):
            if info.role in KV_ROLES:
                slot = slots.get((info.role, info.layer, info.which))
                if slot is None:
                    raise fail(returned, f"returns {info.name}, which no argument is the old value of")
                _check_in_place(body.arguments[slot], returned, position, info)
                info = replace(info, alias=slot)
            after.append(info)
        if after == before:
            return False
        set_results(function, after)
        count = sum(info.role in KV_ROLES for info in after)
        remarks.add(f"{count} KV results share their argument's buffer")
        return True


def _check_in_place(argument: ir.Value, returned: ir.Operation, position: int, info: ResultInfo) -> None:
    value = returned.operands[position]
    write = kv_write_of(value)
    if write is None:
        owner = value.owner
        found = "an argument as it came" if isinstance(owner, ir.Block) else f"the result of {owner.name}"
        at = returned if isinstance(owner, ir.Block) else owner
        raise fail(at, f"makes {info.name}, which must be a KV write", found=found)
    if write.op.operands[write.cache] != argument:
        raise fail(
            write.op,
            f"writes another value than the argument that {info.name} is the new value of",
            todo="one KV slot is written once, straight from its argument",
        )
    for use in argument.uses:
        reader = use.owner.operation
        if reader.name == "onnx.shape":
            continue  # a size is no content: it is the same before the write and after
        if reader != write.op or use.operand_number != write.cache:
            raise fail(
                reader,
                f"reads {info.name}'s buffer beside the operation that writes it in place",
                expected="no reader of the argument but its write",
                todo="read the written value instead",
            )
