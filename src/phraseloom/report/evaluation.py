"""The scores of several systems: `evaluate` computes them, for the commands evaluate, report and diff; `render` prints them.

A system has the translations of one or more runs (seeds); its score is the mean of the corpus scores of its runs. Intervals and
p are those of metrics/seeds.py: with several runs of both systems they are about training, with one run only about these runs.
Every score carries the sacreBLEU signature that says how it was computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from phraseloom.errors import UsageError, escape_controls
from phraseloom.metrics.bleu import LengthGroup, Scorer, bleu_by_length, count_tokens
from phraseloom.metrics.compare import FEWEST, SEED, bootstrap_values, holm
from phraseloom.metrics.given import GivenScores, digits_of
from phraseloom.metrics.seeds import LEVEL, TWO_SEEDS, SeedScores, compare_seeds, compares_two_seeds, seed_deviation
from phraseloom.report.markup import p_text, terminal
from phraseloom.report.run.runs import mean
from phraseloom.results import (
    BootstrapTests,
    LengthGroupScore,
    LengthScores,
    MeanScore,
    MetricScore,
    MetricTest,
    PairTest,
    ScoreComparison,
    ScoresResult,
    SystemLengths,
    SystemScores,
    TestedScore,
)
from phraseloom.text.lines import check_parallel

Lines = Sequence[str]
AnyScorer = Scorer | GivenScores
COMPARED = ("difference", "difference_low", "difference_high", "p", "one_seed")
ONE_RUN = "If a system has one run, intervals and p are about these runs on other sentences and say nothing about other seeds."


@dataclass(frozen=True)
class ByLength:
    """BLEU by source length: the source lines, the edges of the groups, and the tokeniser that counts."""

    source: Sequence[str]
    edges: Sequence[int]
    tokenize: str = "13a"
    metric: str = "BLEU"


def evaluate(
    systems: Mapping[str, Sequence[Lines]],
    references: Sequence[Lines],
    scorers: Sequence[Scorer],
    *,
    by_length: ByLength | None = None,
    bootstrap: int = 0,
    seed: int = SEED,
    pairs: bool = False,
    given: Mapping[str, Sequence[Sequence[np.ndarray]]] | None = None,
) -> ScoresResult:
    """Score every system. The first one is the baseline of the comparisons.

    `systems`: name → the lines of each run; `references`: the lines of each file; `bootstrap`: number of resamples, 0 for no
    intervals; `pairs`: also compare every pair of systems. `given`: scores of sentences by metric, for each run of each
    system (`metrics/given.py`). Raises DataError if numbers of lines differ, UsageError for two metrics of
    one name, and for a single resample, which has no variance.
    """
    if bootstrap == 1:
        raise UsageError("one resample has no variance", hint="--bootstrap 1000")
    names = list(systems)
    for name, runs in systems.items():
        for lines in runs:
            check_parallel({"the reference": references[0], f"the translation of {name}": lines})
    every: list[AnyScorer] = [*scorers, *map(GivenScores, given or ())]
    if twice := sorted({s.name for s in every if sum(s.name == other.name for other in every) > 1}):
        raise UsageError(f"two metrics have the name {', '.join(twice)}", hint="evaluate them one after the other")
    counts: dict[str, list[list[np.ndarray]]] = {
        s.name: [[s.statistics(lines, references) for lines in runs] for runs in systems.values()] for s in scorers
    }
    counts |= {name: [list(runs) for runs in rows] for name, rows in (given or {}).items()}
    optional: dict[str, Any] = {}
    if by_length is not None:
        scorer = next(s for s in scorers if s.name == by_length.metric)
        optional["by_length"] = _by_length(by_length, names, scorer, counts[scorer.name], bootstrap, seed)
    if bootstrap:
        optional["bootstrap"] = _bootstrap_tests(names, every, counts, bootstrap, seed, pairs=pairs)
    scores = [
        SystemScores(name=name, runs=len(runs), scores=[_score(s, counts[s.name][i]) for s in every])
        for i, (name, runs) in enumerate(systems.items())
    ]
    return ScoresResult(sentences=len(references[0]), references=len(references), systems=scores, **optional)


def _score(scorer: AnyScorer, of_runs: Sequence[np.ndarray]) -> MetricScore:
    scores = [scorer.score(rows.sum(0)) for rows in of_runs]
    values = [s.value for s in scores]
    return MetricScore(
        name=scorer.name,
        value=mean(values),
        deviation=seed_deviation(values),
        runs=list(values),
        signature=scorer.signature,
        detail=scores[0].detail if len(scores) == 1 else "",
        higher_is_better=scorer.higher_is_better,
    )


def _bootstrap_tests(
    names: Sequence[str],
    scorers: Sequence[AnyScorer],
    counts: Mapping[str, Sequence[Sequence[np.ndarray]]],
    samples: int,
    seed: int,
    *,
    pairs: bool,
) -> BootstrapTests:
    tests: list[MetricTest] = []
    between: list[PairTest] = []
    for s in scorers:
        resampled = _resampled(s, counts[s.name], samples, seed)
        signature = f"{s.signature}|bs:{samples}|seed:{seed}"
        tests += [
            MetricTest(metric=s.name, system=name, **_tested(resampled, i), signature=signature)
            for i, name in enumerate(names)
        ]
        if pairs:
            between += _pair_tests(s.name, names, resampled, signature)
    optional: dict[str, Any] = {"pairs": between} if pairs else {}
    return BootstrapTests(samples=samples, seed=seed, baseline=names[0], results=tests, **optional)


def _resampled(scorer: AnyScorer, counts: Sequence[Sequence[np.ndarray]], samples: int, seed: int) -> list[SeedScores]:
    """The scores of the runs of each system, on the same resamples."""
    flat = [rows for of_runs in counts for rows in of_runs]
    whole = np.array([scorer.value(rows.sum(0)) for rows in flat])
    sampled = bootstrap_values(scorer, flat, samples=samples, seed=seed)
    ends = np.cumsum([0, *map(len, counts)])
    return [SeedScores(whole[a:b], sampled[a:b]) for a, b in pairwise(ends)]


def _tested(resampled: Sequence[SeedScores], i: int) -> dict[str, Any]:
    """The score of system i with its interval, and its comparison with the first system; None for the first itself."""
    alone = compare_seeds(resampled[i])
    compared = _compared(resampled[i], resampled[0]) if i else dict.fromkeys(COMPARED)
    return {"value": alone.mean, "low": alone.low, "high": alone.high, **compared}


def _compared(scores: SeedScores, other: SeedScores) -> dict[str, Any]:
    d = compare_seeds(scores, other)
    return dict(zip(COMPARED, (d.mean, d.low, d.high, d.p, d.one_seed), strict=True))


def _pair_tests(metric: str, names: Sequence[str], resampled: Sequence[SeedScores], signature: str) -> list[PairTest]:
    """Every system against every system before it, with Holm's correction for their number."""
    pairs = [(i, j) for i in range(len(names)) for j in range(i)]
    compared = [_compared(resampled[i], resampled[j]) for i, j in pairs]
    corrected = holm([test["p"] for test in compared])
    return [
        PairTest(metric=metric, system=names[i], other=names[j], **test, p_holm=p, signature=signature)
        for (i, j), test, p in zip(pairs, compared, corrected, strict=True)
    ]


