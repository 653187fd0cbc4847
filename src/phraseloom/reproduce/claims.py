"""The verdict on the claims of a paper. A claim is a set of comparisons of two numbers; differences and their p decide.

    d = value of one row − value of another (or − a given number), as metrics/seeds.py estimates it
    a comparison supports the claim if d is on the claimed side (beyond `by`; for "equal": inside ± `within`)

All comparisons of a claim must support it, so its p is the largest of theirs. If some contradict it, its p is the smallest of
their p times the number of comparisons (Bonferroni), and it decides on "did not hold". The p of all claims of a table are then
adjusted by Holm (1979) for their number. Below 0.05 there is a verdict:

    held, did not hold           p after Holm < 0.05, at least three seeds of every row
    with two seeds: …            the same, yes or no, if a row has two seeds: chance does this too often (metrics/seeds.py)
    undecided                    p after Holm ≥ 0.05, or no interval
    between these two runs: …    one seed: yes, no or undecided for these two runs, and nothing about training
    in this run: …               the same if numbers of one run are compared
    not learned                  the baseline, or every row that is compared, is below the floor of the table
    path only                    scale tiny: it shows that every part works
    not measured                 a number is missing

If half the interval is at least as wide as the margin of "equal", the claim can never hold. It can still fail: it did not hold
if the interval lies wholly outside the margin, with p after Holm below 0.05. Else it is undecided, with this reason.

Parameters are exact: no p, no floor, no seeds.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from phraseloom.metrics.compare import FEWEST, SEED, bootstrap_values, holm
from phraseloom.metrics.seeds import LEVEL, SeedDifference, SeedScores, compare_seeds
from phraseloom.reproduce.measure import MeasuredValue
from phraseloom.reproduce.table import ClaimConfig

SAMPLES = 1000
Verdict = Literal[
    "held",
    "did not hold",
    "undecided",
    "with two seeds: yes",
    "with two seeds: no",
    "between these two runs: yes",
    "between these two runs: no",
    "between these two runs: undecided",
    "in this run: yes",
    "in this run: no",
    "in this run: undecided",
    "not learned",
    "path only",
    "not measured",
]
TWO_RUNS: dict[str, Verdict] = {
    "held": "between these two runs: yes",
    "did not hold": "between these two runs: no",
    "undecided": "between these two runs: undecided",
}
TWO_SEEDS: dict[str, Verdict] = {"held": "with two seeds: yes", "did not hold": "with two seeds: no"}
ONE_RUN: dict[str, Verdict] = {
    "held": "in this run: yes",
    "did not hold": "in this run: no",
    "undecided": "in this run: undecided",
}


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim: in words, its difference, its p against the margin of the claim, and whether it agrees."""

    says: str
    difference: SeedDifference | None
    p: float | None = None
    agrees: bool | None = None


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its comparisons, `p` and `p_holm` (see the module), and the `reason` if there is no verdict."""

    claim: ClaimConfig
    verdict: Verdict
    comparisons: tuple[Comparison, ...]
    p: float | None = None
    p_holm: float | None = None
    reason: str = ""


Seeds = Mapping[int, MeasuredValue]


@dataclass(frozen=True)
class Draws:
    """A number of each row and seed on every resample of `sentences` sentences. Draws of one `group` share their resamples.

    `sentences` is 0 if the number is computed from sentences that cannot be resampled (too few, or different in some rows).
    """

    sentences: int
    group: str
    sampled: Mapping[tuple[str, int], np.ndarray] = field(default_factory=dict)

    def of(self, row: str, numbers: Mapping[int, float]) -> SeedScores:
        """The numbers of a row by seed, with their resamples."""
        sampled = np.stack([self.sampled[row, seed] for seed in numbers]) if self.sampled else None
        return SeedScores(np.array(list(numbers.values())), sampled)


def draw(
    rows: Mapping[str, Seeds], label: str = "", *, apart: bool = False, samples: int = SAMPLES, seed: int = SEED
) -> Draws | None:
    """Resample the sentences of one metric (and label). None if the metric is not computed from sentences.

    `apart`: labels are groups of different sentences, so each is resampled on its own.
    """
    values = {(row, s): m for row, seeds in rows.items() for s, m in seeds.items() if label in m.statistics}
    counts = [m.statistics[label] for m in values.values()]
    scorer = next((m.scorer for m in values.values()), None)
    if scorer is None:
        return None
    group = label if apart else ""
    if len({len(c) for c in counts}) != 1 or (label and len(counts[0]) < FEWEST):
        return Draws(0, group)
    begin = [seed, zlib.crc32(label.encode())] if apart else seed
    drawn = bootstrap_values(scorer, counts, samples=samples, seed=begin)
    return Draws(len(counts[0]), group, dict(zip(values, drawn, strict=True)))


def compare(claim: ClaimConfig, says: str, difference: SeedDifference | None) -> Comparison:
    """A comparison of a claim; `difference` has the sign of the numbers, not of the claim."""
    if difference is None:
        return Comparison(says, None)
    if claim.within is not None:
        distance = abs(difference.mean)
        ends = [difference.p_against(end) for end in (claim.within, -claim.within)]
        known = [p for p in ends if p is not None]
        return Comparison(says, difference, max(known) if known else None, distance < claim.within)
    margin = claim.sign * claim.by
    beyond = claim.sign * (difference.mean - margin)
    agrees = beyond > 0 or (difference.exact and beyond == 0 and claim.by > 0)
    return Comparison(says, difference, difference.p_against(margin), agrees)


def weigh(claim: ClaimConfig, comparisons: Sequence[Comparison]) -> JudgedClaim:
    """The claim with its p before Holm's correction. Without a p, its verdict is final."""
    measured = [c for c in comparisons if c.difference is not None]
    judged = JudgedClaim(claim, "not measured", tuple(comparisons))
    against = [c for c in measured if not c.agrees]
    if not measured or (len(measured) < len(comparisons) and not against):
        return judged
    if all(c.difference is not None and c.difference.exact for c in measured):
        return replace(judged, verdict="did not hold" if against else "held")
    if any(c.p is None for c in measured):
        reason = next(c.difference.how for c in measured if c.p is None and c.difference is not None)
        return replace(judged, verdict="undecided", reason=reason)
    if against:
        p = min(1.0, len(comparisons) * min(c.p for c in against if c.p is not None))
    else:
        p = max(c.p for c in measured if c.p is not None)
    widest, reason = max(_half_width(c.difference) for c in measured), ""
    if claim.within is not None and widest >= claim.within:
        half = f"half the interval, {widest:.2f}"
        reason = f"the margin of {claim.within:g} is no wider than {half}: it takes more seeds or sentences"
    return replace(judged, verdict="undecided", p=p, reason=reason)


