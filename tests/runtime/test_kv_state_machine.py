"""Any sequence of public calls: what a session serves is what its cache's token history says, or a refusal.

The oracle keeps token lists and recomputes logits from nothing; it shares no code with the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from handmade_plan import Tiny, build
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from kv_support import CLOSE, Lender, Reference, distance

from planonce.runtime import (
    DecodeSession,
    ForwardPath,
    InferenceContext,
    KvCache,
    Plan,
    RebindReason,
    StaleCache,
    forward_decode_step,
)
from planonce.runtime.errors import CapacityExceeded, LayoutError
from planonce.runtime.kv_import_errors import KvImportOtherModel

CAPACITY, SMALLER = 24, 16
SHAPE = (1, 2, CAPACITY, 16)
WHICH = ("key", "value")

token = st.integers(0, 96)
tokens = st.lists(token, min_size=1, max_size=6)
place = st.integers(0, 3)  # of a cache in the pool
which_session = st.integers(0, 1)
amount = st.integers(0, CAPACITY)


@dataclass(eq=False)
class Kept:
    """What the oracle knows of one cache, or of a third party's buffers (``cache`` None)."""

    cache: KvCache | None
    capacity: int = CAPACITY
    fixed: bool = True
    proven: bool = True
    history: list[int] = field(default_factory=list)
    layers: list[list[int] | None] = field(default_factory=lambda: [[], []])  # None: holds no storage
    lender: Lender | None = None

    @property
    def complete(self) -> bool:
        return None not in self.layers

    def hold(self, history: list[int]) -> None:
        """Every layer now holds exactly this history."""
        self.history = list(history)
        self.layers = [self.history, self.history]

    def alloc_id(self) -> int:
        source = self.lender if self.cache is None else self.cache
        assert source is not None
        return source.alloc_id()


@dataclass(eq=False)
class Held:
    """A session and what it is bound to, by the oracle's account."""

    session: DecodeSession
    kept: Kept
    alloc: int
    proven: bool
    capacity: int

    @property
    def stale(self) -> bool:
        return self.alloc != self.kept.alloc_id()