def _by_length(
    options: ByLength,
    names: Sequence[str],
    scorer: Scorer,
    counts: Sequence[Sequence[np.ndarray]],
    bootstrap: int,
    seed: int,
) -> LengthScores:
    """The groups of each system. With `bootstrap`, each group of at least `FEWEST` sentences is resampled on its own."""
    lengths = count_tokens(options.source, tokenize=options.tokenize)
    groups = [[bleu_by_length(scorer, rows, lengths, edges=options.edges) for rows in of_runs] for of_runs in counts]
    resampled: list[list[SeedScores] | None] = []
    for group in groups[0][0]:
        inside = group.holds(lengths)
        enough = bool(bootstrap) and group.sentences >= FEWEST
        subset = [[rows[inside] for rows in of_runs] for of_runs in counts] if enough else []
        resampled.append(_resampled(scorer, subset, bootstrap, seed) if enough else None)
    optional: dict[str, Any] = {"baseline": names[0], "samples": bootstrap, "seed": seed} if bootstrap else {}
    systems = [
        SystemLengths(name=name, groups=[_group(of_runs, g, tested, i) for g, tested in enumerate(resampled)])
        for i, (name, of_runs) in enumerate(zip(names, groups, strict=True))
    ]
    signature, tokenize = scorer.signature, options.tokenize
    return LengthScores(metric=scorer.name, signature=signature, source_tokens=tokenize, systems=systems, **optional)


