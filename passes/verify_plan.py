"""verify-plan: what must be true of a program before it may become a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import func

from .base import fail
from .ir.devices import HOST, copy_target, device_of_op, device_of_value, is_placed
from .ir.kv_writes import kv_write_of, offset_of, writes_into
from .ir.roles import HOST_ROLES, KV_ROLES, ArgumentInfo, Role, arguments, body_of, function_of, results
from .ir.tensors import shape_of
from .remarks import Remarks

__all__ = ["VerifyPlan"]

# What a write's position may follow from: on the symbol path the host binds the lengths themselves.
_LENGTHS = frozenset({Role.WRITE_OFFSET, Role.CACHED_LEN, Role.ATTENDED_LEN})
_PLAN_LEFT = frozenset({"plan.weight", "plan.copy", "plan.contiguize"})
# Dimensions whose size the runtime decides.
_SYMBOLIC: Mapping[Role, tuple[int, ...]] = {
    Role.TOKEN_IDS: (0, 1),
    Role.WRITE_OFFSET: (0,),
    Role.LOGIT_POSITIONS: (0,),
    Role.KV: (0, 2),
    Role.KV_POOL: (0,),
    Role.BLOCK_TABLE: (0, 1),
}
# op -> the operand that says which blocks it writes and reads.
_BLOCK_TABLES: Mapping[str, int] = {"onnx.ms_paged_attention": 7}


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """Changes nothing; refuses a program that could decode wrongly without an error.

    Each KV slot is written exactly once, in place, at a position that follows from the write offset (a
    position that does not is a cached length baked into the program). A block pool is written in the blocks
    that the argument ``block_table`` gives, and where one slot is a pool all are. Batch, sequence, capacity
    and the number of blocks are symbolic. Every operation can be emitted and has a device; a value crosses
    devices through a copy only; logits and next tokens come to the host. A weight has one shape wherever it
    is used.
    """

    name: ClassVar[str] = "verify-plan"
    summary: ClassVar[str] = "refuse a program that breaks a rule of plans"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError at the first rule that does not hold."""
        del remarks
        function = function_of(module)
        body = body_of(function)
        _check_signature(function, body)
        weights: dict[str, ir.Type] = {}
        for view in body.operations:
            _check_op(view.operation, weights)
        _check_results(function, body)
        _check_kv(function, body)
        return False


def _check_signature(function: func.FuncOp, body: ir.Block) -> None:
    infos = arguments(function)
    for role in (Role.TOKEN_IDS, Role.WRITE_OFFSET):
        if sum(info.role is role for info in infos) != 1:
            raise fail(function, f"has not exactly one argument with the role {role.value}")
    _check_pools(function, infos)
    for info, value in zip(infos, body.arguments, strict=True):
        for axis in _SYMBOLIC.get(info.role, ()):
            if shape_of(value)[axis] is not None:
                raise fail(
                    function,
                    f"fixes dimension {axis} of {info.name}: the plan would serve one length only",
                    found=str(value.type),
                    expected="a dynamic dimension",
                )


def _check_pools(function: func.FuncOp, infos: list[ArgumentInfo]) -> None:
    roles = [info.role for info in infos]
    pools, tables = roles.count(Role.KV_POOL), roles.count(Role.BLOCK_TABLE)
    if pools and Role.KV in roles:
        raise fail(
            function,
            "keeps some of its KV in slots and some in pools of blocks",
            found=f"{roles.count(Role.KV)} slots and {pools} pools",
            todo="ask select-attention for the paged arm in every layer, or in none",
        )
    if tables != (1 if pools else 0):
        raise fail(function, "needs one block table for its pools, and none without", found=str(tables))