class Machine(RuleBasedStateMachine):
    plan: Plan
    reference: Reference
    steps = 0

    @initialize()
    def start(self) -> None:
        grown = KvCache.with_dims(2, 2, 16)
        for layer in range(2):
            grown.set_layer(layer, np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32), length=0)
        self.pool = [
            Kept(self.plan.new_cache(CAPACITY)),
            Kept(self.plan.new_cache(CAPACITY)),
            Kept(self.plan.new_cache(SMALLER), capacity=SMALLER),
            Kept(grown, fixed=False, proven=False),
        ]
        self.sessions = [self.open(self.pool[0]), self.open(self.pool[1])]
        self.context = InferenceContext()
        self.forwarded: Held | None = None
        type(self).steps -= 1  # the invariants below also run once before the first step

    def open(self, kept: Kept) -> Held:
        assert kept.cache is not None
        return Held(self.plan.open(kept.cache), kept, kept.alloc_id(), kept.proven, kept.capacity)

    def check(self, got: np.ndarray, history: list[int]) -> None:
        far = distance(got, self.reference(history))
        assert far < CLOSE, f"{far} from the logits of {history}"

    # --- tokens ---------------------------------------------------------------------------------------

    @rule(which=which_session, value=token)
    def decode(self, which: int, value: int) -> None:
        held = self.sessions[which]
        kept = held.kept
        if held.stale:
            with pytest.raises(StaleCache):
                held.session.realize_token(value)
        elif len(kept.history) == kept.capacity:
            with pytest.raises(CapacityExceeded):
                held.session.realize_token(value)
        else:
            got = held.session.realize_token(value)
            kept.hold([*kept.history, value])
            self.check(got, kept.history)
            assert held.session.position == len(kept.history)

    @rule(which=which_session, values=tokens, chunk=st.integers(1, 5))
    def prefill(self, which: int, values: list[int], chunk: int) -> None:
        held = self.sessions[which]
        kept = held.kept
        refused = StaleCache if held.stale else CapacityExceeded
        if held.stale or len(kept.history) + len(values) > kept.capacity:
            with pytest.raises(refused):
                held.session.prefill(values, chunk=chunk)
            return
        got = held.session.prefill(values, chunk=chunk, num_logits=len(values))
        for i, value in enumerate(values):
            kept.hold([*kept.history, value])
            self.check(got[i], kept.history)

    @rule(which=place, values=tokens)
    def forward(self, which: int, values: list[int]) -> None:
        kept, held = self.pool[which], self.forwarded
        assert kept.cache is not None
        if not kept.complete:
            with pytest.raises(LayoutError):
                forward_decode_step(self.plan, values, kept.cache, self.context)
            return
        if held is None or held.capacity != kept.capacity:
            path = ForwardPath.REBUILT
        elif held.alloc == kept.alloc_id():
            path = ForwardPath.REUSED
        else:
            path = ForwardPath.REBOUND if held.proven and kept.proven else ForwardPath.REBUILT
        full = len(kept.history) + len(values) > kept.capacity
        if full:
            with pytest.raises(CapacityExceeded):
                forward_decode_step(self.plan, values, kept.cache, self.context)
        else:
            step = forward_decode_step(self.plan, values, kept.cache, self.context)
            assert step.path is path
            kept.hold([*kept.history, *values])
            self.check(step.logits, kept.history)
        session = self.context.take_session()
        assert session is not None
        self.context.put_session(session)
        self.forwarded = Held(session, kept, kept.alloc_id(), kept.proven, kept.capacity)

    # --- caches ---------------------------------------------------------------------------------------

    @rule(which=place, n=amount)
    def truncate(self, which: int, n: int) -> None:
        kept = self.pool[which]
        assert kept.cache is not None
        kept.cache.truncate_to(n)
        kept.history = kept.history[:n]

    @rule(which=place)
    def clear(self, which: int) -> None:
        kept = self.pool[which]
        assert kept.cache is not None
        kept.cache.clear()
        kept.history, kept.layers, kept.proven = [], [None, None], False

    @rule(which=place, donor=place, layers=st.sampled_from([[0], [1], [0, 1], [1, 0]]))
    def set_layer(self, which: int, donor: int, layers: list[int]) -> None:
        kept, giver = self.pool[which], self.pool[donor]
        assert kept.cache is not None
        assert giver.cache is not None
        if not giver.complete or (giver.capacity != kept.capacity and not kept.fixed and len(layers) == 1):
            return  # layers of different extent: nothing can be opened over them
        history = list(giver.history)
        for layer in layers:
            arrays = [giver.cache.host_array(layer, w) for w in WHICH]
            if kept.fixed and giver.capacity != kept.capacity:
                with pytest.raises(LayoutError):
                    kept.cache.set_layer(layer, *arrays)
                return
            kept.layers[layer] = history
            # Live only once every layer holds the same context.
            whole = all(held == history for held in kept.layers)
            kept.cache.set_layer(layer, *arrays, length=len(history) if whole else 0)
            kept.history, kept.proven = list(history) if whole else [], False
        if not kept.fixed and kept.complete:
            kept.capacity = kept.cache.capacity

    @rule(which=place, donor=place, n=amount, host=st.booleans())
    def write_bytes(self, which: int, donor: int, n: int, host: bool) -> None:
        kept, giver = self.pool[which], self.pool[donor]
        assert kept.cache is not None
        assert giver.cache is not None
        n = min(n, len(giver.history), kept.capacity)
        if not giver.complete:
            return
        for layer in range(2):
            for slot in WHICH:
                values = giver.cache.read_positions(layer, slot, 0, n)
                if kept.layers[layer] is None or not (kept.fixed or host):
                    with pytest.raises(LayoutError):
                        kept.cache.write_bytes(layer, slot, 0, n, values.tobytes())
                    return
                if host:
                    kept.cache.write_host(layer, slot, 0, values)
                else:
                    kept.cache.write_bytes(layer, slot, 0, n, values.tobytes())
            kept.layers[layer] = giver.history[:n]
        kept.cache.truncate_to(n)
        kept.cache.extend_to(n)
        kept.hold(giver.history[:n])

    @rule(source=place, to=place)
    def fork(self, source: int, to: int) -> None:
        kept = self.pool[source]
        assert kept.cache is not None
        if not kept.complete:
            with pytest.raises(LayoutError):
                kept.cache.fork()
            return
        copy = Kept(kept.cache.fork(), kept.capacity, kept.fixed, proven=kept.fixed)
        copy.hold(kept.history)
        self.pool[to] = copy

    @rule(source=place, to=place, n=amount)
    def hand_over(self, source: int, to: int, n: int) -> None:
        giver, kept = self.pool[source], self.pool[to]
        assert giver.cache is not None
        assert kept.cache is not None
        if not giver.complete:
            return
        if n > len(giver.history):
            with pytest.raises(CapacityExceeded):
                giver.cache.export(n)
            return
        data = giver.cache.export(n)
        mine, theirs = kept.cache.state.shape_key, giver.cache.state.shape_key
        refused: type[Exception] | None = None
        if not kept.fixed or not kept.complete:
            refused = LayoutError
        elif mine is not None and theirs != mine:
            refused = KvImportOtherModel  # no plan has decoded into it: whose it is cannot be proved
        elif n > kept.capacity:
            refused = CapacityExceeded
        if refused is not None:
            with pytest.raises(refused):
                kept.cache.import_(data)
            return
        kept.cache.import_(data)
        kept.hold(giver.history[:n])

    @rule(which=place, layer=st.integers(0, 1), slot=st.sampled_from(WHICH))
    def read_host(self, which: int, layer: int, slot: str) -> None:
        kept = self.pool[which]
        assert kept.cache is not None
        if kept.complete:
            extent = kept.cache.capacity
            whole = kept.cache.host_array(layer, slot)
            assert np.array_equal(whole[:, :, :extent], kept.cache.read_positions(layer, slot, 0, extent))

    # --- sessions -------------------------------------------------------------------------------------

    @rule(which=which_session, to=place)
    def rebind(self, which: int, to: int) -> None:
        held, kept = self.sessions[which], self.pool[to]
        assert kept.cache is not None
        refusal = held.session.rebind_kv(kept.cache)
        if not (kept.proven and held.proven):
            assert refusal is not None
            assert refusal.reason is RebindReason.RESIDENCY_UNKNOWN
        elif held.capacity != kept.capacity:
            assert refusal is not None
            assert refusal.reason is RebindReason.STORAGE_DIFFERS
        else:
            assert refusal is None
            held.kept, held.alloc = kept, kept.alloc_id()

    @rule(which=which_session, source=place)
    def rebind_to_a_third_party(self, which: int, source: int) -> None:
        held, kept = self.sessions[which], self.pool[source]
        assert kept.cache is not None
        if not (kept.complete and held.proven and held.capacity == kept.capacity):
            return
        lender = Lender.copy_of(kept.cache)
        assert held.session.rebind_kv(lender, length=len(kept.history)) is None
        foreign = Kept(None, kept.capacity, lender=lender)
        foreign.hold(kept.history)
        held.kept, held.alloc = foreign, lender.id

    @rule(which=which_session, to=place)
    def reopen(self, which: int, to: int) -> None:
        kept = self.pool[to]
        if kept.complete:
            self.sessions[which] = self.open(kept)
        else:
            assert kept.cache is not None
            with pytest.raises(LayoutError):
                self.plan.open(kept.cache)

    # --- always ---------------------------------------------------------------------------------------

    @invariant()
    def lengths_and_residency_are_what_was_done(self) -> None:
        type(self).steps += 1
        for kept in self.pool:
            assert kept.cache is not None
            assert kept.cache.length == len(kept.history)
            assert (kept.cache.device_location is not None) == kept.proven
        assert len({kept.alloc_id() for kept in self.pool}) == len({id(kept) for kept in self.pool})


