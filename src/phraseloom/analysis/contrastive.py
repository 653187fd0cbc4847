"""Contrastive evaluation: how often a model finds the correct translation more likely than one with an error.

    right  iff  Σ_t log P(correct_t | correct_<t, source) > Σ_t log P(wrong_t | wrong_<t, source)

Both translations are forced. The sums have double precision and include all subwords and EOS, without length normalisation
(Sennrich 2017, LingEval97). An item with two translations of the same subwords is wrong, and counted as
indistinguishable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from phraseloom.analysis.contrastive_items import Item
from phraseloom.decoding.source_phrases import TREES
from phraseloom.errors import DataError, UsageError
from phraseloom.metrics.ratio import compare, wilson

EDGES = tuple(range(16))  # the bins of LingEval97's script: 0, 1, …, 15, >15


class JudgedItem(NamedTuple):
    """For each item the log-probabilities of both translations (nats), and whether both have the same subwords.

    `cropped` counts items with a source that was too long for the model.
    """

    correct: list[float]
    wrong: list[float]
    same: list[bool]
    cropped: int

    @property
    def right(self) -> list[bool]:
        """Whether the correct translation is strictly the more likely one."""
        values = zip(self.correct, self.wrong, self.same, strict=True)
        return [correct > wrong and not same for correct, wrong, same in values]


class Bin(NamedTuple):
    """Distances from `low` to `high`, inclusive; no upper limit if `high` is None."""

    low: int
    high: int | None

    @property
    def label(self) -> str:
        """The label, such as 3, 4–7 and >15."""
        if self.high is None:
            return f">{self.low - 1}"
        return str(self.low) if self.high == self.low else f"{self.low}–{self.high}"

    def holds(self, distance: int | None) -> bool:
        """Whether a distance is in the bin; an unknown distance is in none."""
        return distance is not None and self.low <= distance and (self.high is None or distance <= self.high)


def bins(edges: Sequence[int] = EDGES) -> list[Bin]:
    """The bins that end at each of the increasing `edges`, and one for larger distances. Raises UsageError."""
    if not edges or list(edges) != sorted(set(edges)) or edges[0] < 0:
        raise UsageError("bins must be increasing whole numbers from 0, the ends of the bins", hint="such as 0,1,5,15")
    lows = [0, *(edge + 1 for edge in edges)]
    return [Bin(low, high) for low, high in zip(lows, [*edges, None], strict=True)]


def judge(translator: Any, items: Sequence[Item]) -> JudgedItem:
    """Score both translations of every item with a `Translator`; repeated pairs are scored once.

    A model with phrases from parse trees gets the trees of the sources. Raises ConfigError, ModelError, UsageError if trees
    are missing, DataError if a tree does not fit its source.
    """
    with_trees = translator.needs_trees and all(item.tree is not None for item in items)
    pairs = [(i.source, i.correct, i.tree) for i in items] + [(i.source, i.wrong, i.tree) for i in items]
    unique = list(dict.fromkeys(pairs))
    options = {"trees": [tree for _, _, tree in unique]} if with_trees else {}
    try:
        scores = translator.score([s for s, _, _ in unique], [t for _, t, _ in unique], **options)
    except DataError as error:
        if error.file != TREES or error.line is None:
            raise
        item = items[pairs.index(unique[error.line - 1]) % len(items)]
        raise DataError(error.what, file=item.tree_file, line=item.line, hint=error.hint) from error
    pair_scores = dict(zip(unique, scores, strict=True))
    correct, wrong = ([pair_scores[pair] for pair in half] for half in (pairs[: len(items)], pairs[len(items) :]))
    return JudgedItem(
        [score.log_prob for score in correct],
        [score.log_prob for score in wrong],
        [c.tokens == w.tokens for c, w in zip(correct, wrong, strict=True)],
        sum(c.cropped or w.cropped for c, w in zip(correct, wrong, strict=True)),
    )


def contrastive_report(
    items: Sequence[Item], systems: Mapping[str, JudgedItem], edges: Sequence[int] = EDGES, *, by_sentence: bool = False
) -> list[dict[str, Any]]:
    """One entry per group of items, with every system; the first one is the base.

    The groups are all items, each category if there are several, and in each category the distances that occur. `category`
    None means all, `distance` None any; otherwise it is the label, with `low` and `high` of the bin. With `by_sentence`,
    entries have [1 if right, 1] for each item.
    """
    categories: dict[str, list[int]] = {}
    for n, item in enumerate(items):
        categories.setdefault(item.category, []).append(n)
    groups: list[tuple[str | None, Bin | None, list[int]]] = [(None, None, list(range(len(items))))]
    if len(categories) > 1:
        groups += [(category, None, chosen) for category, chosen in categories.items()]
    for category, chosen in categories.items():
        for distances in bins(edges):
            members = [n for n in chosen if distances.holds(items[n].distance)]
            if members:
                groups.append((category, distances, members))
    marks = {name: judged.right for name, judged in systems.items()}
    return [_entry(*group, systems, marks, by_sentence) for group in groups]


def _entry(
    category: str | None,
    distances: Bin | None,
    chosen: Sequence[int],
    systems: Mapping[str, JudgedItem],
    marks: Mapping[str, Sequence[bool]],
    by_sentence: bool,
) -> dict[str, Any]:
    base: list[bool] = []
    entries = []
    for name, judged in systems.items():
        right = [marks[name][n] for n in chosen]
        entry: dict[str, Any] = {
            "system": name,
            "correct": sum(right),
            "accuracy": sum(right) / len(right),
            "interval": list(wilson(sum(right), len(right))),
            "indistinguishable": sum(judged.same[n] for n in chosen),
        }
        if by_sentence:
            entry["by_sentence"] = [[int(mark), 1] for mark in right]
        entries.append(entry | compare(base, right) if base else entry)
        base = base or right
    place: dict[str, Any] = {"distance": None}
    if distances:
        place = {"distance": distances.label, "low": distances.low, "high": distances.high}
    return {"category": category, **place, "items": len(chosen), "systems": entries}
