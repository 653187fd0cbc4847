"""What decides a claim: differences over seeds and sentences, margins, Holm, floors, and what one seed cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from phraseloom.metrics.bleu import make_scorer
from phraseloom.metrics.compare import bootstrap_values
from phraseloom.metrics.ratio import Ratio
from phraseloom.metrics.seeds import SeedDifference, SeedScores, compare_seeds, exact_difference
from phraseloom.reproduce.claims import Comparison, JudgedClaim, compare, decide, draw, weigh
from phraseloom.reproduce.measure import MeasuredValue
from phraseloom.reproduce.result import Judge, Result
from phraseloom.reproduce.result import compare as compare_rows
from phraseloom.reproduce.table import ClaimConfig, TableConfig
from phraseloom.reproduce.writing import as_markdown

from .fakes import table_data

REFERENCE = [f"the number {n} is said in words of line {n * 7 % 50}" for n in range(60)]


def claim(**changes: Any) -> ClaimConfig:
    return ClaimConfig.model_validate({"says": "x", "metric": "bleu", "more": ["a"], "than": ["b"], **changes})


def equal(within: float) -> ClaimConfig:
    return claim(more=[], equal=["a"], within=within)


def estimate(mean: float, error: float = 0.4, **changes: Any) -> SeedDifference:
    """A difference of many seeds."""
    found = SeedDifference(mean, mean - 1.96 * error, mean + 1.96 * error, None, error, None, **changes)
    return replace(found, p=found.p_against(0))


def verdicts(*of: tuple[ClaimConfig, Sequence[SeedDifference | None]]) -> list[str]:
    return [j.verdict for j in decide([weigh(c, [compare(c, "", d) for d in some]) for c, some in of])]


@pytest.mark.parametrize(
    ("difference", "wanted", "says"),
    [
        (estimate(1.0), claim(), "held"),
        (estimate(0.7), claim(), "undecided"),
        (estimate(-1.0), claim(), "did not hold"),
        (SeedDifference(1.0), claim(), "undecided"),
        (None, claim(), "not measured"),
        (estimate(1.0), claim(by=0.5), "undecided"),
        (estimate(1.4), claim(by=0.5), "held"),
        (estimate(-0.4), claim(by=0.5), "did not hold"),
        (estimate(-1.0), claim(more=[], less=["a"]), "held"),
        (estimate(1.0), claim(more=[], less=["a"]), "did not hold"),
        (estimate(0.1, 0.1), equal(0.5), "held"),
        (estimate(0.4, 0.1), equal(0.5), "undecided"),
        (estimate(1.0, 0.1), equal(0.5), "did not hold"),
        (exact_difference(0.0), claim(), "did not hold"),
        (exact_difference(1.0), claim(), "held"),
        (exact_difference(1.0), claim(by=1.0), "held"),
    ],
)
def test_verdicts(difference: SeedDifference | None, wanted: ClaimConfig, says: str) -> None:
    assert verdicts((wanted, [difference])) == [says]


def test_claims_that_were_not_measured_make_no_other_easier() -> None:
    """Rows that were left out count with p = 1 in Holm's correction, unless no row has several seeds."""
    narrow = estimate(0.85)
    assert narrow.p is not None and 0.02 < narrow.p < 0.05
    assert verdicts((claim(), [narrow])) == ["held"]
    assert verdicts((claim(), [narrow]), (claim(), [None])) == ["undecided", "not measured"]
    assert verdicts((claim(), [estimate(1.0)]), (claim(), [None])) == ["held", "not measured"]
    one_seed = estimate(0.85, one_seed=True)
    assert verdicts((claim(), [one_seed]), (claim(), [None])) == [*verdicts((claim(), [one_seed])), "not measured"]


def test_claims_without_a_verdict_on_quality_make_no_other_easier() -> None:
    """A row that did not learn counts with p = 1; an exact comparison, which needs no p, does not."""
    some = weigh(claim(), [compare(claim(), "", estimate(0.85))])
    for verdict, expected in (("not learned", "undecided"), ("undecided", "undecided"), ("held", "held")):
        assert decide([some, replace(some, p=None, verdict=verdict)])[0].verdict == expected


