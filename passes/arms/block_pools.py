"""The signature of a paged program: KV slots become pools of blocks that a block table shares out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_mlir import ir
from torch_mlir.dialects import func

from ..base import fail
from ..ir.builder import dtype_of, shape_of, tensor_type
from ..ir.positions import argument_of_role
from ..ir.roles import (
    KV_ROLES,
    ArgumentInfo,
    Role,
    arguments,
    body_of,
    results,
    set_arguments,
    set_results,
)
from .call import AttentionCall

__all__ = ["block_table_of", "to_block_pools"]

_LEAST_BLOCK = 16


def to_block_pools(function: func.FuncOp, calls: Sequence[AttentionCall], block_size: int) -> None:
    """Change every KV argument [B, H, C, D] and result into a pool [blocks, block_size, H, D] and append the
    block table, i32 [B, blocks a row]. All or nothing: ``calls`` are all of the function's attentions, and
    whatever else touches a slot is refused before anything is changed. Raises PassError.

    Until the calls are lowered, their writes have operands of the new types; nothing verifies them before.
    """
    body = body_of(function)
    _check_block_size(function, calls, block_size)
    _check_slots(function, body, calls)
    pool_dims: dict[tuple[int | None, str | None], tuple[str, ...]] = {}
    infos: list[ArgumentInfo] = []
    for info, value in zip(arguments(function), body.arguments, strict=True):
        if info.role is Role.KV:
            _, heads, _, head_dim = shape_of(value)
            value.set_type(tensor_type([None, block_size, heads, head_dim], dtype_of(value)))
            dims = ("blocks", str(block_size), str(heads), str(head_dim))
            pool_dims[info.layer, info.which] = dims
            info = replace(info, role=Role.KV_POOL, dims=dims)
        infos.append(info)
    with function.context, function.location:
        body.add_argument(tensor_type([None, None], "i32"), function.location)
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [*function.attributes["arg_attrs"], ir.DictAttr.get({})]
        )
        pools = {
            (info.layer, info.which): value.type
            for info, value in zip(infos, body.arguments, strict=False)
            if info.role is Role.KV_POOL
        }
        returned = results(function)
        types = [
            pools[info.layer, info.which] if info.role is Role.KV else type_
            for info, type_ in zip(returned, function.type.results, strict=True)
        ]
        changed = ir.FunctionType.get([value.type for value in body.arguments], types)
        function.attributes["function_type"] = ir.TypeAttr.get(changed)
    table = ArgumentInfo("block_table", Role.BLOCK_TABLE, ("batch", "blocks_per_row"))
    set_arguments(function, [*infos, table])
    set_results(
        function,
        [
            replace(info, role=Role.KV_POOL, dims=pool_dims[info.layer, info.which])
            if info.role is Role.KV
            else info
            for info in returned
        ],
    )


def block_table_of(op: ir.Operation) -> ir.Value:
    """The block table of the function that holds ``op``."""
    parent = op.parent
    function = parent.opview if isinstance(parent, ir.Operation) else parent
    assert isinstance(function, func.FuncOp), "attention is in the step's function"
    table = argument_of_role(function, Role.BLOCK_TABLE)
    assert table is not None, "the signature is changed before a call is lowered"
    return table


def _check_block_size(function: func.FuncOp, calls: Sequence[AttentionCall], block_size: int) -> None:
    if block_size < _LEAST_BLOCK or block_size & (block_size - 1):
        raise fail(
            function,
            "cannot have blocks of this size",
            found=f"block-size={block_size}",
            expected=f"a power of two from {_LEAST_BLOCK} on",
        )
    for call in calls:
        tile = _flash_tile(call.head_dim)
        if call.sinks is not None and block_size % tile:
            raise fail(
                call.op,
                f"has sinks, which PagedAttention applies in flash attention only, in layer {call.layer}",
                found=f"block-size={block_size}",
                expected=f"a multiple of {tile}, the tile of flash attention at head_dim {call.head_dim}",
            )


def _flash_tile(head_dim: int) -> int:
    """Positions that flash attention reads at a time; it takes no pool whose blocks a tile would straddle."""
    return 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64


def _check_slots(function: func.FuncOp, body: ir.Block, calls: Sequence[AttentionCall]) -> None:
    if argument_of_role(function, Role.ATTENDED_LEN) is not None:
        raise fail(
            function,
            "takes its lengths as symbols, of which the paged arm would leave attended_len unread",
            todo="leave symbol-lengths out: PagedAttention reads each row's past length on the device",
        )
    infos = arguments(function)
    present = [info.name for info in infos if info.role in (Role.KV_POOL, Role.BLOCK_TABLE)]
    if present:
        raise fail(function, "has block pools already beside attention that is not lowered", found=present[0])
    slots = {value: info for info, value in zip(infos, body.arguments, strict=True) if info.role is Role.KV}
    taken: dict[ir.Value, ir.Operation] = {}
    for call in calls:
        for which, write in (("key", call.k_write), ("value", call.v_write)):
            assert write is not None, "the arm has refused a cache that is not written"
            slot = write.operands[0]
            info = slots.get(slot)
            if info is None or (info.layer, info.which) != (call.layer, which) or slot in taken:
                raise fail(
                    write,
                    f"does not write the {which} slot of layer {call.layer}, so it cannot become a pool",
                    found="no KV argument" if info is None else info.name,
                )
            taken[slot] = write
    for slot, info in slots.items():
        write = taken.get(slot)
        if write is None:
            raise fail(
                function,
                f"has the KV slot {info.name}, which no attention takes: all become pools, or none",
            )
        for use in slot.uses:
            reader = use.owner.operation
            if reader != write:
                raise fail(reader, f"reads {info.name}, which becomes a pool of blocks, beside its write")
    returned = list(body.operations)[-1].operation
    for info, value in zip(results(function), returned.operands, strict=True):
        if info.role in KV_ROLES and value not in [write.results[0] for write in taken.values()]:
            raise fail(returned, f"returns another value for {info.name} than its write")