def _group(
    of_runs: Sequence[Sequence[LengthGroup]], g: int, resampled: Sequence[SeedScores] | None, i: int
) -> LengthGroupScore:
    group = of_runs[0][g]
    scores = [s.value for run in of_runs if (s := run[g].score) is not None]
    return LengthGroupScore(
        label=group.label,
        above=group.above,
        up_to=group.up_to,
        sentences=group.sentences,
        score=MeanScore(value=mean(scores), deviation=seed_deviation(scores)) if scores else None,
        bootstrap=None if resampled is None else TestedScore(**_tested(resampled, i)),
    )


def render(result: ScoresResult) -> str:
    """The result as text for a terminal, with a final newline."""
    parts = [_scores(result)]
    if result.by_length is not None:
        parts.append(_lengths(result.by_length))
    if result.bootstrap is not None:
        runs = [system.runs for system in result.systems]
        parts.append(_bootstrap(result.bootstrap, runs, _digits(result.systems)))
    return "\n\n".join(parts) + "\n"


def _scores(result: ScoresResult) -> str:
    first, subset, digits = result.systems[0].scores, result.lines, _digits(result.systems)
    rows = [[_named(system), *(_value(s, digits[s.name]) for s in system.scores)] for system in result.systems]
    several = f", {result.references} references" if result.references > 1 else ""
    number, of = f"{result.sentences:,}", f" of {subset.of:,} sentences" if subset else " sentences"
    chosen = f", those of {escape_controls(subset.file)}" if subset else ""
    lines = [f"{number}{of}{several}{chosen}", "", terminal(["system", *(s.name for s in first)], rows), ""]
    if len(rows) == 1:
        lines += [f"{s.name}: {s.detail}" for s in first if s.detail]
    lines += [f"{s.name}: {s.signature}" for s in first]
    return "\n".join(lines)


def _digits(systems: Sequence[SystemScores]) -> dict[str, int]:
    """Metric → decimal places of its scores."""
    every = [score for system in systems for score in system.scores]
    return {s.name: digits_of(s.signature, [o.value for o in every if o.name == s.name]) for s in systems[0].scores}


def _lengths(part: LengthScores) -> str:
    systems, groups = part.systems, part.systems[0].groups
    tokens = "as they stand" if part.source_tokens == "none" else f"of sacreBLEU's {part.source_tokens}"
    title = f"{part.metric} by source length (tokens {tokens}; {part.metric}: {part.signature})"
    if part.samples is not None:
        against = f"; differences to {part.baseline}" if len(systems) > 1 else ""
        title += f"\n{part.samples:,} resamples of the sentences of each group, seed {part.seed}{against}"
        if any(0 < group.sentences < FEWEST for group in groups):
            title += f"\nno intervals for groups of fewer than {FEWEST} sentences"
        return f"{title}\n\n{terminal(*_resampled_lengths(part))}"
    headers, rows = ["source tokens", "sentences", *(s.name for s in systems)], []
    for i, group in enumerate(groups):
        of_systems = [system.groups[i].score for system in systems]
        rows.append([group.label, group.sentences, *(float(s.value) if s else None for s in of_systems)])
    return f"{title}\n\n{terminal(headers, rows)}"


