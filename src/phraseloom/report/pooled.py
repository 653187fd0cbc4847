"""Scores of systems that each have the translations of one or more runs, with intervals and paired tests.

The value of a system is the mean of the corpus scores of its runs. A resample draws sentences, the same ones for every system
and every run, and again takes the mean over runs: intervals and tests say what the choice of sentences does (as in
`metrics/compare.py`, which they equal for one run each). What the choice of seeds does is the deviation over runs, which is
given beside it and is part of no interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phraseloom.metrics.bleu import LENGTH_EDGES, Scorer, bleu_by_length, check_parallel, count_tokens, make_scorer
from phraseloom.metrics.compare import FEWEST, SEED, bootstrap_values, compare, holm, interval
from phraseloom.report.averages import deviation, mean

Lines = Sequence[str]
Outputs = Mapping[str, Sequence[Lines]]


def evaluate_systems(
    systems: Outputs,
    reference: Lines,
    *,
    metrics: Sequence[str] = ("bleu", "chrf"),
    source: Lines | None = None,
    edges: Sequence[int] = LENGTH_EDGES,
    samples: int = 1000,
    seed: int = SEED,
) -> dict[str, Any]:
    """What `phraseloom evaluate --output json` says, and of each score its `runs` and their `deviation`.

    `systems`: name → the lines of each run; the first one is the base of the tests. With `source` also by its length.
    `samples` 0: no intervals. Raises DataError where numbers of lines differ.
    """
    for name, runs in systems.items():
        for lines in runs:
            check_parallel({"the reference": reference, f"the translation of {name}": lines})
    scorers = [make_scorer(name) for name in metrics]
    report: dict[str, Any] = {"sentences": len(reference), "references": 1, "base": next(iter(systems))}
    report["systems"] = [{"name": name, "runs": len(runs), "scores": []} for name, runs in systems.items()]
    results: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    for scorer in scorers:
        counts = [[scorer.statistics(lines, [reference]) for lines in runs] for runs in systems.values()]
        for entry, of_runs in zip(report["systems"], counts, strict=True):
            entry["scores"].append(_score(scorer, of_runs))
        if samples:
            tested, between = _bootstrap(scorer, list(systems), counts, samples, seed)
            results, pairs = results + tested, pairs + between
        if source is not None and scorer.name == "BLEU":
            report["by_length"] = _by_length(scorer, list(systems), counts, source, edges, samples, seed)
    if samples:
        report["bootstrap"] = {"samples": samples, "seed": seed, "baseline": report["base"], "results": results}
        report["bootstrap"]["pairs"] = pairs
    return report


def _score(scorer: Scorer, of_runs: Sequence[np.ndarray]) -> dict[str, Any]:
    scores = [scorer.score(counts.sum(0)) for counts in of_runs]
    values = [s.value for s in scores]
    return {
        "name": scorer.name,
        "value": mean(values),
        "deviation": deviation(values),
        "runs": values,
        "signature": scorer.signature,
        "higher_is_better": scorer.higher_is_better,
    }


def _resampled(
    scorer: Scorer, counts: Sequence[Sequence[np.ndarray]], samples: int, seed: int
) -> tuple[list[float], np.ndarray]:
    """(value of each system, its values on the resamples), each the mean over its runs."""
    flat = [rows for of_runs in counts for rows in of_runs]
    whole = np.array([scorer.value(rows.sum(0)) for rows in flat])
    sampled = bootstrap_values(scorer, flat, samples=samples, seed=seed)
    owner = np.repeat(np.arange(len(counts)), [len(of_runs) for of_runs in counts])
    values = np.stack([sampled[owner == i].mean(0) for i in range(len(counts))])
    return [float(whole[owner == i].mean()) for i in range(len(counts))], values


def _bootstrap(
    scorer: Scorer, names: Sequence[str], counts: Sequence[Sequence[np.ndarray]], samples: int, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The results of each system, against the first one, and of every pair (with Holm's correction)."""
    whole, values = _resampled(scorer, counts, samples, seed)
    signature = f"{scorer.signature}|bs:{samples}|seed:{seed}"
    results = []
    for i, name in enumerate(names):
        low, high = interval(values[i])
        compared = compare(whole[i] - whole[0], values[i] - values[0]) if i else {"difference": None}
        results.append(
            {"metric": scorer.name, "system": name, "value": whole[i], "low": low, "high": high, **compared}
            | {"signature": signature}
        )
    between = [
        {"metric": scorer.name, "system": names[i], "other": names[j]}
        | compare(whole[i] - whole[j], values[i] - values[j])
        for i in range(len(names))
        for j in range(i)
    ]
    for pair, p in zip(between, holm([p["p_null"] for p in between]), strict=True):
        pair["p_holm"] = p
    return results, between


def _by_length(
    scorer: Scorer,
    names: Sequence[str],
    counts: Sequence[Sequence[np.ndarray]],
    source: Lines,
    edges: Sequence[int],
    samples: int,
    seed: int,
) -> dict[str, Any]:
    lengths = count_tokens(source)
    groups = [[bleu_by_length(scorer, rows, lengths, edges=edges) for rows in of_runs] for of_runs in counts]
    tested: list[tuple[list[float], np.ndarray] | None] = []
    for group in groups[0][0]:
        inside = group.holds(lengths)
        chosen = [[rows[inside] for rows in of_runs] for of_runs in counts]
        enough = bool(samples) and group.sentences >= FEWEST
        tested.append(_resampled(scorer, chosen, samples, seed) if enough else None)
    found: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        entries = []
        for g, group in enumerate(groups[0][0]):
            values = [of_run[g].score for of_run in groups[i]]
            scores = [s.value for s in values if s is not None]
            entry = {"label": group.label, "above": group.above, "up_to": group.up_to, "sentences": group.sentences}
            score = {"value": mean(scores), "deviation": deviation(scores)} if scores else None
            found_here = tested[g]
            entries.append({**entry, "score": score, "bootstrap": found_here and _of_group(found_here, i)})
        found.append({"name": name, "groups": entries})
    return {"metric": scorer.name, "signature": scorer.signature, "source_tokens": "13a", "systems": found} | (
        {"baseline": names[0], "samples": samples, "seed": seed} if samples else {}
    )


def _of_group(tested: tuple[list[float], np.ndarray], i: int) -> dict[str, Any]:
    whole, values = tested
    low, high = interval(values[i])
    found: dict[str, Any] = {"value": whole[i], "low": low, "high": high}
    return found | (compare(whole[i] - whole[0], values[i] - values[0]) if i else {"difference": None})
