"""Alignment error rate, precision and recall of word links against sure and possible gold links.

    AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|)     precision = |A∩P| / |A|     recall = |A∩S| / |S|     F₁ of the two

A: predicted links, S: sure, P ⊇ S: possible, each summed over the corpus first. Och and Ney 2003, §5. All are
fractions; a lower AER is better. 0/0 counts as 1: the precision without predicted links and the recall without sure links are
1, and AER is 0 without both. F₁ is 0 if precision and recall are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from phraseloom.align.links import Gold, Links
from phraseloom.errors import DataError, plural


@dataclass(frozen=True, slots=True)
class AlignmentScore:
    """Counts over a corpus: predicted, sure and possible links, and how many of the predicted ones are sure or possible."""

    sentences: int
    links: int
    sure: int
    possible: int
    in_sure: int
    in_possible: int

    @property
    def aer(self) -> float:
        """Alignment error rate: 0 if all sure links and only possible ones are predicted."""
        return 1 - _share(self.in_sure + self.in_possible, self.links + self.sure)

    @property
    def precision(self) -> float:
        """The fraction of predicted links that are possible."""
        return _share(self.in_possible, self.links)

    @property
    def recall(self) -> float:
        """The fraction of sure links that are predicted."""
        return _share(self.in_sure, self.sure)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    def as_dict(self) -> dict[str, float]:
        """Scores and counts as plain data."""
        scores = {"aer": self.aer, "precision": self.precision, "recall": self.recall, "f1": self.f1}
        return {**scores, **asdict(self)}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def score_alignment(predicted: Sequence[Links], gold: Sequence[Gold]) -> AlignmentScore:
    """The score of the predicted links of each sentence. Raises DataError for different numbers of sentences."""
    if len(predicted) != len(gold):
        raise DataError(
            f"links of {plural(len(predicted), 'sentence')} cannot be scored with gold links of {len(gold)}"
        )
    return AlignmentScore(
        sentences=len(gold),
        links=sum(map(len, predicted)),
        sure=sum(len(g.sure) for g in gold),
        possible=sum(len(g.possible) for g in gold),
        in_sure=sum(len(f & g.sure) for f, g in zip(predicted, gold, strict=True)),
        in_possible=sum(len(f & g.possible) for f, g in zip(predicted, gold, strict=True)),
    )
