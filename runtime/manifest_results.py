"""What a step's results and the copies between its stages must satisfy. Standard library only."""

from __future__ import annotations

from .manifest_require import require
from .manifest_schema import Argument, ArgumentRole, ManifestFields

__all__ = ["HOST_ROLES", "check_copies", "check_results"]

# Results that a caller reads on the host.
HOST_ROLES = (ArgumentRole.LOGITS, ArgumentRole.NEXT_TOKENS)


def check_results(manifest: ManifestFields) -> None:
    """Logits ``[batch, n, vocab]``, and at most one row of next tokens for them, ``[batch, n]``."""
    logits, vocab = _results(manifest, ArgumentRole.LOGITS), manifest.model.vocab_size
    require(len(logits) == 1, "Exactly one stage must produce logits.", "stages", len(logits), 1)
    shape = logits[0].shape
    require(
        len(shape) == 3 and shape[2] == vocab and logits[0].dtype in ("float32", "float16", "bfloat16"),
        "The logits have the wrong type.",
        "stages",
        f"{logits[0].dtype} {list(shape)}",
        f"[B, n, {vocab}]",
    )
    picked = _results(manifest, ArgumentRole.NEXT_TOKENS)
    require(len(picked) <= 1, "Next tokens are picked twice.", "stages", len(picked), "at most once")
    for argument in picked:
        require(
            argument.shape == shape[:2],
            "The next tokens are not one for each row of logits.",
            "stages",
            list(argument.shape),
            list(shape[:2]),
        )


def _results(manifest: ManifestFields, role: ArgumentRole) -> list[Argument]:
    return [a for stage in manifest.stages for a in stage.outputs if a.role is role]


def check_copies(manifest: ManifestFields) -> None:
    """Every stage value is brought once, from an earlier stage; each result of HOST_ROLES, to the host."""
    stages = manifest.stages
    fed: set[tuple[int, str]] = set()
    to_host: list[ArgumentRole] = []
    for i, edge in enumerate(manifest.copies):
        where = f"copies[{i}]"
        require(0 <= edge.source_stage < len(stages), "No such stage.", where, edge.source_stage)
        outputs = {a.name: a for a in stages[edge.source_stage].outputs}
        source = outputs.get(edge.source)
        require(source is not None, "A copy's source is not an output of its stage.", where, edge.source)
        assert source is not None
        if edge.target_stage is None:
            ok = source.role in HOST_ROLES and edge.target == source.role.value
            require(
                ok,
                "Only logits and next tokens are copied to the host.",
                where,
                f"{edge.source} -> {edge.target}",
            )
            to_host.append(source.role)
            continue
        ok = edge.source_stage < edge.target_stage < len(stages)
        require(ok, "A copy must go to a later stage.", where, edge.target_stage)
        target = next((a for a in stages[edge.target_stage].inputs if a.name == edge.target), None)
        ok = target is not None and target.role is source.role is ArgumentRole.STAGE_VALUE
        require(ok, "A copy must join two stage values.", where, f"{edge.source} -> {edge.target}")
        assert target is not None
        ok = (target.dtype, target.shape) == (source.dtype, source.shape)
        require(ok, "A copy joins values of different types.", where, f"{edge.source} -> {edge.target}")
        key = (edge.target_stage, edge.target)
        require(key not in fed, "A stage value is copied to twice.", where, edge.target)
        fed.add(key)
    for role in HOST_ROLES:
        made, count = _results(manifest, role), to_host.count(role)
        message = f"The {role.value}' copy to the host must be there once."
        require(count == len(made), message, "copies", count, len(made))
    for i, stage in enumerate(stages):
        for a in stage.inputs:
            ok = a.role is not ArgumentRole.STAGE_VALUE or (i, a.name) in fed
            require(ok, "Nothing is copied to a stage value.", f"stages[{i}]", a.name)
