"""The sentences on which the translations of two systems differ most.

With a reference, by the difference of sentence chrF (second minus first) or by that of log P(reference | source), in nats;
without one, by how unlike the two translations are: 100 − chrF of the second against the first. Systems of several runs have
means over these, and the translations of all of them are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from phraseloom.metrics.bleu import make_scorer
from phraseloom.report.averages import mean

BY = ("chrf", "log-prob")


@dataclass(frozen=True)
class SystemSide:
    """What one system made of all sources, run by run: lines, log-probabilities (of the reference, else of its own lines).

    `phrases`: of the first run, the text of its phrase links for each line, where they were asked for and there are any.
    """

    name: str
    runs: Sequence[Sequence[str]]
    log_probs: Sequence[Sequence[float]] = ()
    phrases: Sequence[str] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def sentence_chrf(lines: Sequence[str], references: Sequence[str]) -> list[float]:
    """The chrF of each line by itself."""
    scorer = make_scorer("chrf")
    return [scorer.value(row) for row in scorer.statistics(lines, [references])]


def compare_sentences(
    sides: Sequence[SystemSide],
    sources: Sequence[str] | None,
    references: Sequence[str] | None,
    *,
    by: str = "chrf",
    most: int = 10,
) -> dict[str, Any]:
    """Counts over all sentences, and the `most` sentences of the greatest difference, greatest first.

    Ties stay in the order of the text; sentences without a difference are not listed.
    """
    number = len(sides[0].runs[0])
    log_probs = [_means(side.log_probs) if side.log_probs else None for side in sides]
    chrf = [_means([sentence_chrf(lines, references) for lines in side.runs]) for side in sides] if references else None
    if chrf is not None:
        unlike = [b - a for a, b in zip(*chrf, strict=True)]
    else:
        unlike = [100 - value for value in sentence_chrf(sides[1].runs[0], sides[0].runs[0])]
    gaps = None
    if log_probs[0] is not None and log_probs[1] is not None:
        gaps = [b - a for a, b in zip(log_probs[0], log_probs[1], strict=True)]
    key = gaps if by == "log-prob" and gaps is not None else unlike
    order = sorted((i for i in range(number) if abs(key[i]) > 1e-9), key=lambda i: -abs(key[i]))[:most]
    same = sum(set(a) == set(b) for a, b in zip(*(list(zip(*s.runs, strict=True)) for s in sides), strict=True))
    listed = [
        {
            "line": i + 1,
            "source": None if sources is None else sources[i],
            "reference": None if references is None else references[i],
            "chrf_difference": unlike[i] if chrf is not None else None,
            "unlike": None if chrf is not None else unlike[i],
            "log_prob_difference": None if gaps is None else gaps[i],
            "systems": [
                _entry(side, i, None if chrf is None else chrf[n][i], log_probs[n]) for n, side in enumerate(sides)
            ],
        }
        for i in order
    ]
    return {
        "by": by if key is not unlike or by == "chrf" else "chrf",
        "sentences": number,
        "same_translation": same,
        "better": _better(unlike) if chrf is not None else None,
        "likelier": None if gaps is None or references is None else _better(gaps),
        "log_prob_of": "reference" if references is not None else "own translation",
        "listed": listed,
    }


def _means(runs: Sequence[Sequence[float]]) -> list[float]:
    return [mean(values) for values in zip(*runs, strict=True)]


def _better(differences: Sequence[float]) -> list[int]:
    """How often the first has more, the second has more, and neither."""
    first, second = sum(d < -1e-9 for d in differences), sum(d > 1e-9 for d in differences)
    return [first, second, len(differences) - first - second]


def _entry(side: SystemSide, i: int, chrf: float | None, log_probs: Sequence[float] | None) -> dict[str, Any]:
    return {
        "name": side.name,
        "translations": [lines[i] for lines in side.runs],
        "chrf": chrf,
        "log_prob": None if log_probs is None else log_probs[i],
        "phrases": None if side.phrases is None else side.phrases[i],
    }


def marked(first: str, second: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """The words of two lines as runs of (text, whether it is only in this line)."""
    a, b = first.split(), second.split()
    sides: tuple[list[tuple[str, bool]], list[tuple[str, bool]]] = ([], [])
    for what, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for side, words in zip(sides, (a[i:j], b[k:m]), strict=True):
            if words:
                side.append((" ".join(words), what != "equal"))
    return sides