def test_a_comparison_that_was_not_measured_makes_no_contradiction_easier() -> None:
    against = estimate(-0.9)
    assert against.p is not None and 0.02 < against.p < 0.025
    for others in ([], [estimate(1.0)], [None]):
        judged = weigh(claim(), [compare(claim(), "", d) for d in (against, *others)])
        assert judged.p == pytest.approx((1 + len(others)) * against.p)


def judged_alone(wanted: ClaimConfig, *differences: SeedDifference) -> JudgedClaim:
    (judged,) = decide([weigh(wanted, [compare(wanted, "", d) for d in differences])])
    return judged


@pytest.mark.parametrize("mean", [0.0, 0.6, -1.2])
def test_a_margin_inside_the_half_width_cannot_hold(mean: float) -> None:
    """The interval of ± 0.78 is wider than ± 0.5 and reaches into it: undecided, and the reason is the margin."""
    judged = judged_alone(equal(0.5), estimate(mean))
    assert judged.verdict == "undecided" and "margin of 0.5" in judged.reason
    assert judged.p_holm is not None and judged.p_holm > 0.05


@pytest.mark.parametrize("mean", [1.3, -5.0])
def test_a_margin_inside_the_half_width_is_refuted_from_outside(mean: float) -> None:
    """The interval of ± 0.78 lies wholly outside ± 0.5: more seeds could not make these two equal."""
    judged = judged_alone(equal(0.5), estimate(mean))
    assert (judged.verdict, judged.reason) == ("did not hold", "")
    assert judged_alone(equal(0.5), estimate(mean, one_seed=True)).verdict == "between these two runs: no"
    of_two = "undecided" if mean > 0 else "did not hold"  # p 0.046 alone, twice that for one of two comparisons
    assert judged_alone(equal(0.5), estimate(mean), estimate(0.1)).verdict == of_two


def test_a_margin_that_cannot_hold_counts_in_holms_correction() -> None:
    """It can be refuted, so it is one of the claims that share five per cent."""
    narrow = estimate(0.85)
    assert verdicts((claim(), [narrow]), (equal(0.5), [estimate(0.0)])) == ["undecided", "undecided"]


def test_a_claim_is_as_good_as_its_worst_comparison() -> None:
    good, open_, bad = estimate(2.0), estimate(0.1), estimate(-2.0)
    assert verdicts((claim(), [good, good])) == ["held"]
    assert verdicts((claim(), [good, open_])) == ["undecided"]
    assert verdicts((claim(), [good, None, open_])) == ["not measured"]
    assert verdicts((claim(), [bad, None])) == ["did not hold"]
    assert verdicts((claim(), [estimate(-0.9), None])) == ["did not hold"]
    assert verdicts((claim(), [])) == ["not measured"]


def test_one_contrary_comparison_of_many_is_chance() -> None:
    """p 0.024 alone; one of twelve comparisons is as far off by chance in a quarter of all tables."""
    off = estimate(-0.9)
    assert off.p is not None and 0.02 < off.p < 0.03
    assert verdicts((claim(), [off])) == ["did not hold"]
    assert verdicts((claim(), [off] + [estimate(1.0)] * 11)) == ["undecided"]


def test_claims_of_a_table_share_five_per_cent() -> None:
    some = estimate(0.85)
    assert verdicts((claim(), [some])) == ["held"]
    assert verdicts(*[(claim(), [some])] * 3) == ["undecided"] * 3
    found = decide(
        [weigh(claim(), [compare(claim(), "", d)]) for d in (some, some, estimate(3.0), exact_difference(1))]
    )
    assert [j.verdict for j in found] == ["undecided", "undecided", "held", "held"]
    assert found[0].p_holm == pytest.approx(2 * (some.p or 0)) and found[3].p_holm is None


def test_no_difference_is_found_where_there_is_none() -> None:
    """Tables of four claims about twelve equal rows, three seeds of SD 0.4: a verdict in at most 5 % of them."""
    rng, wrong, trials = np.random.default_rng(5), 0, 200
    for _ in range(trials):
        weighed: list[JudgedClaim] = []
        for _ in range(4):
            noise = rng.normal(0, 0.43, 50)
            some = [SeedScores(s := rng.normal(0, 0.4, 3), s[:, None] + rng.normal(0, 0.43, 50)) for _ in range(3)]
            base = SeedScores(s := rng.normal(0, 0.4, 3), s[:, None] + noise)
            weighed.append(weigh(claim(), [compare(claim(), "", compare_seeds(one, base)) for one in some]))
        wrong += any(j.verdict != "undecided" for j in decide(weighed))
    assert wrong / trials <= 0.05


