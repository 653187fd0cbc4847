"""The batch plan: each example once, tight in length, even in cost, and a function of (seed, epoch) alone."""

from __future__ import annotations

import hashlib
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.data.batches import BatchPlan, evaluation_batches, mix
from phraseloom.errors import DataError
from phraseloom.text.lines import read_lines

lengths = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=120)


def plan_of(pairs: list[tuple[int, int]], **keys: int | None) -> BatchPlan:
    source, target = np.array(pairs, np.int32).T
    return BatchPlan(source, target, **{"seed": 1, "batch_tokens": 50, **keys})  # type: ignore[arg-type]


def natural(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lengths like those of image captions in subwords."""
    random = np.random.default_rng(seed)
    target = np.clip(random.lognormal(2.6, 0.35, count), 3, 60).astype(np.int32)
    return np.clip(target * random.lognormal(0, 0.2, count), 3, 60).astype(np.int32), target


@given(lengths, st.integers(1, 400), st.integers(1, 5), st.none() | st.integers(1, 300), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_each_example_once_and_no_update_empty(
    pairs: list[tuple[int, int]], batch_tokens: int, micro: int, limit: int | None, pool: int
) -> None:
    plan = plan_of(pairs, batch_tokens=batch_tokens, micro_batches=micro, max_micro_tokens=limit, pool_updates=pool)
    for epoch in (0, 3):
        updates = [plan.update(epoch * plan.updates_per_epoch + u) for u in range(plan.updates_per_epoch)]
        assert len(plan.epoch(epoch)) == plan.updates_per_epoch
        assert all(len(update) >= 1 and all(len(m) >= 1 for m in update) for update in updates)
        assert sorted(int(i) for update in updates for m in update for i in m) == list(range(len(pairs)))
        for m in (m for update in updates for m in update):
            longest = max(max(pairs[i]) + 1 for i in m)
            assert limit is None or len(m) == 1 or len(m) * longest <= limit


def test_position_is_one_integer() -> None:
    plan = plan_of([(5, 4)] * 100, batch_tokens=50)
    assert plan.updates_per_epoch == 10
    assert [plan.position(n) for n in (0, 9, 10, 25)] == [(0, 0), (0, 9), (1, 0), (2, 5)]


def test_a_function_of_seed_and_epoch() -> None:
    source, target = natural(500)
    keys = {"batch_tokens": 300, "pool_updates": 5}
    one, two = (BatchPlan(source, target, seed=1, **keys) for _ in range(2))
    backwards = [two.update(n) for n in reversed(range(100))][::-1]
    for n in range(100):
        assert all(np.array_equal(a, b) for a, b in zip(one.update(n), backwards[n], strict=True))
    other = BatchPlan(source, target, seed=2, **keys)
    assert not np.array_equal(one.epoch(0).order, other.epoch(0).order)
    assert not np.array_equal(one.epoch(0).order, one.epoch(1).order)


@pytest.mark.parametrize("batch_tokens", [1000, 2000])
def test_little_padding_even_cost_and_the_size_asked_for(batch_tokens: int) -> None:
    source, target = natural(29_000)
    plan = BatchPlan(source, target, seed=1, batch_tokens=batch_tokens, micro_batches=2)
    assert plan.padding() < 0.03
    tokens, costs = [], []
    for n in range(plan.updates_per_epoch):
        update = plan.update(n)
        tokens.append(sum(int(target[m].sum()) + len(m) for m in update))
        costs.append([float((target[m] + 1 + 0.5 * (source[m] + 1)).sum()) for m in update])
    assert np.mean(tokens) == pytest.approx(batch_tokens, rel=0.01)
    assert np.quantile(np.abs(np.array(tokens) / batch_tokens - 1), 0.99) < 0.2
    assert np.quantile(np.ptp(costs, axis=1) / np.mean(costs), 0.99) < 0.06


def test_little_padding_on_multi30k(shared: Path) -> None:
    folder = shared / "data" / "multi30k"
    source, target = (
        np.array([line.count(" ") * 6 // 5 + 1 for line in read_lines(folder / f"train.{language}.gz")], np.int32)
        for language in ("en", "de")
    )
    assert BatchPlan(source, target, seed=1, batch_tokens=2000).padding() < 0.03


def test_a_million_pairs_are_planned_in_two_seconds() -> None:
    source, target = natural(1_000_000)
    start = time.process_time()
    plan = BatchPlan(source, target, seed=1, batch_tokens=4000, max_micro_tokens=3000)
    assert plan.padding() < 0.03
    assert time.process_time() - start < 2


def test_micro_batches_follow_the_limit_on_their_size() -> None:
    source, target = natural(2000)
    assert BatchPlan(source, target, seed=1, batch_tokens=4000, max_micro_tokens=500).micro_batches == 8


def test_largest_is_the_one_that_needs_most_memory() -> None:
    source, target = natural(3000)
    target[7] = source[7] = 900
    plan = BatchPlan(source, target, seed=1, batch_tokens=300)
    largest = plan.largest()
    assert 7 in largest
    sizes = [
        (source[m].max() + target[m].max() + 2) * len(m) for n in range(len(plan.epoch(0))) for m in plan.update(n)
    ]
    assert (source[largest].max() + target[largest].max() + 2) * len(largest) == max(sizes)


GOLDEN = [
    # pairs, seed, options, digests of epochs 0 and 3, and of epoch 1 without a source; made before plans were made in blocks
    (1, 0, {"batch_tokens": 50}, "d1cf729c89a7", "d1cf729c89a7", "d1cf729c89a7"),
    (37, 1, {"batch_tokens": 60, "pool_updates": 2, "micro_batches": 3}, "8ff1d0c72fc0", "b3324017fb84", "7e90093698ea"),
    (20000, 2, {"batch_tokens": 900, "pool_updates": 7}, "4cda22d28977", "894d2f867eb1", "bad0b781f52f"),
    (
        20000, 3, {"batch_tokens": 4000, "micro_batches": 4, "max_micro_tokens": 700, "pool_updates": 3},
        "4d4e1ce283b2", "12ff027c564a", "1469fed4926c",
    ),
    (
        300000, 4, {"batch_tokens": 3000, "pool_updates": 50, "max_micro_tokens": 2000},
        "f5a2095999ee", "d873dd3dc83b", "62d86f4cf4c1",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("count", "seed", "options", "first", "third", "text"), GOLDEN)
def test_plans_are_those_of_every_version(
    count: int, seed: int, options: dict[str, Any], first: str, third: str, text: str
) -> None:
    random = np.random.default_rng(seed)
    target = np.clip(random.lognormal(2.6, 0.5, count), 1, 200).astype(np.int32)
    source = np.clip(target * random.lognormal(0, 0.3, count), 1, 250).astype(np.int32)
    plans = [BatchPlan(side, target, seed=seed, **options) for side in (source, None)]
    assert [digest(plans[0], 0), digest(plans[0], 3), digest(plans[1], 1)] == [first, third, text]


def digest(plan: BatchPlan, epoch: int) -> str:
    """Of the whole plan of an epoch, the largest micro-batch and the padding."""
    made = plan.epoch(epoch)
    total = hashlib.sha256()
    for part in (made.order, made.cuts, made.starts, plan.largest()):
        total.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
        if part is made.starts:
            plan.epoch(0)
    total.update(f"{plan.padding(epoch):.12f}".encode())
    return total.hexdigest()[:12]


@pytest.mark.parametrize("count", [500_000, 1_000_000])
def test_a_plan_takes_less_than_sixteen_bytes_a_pair(count: int) -> None:
    """Beside the lengths; 53 when the whole was sorted at once. The plan that is kept takes five."""
    source, target = natural(count)
    plan = BatchPlan(source, target, seed=1, batch_tokens=2000, pool_updates=20, max_micro_tokens=2000)
    tracemalloc.start()
    plan.epoch(0)
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (peak <= 16 * count, now <= 6 * count) == (True, True), (peak / count, now / count)


def test_empty_training_set_is_an_error() -> None:
    with pytest.raises(DataError, match="the training set is empty"):
        plan_of([(1, 1)][:0] or np.zeros((0, 2), np.int32))  # type: ignore[arg-type]


def test_mix_is_stable_and_tells_its_arguments_apart() -> None:
    assert [mix(1), mix(1, 2), mix(2, 1), mix(0)] == [
        mix_reference([1]), mix_reference([1, 2]), mix_reference([2, 1]), mix_reference([0]),
    ]  # fmt: skip
    values = {mix(seed, 2, update, micro) for seed in range(5) for update in range(500) for micro in range(4)}
    assert len(values) == 10_000 and all(0 <= v < 2**63 for v in values)


def mix_reference(numbers: list[int]) -> int:
    """splitmix64 (Steele, Lea and Flood 2014), each number added to the state before a round."""
    state, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    for number in numbers:
        z = (state + number + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        state = z ^ (z >> 31)
    return state >> 1


@given(lengths, st.integers(1, 300))
@settings(max_examples=50, deadline=None)
def test_evaluation_batches_hold_everything_once(pairs: list[tuple[int, int]], limit: int) -> None:
    source, target = np.array(pairs, np.int32).T
    batches = list(evaluation_batches(source, target, limit))
    assert sorted(int(i) for b in batches for i in b) == list(range(len(pairs)))
    longest = np.maximum(source, target) + 1
    assert all(len(b) == 1 or len(b) * longest[b].max() <= limit for b in batches)


def test_seeds_of_numpy() -> None:
    assert mix(np.int64(-3), np.uint32(7)) == mix(-3, 7)
    with pytest.raises(TypeError):
        mix(0.5)  # type: ignore[arg-type]
