"""Which weights are one: decided by the bytes that are stored, not by the config."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .skeleton import ModelSkeleton
from .stored import read_range
from .weights import CHUNK_BYTES, WeightEntry

__all__ = ["Tying", "resolve_tying"]


@dataclass(frozen=True, slots=True)
class Tying:
    """entries: each stored weight once. aliases: other name to kept name. untied: pairs the config ties but
    the checkpoint stores with different bytes."""

    entries: dict[str, WeightEntry]
    aliases: dict[str, str]
    untied: tuple[tuple[str, str], ...]


def resolve_tying(entries: dict[str, WeightEntry], skeleton: ModelSkeleton) -> Tying:
    """Apply the rules of ``WeightIndex``. A kept weight always has the model's source name."""
    kept = dict(entries)
    aliases: dict[str, str] = {}
    untied: list[tuple[str, str]] = []
    for target, source in {**skeleton.may_tie, **skeleton.tied}.items():
        config_ties = target in skeleton.tied
        if target in kept and source in kept:
            if same_bytes(kept[target], kept[source]):
                del kept[target]
                aliases[target] = source
            elif config_ties:
                untied.append((target, source))
        elif config_ties and target in kept:
            # Stored under the other name only. transformers ties the same way round.
            kept[source] = replace(kept.pop(target), name=source)
            aliases[target] = source
        elif config_ties and source in kept:
            aliases[target] = source
    return Tying(kept, aliases, tuple(untied))


def same_bytes(a: WeightEntry, b: WeightEntry) -> bool:
    """Whether two weights are stored with equal bytes. Streams both; stops at the first difference."""
    if (a.dtype, a.shape, len(a.sources)) != (b.dtype, b.shape, len(b.sources)):
        return False
    if a.rows is not None or b.rows is not None or a.decode is not None or b.decode is not None:
        return False
    for one, other in zip(a.sources, b.sources, strict=True):
        if one.nbytes != other.nbytes:
            return False
        for start in range(0, one.nbytes, CHUNK_BYTES):
            nbytes = min(CHUNK_BYTES, one.nbytes - start)
            if read_range(one, start, nbytes).tobytes() != read_range(other, start, nbytes).tobytes():
                return False
    return True
