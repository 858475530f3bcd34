"""symbol-lengths: the lengths of a step come from the host, as symbols, instead of from the write offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import func

from .base import fail
from .ir.builder import OnnxBuilder, tensor_type
from .ir.positions import every_row
from .ir.roles import ArgumentInfo, Role, arguments, body_of, function_of, set_arguments
from .remarks import Remarks

__all__ = ["SymbolLengths"]

_SYMBOLS = (Role.CACHED_LEN, Role.ATTENDED_LEN)


@dataclass(frozen=True, slots=True)
class SymbolLengths:
    """Adds the arguments ``cached_len`` and ``attended_len`` (i64 scalars) and lets the program follow them.

    ``cached_len``, positions in the cache before the step, takes the place of the write offset: for the
    positions that rotate, and for where the portable arm writes. ``attended_len``, positions after the step,
    is how far attention looks; select-attention, which must come after this pass, also derives from it where
    the fused arm writes (so that there ``cached_len`` says only what rotates, and nothing at all where the
    arm rotates by itself). The runtime binds both on the host for every step. All rows have one length.
    """

    name: ClassVar[str] = "symbol-lengths"
    summary: ClassVar[str] = "take the step's lengths from the host instead of the write offset"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError without a write_offset and a token_ids argument."""
        function = function_of(module)
        body = body_of(function)
        infos = arguments(function)
        by_role = {info.role: value for info, value in zip(infos, body.arguments, strict=True)}
        if Role.CACHED_LEN in by_role:
            return False
        offset, token_ids = by_role.get(Role.WRITE_OFFSET), by_role.get(Role.TOKEN_IDS)
        if offset is None or token_ids is None:
            raise fail(function, "has no write_offset or no token_ids argument")
        cached = _add_arguments(function, body, infos)
        first = ir.InsertionPoint.at_block_begin(body)
        rows = every_row(OnnxBuilder(function.location, first), cached, token_ids)
        own = set(_makers(rows))
        for use in list(offset.uses):
            if use.owner.operation not in own:
                use.owner.operation.operands[use.operand_number] = rows
        remarks.add("lengths are the symbols cached_len and attended_len, bound by the host for each step")
        return True


def _add_arguments(function: func.FuncOp, body: ir.Block, infos: list[ArgumentInfo]) -> ir.Value:
    """Append the symbols to the signature; the value of cached_len."""
    with function.context, function.location:
        scalar = tensor_type([], "i64")
        values = [body.add_argument(scalar, function.location) for _ in _SYMBOLS]
        type_ = function.type
        longer = ir.FunctionType.get([*type_.inputs, scalar, scalar], type_.results)
        function.attributes["function_type"] = ir.TypeAttr.get(longer)
        empty = [ir.DictAttr.get({}) for _ in _SYMBOLS]
        function.attributes["arg_attrs"] = ir.ArrayAttr.get([*function.attributes["arg_attrs"], *empty])
    set_arguments(function, [*infos, *(ArgumentInfo(role.value, role, ()) for role in _SYMBOLS)])
    return values[0]


def _makers(value: ir.Value) -> list[ir.Operation]:
    owner = value.owner
    if isinstance(owner, ir.Block):
        return []
    return [owner, *(op for operand in owner.operands for op in _makers(operand))]