def test_one_seed_is_no_verdict_on_training() -> None:
    one = estimate(2.0, one_seed=True)
    assert verdicts((claim(), [one])) == ["between these two runs: yes"]
    assert verdicts((claim(), [estimate(-2.0, one_seed=True)])) == ["between these two runs: no"]
    assert verdicts((claim(), [estimate(0.1, one_seed=True)])) == ["between these two runs: undecided"]
    assert verdicts((claim(), [SeedDifference(1.0, one_seed=True)])) == ["between these two runs: undecided"]
    layers = claim(than=[], labels=["3"], than_label="6")
    assert verdicts((layers, [one])) == ["in this run: yes"]


def test_two_seeds_are_no_verdict_yet() -> None:
    """Simulated in tests/metrics/test_seeds.py: with two seeds, very small p are far too frequent."""
    two, layers = {"seeds": 2}, claim(than=[], labels=["3"], than_label="6")
    assert verdicts((claim(), [estimate(2.0, **two)])) == ["with two seeds: yes"]
    assert verdicts((claim(), [estimate(-2.0, **two)])) == ["with two seeds: no"]
    assert verdicts((claim(), [estimate(0.1, **two)])) == ["undecided"]
    assert verdicts((layers, [estimate(2.0, **two)])) == ["with two seeds: yes"]
    assert verdicts((claim(), [estimate(2.0, seeds=3), estimate(2.0, **two)])) == ["with two seeds: yes"]
    assert verdicts((claim(), [estimate(2.0, seeds=3)])) == ["held"]
    assert verdicts((claim(), [exact_difference(1.0)])) == ["held"]


def test_the_row_with_fewest_seeds_counts() -> None:
    good, bad = measured(REFERENCE), measured(broken(REFERENCE, 0.9, 3))
    wanted = [claim().model_dump(exclude_unset=True)]
    found = result(bleu(a={1: good, 2: good}, b={1: bad, 2: bad, 3: bad}), claims=wanted)
    compare_rows(found)
    assert found.judged[0].verdict == "with two seeds: yes"


def broken(lines: list[str], share: float, seed: int) -> list[str]:
    """Each line loses its last words with some probability."""
    cut = np.random.default_rng(seed).random(len(lines)) < share
    return [" ".join(line.split()[:-4]) if c else line for line, c in zip(lines, cut, strict=True)]


def measured(lines: list[str]) -> MeasuredValue:
    scorer = make_scorer("bleu")
    statistics = scorer.statistics(lines, [REFERENCE])
    return MeasuredValue(scorer.value(statistics.sum(0)), "", scorer.signature, {"": statistics}, scorer)


def result(cells: dict[str, dict[str, dict[int, MeasuredValue]]], scale: Any = "small", **changes: Any) -> Result:
    """A result from metric → row → seed → measured; metrics of the fake table, and ratios by layer."""
    layer = {"kind": "json", "title": "x", "file": "f", "at": "a", "label": "layer", "by_sentence": "b"}
    data = table_data({}, **changes)
    data["metrics"] |= {"entropy": layer, "half": {**layer, "factor": 0.5}, "groups": {**layer, "apart": True}}
    data["rows"] = {name: {"label": name} for name in "abcd"}
    found = Result(TableConfig.model_validate(data), "x", scale, [1])
    for metric, rows in cells.items():
        for row, seeds in rows.items():
            found.measured["", row, metric] = seeds
    return found


def bleu(**rows: dict[int, MeasuredValue]) -> dict[str, dict[str, dict[int, MeasuredValue]]]:
    return {"bleu": rows}


