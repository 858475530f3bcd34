"""select-attention: every plan.attention becomes one of the arms."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import func

from planonce.runtime.errors import PassError

from .arms.block_pools import to_block_pools
from .arms.call import AttentionArm, AttentionCall
from .arms.fused import FusedArm
from .arms.paged import PagedArm
from .arms.portable import PortableArm
from .arms.rotary import lower_rope
from .arms.step_lengths import StepLengths
from .base import fail, option
from .ir.builder import OnnxBuilder
from .ir.devices import check_device, device_of_op
from .ir.matching import erase_if_dead
from .ir.positions import argument_of_role, step_positions
from .ir.roles import Role, arguments, body_of, function_of
from .remarks import Remarks

__all__ = ["ARMS", "ArmChoice", "SelectAttention"]

# In order of preference: auto takes the first that does not refuse. The paged arm is for who asks for it: it
# changes what the caller has to bind.
_AUTO: tuple[type[AttentionArm], ...] = (FusedArm, PortableArm)
ARMS: Mapping[str, type[AttentionArm]] = {arm.name: arm for arm in (*_AUTO, PagedArm)}


class ArmChoice(enum.Enum):
    """``auto`` decides for each layer by dtype, head sizes, layout and device; it never picks ``paged``."""

    AUTO = "auto"
    FUSED = "fused"
    PORTABLE = "portable"
    PAGED = "paged"


@dataclass(frozen=True, slots=True)
class SelectAttention:
    """Replaces every ``plan.attention``, ``plan.write_slice`` and ``plan.rope`` by ONNX operations.

    The fused arm takes the two KV writes and the attention as one GroupQueryAttention that writes in place
    and costs what is live; also the rotary embedding, where queries and keys turn alike and the sizes are
    multiples of 16, and queries, keys and values unsplit where one product makes them all. The portable
    arm keeps the writes (TensorScatter) and works on slices of the live prefix. Lengths and masks are
    computed once a device for all its layers. The choice for each layer, and why the better arm was not
    taken, is a remark and goes into the plan's manifest.

    The paged arm, on CUDA and only when asked for, takes the same as one PagedAttention over pools of blocks.
    It changes the signature, so all layers take it or none: every KV argument [batch, heads, capacity,
    head_dim] becomes a pool [blocks, block_size, heads, head_dim], and the argument ``block_table`` (i32
    [batch, blocks a row]) says which blocks are whose.
    """

    name: ClassVar[str] = "select-attention"
    summary: ClassVar[str] = (
        "lower attention, KV writes and rotary embeddings to the arm that suits each layer"
    )

    arm: ArmChoice = option(ArmChoice.AUTO, "the arm for every layer; auto: the best that each layer allows")
    device: str = option("cpu:0", "device to choose for where an operation has none yet")
    block_size: int = option(256, "positions in a block of the paged arm: a power of two, 16 or more")

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when a layer cannot take the arm that was asked for."""
        check_device(self.device)
        function = function_of(module)
        body = body_of(function)
        ops = [view.operation for view in body.operations]
        attentions = [op for op in ops if op.name == "plan.attention"]
        lengths: dict[str, StepLengths] = {}
        if attentions:
            token_ids, offset = _token_ids(function, body), attentions[0].operands[3].owner
            # The lengths follow from the write offset: before everything, or right after what makes it.
            first = (
                ir.InsertionPoint(ops[0]) if isinstance(offset, ir.Block) else ir.InsertionPoint.after(offset)
            )
            if self.arm is ArmChoice.PAGED:
                self._to_block_pools(function, attentions, remarks)
            for op in attentions:
                device = device_of_op(op) or ""
                if device not in lengths:
                    builder = OnnxBuilder(function.location, first, device)
                    on_cuda = (device or self.device).startswith("cuda")
                    attended = argument_of_role(function, Role.ATTENDED_LEN)
                    lengths[device] = StepLengths(builder, token_ids, on_cuda=on_cuda, attended_len=attended)
                self._lower(op, lengths[device], remarks)
        writes = [view.operation for view in body.operations if view.operation.name == "plan.write_slice"]
        for op in writes:
            _lower_write(op)
        # After the arms: the fused one has taken in those that it can apply itself.
        ropes = [view.operation for view in body.operations if view.operation.name == "plan.rope"]
        for op in ropes:
            lower_rope(op)
        if ropes:
            remarks.add(f"{len(ropes)} rotary embeddings are operations of their own")
        if attentions:
            # Last: an arm recognises positions by the form that this gives up.
            self._count_positions(function, lengths)
        return bool(attentions or writes or ropes)

    def _count_positions(self, function: func.FuncOp, lengths: Mapping[str, StepLengths]) -> None:
        """On CUDA the positions of the new tokens, where an operation still reads them, are counted there."""
        offset = argument_of_role(function, Role.WRITE_OFFSET)
        found = step_positions(function)
        for positions in found:
            owner = positions.owner
            assert offset is not None and not isinstance(owner, ir.Block)
            device = device_of_op(owner) or ""
            if (device or self.device).startswith("cuda") and device in lengths and any(positions.uses):
                positions.replace_all_uses_with(lengths[device].positions(offset))
        for positions in found:
            erase_if_dead(positions)

    def _to_block_pools(
        self, function: func.FuncOp, attentions: list[ir.Operation], remarks: Remarks
    ) -> None:
        calls = [_call_of(op) for op in attentions]
        for call in calls:
            self._choose(call)
        to_block_pools(function, calls, self.block_size)
        remarks.add(
            f"{2 * len(calls)} KV slots became pools of blocks, {self.block_size} positions each, "
            "that the argument block_table shares out"
        )

    def _lower(self, op: ir.Operation, lengths: StepLengths, remarks: Remarks) -> None:
        call = _call_of(op)
        arm, reason = self._choose(call)
        remarks.add(f"layer {call.layer}: {arm.name}: {reason}", at=op)
        device = device_of_op(op) or ""
        arm.lower(call, OnnxBuilder(op.location, ir.InsertionPoint(op), device), lengths)

    def _choose(self, call: AttentionCall) -> tuple[type[AttentionArm], str]:
        device = call.device or self.device
        if self.arm is not ArmChoice.AUTO:
            arm = ARMS[self.arm.value]
            refusal = arm.refusal(call, device)
            if refusal:
                raise fail(
                    call.op,
                    f"cannot be computed by the {arm.name} arm in layer {call.layer}",
                    found=refusal,
                    todo="use arm=auto, which takes another arm for such a layer",
                )
            return arm, f"asked for; {arm.reason}"
        refusals: list[str] = []
        for arm in _AUTO:
            refusal = arm.refusal(call, device)
            if not refusal:
                return arm, "; ".join([*refusals, arm.reason])
            refusals.append(f"not {arm.name}: {refusal}")
        raise fail(call.op, "fits no arm", found="; ".join(refusals))


def _call_of(op: ir.Operation) -> AttentionCall:
    try:
        return AttentionCall.of(op)
    except PassError as error:
        raise fail(op, error.message, found=error.found) from None


def _token_ids(function: ir.OpView, body: ir.Block) -> ir.Value:
    for info, value in zip(arguments(function), body.arguments, strict=True):  # pyright: ignore[reportArgumentType]
        if info.role is Role.TOKEN_IDS:
            return value
    raise fail(function, "has no token_ids argument, whose length says how many positions a step writes")


def _lower_write(op: ir.Operation) -> None:
    cache, new, offset = op.operands
    builder = OnnxBuilder(op.location, ir.InsertionPoint(op), device_of_op(op) or "")
    axis = ir.IntegerAttr(op.attributes["axis"]).value
    written = builder.one("TensorScatter", [cache, new, offset], cache.type, {"axis": axis})
    op.results[0].replace_all_uses_with(written)
    op.erase()
