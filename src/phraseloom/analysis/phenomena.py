"""Accuracy of translations on each phenomenon of the built-in world, with intervals and paired tests.

An instance (`gold.py`) is right if the translation has its realisation: its pieces in order, each a run of adjacent words in
exactly the gold form. The first word of a sentence may have a capital letter that it lacks elsewhere. If the gold sentence has
the same realisation m times, k of them instances, and the translation has it c < m times, then m − c of the k (at most k) are
wrong.

    accuracy     right / instances, with Wilson's 95 % interval                    (Wilson 1927, J. Am. Stat. Assoc. 22)
    p            exact McNemar test of the instances that only one system has right (McNemar 1947, Psychometrika 12)
    difference   to the first system, with the central 95 % over resamples of sentences (Koehn 2004), because instances of
                 one sentence are not independent, unlike McNemar's test assumes
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from phraseloom.analysis.gold import KINDS, GoldSplit, Instance, words_of
from phraseloom.errors import UsageError
from phraseloom.metrics.compare import SEED, resamples
from phraseloom.metrics.ratio import compare, wilson
from phraseloom.text.lines import check_parallel

SENTENCE = "sentence"


def occurrences(instance: Instance, words: Sequence[str]) -> int:
    """How often `words` have the pieces of an instance, in order and without a shared word."""
    used: set[int] = set()
    count = 0
    while True:
        taken: list[int] = []
        after = 0
        for number, piece in enumerate(instance.pieces):
            start = _find(piece, words, after, used, instance.first and number == 0)
            if start < 0:
                return count
            after = start + len(piece)
            taken += range(start, after)
        used.update(taken)
        count += 1


def _find(piece: tuple[str, ...], words: Sequence[str], after: int, used: set[int], first: bool) -> int:
    for start in range(after, len(words) - len(piece) + 1):
        here = range(start, start + len(piece))
        if used.isdisjoint(here) and all(
            _same(gold, words[j], (first and j == start) or j == 0) for gold, j in zip(piece, here, strict=True)
        ):
            return start
    return -1


def _same(gold: str, word: str, opens: bool) -> bool:
    return gold == word or (opens and _small(gold) == _small(word))


def _small(word: str) -> str:
    return word[:1].lower() + word[1:]


def _key(instance: Instance, word: str) -> tuple[Any, ...]:
    """What tells instances apart, with `word` as their first word."""
    return instance.kind, word, instance.pieces[0][1:], instance.pieces[1:]


def right(instances: Sequence[Instance], gold: Sequence[str], words: Sequence[str]) -> list[bool]:
    """For each instance of a sentence, whether the `words` of the translation have it right."""
    # What begins the sentence and is in it once more is one key, however the second is written.
    opening = {_key(i, _small(i.pieces[0][0])) for i in instances if i.first}
    keys = [
        small if (small := _key(i, _small(i.pieces[0][0]))) in opening else _key(i, i.pieces[0][0]) for i in instances
    ]
    counts = Counter(keys)
    left: dict[Any, int] = {}
    result = []
    for instance, key in zip(instances, keys, strict=True):
        if key not in left:
            missing = occurrences(instance, gold) - occurrences(instance, words)
            left[key] = counts[key] - max(0, missing)
        result.append(left[key] > 0)
        left[key] -= 1
    return result


class _Marks(NamedTuple):
    """For one system, one mark per instance of each group, and whether each sentence is exactly right."""

    groups: dict[str, list[bool]]
    exact: list[bool]


def _mark(split: GoldSplit, lines: Sequence[str]) -> _Marks:
    groups: dict[str, list[bool]] = {}
    exact = []
    for gold, instances, names, line in zip(split.gold, split.instances, split.groups, lines, strict=True):
        words = words_of(line)
        exact.append(words == gold)
        for mark, instance_names in zip(right(instances, gold, words), names, strict=True):
            for name in instance_names:
                groups.setdefault(name, []).append(mark)
    return _Marks({**groups, SENTENCE: exact}, exact)


def _owners(split: GoldSplit) -> dict[str, np.ndarray]:
    """The sentence of each instance of each group, in the order of the marks."""
    owners: dict[str, list[int]] = {}
    for number, names in enumerate(split.groups):
        for name in (name for instance_names in names for name in instance_names):
            owners.setdefault(name, []).append(number)
    return {**{name: np.array(rows) for name, rows in owners.items()}, SENTENCE: np.arange(len(split.gold))}


def _order(name: str) -> tuple[int, int]:
    kind, _, frequency = name.partition(", ")
    times = re.match(r"\d+", frequency)
    return (*KINDS, SENTENCE).index(kind), int(times[0]) if times else -1


def compare_systems(
    split: GoldSplit, outputs: Mapping[str, Sequence[str]], *, samples: int = 1000, seed: int = SEED
) -> list[dict[str, Any]]:
    """One entry per group (phenomenon, its parts by frequency, whole sentences) with every system; the first is the base.

    `outputs` has the lines by name. Raises DataError for other numbers of lines, UsageError for fewer than one resample.
    """
    if samples < 1:
        raise UsageError(f"the bootstrap needs at least 1 resample, not {samples}")
    check_parallel({"the world": [" ".join(words) for words in split.gold], **outputs})
    marks = {name: _mark(split, lines) for name, lines in outputs.items()}
    first = next(iter(marks.values()))
    owners = _owners(split)
    names = sorted(first.groups, key=_order)
    intervals = _differences(
        {n: [np.array(m.groups[n]) for m in marks.values()] for n in names}, owners, len(split.gold), samples, seed
    )
    report = []
    for name in names:
        members = np.unique(owners[name])
        systems = []
        for number, (system, mark) in enumerate(marks.items()):
            entry = _accuracy(mark.groups[name], np.array(mark.exact)[members])
            if number:
                entry |= compare(first.groups[name], mark.groups[name]) | {
                    "difference_interval": intervals[name][number]
                }
            systems.append({"system": system, **entry})
        report.append(
            {"phenomenon": name, "instances": len(owners[name]), "sentences": len(members), "systems": systems}
        )
    return report


def _accuracy(marks: Sequence[bool], exact: np.ndarray) -> dict[str, Any]:
    correct = sum(marks)
    return {
        "correct": correct,
        "accuracy": correct / len(marks),
        "interval": list(wilson(correct, len(marks))),
        "exact_sentences": float(exact.mean()),
    }


def _differences(
    marks: dict[str, list[np.ndarray]], owners: dict[str, np.ndarray], sentences: int, samples: int, seed: int
) -> dict[str, list[list[float]]]:
    """For each group and system, the central 95 % of its difference to the first system over resamples of sentences."""
    columns = []
    for name, systems in marks.items():
        for values in (np.ones(len(owners[name])), *(m - 1.0 * systems[0] for m in systems)):
            columns.append(np.bincount(owners[name], weights=values, minlength=sentences))
    per_sentence = np.stack(columns, 1)
    sums = np.concatenate([counts @ per_sentence for counts in resamples(sentences, samples, seed=seed)])
    result: dict[str, list[list[float]]] = {}
    per_group = 1 + len(next(iter(marks.values())))
    for number, name in enumerate(marks):
        totals, *gains = sums[:, number * per_group : (number + 1) * per_group].T
        has = totals > 0
        ends = [np.percentile(gain[has] / totals[has], (2.5, 97.5)) if has.any() else (-1.0, 1.0) for gain in gains]
        result[name] = [[float(low), float(high)] for low, high in ends]
    return result