def _resampled_lengths(part: LengthScores) -> tuple[list[str], list[list[object]]]:
    """Headers and rows, one row per group and system."""
    several = len(part.systems) > 1
    headers = ["source tokens", "sentences", "system", part.metric, "95 % interval"]
    headers += ["difference", "95 % interval", "p"] if several else []
    rows: list[list[object]] = []
    for i in range(len(part.systems[0].groups)):
        for number, system in enumerate(part.systems):
            group = system.groups[i]
            place = [None, None] if number else [group.label, group.sentences]
            row = [*place, system.name, float(group.score.value) if group.score else None]
            row += [f"{group.bootstrap.low:.2f} … {group.bootstrap.high:.2f}"] if group.bootstrap else [None]
            row += _difference(group.bootstrap, 2) if group.bootstrap and number else []
            rows.append([*row, *[None] * (len(headers) - len(row))])
    return headers, rows


def _difference(test: ScoreComparison, digits: int) -> list[object]:
    """The cells difference, 95 % interval and p; empty for the baseline."""
    if test.difference is None or test.p is None:
        return [None] * 3
    ends = f"{test.difference_low:+.{digits}f} … {test.difference_high:+.{digits}f}"
    return [f"{test.difference:+.{digits}f}", ends, p_text(test.p)]


def _bootstrap(part: BootstrapTests, runs: Sequence[int], digits: Mapping[str, int]) -> str:
    headers = ["metric", "system", "score", "95 % interval", "difference", "95 % interval", "p"]
    rows: list[list[object]] = []
    for test in part.results:
        system = test.system + (" (baseline)" if test.difference is None else "")
        n = digits[test.metric]
        row = [test.metric, system, f"{test.value:.{n}f}", f"{test.low:.{n}f} … {test.high:.{n}f}"]
        rows.append([*row, *_difference(test, n)])
    title = f"Paired bootstrap against {part.baseline}: {part.samples:,} resamples, seed {part.seed}"
    notes = "p: two-sided, of no difference. " if len(runs) > 1 else ""
    notes += ONE_RUN if min(runs) < 2 else "Intervals hold sentences and seeds."
    notes += f" {TWO_SEEDS}\n" if compares_two_seeds(runs, pairs=bool(part.pairs)) else "\n"
    signatures = "\n".join(f"{m}: {s}" for m, s in {test.metric: test.signature for test in part.results}.items())
    between = _pairs(part, part.pairs, digits) if part.pairs else ""
    return f"{title}\n\n{terminal(headers, rows)}\n\n{notes}{between}{signatures}"


def _named(system: SystemScores) -> str:
    return system.name + (f" ({system.runs} runs)" if system.runs > 1 else "")


def _value(score: MetricScore, digits: int) -> str:
    """A score, with the standard deviation over runs if there are several."""
    return f"{score.value:.{digits}f}" + ("" if score.deviation is None else f" ± {score.deviation:.{digits}f}")


def _pairs(part: BootstrapTests, pairs: Sequence[PairTest], digits: Mapping[str, int]) -> str:
    """A matrix for each metric: below the diagonal, the system of the row minus that of the column."""
    text = ""
    for metric in dict.fromkeys(test.metric for test in part.results):
        values = {test.system: test.value for test in part.results if test.metric == metric}
        names, cells = list(values), {}
        for pair in (p for p in pairs if p.metric == metric):
            star = "*" if pair.p_holm < LEVEL else " "
            cells[pair.system, pair.other] = f"{pair.difference:+.{digits[metric]}f} ({p_text(pair.p)}){star}"
        headers = ["", metric, "score", *(f"− {i}" for i in range(1, len(names)))]
        rows: list[list[object]] = [
            [str(i), name, f"{values[name]:.{digits[metric]}f}", *(cells.get((name, other)) for other in names[:-1])]
            for i, name in enumerate(names, 1)
        ]
        text += f"{terminal(headers, rows)}\n\n"
    star = f"* p < {LEVEL} after Holm's correction for the number of pairs."
    return f"\nEvery pair: row − column, and p in brackets.\n\n{text}{star}\n"