def test_seeds_of_one_row_are_not_paired_with_those_of_another() -> None:
    good, fair, bad = (measured(broken(REFERENCE, share, 3)) for share in (0.05, 0.4, 0.9))
    found = Judge(result(bleu(a={1: good, 2: fair}, b={7: bad, 8: bad, 9: bad}))).rows("", "bleu", "a", "b")
    assert found is not None and not found.one_seed and "2 and 3 seeds" in found.how
    assert found.deviations == (pytest.approx(np.std([good.value, fair.value], ddof=1)), 0.0)


def test_one_seed_is_the_paired_bootstrap() -> None:
    worse, better = measured(broken(REFERENCE, 0.6, 1)), measured(broken(REFERENCE, 0.2, 2))
    found = Judge(result(bleu(a={1: better}, b={1: worse}))).rows("", "bleu", "a", "b")
    assert better.scorer is not None
    sampled = bootstrap_values(better.scorer, [better.statistics[""], worse.statistics[""]], samples=1000)
    assert found is not None and found.one_seed
    assert found.standard_error == pytest.approx((sampled[0] - sampled[1]).std(ddof=1))


def series(seed: int, shift: float) -> MeasuredValue:
    """Two layers of a ratio over 50 sentences; the second is the first and `shift`."""
    steps = np.random.default_rng(seed).integers(1, 9, 50).astype(float)
    sums = steps * np.random.default_rng(seed + 1).random(50)
    rows = {"1": np.stack([sums, steps], 1), "2": np.stack([sums + shift * steps, steps], 1)}
    return MeasuredValue({n: Ratio().value(r.sum(0)) for n, r in rows.items()}, "", "", rows, Ratio())


def difference(cells: dict[str, Any], **changes: Any) -> SeedDifference | None:
    """The difference of the first comparison of a claim about entropy."""
    wanted = claim(**{"metric": "entropy", "labels": ["1"], **changes})
    compared: list[Comparison] = [c for c, _ in Judge(result(cells)).comparisons(wanted)]
    return compared[0].difference


def test_a_two_by_two_of_rows() -> None:
    """What a gains over b, less what c gains over d; a constant gain of every sentence has no width."""
    gains = {"a": 3.0, "b": 1.0, "c": 0.5, "d": 0.0}
    cells = {name: {seed: by_length(seed, {"short": gain}) for seed in (1, 2, 3)} for name, gain in gains.items()}
    wanted = claim(metric="groups", labels=["short"], beyond=["c", "d"])
    found = result({"groups": cells}, claims=[wanted.model_dump(exclude_unset=True)])
    (judged,) = Judge(found).verdicts()
    (comparison,) = judged.comparisons
    assert comparison.says == "gain of a [short] over b > c over d"
    assert comparison.difference is not None
    assert comparison.difference.mean == pytest.approx((3 - 1) - (0.5 - 0))
    seeds = comparison.difference.deviations
    assert len(seeds) == 4
    assert comparison.difference.standard_error == pytest.approx(np.sqrt(sum(d**2 for d in seeds) / 3), rel=1e-6)  # type: ignore[operator]
    one = {name: {1: seeds[1]} for name, seeds in cells.items()}
    judged = Judge(result({"groups": one}, claims=[wanted.model_dump(exclude_unset=True)])).verdicts()[0]
    assert judged.verdict == "undecided" and "four runs" in judged.reason
    floor = {"metric": "groups", "label": "short", "row": "a", "at_least": {"small": 29.0}}
    weak = {name: {s: by_length(s, {"short": -20.0 if name in "cd" else 3.0}) for s in (1, 2, 3)} for name in "abcd"}
    found = result({"groups": weak}, claims=[wanted.model_dump(exclude_unset=True)], floor=floor)
    assert Judge(found).verdicts()[0].verdict == "not learned"
    weak_once = {name: {1: seeds[1]} for name, seeds in weak.items()}
    found = result({"groups": weak_once}, claims=[wanted.model_dump(exclude_unset=True)], floor=floor)
    assert Judge(found).verdicts()[0].verdict == "not learned"
    del cells["d"]
    assert Judge(result({"groups": cells})).comparisons(wanted)[0][0].difference is None
    for changes in (
        {"than": [], "value": 1.0},
        {"than_label": "long", "labels": ["short"]},
        {"times": 2.0},
        {"beyond": ["c"]},
    ):
        with pytest.raises(ValueError, match="beyond has two rows, and is for measured numbers"):
            claim(**{"beyond": ["c", "d"], **changes})
    with pytest.raises(ValueError, match="the rows of a claim with beyond are different rows"):
        claim(beyond=["b", "c"])