class HostEdits(Machine):
    """Few rules, so that an edit on the host is often followed by a step that must see it."""

    forward = clear = set_layer = fork = hand_over = rebind = rebind_to_a_third_party = reopen = None


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> type[Machine]:
    tiny = Tiny(max_seq_len=CAPACITY, hidden=16)
    Machine.plan = Plan.load(build(tmp_path_factory.mktemp("machine") / "plan", tiny), threads=1)
    Machine.reference = Reference(tiny)
    return Machine


def _run(machine: type[Machine], steps: int) -> None:
    options = settings(
        max_examples=50,
        stateful_step_count=50,
        derandomize=False,  # hypothesis derandomizes under CI: every round would take the same steps
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    machine.steps = 0
    while machine.steps < steps:
        run_state_machine_as_test(machine, settings=options)


def test_two_thousand_steps_of_anything_serve_what_the_history_says(machine: type[Machine]) -> None:
    _run(machine, 2_000)


@pytest.mark.slow
def test_hundred_thousand_steps_of_anything_serve_what_the_history_says(machine: type[Machine]) -> None:
    _run(machine, 100_000)


@pytest.mark.parametrize(
    "sabotage", ["validity", "fork", "import", "versions", "upload", "rebind", "truncate"]
)
def test_the_machine_finds_a_broken_runtime(machine: type[Machine], sabotage: str, monkeypatch) -> None:
    """The control: each fault below is one that the steps above would not survive."""
    if sabotage == "validity":
        monkeypatch.setattr("planonce.runtime.decode_session.compare", lambda a, b: _valid())
        monkeypatch.setattr(DecodeSession, "_check_unchanged", lambda self: None)
    elif sabotage == "fork":
        monkeypatch.setattr(KvCache, "fork", lambda self: self)
    elif sabotage == "import":
        monkeypatch.setattr("planonce.runtime.kv_slot.KvSlot.write", lambda self, new, start: None)
    elif sabotage == "upload":
        monkeypatch.setattr("planonce.runtime.kv_slot.KvSlot.upload", lambda self: False)
    elif sabotage == "rebind":
        monkeypatch.setattr("planonce.runtime.bound_step.BoundStep.rebind_kv", lambda self, kv: None)
    elif sabotage == "truncate":
        monkeypatch.setattr(KvCache, "truncate_to", lambda self, n: None)
    else:
        monkeypatch.setattr("planonce.runtime.kv_slot.KvSlot.version", 0)
    steps = HostEdits if sabotage == "upload" else machine
    with pytest.raises(BaseException):  # noqa: B017  hypothesis wraps several kinds
        for _ in range(40):
            _run_quickly(steps)


def _valid() -> object:
    from planonce.runtime import PlanValidity

    return PlanValidity.VALID


def _run_quickly(machine: type[Machine]) -> None:
    options = settings(
        max_examples=50,
        stateful_step_count=30,
        derandomize=False,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(machine, settings=options)