def _half_width(difference: SeedDifference | None) -> float:
    if difference is None or difference.low is None or difference.high is None:
        return 0.0
    return (difference.high - difference.low) / 2


def decide(weighed: Sequence[JudgedClaim]) -> list[JudgedClaim]:
    """The verdicts on all claims of a table, after Holm's correction of those that have a p.

    If rows have several seeds, claims without p (not measured, not learned, no interval) count with p = 1: no row that is left
    out or fails makes another claim easier to hold. Exact comparisons, which need no p, do not count.
    """
    tested = [i for i, judged in enumerate(weighed) if judged.p is not None]
    differences = [c.difference for i in tested for c in weighed[i].comparisons if c.difference is not None]
    seeds = bool(differences) and not all(d.one_seed for d in differences)
    missing = (
        sum(judged.p is None and judged.verdict not in ("held", "did not hold") for judged in weighed) if seeds else 0
    )
    adjusted = dict(zip(tested, holm([weighed[i].p or 0.0 for i in tested] + [1.0] * missing), strict=False))
    return [_decided(judged, adjusted.get(i)) for i, judged in enumerate(weighed)]


def _decided(judged: JudgedClaim, p_holm: float | None) -> JudgedClaim:
    verdict = judged.verdict
    measured = [c for c in judged.comparisons if c.difference is not None]
    if p_holm is not None:
        partial = len(measured) < len(judged.comparisons)
        verdict = "not measured" if partial else "undecided"
        if p_holm < LEVEL:
            verdict = "held" if all(c.agrees for c in measured) else "did not hold"
    reason = judged.reason
    one_seed = any(c.difference is not None and c.difference.one_seed for c in measured)
    if verdict in TWO_RUNS and one_seed and judged.claim.beyond:
        verdict, reason = "undecided", "one seed: these are four runs, and say nothing about training"
    elif verdict in TWO_RUNS and one_seed:
        same = not judged.claim.than
        verdict = (ONE_RUN if same else TWO_RUNS)[verdict]
    elif any(c.difference is not None and c.difference.seeds == 2 for c in measured):
        verdict = TWO_SEEDS.get(verdict, verdict)
    reason = reason if p_holm is None or verdict.endswith("undecided") else ""
    return replace(judged, verdict=verdict, p_holm=p_holm, reason=reason)


def difference_of(
    scores: SeedScores,
    other: SeedScores | float,
    beyond: tuple[SeedScores, SeedScores] | None = None,
    *,
    drawable: bool,
) -> SeedDifference:
    """The difference of metrics/seeds.py, without an interval if the sentences cannot be resampled (`drawable` False)."""
    found = compare_seeds(scores, other, beyond)
    if drawable:
        return found
    how = f"no interval: fewer than {FEWEST} sentences, or not the same ones"
    return SeedDifference(found.mean, one_seed=found.one_seed, how=how, seeds=found.seeds)