def test_layers_metrics_and_rows_are_drawn_together() -> None:
    """Compared on the same resamples: a constant shift has no width."""
    one = series(3, 0.25)
    half = replace(one, scorer=Ratio(factor=0.5), value={k: v / 2 for k, v in one.value.items()})  # type: ignore[union-attr]
    cells = {"entropy": {"a": {1: one}}, "half": {"a": {1: half}}}
    layers = difference(cells, than=[], labels=["2"], than_label="1")
    assert layers is not None and (layers.low, layers.high) == pytest.approx((0.25, 0.25))
    given = difference(cells, than=[], value=0.0)
    metrics = difference(cells, than=[], than_metric="half")
    assert given is not None and metrics is not None and given.standard_error is not None
    assert metrics.standard_error == pytest.approx(given.standard_error / 2)


def test_numbers_of_other_sentences_are_not_drawn_together() -> None:
    one = series(3, 0.25)
    fewer = replace(one, statistics={name: rows[:40] for name, rows in one.statistics.items()})
    found = difference({"entropy": {"a": {1: one, 2: one}, "b": {1: fewer, 2: fewer}}})
    assert found is not None and found.low is None and "no interval" in found.how
    shorter = replace(one, statistics={**one.statistics, "2": one.statistics["2"][:40]})
    labels = difference({"entropy": {"a": {1: shorter}}}, than=[], labels=["2"], than_label="1")
    assert labels is not None and labels.mean == pytest.approx(0.25) and labels.low is None


def by_length(seed: int, gain: dict[str, float]) -> MeasuredValue:
    """Mean scores of two groups of different sentences, of other sizes; `gain` is added to each sentence of a group."""
    rng, rows = np.random.default_rng(seed), {}
    for label, size in (("short", 80), ("long", 50)):
        scores = np.random.default_rng(len(label)).normal(30, 5, size) + rng.normal(0, 1, size) + gain.get(label, 0)
        rows[label] = np.stack([scores, np.ones(size)], 1)
    return MeasuredValue({n: Ratio().value(r.sum(0)) for n, r in rows.items()}, "", "", rows, Ratio())


def test_a_difference_of_differences() -> None:
    """Long sentences gain 3, short ones 1: the gains differ by 2, and what both rows find hard cancels."""
    a = {seed: by_length(seed, {"short": 1.0, "long": 3.0}) for seed in (1, 2, 3)}
    b = {seed: by_length(seed + 10, {}) for seed in (1, 2, 3)}
    wanted = claim(metric="groups", labels=["last"], than_label="first")
    found = result({"groups": {"a": a, "b": b}}, claims=[wanted.model_dump(exclude_unset=True)])
    compare_rows(found)
    (judged,) = found.judged
    (comparison,) = judged.comparisons
    assert comparison.says == "gain of a over b, [long] > [short]"
    assert comparison.difference is not None and comparison.difference.standard_error is not None
    gains = {
        name: np.mean([m.value[name] for m in a.values()]) - np.mean([m.value[name] for m in b.values()])  # type: ignore[index]
        for name in ("short", "long")
    }
    assert comparison.difference.mean == pytest.approx(gains["long"] - gains["short"])
    # Of each sentence the mean noise of three runs of two rows is left: variance 2/3, in groups of 50 and of 80.
    sentences = np.sqrt(2 / 3 / 50 + 2 / 3 / 80)
    assert sentences * 0.7 < comparison.difference.standard_error < sentences * 2.5
    assert judged.verdict == "held"
    same = result(
        {"groups": {"a": a, "b": b}}, claims=[{**wanted.model_dump(exclude_unset=True), "than_label": "last"}]
    )
    compare_rows(same)
    assert same.judged[0].verdict == "not measured"


