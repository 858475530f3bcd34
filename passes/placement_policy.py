"""The policy language of placement: ``layers[0:16]=cuda:0, layers[16:]=cuda:1, embed=cpu:0, kv=with-layer``.

Text to a plain placement, without any IR: which device holds the embedding, each layer, each layer's KV and
the head. Every error points at the place in the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from planonce.runtime.errors import PassError

from .placement_cost import Budget, Link, ModelCost, cheapest

__all__ = ["LayerRange", "Placement", "Policy", "parse_policy", "plan_placement"]

GRAMMAR = (
    "layers[a:b]=DEVICE, embed=DEVICE, head=DEVICE, kv=with-layer|DEVICE, or one DEVICE for everything, "
    "or auto with a budget for each device (auto, cuda:0=8GB, cpu:0=32GB)"
)
_SPACE = re.compile(r"\s*")
_RANGE = re.compile(r"layers(?:\s*\[\s*(?:(\d+)\s*\]|(\d*)\s*:\s*(\d*)\s*\]))?")
_DEVICE = re.compile(r"(?:cpu|cuda):(?:0|[1-9]\d{0,3})(?!\w)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(TB|GB|MB|kB|B)(?!\w)")
_SPEED = re.compile(r"(\d+(?:\.\d+)?)\s*(TB|GB|MB|kB|B)/s(?!\w)")
_NUMBER = re.compile(r"[1-9]\d*(?!\w)")
_NAME = re.compile(r"[A-Za-z][\w-]*(?::\w+)?")
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_WITH_LAYER = re.compile(r"with-layer(?!\w)")
DEFAULT_POSITIONS = 2048


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers ``[start, stop)`` on ``device``; ``stop`` None: to the last. ``at``: where the text says so."""

    start: int
    stop: int | None
    device: str
    at: int


@dataclass(frozen=True, slots=True)
class Policy:
    """What was written, clause by clause; ``text`` is kept for the errors that planning may find."""

    text: str
    everything: str | None = None
    layers: tuple[LayerRange, ...] = ()
    embed: str | None = None
    head: str | None = None
    kv: str | None = None
    auto: bool = False
    budgets: tuple[Budget, ...] = ()
    link: Link = field(default_factory=Link)
    positions: int = DEFAULT_POSITIONS


@dataclass(frozen=True, slots=True)
class Placement:
    """Devices of the embedding, of each layer, of each layer's KV slots and of the head."""

    embed: str
    layers: tuple[str, ...]
    kv: tuple[str, ...]
    head: str

    def summary(self) -> str:
        """``embed on cpu:0; layers 0-15 on cuda:0, 16-31 on cuda:1; head on cuda:1``, KV where it differs."""
        runs = _runs(self.layers)
        parts = [f"embed on {self.embed}"]
        if runs:
            parts.append("layers " + ", ".join(f"{a if a == b else f'{a}-{b}'} on {d}" for a, b, d in runs))
        if self.kv != self.layers:
            parts.append(
                "KV " + ", ".join(f"{a if a == b else f'{a}-{b}'} on {d}" for a, b, d in _runs(self.kv))
            )
        return "; ".join([*parts, f"head on {self.head}"])


def _runs(devices: Sequence[str]) -> list[tuple[int, int, str]]:
    runs: list[tuple[int, int, str]] = []
    for i, device in enumerate(devices):
        if runs and runs[-1][2] == device:
            runs[-1] = (runs[-1][0], i, device)
        else:
            runs.append((i, i, device))
    return runs


def parse_policy(text: str) -> Policy:
    """Read a policy. Raises PassError, naming the character, on an unknown name, device or size, on a name
    given twice and on clauses that exclude each other. Layers are checked by :func:`plan_placement`."""
    return _Reader(text).policy()


def plan_placement(policy: Policy, model: ModelCost) -> Placement:
    """The placement of ``model`` under ``policy``.

    Raises PassError when layers overlap, are left out or do not exist, and when nothing fits the budgets.
    """
    n = len(model.layers)
    if policy.everything is not None:
        return Placement(
            policy.everything, (policy.everything,) * n, (policy.everything,) * n, policy.everything
        )
    if policy.auto:
        embed, *layers, head = cheapest(model, policy.budgets, policy.link, policy.positions)
        return Placement(embed, tuple(layers), tuple(layers), head)
    owner: list[LayerRange | None] = [None] * n
    for clause in policy.layers:
        stop = n if clause.stop is None else clause.stop
        if clause.start >= stop or stop > n:
            raise _error(
                policy.text, clause.at, "these layers do not exist",
                found=f"layers[{clause.start}:{'' if clause.stop is None else stop}]",
                expected=f"within layers[0:{n}]",
            )  # fmt: skip
        for layer in range(clause.start, stop):
            before = owner[layer]
            if before is not None:
                raise _error(
                    policy.text, clause.at, f"layer {layer} is placed twice",
                    found=f"on {before.device} and on {clause.device}", expected="ranges that do not overlap",
                )  # fmt: skip
            owner[layer] = clause
    missing = [layer for layer, clause in enumerate(owner) if clause is None]
    if missing:
        raise _error(
            policy.text, len(policy.text), "not every layer is placed",
            found=f"nothing for layer{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing[:8]))}"
            + (", ..." if len(missing) > 8 else ""),
            expected=f"layers[0:{n}] covered",
        )  # fmt: skip
    layers = tuple(clause.device for clause in owner if clause is not None)
    first = layers[0] if layers else policy.embed or policy.head
    last = layers[-1] if layers else policy.head or policy.embed
    if first is None or last is None:
        raise _error(policy.text, len(policy.text), "nothing is placed", found="no device", expected=GRAMMAR)
    kv = layers if policy.kv is None else (policy.kv,) * n
    return Placement(policy.embed or first, layers, kv, policy.head or last)


