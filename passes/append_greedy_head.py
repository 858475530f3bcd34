"""append-greedy-head: the program also says which token is the likeliest, so that no logits need travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import func

from .base import fail
from .ir.builder import OnnxBuilder, dtype_of, shape_of, tensor_type
from .ir.devices import HOST, copy_target, device_of_value
from .ir.roles import ResultInfo, Role, body_of, function_of, results, set_results
from .remarks import Remarks

__all__ = ["AppendGreedyHead"]

_LEFT_TO_THE_HOST = -1


@dataclass(frozen=True, slots=True)
class AppendGreedyHead:
    """Adds the result ``next_tokens`` (i64 [batch, num_logits]): the id of the largest logit, the lowest id
    of equals, computed where the logits are made. The logits stay a result: a caller that samples reads them.

    Where the sum of a row's logits is NaN, which one NaN among them makes it, the id is -1: kernels differ in
    what they take for the largest then, and the runtime looks at the logits itself. Not in the default
    pipeline: ``planonce compile --greedy-head`` adds it, after assign-placement, from which the device comes,
    and before insert-copies, which brings the result to the host.
    """

    name: ClassVar[str] = "append-greedy-head"
    summary: ClassVar[str] = "compute the likeliest next token in the program"

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError unless the function returns logits exactly once, [batch, num_logits, vocab]."""
        function = function_of(module)
        infos = results(function)
        if any(info.role is Role.NEXT_TOKENS for info in infos):
            return False
        places = [i for i, info in enumerate(infos) if info.role is Role.LOGITS]
        if len(places) != 1:
            raise fail(
                function,
                "has not exactly one result with the role logits",
                found=str(len(places)),
                expected="one, from which the next token is picked",
            )
        returned = list(body_of(function).operations)[-1].operation
        logits = _on_device(returned.operands[places[0]])
        if len(shape_of(logits)) != 3:
            raise fail(
                returned,
                "returns logits of another rank",
                found=str(logits.type),
                expected="[batch, num_logits, vocab]",
            )
        device = device_of_value(logits) or ""
        picked = _likeliest(OnnxBuilder(returned.location, ir.InsertionPoint(returned), device), logits)
        info = ResultInfo("next_tokens", Role.NEXT_TOKENS, infos[places[0]].dims[:-1])
        _return_also(function, returned, picked, [*infos, info])
        where = f" on {device}" if device else ""
        remarks.add(f"the likeliest next token is picked in the program{where}")
        return True


def _on_device(value: ir.Value) -> ir.Value:
    """The value behind a copy to the host, which is for the caller."""
    owner = value.owner
    if not isinstance(owner, ir.Block) and owner.name == "plan.copy" and copy_target(owner) == HOST:
        return owner.operands[0]
    return value


def _likeliest(builder: OnnxBuilder, logits: ir.Value) -> ir.Value:
    """[B, L, V] -> i64 [B, L]."""
    rows = shape_of(logits)[:-1]
    ids = tensor_type(rows, "i64")
    largest = builder.one("ArgMax", [logits], ids, {"axis": -1, "keepdims": 0, "select_last_index": 0})
    axis = builder.constant(np.array([-1], dtype=np.int64))
    sums = tensor_type(rows, dtype_of(logits))
    total = builder.one("ReduceSum", [logits, axis], sums, {"keepdims": 0})
    unclear = builder.one("IsNaN", [total], tensor_type(rows, "i1"))
    otherwise = builder.constant(np.array(_LEFT_TO_THE_HOST, dtype=np.int64))
    return builder.one("Where", [unclear, otherwise, largest], ids)


def _return_also(
    function: func.FuncOp, returned: ir.Operation, value: ir.Value, infos: list[ResultInfo]
) -> None:
    """Append ``value`` to what the function returns; ``infos``: the roles of all results then."""
    with function.context, returned.location:
        func.ReturnOp([*returned.operands, value], ip=ir.InsertionPoint(returned))
        returned.erase()
        type_ = function.type
        longer = ir.FunctionType.get(type_.inputs, [*type_.results, value.type])
        function.attributes["function_type"] = ir.TypeAttr.get(longer)
        function.attributes["res_attrs"] = ir.ArrayAttr.get(
            [*function.attributes["res_attrs"], ir.DictAttr.get({})]
        )
    set_results(function, infos)