def test_groups_of_other_sentences_are_drawn_by_themselves() -> None:
    """Else equal groups would be hard and easy together by the chance of the draw."""
    one = by_length(1, {})
    seeds = {1: replace(one, statistics=dict.fromkeys(("short", "long"), one.statistics["long"]))}
    first, second = (draw({"a": seeds}, label, apart=True, samples=400) for label in ("short", "long"))
    assert first is not None and second is not None and first.group != second.group
    both = np.corrcoef(first.sampled["a", 1], second.sampled["a", 1])[0, 1]
    assert abs(both) < 0.2


@pytest.mark.parametrize(
    "changes",
    [
        {"value": 1.0},
        {"than_metric": "half"},
        {"than": [], "labels": None},
        {"than_label": "1", "labels": None},
        {"than": [], "value": 1.0, "than_label": "1"},
    ],
)
def test_a_claim_is_one_comparison(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"exactly one of value|needs labels"):
        claim(**changes)


def test_so_many_times_another_row() -> None:
    """256 and 15.4 samples a second are 16.6 to one, which is not 28."""
    cells = {
        "bleu": {
            "a": {1: MeasuredValue(256.0), 2: MeasuredValue(257.0), 3: MeasuredValue(258.0)},
            "b": {1: MeasuredValue(15.0), 2: MeasuredValue(15.1), 3: MeasuredValue(15.2)},
        }
    }
    wanted = [claim(metric="bleu", times=times).model_dump(exclude_unset=True) for times in (16.6, 28.0)]
    found = result(cells, claims=wanted)
    compare_rows(found)
    first, second = found.judged
    assert (first.verdict, second.verdict) == ("held", "did not hold")
    (comparison,) = first.comparisons
    assert comparison.says == "a > 16.6 times b"
    assert comparison.difference is not None
    assert comparison.difference.mean == pytest.approx(257 - 16.6 * 15.1)


@pytest.mark.parametrize("changes", [{"than": [], "value": 3.0}, {"metric": "parameters"}])
def test_times_is_of_measured_rows(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="times multiplies the measured numbers"):
        claim(times=2.0, **changes)


def test_few_sentences_have_no_interval() -> None:
    few = {1: replace(series(1, 0.1), statistics={"1": series(1, 0.1).statistics["1"][:29]})}
    drawn = draw({"a": few}, "1")
    assert drawn is not None and drawn.sentences == 0
    assert draw({"a": {1: MeasuredValue(3.0)}}) is None


FLOOR = {"metric": "bleu", "row": "b", "at_least": {"small": 80}}


@pytest.mark.parametrize(
    ("share", "floor", "scale", "says"),
    [
        (0.1, FLOOR, "small", "held"),
        (0.9, FLOOR, "small", "not learned"),
        (0.9, FLOOR, "tiny", "path only"),
        (0.9, {**FLOOR, "at_least": {"paper": 80}}, "small", "held"),
        (0.9, {"metric": "bleu", "row": "b", "at_most": {"small": 80}}, "small", "held"),
    ],
)
def test_below_the_floor_there_is_no_verdict(share: float, floor: dict[str, Any], scale: Any, says: str) -> None:
    good, base = measured(REFERENCE), measured(broken(REFERENCE, share, 1))
    claims = [{"says": "x", "metric": "bleu", "more": ["a"], "than": ["b"]}]
    found = result(
        bleu(a=dict.fromkeys((1, 2, 3), good), b=dict.fromkeys((1, 2, 3), base)), scale, claims=claims, floor=floor
    )
    compare_rows(found)
    (judged,) = found.judged
    assert judged.verdict == says
    assert judged.comparisons[0].difference is not None
    if says == "not learned":
        assert judged.reason == f"BLEU {base.value:.1f} of b is below the floor of 80" and judged.p_holm is None


def test_rows_that_learned_nothing_are_not_compared() -> None:
    """The baseline learned; of the rows that are compared, none did."""
    good, bad = measured(REFERENCE), measured(broken(REFERENCE, 0.95, 1))
    data = {"claims": [{"says": "x", "metric": "bleu", "more": ["a"], "than": ["c"]}], "floor": FLOOR}
    table = table_data({}, **data)
    table["rows"] = {name: {"label": name} for name in "abc"}
    found = Result(TableConfig.model_validate(table), "x", "small", [1, 2])
    for row, of in (("a", bad), ("b", good), ("c", bad)):
        found.measured["", row, "bleu"] = {1: of, 2: of}
    compare_rows(found)
    assert found.judged[0].verdict == "not learned"