def _error(text: str, at: int, message: str, *, found: str, expected: str) -> PassError:
    return PassError(
        f"the placement policy cannot be used: {message}",
        found=found,
        expected=expected,
        where=f"character {at + 1} of {text!r}",
    )


class _Reader:
    """One clause after another; ``at`` is the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.seen: dict[str, int] = {}
        self.layers: list[LayerRange] = []
        self.budgets: list[Budget] = []
        self.devices: dict[str, str | None] = {"everything": None, "embed": None, "head": None, "kv": None}
        self.auto = False
        self.link = Link()
        self.positions = DEFAULT_POSITIONS

    def policy(self) -> Policy:
        self._skip()
        while True:
            self._clause()
            self._skip()
            if self.at == len(self.text):
                break
            if self.text[self.at] != ",":
                raise self._error("a comma", self.at)
            self.at += 1
            self._skip()
        self._check_combination()
        return Policy(
            self.text, **self.devices, layers=tuple(self.layers), auto=self.auto, budgets=tuple(self.budgets),
            link=self.link, positions=self.positions,
        )  # fmt: skip

    def _clause(self) -> None:
        start = self.at
        layers = _RANGE.match(self.text, start)
        if layers is not None and (self.text[layers.end() :].lstrip()[:1] == "="):
            self.at = layers.end()
            self._equals()
            single, low, high = layers.groups()
            first, stop = (
                (int(single), int(single) + 1) if single else (int(low or 0), int(high) if high else None)
            )
            self.layers.append(LayerRange(first, stop, self._device(), start))
            self.seen.setdefault("layers", start)
            return
        device = _DEVICE.match(self.text, start)
        if device is not None:
            self.at = device.end()
            self._device_clause(device[0], start)
            return
        name = _NAME.match(self.text, start)
        if name is None or name[0] not in ("embed", "head", "kv", "auto", "link", "positions"):
            raise self._error(GRAMMAR, start)
        self.at = name.end()
        self._once(name[0], start)
        if name[0] == "auto":
            self.auto = True
            return
        self._equals()
        if name[0] == "link":
            amount = self._take(_SPEED, "a speed such as 16GB/s")
            self.link = Link(float(amount[1]) * _UNITS[amount[2]])
        elif name[0] == "positions":
            self.positions = int(self._take(_NUMBER, "a number of positions")[0])
        elif name[0] == "kv" and (word := _WITH_LAYER.match(self.text, self.at)):
            self.at = word.end()
        else:
            self.devices[name[0]] = self._device()

    def _device_clause(self, device: str, start: int) -> None:
        self._once(device, start)
        self._skip()
        if self.at == len(self.text) or self.text[self.at] != "=":
            self._once("everything", start)
            self.devices["everything"] = device
            return
        self._equals()
        amount = self._take(_SIZE, "a budget such as 8GB")
        self.budgets.append(Budget(device, int(float(amount[1]) * _UNITS[amount[2]])))

    def _check_combination(self) -> None:
        """auto, one device and explicit places each say everything: two of them would contradict."""
        explicit = [name for name in ("layers", "embed", "head", "kv") if name in self.seen]
        budget_at = min((self.seen[b.device] for b in self.budgets), default=len(self.text))
        if self.auto and not self.budgets:
            raise self._error("a budget for each device, such as cuda:0=8GB", len(self.text))
        if not self.auto and self.budgets:
            raise self._error("auto beside a budget", budget_at)
        for name in ("link", "positions"):
            if not self.auto and name in self.seen:
                raise self._error(f"auto beside {name}", self.seen[name])
        ways = [
            ("auto", self.auto),
            ("everything", "everything" in self.seen),
            (explicit[:1], bool(explicit)),
        ]
        if sum(on for _, on in ways) > 1:
            later = max(self.seen[n] for n in (*explicit, "auto", "everything") if n in self.seen)
            raise self._error("either auto, or one device for everything, or a device for each part", later)

    def _once(self, name: str, at: int) -> None:
        if name in self.seen:
            raise self._error(f"{name} once", at)
        self.seen[name] = at

    def _equals(self) -> None:
        self._skip()
        if self.text[self.at : self.at + 1] != "=":
            raise self._error("'='", self.at)
        self.at += 1
        self._skip()

    def _device(self) -> str:
        return self._take(_DEVICE, "a device: cpu:N or cuda:N")[0]

    def _take(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self._error(what, self.at)
        self.at = match.end()
        return match

    def _skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def _error(self, expected: str, at: int) -> PassError:
        found = repr(self.text[at : at + 20]) if at < len(self.text) else "its end"
        return _error(self.text, at, "it does not parse", found=found, expected=expected)
