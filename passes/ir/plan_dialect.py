"""The ``plan`` dialect: what a decode step needs and ONNX has no word for.

Tensors are values: ``plan.write_slice`` returns the written cache, it does not change its operand.
That a KV result shares its argument's buffer is said later, by alias-kv, on the function's results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch_mlir import ir

from planonce.runtime.errors import PassError

from .attributes import AttributeKind, kind_matches, to_python
from .irdl import Arity, OpShape, load_dialect
from .nbits import NBits, WeightForm
from .op_schema import AttributeSpec
from .tensors import dtype_of, is_none, rank_of, shape_of

__all__ = ["DEVICE", "PLAN_OPS", "PlanOp", "find_plan_op", "load_plan_dialect"]

# Discardable attribute of any op: the logical device that runs it, such as "cpu:0".
DEVICE = "plan.device"

_INT, _FLOAT, _STRING = AttributeKind.INT, AttributeKind.FLOAT, AttributeKind.STRING


@dataclass(frozen=True, slots=True)
class PlanOp:
    """One op of the dialect. Operands in ``optional`` may be ``onnx.no_value``; there is one result."""

    operands: tuple[str, ...]
    attributes: Mapping[str, AttributeSpec] = field(default_factory=dict[str, AttributeSpec])
    optional: frozenset[str] = frozenset()
    verify: Callable[[ir.OpView], None] = lambda op: None
    pure: bool = True


def _attributes(**kinds: AttributeKind) -> dict[str, AttributeSpec]:
    return {name: AttributeSpec(kind, required=True) for name, kind in kinds.items()}


def _expect(condition: bool, message: str, found: object, expected: object) -> None:
    if not condition:
        raise PassError(message, found=str(found), expected=str(expected))


def _same_type(op: ir.OpView) -> None:
    found, expected = op.results[0].type, op.operands[0].type
    _expect(found == expected, "the result's type differs from the operand's", found, expected)


def _rank(op: ir.OpView, index: int, name: str, rank: int) -> None:
    found = rank_of(op.operands[index])
    _expect(found == rank, f"operand {name!r} has the wrong rank", found, rank)


def _write_offset(op: ir.OpView, index: int) -> None:
    _rank(op, index, "write_offset", 1)
    found = dtype_of(op.operands[index])
    _expect(found == "i64", "operand 'write_offset' has the wrong dtype", found, "i64")


def _agree(name: str, *sizes: int | None) -> None:
    static = {size for size in sizes if size is not None}
    _expect(len(static) <= 1, f"operands disagree about {name}", sorted(static), "one size")


def _weight(op: ir.OpView) -> None:
    shape = shape_of(op.results[0])
    _expect(None not in shape, "a weight's shape must be static", shape, "no dynamic dimension")
    if "parts" in op.attributes:
        parts = to_python(op.attributes["parts"])
        _expect(
            isinstance(parts, list) and len(parts) > 1,
            "attribute 'parts' is too short",
            parts,
            "at least 2 names",
        )
    found = [name for name in ("format", "form") if name in op.attributes]
    _expect(len(found) != 1, "a quantised weight needs 'format' and 'form'", found, "both or neither")
    if found:
        NBits.parse(str(to_python(op.attributes["format"])))
        form, forms = str(to_python(op.attributes["form"])), [each.value for each in WeightForm]
        _expect(form in forms, "attribute 'form' is unknown", form, ", ".join(forms))
        dtypes = ("f32", "f16", "bf16") if form in ("scales", "offset") else ("ui8",)
        _expect(
            dtype_of(op.results[0]) in dtypes,
            f"the {form} have the wrong dtype",
            dtype_of(op.results[0]),
            " or ".join(dtypes),
        )


def _write_slice(op: ir.OpView) -> None:
    cache, new = op.operands[0], op.operands[1]
    _expect(
        op.results[0].type == cache.type,
        "the result is not of the cache's type",
        op.results[0].type,
        cache.type,
    )
    rank = rank_of(cache)
    _rank(op, 1, "new", rank)
    _expect(
        dtype_of(new) == dtype_of(cache),
        "new values and cache differ in dtype",
        dtype_of(new),
        dtype_of(cache),
    )
    axis = int(str(to_python(op.attributes["axis"])))
    _expect(0 <= axis < rank, "attribute 'axis' is out of range", axis, f"0 to {rank - 1}")
    for dim, sizes in enumerate(zip(shape_of(cache), shape_of(new), strict=True)):
        if dim != axis:
            _agree(f"dimension {dim}", *sizes)
    _write_offset(op, 2)


def _attention(op: ir.OpView) -> None:
    for index, name in enumerate(("q", "k_cache", "v_cache")):
        _rank(op, index, name, 4)
    q, k, v = (shape_of(op.operands[i]) for i in range(3))
    _agree("batch", q[0], k[0], v[0])
    _agree("the number of KV heads", k[1], v[1])
    _agree("capacity", k[2], v[2])
    _agree("head_dim", q[3], k[3])
    if q[1] is not None and k[1] is not None:
        _expect(q[1] % k[1] == 0, "query heads are no multiple of KV heads", q[1], f"a multiple of {k[1]}")
    _write_offset(op, 3)
    if not is_none(op.operands[4]):
        _rank(op, 4, "sinks", 1)
    result = shape_of(op.results[0])
    _expect(
        len(result) == 4, "the result has the wrong rank", len(result), "4: batch, sequence, heads, head_dim"
    )
    _agree("the result's [batch]", result[0], q[0])
    _agree("the result's [sequence]", result[1], q[2])
    _agree("the result's [heads]", result[2], q[1])
    _agree("the result's [head_dim]", result[3], v[3])
    window = int(str(to_python(op.attributes["window"])))
    _expect(window >= 0, "attribute 'window' is negative", window, "0 for no window, else its length")


def _rope(op: ir.OpView) -> None:
    _same_type(op)
    for index, (name, rank) in enumerate((("x", 4), ("cos", 2), ("sin", 2), ("position_ids", 2))):
        _rank(op, index, name, rank)
    rotary = int(str(to_python(op.attributes["rotary_dim"])))
    head_dim = shape_of(op.operands[0])[3]
    _expect(head_dim is None or rotary <= head_dim, "attribute 'rotary_dim' is too large", rotary, head_dim)
    for index in (1, 2):
        half = shape_of(op.operands[index])[1]
        _expect(half == rotary // 2, "a rotary table has the wrong width", half, rotary // 2)


def _paged_write(op: ir.OpView) -> None:
    _same_type(op)
    _rank(op, 2, "slot_mapping", 1)


PLAN_OPS: dict[str, PlanOp] = {
    # A reference to a tensor of the checkpoint, by its (tied-resolved) state-dict name; never data. With
    # parts it is those tensors, concatenated along axis 0, and name is only its own.
    "weight": PlanOp(
        (),
        {
            **_attributes(name=_STRING),
            "parts": AttributeSpec(AttributeKind.STRINGS),
            # One of the tensors that a quantised weight is kept in: see nbits.py.
            "format": AttributeSpec(_STRING),
            "form": AttributeSpec(_STRING),
        },
        verify=_weight,
    ),
    # cache [B,H,C,D], new [B,H,S,D], write_offset i64 [B]: new lands at positions offset .. offset+S of axis.
    "write_slice": PlanOp(("cache", "new", "write_offset"), _attributes(axis=_INT), verify=_write_slice),
    # Causal. q [B,Hq,S,D], caches [B,Hkv,C,D] as written by write_slice, sinks [Hq]; result [B,S,Hq,Dv].
    # window: how many positions a query sees, itself included; 0 = all. softcap: 0 = none.
    "attention": PlanOp(
        ("q", "k_cache", "v_cache", "write_offset", "sinks"),
        _attributes(layer=_INT, scale=_FLOAT, window=_INT, softcap=_FLOAT),
        optional=frozenset({"sinks"}),
        verify=_attention,
    ),
    # q_latent [B,Hq,S,L], q_rope [B,Hq,S,R], caches [C,L] and [C,R] or with a batch in front.
    "latent_attention": PlanOp(
        ("q_latent", "q_rope", "latent_cache", "rope_cache", "write_offset"),
        _attributes(layer=_INT, scale=_FLOAT),
        verify=lambda op: _write_offset(op, 4),
    ),
    # blocks [N, block_size, H, D], new [T,H,D], slot_mapping i64 [T].
    "paged_write": PlanOp(("blocks", "new", "slot_mapping"), _attributes(layer=_INT), verify=_paged_write),
    # x [B,H,S,D], cos and sin [positions, rotary_dim / 2], position_ids i64 [B,S]. The first rotary_dim
    # elements of a head turn, in pairs: element i with i + rotary_dim / 2, interleaved with its neighbour.
    "rope": PlanOp(
        ("x", "cos", "sin", "position_ids"), _attributes(interleaved=_INT, rotary_dim=_INT), verify=_rope
    ),
    # hidden [T,H], indices i64 [T,k], routing_weights [T,k], then the stacked weights of all experts.
    "experts": PlanOp(
        ("hidden", "indices", "routing_weights", "gate_up", "down", "gate_up_bias", "down_bias"),
        _attributes(activation=_STRING, layer=_INT),
        optional=frozenset({"gate_up_bias", "down_bias"}),
        verify=_same_type,
    ),
    # Moves a value: to "cpu:1" (another logical device) or "host" (an array the caller owns).
    "copy": PlanOp(("x",), _attributes(to=_STRING), verify=_same_type),
    # Same values, row-major and dense, for a kernel that needs it.
    "contiguize": PlanOp(("x",), verify=_same_type),
    # Uninitialised storage of the shape given (i64 [rank]). Two of them are two buffers: not pure.
    "alloc": PlanOp(("shape",), _attributes(to=_STRING), pure=False),
    "zero_fill": PlanOp(("x",), verify=_same_type),
}


def find_plan_op(name: str) -> PlanOp | None:
    """The op by its IR name (``plan.attention``), or None when the dialect has no such op."""
    return PLAN_OPS.get(name.removeprefix("plan.")) if name.startswith("plan.") else None


def load_plan_dialect(context: ir.Context) -> None:
    """Load the dialect into a context that does not have it yet."""
    shapes = [OpShape(name, Arity(len(op.operands)), Arity(1), op.pure) for name, op in PLAN_OPS.items()]
    load_dialect("plan", shapes, _verify, context)


def _verify(op: ir.OpView) -> None:
    spec = PLAN_OPS[op.name.removeprefix("plan.")]
    names = spec.operands
    if len(op.operands) != len(names) or len(op.results) != 1:
        raise PassError(
            "wrong number of operands or results",
            found=f"{len(op.operands)} and {len(op.results)}",
            expected=f"{len(names)} ({', '.join(names) or 'none'}) and 1",
            todo="give onnx.no_value for an absent optional operand" if spec.optional else "",
        )
    for name, value in zip(names, op.operands, strict=True):
        if is_none(value) and name not in spec.optional:
            raise PassError(f"operand {name!r} is not optional", found="none")
    for name in op.attributes:
        if "." not in name and name not in spec.attributes:
            raise PassError(
                f"unknown attribute {name!r}", expected=", ".join(spec.attributes) or "none at all"
            )
    for name, attribute in spec.attributes.items():
        if name not in op.attributes:
            if not attribute.required:
                continue
            raise PassError(f"attribute {name!r} is missing", expected=attribute.kind.value)
        if not kind_matches(op.attributes[name], attribute.kind):
            raise PassError(
                f"attribute {name!r} has the wrong kind",
                found=str(op.attributes[name])[:80],
                expected=attribute.kind.value,
            )
    spec.verify(op)
