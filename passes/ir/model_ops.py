"""The operations of a program with the part of the model that each belongs to, and what each part weighs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import func

from ..model_parts import EMBED, PartNode, Parts, parts_of
from ..placement_cost import ModelCost
from .devices import is_placed
from .kv_writes import kv_write_of
from .roles import KV_ROLES, Role, arguments
from .tensors import DTYPES, dtype_of, shape_of

__all__ = ["ModelOps", "layer_of_weight", "read_model_ops"]

# The first number that stands by itself: model.layers.3.mlp.experts.7.w1 is of layer 3.
_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
_ATTENTION = frozenset({"plan.attention", "plan.latent_attention", "plan.paged_write"})


@dataclass(frozen=True, slots=True)
class ModelOps:
    """Placed operations in program order; ``kv_layers[i]``: the layer whose KV buffer op i touches, or None.

    IR objects: to be used before the next pass and thrown away.
    """

    ops: list[ir.Operation]
    parts: Parts
    kv_layers: list[int | None]
    weights: dict[int, dict[str, int]]  # part -> weight's name -> bytes
    kv: dict[int, int]  # layer -> bytes a position
    activation: int

    def cost(self) -> ModelCost:
        """Bytes of each part, for placement by budget."""
        head, n = self.parts.head, range(self.parts.head)
        embed, last = self.weights.get(EMBED, {}), self.weights.get(head, {})
        return ModelCost(
            layers=tuple(sum(self.weights.get(i, {}).values()) for i in n),
            kv=tuple(self.kv.get(i, 0) for i in n),
            embed=sum(embed.values()),
            head=sum(last.values()),
            shared=sum(size for name, size in embed.items() if name in last),
            activation=self.activation,
        )


def layer_of_weight(name: str) -> int | None:
    """The layer in a weight's name: 3 for ``model.layers.3.mlp.up.weight``, None for ``lm_head.weight``."""
    match = _LAYER.search(name)
    return None if match is None else int(match[1])


def read_model_ops(function: func.FuncOp, body: ir.Block) -> ModelOps:
    """Read every placed operation, and what it says of itself: weights, KV slots, ``layer`` attributes."""
    infos = arguments(function)
    ops = [view.operation for view in body.operations if is_placed(view)]
    index = {op: i for i, op in enumerate(ops)}
    slots = {
        value: info.layer
        for value, info in zip(body.arguments, infos, strict=True)
        if info.role in KV_ROLES and info.layer is not None
    }
    pools = {v for v, info in zip(body.arguments, infos, strict=True) if info.role is Role.KV_POOL}
    returned = {owner for value in list(body.operations)[-1].operands if (owner := _owner(value)) is not None}
    nodes: list[PartNode] = []
    kv_layers: list[int | None] = []
    names: list[dict[str, int]] = []
    for op in ops:
        touched = [layer for value in op.operands if (layer := _slot(value, slots)) is not None]
        weights = _weights(op.operands)
        layers = [*touched, *(layer for name in weights if (layer := layer_of_weight(name)) is not None)]
        if op.name in _ATTENTION:
            layers.append(ir.IntegerAttr(op.attributes["layer"]).value)
            touched = touched or layers[-1:]
        nodes.append(
            PartNode(
                producers=tuple(sorted(p for value in op.operands for p in _producers(value, index))),
                layer=max(layers, default=None),
                other_weight=any(layer_of_weight(name) is None for name in weights),
                returned=op in returned,
            )
        )
        kv_layers.append(max(touched, default=None))
        names.append(weights)
    n_layers = 1 + max((layer for layer in slots.values()), default=-1)
    parts = parts_of(nodes, n_layers)
    held: dict[int, dict[str, int]] = {}
    for part, weights in zip(parts.of, names, strict=True):
        held.setdefault(part, {}).update(weights)
    return ModelOps(ops, parts, kv_layers, held, _kv_bytes(slots, pools), _activation(ops, parts))


def _owner(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner


def _slot(value: ir.Value, slots: dict[ir.Value, int]) -> int | None:
    """The layer whose buffer ``value`` is: a KV argument, or what an operation wrote into one."""
    if value in slots:
        return slots[value]
    owner = _owner(value)
    if owner is not None and owner.name == "plan.copy":
        return _slot(owner.operands[0], slots)
    write = kv_write_of(value)
    return None if write is None else _slot(write.op.operands[write.cache], slots)


def _weights(operands: Sequence[ir.Value]) -> dict[str, int]:
    """Name and bytes of each weight that an operation takes itself."""
    found: dict[str, int] = {}
    for value in operands:
        owner = _owner(value)
        if owner is not None and owner.name == "plan.weight":
            size = DTYPES[dtype_of(value)].itemsize * math.prod(n or 1 for n in shape_of(value))
            found[_weight_key(owner)] = size
    return found


def _weight_key(op: ir.Operation) -> str:
    """A name for the bytes: a quantised weight's tensors are several, and rows are data in another shape."""
    name = ir.StringAttr(op.attributes["name"]).value
    if "form" not in op.attributes:
        return name
    form = ir.StringAttr(op.attributes["form"]).value
    return f"{name}@{'data' if form == 'rows' else form}"


def _producers(value: ir.Value, index: dict[ir.Operation, int]) -> set[int]:
    owner = _owner(value)
    if owner is None:
        return set()
    if owner in index:
        return {index[owner]}
    return {p for operand in owner.operands for p in _producers(operand, index)}  # through a copy


def _kv_bytes(slots: dict[ir.Value, int], pools: set[ir.Value]) -> dict[int, int]:
    """Bytes of a layer's KV for one position of one row: every static dimension's product, of a pool's
    [blocks, block_size, heads, head_dim] the last two."""
    found: dict[int, int] = {}
    for value, layer in slots.items():
        shape = shape_of(value)[2:] if value in pools else shape_of(value)
        size = DTYPES[dtype_of(value)].itemsize * math.prod(n for n in shape if n is not None)
        found[layer] = found.get(layer, 0) + size
    return found


def _activation(ops: Sequence[ir.Operation], parts: Parts) -> int:
    """Bytes a position of what the embedding hands on."""
    for op, part in zip(ops, parts.of, strict=True):
        if part == EMBED and any(True for _ in op.results[0].uses):
            value = op.results[0]
            return DTYPES[dtype_of(value)].itemsize * math.prod(n for n in shape_of(value) if n is not None)
    return 0