def test_a_claim_has_a_floor_of_its_own() -> None:
    """It decides about this claim alone, beside the floor of the table, and the page states both."""
    good, base = measured(REFERENCE), measured(broken(REFERENCE, 0.4, 1))
    plain = {"says": "x", "metric": "bleu", "more": ["a"], "than": ["b"]}
    for bound, says in ((95, "not learned"), (5, "held")):
        claims = [plain, {**plain, "says": "y", "floor": {"metric": "bleu", "at_least": {"small": bound}}}]
        rows = bleu(a=dict.fromkeys((1, 2, 3), good), b=dict.fromkeys((1, 2, 3), base))
        found = result(rows, claims=claims, floor={**FLOOR, "at_least": {"small": 10}}, baseline="b")
        compare_rows(found)
        assert [judged.verdict for judged in found.judged] == ["held", says]
        page = as_markdown(found)
        assert f"Floor: BLEU of b is at least 10. Floor of the claim *y* alone: BLEU of b is at least {bound}." in page
    assert found.judged[1].reason == ""


def test_the_floor_of_a_claim_is_checked() -> None:
    claims = [{"says": "x", "metric": "bleu", "more": ["a"], "than": ["b"], "floor": {**FLOOR, "metric": "ter"}}]
    with pytest.raises(ValueError, match="floor: no metric 'ter'"):
        result({}, claims=claims)


def test_a_floor_of_a_series_is_that_of_its_best_label() -> None:
    """Or of a label that it names."""
    one = series(3, 0.25)
    claims = [{"says": "x", "metric": "entropy", "more": ["a"], "than_label": "1", "labels": ["2"]}]
    values = one.value
    assert isinstance(values, dict)
    middle = (values["1"] + values["2"]) / 2
    for label, says in ((None, "in this run: yes"), ("2", "in this run: yes"), ("1", "not learned")):
        floor = {"metric": "entropy", "row": "a", "label": label, "at_least": {"small": middle}}
        found = result({"entropy": {"a": {1: one}}}, claims=claims, floor=floor)
        compare_rows(found)
        assert found.judged[0].verdict == says


def test_rows_of_the_same_trained_models_are_compared_in_pairs() -> None:
    """What both runs of a pair share cancels; seeds that one row lacks are left out, and the order of the seeds is free."""
    apart = {seed: by_length(seed, {"short": 10.0 * seed, "long": 10.0 * seed}) for seed in (1, 2, 3)}
    better = {seed: by_length(seed, {"short": 10.0 * seed + 0.5, "long": 10.0 * seed + 0.5}) for seed in (3, 1, 2, 4)}
    found = {}
    for shares in (None, "b"):
        of = result({"groups": {"a": better, "b": apart}})
        row = of.table.rows["a"].model_copy(update={"shares": shares})
        of.table = of.table.model_copy(update={"rows": {**of.table.rows, "a": row}})
        found[shares] = Judge(of).rows("", "groups", "a", "b", "short")
    alone, paired = found[None], found["b"]
    assert alone is not None and alone.p is not None and alone.p > 0.5
    assert paired is not None and (paired.mean, paired.low, paired.high) == pytest.approx((0.5, 0.5, 0.5))
    assert paired.seeds == 3


@pytest.mark.parametrize(("shares", "of"), [("c", {}), ("b", {"shares": "a"})])
def test_only_a_row_with_models_of_its_own_shares_them(shares: str, of: dict[str, Any]) -> None:
    data = table_data({})
    data["rows"] = {"a": {"label": "a", "shares": shares}, "b": {"label": "b", **of}}
    with pytest.raises(ValueError, match="row a: no row with models of its own"):
        TableConfig.model_validate(data)


def test_a_two_by_two_of_rows_has_four_models() -> None:
    wanted = claim(beyond=["c", "d"]).model_dump(exclude_unset=True)
    data = table_data({}) | {"claims": [wanted]}
    data["rows"] = {name: {"label": name} for name in "abc"} | {"d": {"label": "d", "shares": "a"}}
    with pytest.raises(ValueError, match="the rows of a claim with beyond have models of their own"):
        TableConfig.model_validate(data)
