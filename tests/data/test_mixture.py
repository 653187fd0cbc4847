"""Weights and temperature of corpora: how often each pair occurs, as a function of (seed, epoch) alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.test_prepare import make
from tests.helpers import content

from phraseloom.data.batches import BatchPlan
from phraseloom.data.corpus import Dataset
from phraseloom.data.mixture import Mixture, draws, mixture_of
from phraseloom.data.tally import table
from phraseloom.errors import CorruptError


def lengths(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(1, 30, count).astype(np.int32)


def counts(mixture: Mixture, epochs: int) -> np.ndarray:
    result = np.zeros(sum(mixture.pairs), np.int64)
    for epoch in range(epochs):
        np.add.at(result, mixture.epoch(epoch), 1)
    return result


def test_weights_are_factors_and_a_temperature_evens_out() -> None:
    assert draws([100, 10], [1, 1]) == [100, 10]
    assert draws([100, 10], [0.5, 3]) == [50, 30]
    assert draws([900, 100], [1, 1], 2.0) == [750, 250]  # √0.9 : √0.1 = 3 : 1
    assert draws([900, 100], [1, 9], 5.0) == [900, 900]
    flat = draws([900, 100], [1, 1], 1000.0)
    assert abs(flat[0] - flat[1]) < 3 and sum(flat) == 1000
    assert draws([10**6, 3], [1, 0.01]) == [10**6, 1] and draws([10, 0], [1, 1]) == [10, 0]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 90)), min_size=1, max_size=4), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_every_pair_of_a_corpus_occurs_equally_often(corpora: list[tuple[int, int]], seed: int) -> None:
    sizes, drawn = zip(*corpora, strict=True)
    mixture = Mixture([str(n) for n in range(len(sizes))], sizes, drawn, seed=seed)
    for epochs in (1, 2, 5):
        occurrences, start = counts(mixture, epochs), 0
        for size, count in corpora:
            part = occurrences[start : start + size]
            assert part.sum() == epochs * count and part.max() - part.min() <= 1
            start += size


def test_an_epoch_is_a_function_of_the_seed_and_its_number() -> None:
    make_one = lambda seed: Mixture("ab", [50, 7], [20, 30], seed=seed)  # noqa: E731
    forwards = [make_one(3).epoch(n).tolist() for n in range(6)]
    other = make_one(3)
    assert [other.epoch(n).tolist() for n in reversed(range(6))][::-1] == forwards
    assert forwards[0] != forwards[1] and make_one(4).epoch(0).tolist() != forwards[0]


def test_weights_of_one_give_the_plan_without_weights() -> None:
    source, target = lengths(300), lengths(300)
    keys: dict[str, Any] = {"seed": 2, "batch_tokens": 200, "pool_updates": 3, "max_micro_tokens": 150}
    plain = BatchPlan(source, target, **keys)
    mixture = Mixture("ab", [200, 100], draws([200, 100], [1, 1]), seed=2)
    mixed = BatchPlan(source, target, mixture=mixture, **keys)
    assert mixed.updates_per_epoch == plain.updates_per_epoch and mixed.tokens == plain.tokens
    for epoch in (0, 4):
        for name in ("order", "cuts", "starts"):
            assert np.array_equal(getattr(plain.epoch(epoch), name), getattr(mixed.epoch(epoch), name))
    assert plain.padding() == mixed.padding()


def test_a_plan_has_the_pairs_of_its_mixture() -> None:
    source, target = lengths(300), lengths(300)
    mixture = Mixture("ab", [200, 100], draws([200, 100], [0.3, 2.5]), seed=2)
    plan = BatchPlan(source, target, seed=2, batch_tokens=200, mixture=mixture)
    assert abs(plan.updates_per_epoch - plan.tokens / 200) < 1
    for epoch in (0, 3):
        chosen = plan.epoch(epoch).order
        assert sorted(chosen) == sorted(mixture.epoch(epoch)) and (chosen < 200).sum() == 60 and len(chosen) == 310
        updates = [plan.update(epoch * plan.updates_per_epoch + n) for n in range(plan.updates_per_epoch)]
        assert np.array_equal(np.concatenate([m for u in updates for m in u]), chosen)
    assert 0 <= plan.padding(1) < 1


def weighted(tmp_path: Path, **more: Any) -> list[dict[str, Any]]:
    return [
        {"source": "a.s", "target": "a.t", "weight": 0.5, **more},
        {"source": "b.s", "target": "b.t", "weight": 2},
    ]


def test_prepare_counts_the_pairs_of_each_corpus(tmp_path: Path) -> None:
    plain = make(tmp_path).index
    assert "weight" not in str(plain) and mixture_of(plain) is None
    index = make(tmp_path, overwrite=True, train=weighted(tmp_path), filter={"max_ratio": 1.5}).index
    pairs = [file.pairs or 0 for file in index.splits["train"].files]
    assert 0 < pairs[0] < 200 and 0 < pairs[1] < 100 and sum(pairs) == index.splits["train"].pairs
    mixture = mixture_of(index)
    assert mixture is not None and mixture.drawn == (round(pairs[0] / 2), 2 * pairs[1])
    text, share = table(index), 100 * mixture.drawn[0] / len(mixture)
    assert f"corpus a.s: {pairs[0]} pairs, {mixture.drawn[0]} in an epoch ({share:.1f} %)" in text
    opened = Dataset.open(tmp_path / "out")
    assert mixture_of(opened.index) is not None and (opened.split("train").lines[: pairs[0]] < 200).all()


def test_unweighted_data_have_the_same_bytes_as_before(tmp_path: Path) -> None:
    make(tmp_path)
    before = content(tmp_path / "out")
    assert b'"weight"' not in before["index.json"] and b'"temperature"' not in before["index.json"]


def test_processes_do_not_change_a_weighted_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from phraseloom.data import prepare as module

    monkeypatch.setattr(module, "CHUNK_PAIRS", 40)
    monkeypatch.setattr(module, "SMALL_CHUNKS", 1)
    make(tmp_path, train=weighted(tmp_path), temperature=2)
    alone = content(tmp_path / "out")
    make(tmp_path, overwrite=True, train=weighted(tmp_path), temperature=2, processes=2)
    assert content(tmp_path / "out") == alone


def test_an_index_whose_corpora_do_not_add_up_is_corrupt(tmp_path: Path) -> None:
    index = make(tmp_path, train=weighted(tmp_path)).index
    index.splits["train"].files[0] = index.splits["train"].files[0].model_copy(update={"pairs": 3})
    with pytest.raises(CorruptError, match="the corpora of train do not add up to 300 pairs"):
        mixture_of(index)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"train": [{"source": "a.s", "target": "a.t", "weight": 0}]}, "greater than 0"),
        ({"train": [{"source": "a.s", "target": "a.t", "weight": "much"}]}, "number"),
        ({"temperature": 0.5}, "greater than or equal to 1"),
        (
            {"valid": [{"source": "a.s", "target": "a.t", "weight": 2}]},
            "valid.0.weight: every line of valid counts once",
        ),
    ],
)
def test_bad_weights_are_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **more)
