"""The operations that tracing keeps whole: weights by name, KV writes, attention."""

from __future__ import annotations

from torch_mlir import ir

from ..ir.builder import dtype_of
from .state import Lowering
from .table import Call, LoweringTable

__all__ = ["TABLE"]

TABLE = LoweringTable("planonce")


@TABLE.row("torch.planonce.weight")
def _weight(low: Lowering, call: Call) -> ir.Value:
    return low.builder.weight(ir.StringAttr(call.attributes["plan.weight"]).value, call.type)


@TABLE.row("torch.planonce.kv_write")
def _kv_write(low: Lowering, call: Call) -> ir.Value:
    cache, new, offset = call.args
    operands = [cache, low.cast(new, dtype_of(cache)), offset]
    return low.builder.plan("write_slice", operands, [call.type], {"axis": 2})[0]


@TABLE.row("torch.planonce.attention")
def _attention(low: Lowering, call: Call) -> ir.Value:
    layer, scale, window, softcap = call.args[5:]
    attributes = {"layer": layer, "scale": scale, "window": window, "softcap": softcap}
    return low.builder.plan("attention", list(call.args[:5]), [call.type], attributes)[0]
