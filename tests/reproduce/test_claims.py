"""What decides a claim: intervals over sentences and seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from phraseloom.metrics.bleu import make_scorer
from phraseloom.metrics.compare import paired_bootstrap
from phraseloom.metrics.ratio import Ratio
from phraseloom.reproduce import claims
from phraseloom.reproduce.claims import Difference, draw, of_seeds, of_sentences, together, verdict
from phraseloom.reproduce.measure import MeasuredValue
from phraseloom.reproduce.result import Judge, Result
from phraseloom.reproduce.table import ClaimConfig

REFERENCE = [f"the number {n} is said in words of line {n * 7 % 50}" for n in range(60)]


def claim(**changes: Any) -> ClaimConfig:
    return ClaimConfig.model_validate({"says": "x", "metric": "bleu", "more": ["a"], "than": ["b"], **changes})


def broken(lines: list[str], share: float, seed: int) -> list[str]:
    """Each line loses its last words with some probability."""
    draw = np.random.default_rng(seed).random(len(lines)) < share
    return [" ".join(line.split()[:-4]) if cut else line for line, cut in zip(lines, draw, strict=True)]


def measured(lines: list[str]) -> MeasuredValue:
    scorer = make_scorer("bleu")
    statistics = scorer.statistics(lines, [REFERENCE])
    return MeasuredValue(scorer.value(statistics.sum(0)), "", scorer.signature, {"": statistics}, scorer)


@pytest.mark.parametrize(
    ("difference", "changes", "says"),
    [
        (Difference(1.0, 0.2, 1.8), {}, "held"),
        (Difference(1.0, -0.2, 2.2), {}, "not decided"),
        (Difference(-1.0, -1.8, -0.2), {}, "did not hold"),
        (Difference(1.0), {}, "not decided"),
        (None, {}, "not measured"),
        (Difference(1.0, 0.2, 1.8), {"by": 0.5}, "not decided"),
        (Difference(1.0, 0.6, 1.4), {"by": 0.5}, "held"),
        (Difference(0.3, 0.2, 0.4), {"by": 0.5}, "did not hold"),
        (Difference(-1.0, -1.8, -0.2), {"more": [], "less": ["a"]}, "held"),
        (Difference(1.0, 0.2, 1.8), {"more": [], "less": ["a"]}, "did not hold"),
        (Difference(0.1, -0.2, 0.4), {"more": [], "equal": ["a"], "within": 0.5}, "held"),
        (Difference(0.1, -0.2, 0.6), {"more": [], "equal": ["a"], "within": 0.5}, "not decided"),
        (Difference(1.0, 0.6, 1.4), {"more": [], "equal": ["a"], "within": 0.5}, "did not hold"),
        (Difference(0.0, 0.0, 0.0), {}, "did not hold"),
        (Difference(1.0, 1.0, 1.0), {}, "held"),
    ],
)
def test_verdicts(difference: Difference | None, changes: dict[str, Any], says: str) -> None:
    assert verdict(claim(**changes), difference) == says


def test_a_claim_is_as_good_as_its_worst_comparison() -> None:
    assert together(["held", "held"]) == "held"
    assert together(["held", "not decided"]) == "not decided"
    assert together(["held", "not measured", "not decided"]) == "not measured"
    assert together(["did not hold", "not measured"]) == "did not hold"
    assert together([]) == "not measured"


def test_one_seed_is_the_paired_bootstrap() -> None:
    worse, better = measured(broken(REFERENCE, 0.6, 1)), measured(broken(REFERENCE, 0.2, 2))
    rows = {"a": {1: better}, "b": {1: worse}}
    drawn = draw(rows, samples=300)
    found = of_sentences(drawn.of("a"), drawn.of("b"))
    assert better.scorer is not None
    wanted = paired_bootstrap(better.scorer, [worse.statistics[""], better.statistics[""]], samples=300)[1]
    assert found is not None
    assert (found.mean, found.low, found.high) == (wanted.difference, wanted.difference_low, wanted.difference_high)
    assert found.p == wanted.p_win


def test_seeds_are_pooled() -> None:
    """Two seeds that disagree widen the interval: a claim that one seed decides is then open."""
    good, bad, middle = (measured(broken(REFERENCE, share, 3)) for share in (0.05, 0.9, 0.5))
    one = {"a": {1: good}, "b": {1: middle}}
    two = {"a": {1: good, 2: bad}, "b": {1: middle, 2: middle}}
    draws = [draw(rows, samples=200) for rows in (one, two)]
    first, second = (of_sentences(drawn.of("a"), drawn.of("b")) for drawn in draws)
    assert first is not None and second is not None
    assert verdict(claim(), first) == "held"
    assert verdict(claim(), second) == "not decided"
    assert "2 seeds pooled" in second.how


def test_only_seeds_that_both_have() -> None:
    some = measured(broken(REFERENCE, 0.3, 1))
    rows = {"a": {1: some, 2: some}, "b": {2: some, 3: some}}
    drawn = draw(rows, samples=50)
    found = of_sentences(drawn.of("a"), drawn.of("b"))
    assert found is not None and "1 seed pooled" in found.how
    apart = draw({"a": {1: some}, "b": {2: some}}, samples=50)
    assert of_sentences(apart.of("a"), apart.of("b")) is None


def series(seed: int, shift: float) -> MeasuredValue:
    """Two layers of a ratio over 50 sentences; the second is the first and `shift`."""
    steps = np.random.default_rng(seed).integers(1, 9, 50).astype(float)
    sums = steps * np.random.default_rng(seed + 1).random(50)
    rows = {"1": np.stack([sums, steps], 1), "2": np.stack([sums + shift * steps, steps], 1)}
    return MeasuredValue({n: Ratio().value(r.sum(0)) for n, r in rows.items()}, "", "", rows, Ratio())


def judge(**rows: dict[int, MeasuredValue]) -> Judge:
    metrics = {
        "entropy": rows,
        "half": {name: {1: replace(m[1], scorer=Ratio(factor=0.5))} for name, m in rows.items()},
    }
    cells = {("", row, metric): seeds for metric, of_rows in metrics.items() for row, seeds in of_rows.items()}
    return Judge(Result(cast(Any, None), "x", "tiny", [1], measured=cells))


def test_every_number_made_of_sentences_has_an_interval_of_one_seed() -> None:
    """Rows, layers, metrics and a given number are compared on the same resamples: a constant shift has no width."""
    one, other = series(3, 0.25), series(5, 0.25)
    found = judge(a={1: one}, b={1: other})
    rows = found.difference("", "entropy", "a", "b", None, "1", None, None)
    pair = [m.statistics["1"] for m in (other, one)]
    wanted = paired_bootstrap(Ratio(), pair, samples=1000)[1]
    assert rows is not None
    assert (rows.low, rows.high, rows.p) == (wanted.difference_low, wanted.difference_high, wanted.p_win)
    layers = found.difference("", "entropy", "a", None, None, "2", "1", None)
    assert layers is not None and layers.low is not None
    assert (layers.mean, layers.low, layers.high) == pytest.approx((0.25, 0.25, 0.25))
    metrics = found.difference("", "entropy", "a", None, "half", "1", None, None)
    given = found.difference("", "entropy", "a", None, None, "1", None, 0.0)
    assert metrics is not None and given is not None and given.low is not None and given.high is not None
    assert (metrics.low, metrics.high) == pytest.approx((given.low / 2, given.high / 2))
    assert given.low < Ratio().value(one.statistics["1"].sum(0)) < given.high


def test_numbers_of_other_sentences_are_not_drawn_together() -> None:
    one = series(3, 0.25)
    fewer = replace(one, statistics={name: rows[:40] for name, rows in one.statistics.items()})
    found = judge(a={1: one}, b={1: fewer}).difference("", "entropy", "a", "b", None, "1", None, None)
    assert found is not None and found.low is None
    shorter = replace(one, statistics={**one.statistics, "2": one.statistics["2"][:40]})
    labels = judge(a={1: shorter}).difference("", "entropy", "a", None, None, "2", "1", None)
    assert labels is not None and labels.mean == pytest.approx(0.25) and labels.low is None


def test_other_numbers_need_two_seeds() -> None:
    single = of_seeds([0.5])
    assert single is not None and single.low is None
    found = of_seeds([1.0, 1.2, 1.4])
    assert found is not None and found.low is not None and found.high is not None
    half = 4.303 * 0.2 / 3**0.5
    assert (found.low, found.high) == pytest.approx((1.2 - half, 1.2 + half))
    assert of_seeds([]) is None
    assert claims.student(500) == 1.96
