"""Matrix products. Weights stay in the layout the checkpoint has them in."""

from __future__ import annotations

from torch_mlir import ir

from ..ir.builder import dtype_of, rank_of, shape_of, tensor_type
from ..ir.op_schema import MS_DOMAIN
from .state import Lowering
from .table import Call, LoweringTable, NotLowered

__all__ = ["TABLE"]

TABLE = LoweringTable("linear")


@TABLE.row("torch.aten.linear")
def _linear(low: Lowering, call: Call) -> ir.Value:
    """x [.., K], weight [N, K] as torch keeps it, bias [N] or None. FusedMatMul reads it transposed."""
    value, weight, bias = call.args
    product = low.one("FusedMatMul", [value, weight], call.type, {"transB": 1}, MS_DOMAIN)
    return product if bias is None else low.one("Add", [product, bias], call.type)


@TABLE.row("torch.aten.mm", "torch.aten.bmm", "torch.aten.matmul")
def _matmul(low: Lowering, call: Call) -> ir.Value:
    return low.one("MatMul", list(call.args[:2]), call.type)


@TABLE.row("torch.aten.addmm")
def _addmm(low: Lowering, call: Call) -> ir.Value:
    """bias + rows @ weight, weight [K, N]. When the rows are a view of [.., K], the product is made on
    that, and its own rows are noted: the view back to [.., N] then costs nothing."""
    bias, rows, weight, beta, alpha = call.args
    if beta != 1 or alpha != 1:
        raise NotLowered(f"addmm with beta {beta}, alpha {alpha}")
    source = low.rows_of.get(rows)
    if source is None:
        return low.one("Add", [low.one("MatMul", [rows, weight], call.type), bias], call.type)
    columns = shape_of(weight)[1]
    type_ = tensor_type([*shape_of(source)[:-1], columns], dtype_of(source))
    whole = low.one("Add", [low.one("MatMul", [source, weight], type_), bias], type_)
    low.set_sizes(whole, [*low.sizes(source)[:-1], low.sizes(weight)[1]])
    assert rank_of(call.type) == 2
    result = low.reshape(whole, [low.sizes(rows)[0], low.sizes(weight)[1]], call.type)
    low.rows_of[result] = whole
    return result