def _check_op(op: ir.Operation, weights: dict[str, ir.Type]) -> None:
    if op.name == "func.return":
        return
    if not op.name.startswith("onnx.") and op.name not in _PLAN_LEFT:
        raise fail(op, "has no ONNX form", todo="let the pipeline lower it before verify-plan")
    if op.name == "plan.weight":
        name = ir.StringAttr(op.attributes["name"]).value
        if "form" in op.attributes:
            name = f"{name} ({ir.StringAttr(op.attributes['form']).value})"
        known = weights.setdefault(name, op.results[0].type)
        if known != op.results[0].type:
            raise fail(
                op,
                f"uses the weight {name} in another shape",
                found=str(op.results[0].type),
                expected=str(known),
            )
    if not is_placed(op):
        return
    device = device_of_op(op)
    if device is None:
        raise fail(op, "has no device", todo="run assign-placement")
    for value in op.operands:
        home = device_of_value(value)
        if home is not None and home != device:
            raise fail(
                op,
                "reads a value from another device without a copy",
                found=f"a value on {home}",
                expected=f"a value on {device}",
                todo="run insert-copies",
            )


def _check_results(function: func.FuncOp, body: ir.Block) -> None:
    returned = list(body.operations)[-1].operation
    infos = results(function)
    if sum(info.role is Role.LOGITS for info in infos) != 1:
        raise fail(returned, "must return logits exactly once")
    if sum(info.role is Role.NEXT_TOKENS for info in infos) > 1:
        raise fail(returned, "must not return next tokens twice")
    for info, value in zip(infos, returned.operands, strict=True):
        if info.role in HOST_ROLES:
            owner = value.owner
            if isinstance(owner, ir.Block) or owner.name != "plan.copy" or copy_target(owner) != HOST:
                raise fail(
                    returned, f"returns {info.name} that are not on the host", todo="run insert-copies"
                )


def _check_kv(function: func.FuncOp, body: ir.Block) -> None:
    infos = arguments(function)
    returned = list(body.operations)[-1].operation
    lengths = [value for value, info in zip(body.arguments, infos, strict=True) if info.role in _LENGTHS]
    tables = [v for v, info in zip(body.arguments, infos, strict=True) if info.role is Role.BLOCK_TABLE]
    tied: dict[int, int] = {}
    for position, info in enumerate(results(function)):
        if info.role not in KV_ROLES:
            continue
        if info.alias is None:
            raise fail(returned, f"returns {info.name} without its buffer", todo="run alias-kv")
        if info.alias in tied:
            raise fail(returned, f"returns two values for the KV slot {infos[info.alias].name}")
        tied[info.alias] = position
    for index, info in enumerate(infos):
        if info.role not in KV_ROLES:
            continue
        writers = [use for use in body.arguments[index].uses if writes_into(use.owner, use.operand_number)]
        if index not in tied or len(writers) != 1:
            at = writers[0].owner if writers else function
            raise fail(at, f"KV slot {info.name} is not written exactly once", found=f"{len(writers)} writes")
        write = kv_write_of(returned.operands[tied[index]])
        if write is None or write.op.operands[write.cache] != body.arguments[index]:
            raise fail(returned, f"returns a value for {info.name} that is not the write of it")
        if not any(_follows_from(offset_of(write), length) for length in lengths):
            raise fail(
                write.op,
                f"writes {info.name} at a position that does not follow from the write offset",
                found="a cached length baked into the program",
                expected="a value computed from the write_offset argument",
            )
        table = _BLOCK_TABLES.get(write.op.name)
        if (table is None) == (info.role is Role.KV_POOL) or (
            table is not None and write.op.operands[table] not in tables
        ):
            raise fail(
                write.op,
                f"writes {info.name} otherwise than through the argument block_table",
                expected="PagedAttention for a pool, whose block table is the argument, and for a pool alone",
            )


def _follows_from(value: ir.Value, source: ir.Value) -> bool:
    """Whether ``source`` is among what ``value`` is computed from."""
    seen: set[ir.Value] = set()
    todo = [value]
    while todo:
        value = todo.pop()
        if value == source:
            return True
        owner = value.owner
        if value not in seen and not isinstance(owner, ir.Block):
            seen.add(value)
            todo.extend(owner.operands)
    return False
