"""The policy language, and placement by budget against a brute-force oracle."""

from __future__ import annotations

import itertools
import random

import pytest

from planonce.passes.placement_cost import Budget, Link, ModelCost, cheapest
from planonce.passes.placement_policy import Placement, parse_policy, plan_placement
from planonce.runtime.errors import PassError

MODEL = ModelCost(layers=(10, 10, 10, 10), kv=(1, 1, 1, 1), embed=5, head=5)


def place(text: str, model: ModelCost = MODEL) -> Placement:
    return plan_placement(parse_policy(text), model)


@pytest.mark.parametrize(
    ("text", "embed", "layers", "kv", "head"),
    [
        ("cpu:1", "cpu:1", "1111", "1111", "cpu:1"),
        ("layers[0:2]=cpu:0, layers[2:]=cpu:1", "cpu:0", "0011", "0011", "cpu:1"),
        ("layers[2:]=cpu:1,layers[:2]=cpu:0", "cpu:0", "0011", "0011", "cpu:1"),
        ("layers=cpu:2, embed=cpu:0, head=cpu:1", "cpu:0", "2222", "2222", "cpu:1"),
        ("layers[0]=cpu:1, layers[1:4] = cpu:0 ,kv=with-layer", "cpu:1", "1000", "1000", "cpu:0"),
        ("layers=cpu:0,kv=cpu:1", "cpu:0", "0000", "1111", "cpu:0"),
        (" layers [ 0 : 4 ] = cuda:3 ", "cuda:3", "3333", "3333", "cuda:3"),
    ],
)
def test_a_policy_says_where_everything_is(text: str, embed: str, layers: str, kv: str, head: str) -> None:
    kind = embed.partition(":")[0]
    assert place(text) == Placement(
        embed, tuple(f"{kind}:{d}" for d in layers), tuple(f"{kind}:{d}" for d in kv), head
    )


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("", 1, "does not parse"),
        ("layer=cpu:0", 1, "does not parse"),
        ("layers=cpu:0, tail=cpu:1", 15, "tail"),
        ("layers=npu:0", 8, "a device"),
        ("layers=cpu", 8, "a device"),
        ("layers=cpu:01", 8, "a device"),
        ("layers[0:2=cpu:0", 1, "does not parse"),
        ("layers[0:2] cpu:0", 1, "does not parse"),
        ("layers=cpu:0 embed=cpu:0", 14, "a comma"),
        ("layers=cpu:0,", 14, "its end"),
        ("layers=cpu:0, embed=cpu:0, embed=cpu:1", 28, "embed once"),
        ("layers=cpu:0, cpu:1", 15, "either auto"),
        ("auto", 5, "a budget"),
        ("auto, cpu:0=8", 13, "a budget"),
        ("auto, cpu:0=8GB, cpu:0=9GB", 18, "cpu:0 once"),
        ("auto, cpu:0=8GB, layers=cpu:0", 18, "either auto"),
        ("cpu:0=8GB", 1, "auto beside a budget"),
        ("layers=cpu:0, link=1GB/s", 15, "auto beside link"),
        ("auto, cpu:0=8GB, link=1GB", 23, "a speed"),
        ("auto, cpu:0=8GB, positions=0", 28, "a number"),
        ("layers[0:3]=cpu:0, layers[2:]=cpu:1", 20, "layer 2 is placed twice"),
        ("layers[0:5]=cpu:0", 1, "layers do not exist"),
        ("layers[4:]=cpu:0", 1, "layers do not exist"),
        ("layers[3:2]=cpu:0", 1, "layers do not exist"),
        ("layers[1:3]=cpu:0", 18, "layers 0, 3"),
        ("embed=cpu:0", 12, "not every layer"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said_with_its_place(text: str, at: int, words: str) -> None:
    with pytest.raises(PassError) as caught:
        place(text)
    assert words in str(caught.value)
    assert caught.value.where.startswith(f"character {at} of ")


def test_numbers_and_units_are_read_as_written() -> None:
    policy = parse_policy("auto, cuda:0=1.5GB, cpu:0 = 800 MB, link=16GB/s, positions=4096")
    assert policy.budgets == (Budget("cuda:0", 1_500_000_000), Budget("cpu:0", 800_000_000))
    assert (policy.link.bandwidth, policy.positions) == (16e9, 4096)


def test_auto_fills_the_fast_device_and_spills_the_rest() -> None:
    model = ModelCost(layers=(10**9,) * 8, kv=(1000,) * 8, embed=10**8, head=10**8, activation=4096)
    found = place("auto, cuda:0=5GB, cpu:0=32GB", model)
    assert found.layers.count("cuda:0") == 4  # five layers and their KV would be over
    assert set(found.layers) == {"cuda:0", "cpu:0"}
    assert place("auto, cuda:0=50GB, cpu:0=32GB", model) == place("cuda:0", model)


def test_a_longer_cache_leaves_less_room_for_layers() -> None:
    model = ModelCost(layers=(10**9,) * 8, kv=(100_000,) * 8)
    few = place("auto, cuda:0=5GB, cpu:0=32GB, positions=1000", model).layers.count("cuda:0")
    many = place("auto, cuda:0=5GB, cpu:0=32GB, positions=10000", model).layers.count("cuda:0")
    assert (few, many) == (4, 2)


def test_what_fits_nowhere_says_what_it_needs() -> None:
    with pytest.raises(PassError, match="does not fit") as caught:
        place("auto, cpu:0=20B, positions=1")
    assert caught.value.found.startswith("54 bytes") and "cpu:0=20 bytes" in caught.value.expected


def oracle(model: ModelCost, budgets: list[Budget], link: Link, positions: int) -> float | None:
    """Seconds of the best of all assignments in which a device's units are neighbours; written out again."""
    sizes = [
        model.embed,
        *(w + positions * k for w, k in zip(model.layers, model.kv, strict=True)),
        model.head,
    ]
    reads = [0, *sizes[1:]]
    best: float | None = None
    for ways in itertools.product(range(len(budgets)), repeat=len(sizes)):
        changes = sum(a != b for a, b in itertools.pairwise(ways))
        if changes != len(set(ways)) - 1:
            continue  # some device has two runs
        fits = True
        for device, budget in enumerate(budgets):
            held = sum(size for size, d in zip(sizes, ways, strict=True) if d == device)
            if ways[0] == device == ways[-1]:
                held -= model.shared
            fits = fits and held <= budget.nbytes
        if not fits:
            continue
        seconds = sum(r / budgets[d].bandwidth for r, d in zip(reads, ways, strict=True))
        seconds += changes * (link.latency + model.activation / link.bandwidth)
        best = seconds if best is None else min(best, seconds)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_placement_by_budget_is_the_best_there_is(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randrange(1, 5)
    model = ModelCost(
        layers=tuple(rng.randrange(1, 100) * 10**6 for _ in range(n)),
        kv=tuple(rng.randrange(0, 3000) for _ in range(n)),
        embed=(embed := rng.randrange(0, 50) * 10**6),
        head=(head := rng.randrange(0, 50) * 10**6),
        shared=rng.choice([0, min(embed, head)]),
        activation=rng.randrange(0, 10**6),
    )
    names = rng.sample(["cuda:0", "cpu:0", "cpu:1", "cuda:1"], rng.randrange(1, 4))
    budgets = [Budget(name, rng.randrange(10, 250) * 10**6) for name in names]
    link, positions = Link(rng.choice([1e9, 12e9]), rng.choice([0.0, 20e-6, 1e-2])), rng.randrange(1, 9000)
    expected = oracle(model, budgets, link, positions)
    if expected is None:
        with pytest.raises(PassError, match="does not fit"):
            cheapest(model, budgets, link, positions)
        return
    found = cheapest(model, budgets, link, positions)
    which = [names.index(device) for device in found]
    changes = sum(a != b for a, b in itertools.pairwise(which))
    assert changes == len(set(which)) - 1
    sizes = [
        model.embed,
        *(w + positions * k for w, k in zip(model.layers, model.kv, strict=True)),
        model.head,
    ]
    for device, budget in enumerate(budgets):
        held = sum(size for size, d in zip(sizes, which, strict=True) if d == device)
        assert held - (model.shared if which[0] == device == which[-1] else 0) <= budget.nbytes
    seconds = sum(r / budgets[d].bandwidth for r, d in zip([0, *sizes[1:]], which, strict=True))
    seconds += changes * (link.latency + model.activation / link.bandwidth)
    assert seconds == pytest.approx(expected, rel=1e-12)
