"""Minimum Bayes risk: of N samples, the one that is most similar to all of them on average (Kumar and Byrne 2004; Eikema and
Aziz 2020).

    utility(h) = 1/N Σ_j similarity(h, y_j)         y_1 … y_N: the samples, h among them

The similarity is sentence chrF or sentence BLEU by sacreBLEU, from 0 to 100, with the sample as the hypothesis and y_j as the
reference. Equal samples are compared once, so a line costs at most N² comparisons, and U² for U different samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from phraseloom.decoding.cancellation import ShouldCancel, raise_if_cancelled
from phraseloom.options.decoding import MbrMetric


def expected_similarity(
    texts: Sequence[str], metric: MbrMetric, should_cancel: ShouldCancel | None = None
) -> list[float]:
    """The utility of each of the samples `texts`, from 0 to 100. Raises Cancelled."""
    similarity, counts = _similarity(metric), Counter(texts)
    utilities = {}
    for text in counts:
        raise_if_cancelled(should_cancel)
        terms = [count * similarity(text, other) for other, count in counts.items()]
        utilities[text] = math.fsum(terms) / len(texts)
    return [utilities[text] for text in texts]


def _similarity(metric: MbrMetric) -> Callable[[str, str], float]:
    if metric == "chrf":
        from sacrebleu.metrics.chrf import CHRF

        chrf = CHRF()
        return lambda hypothesis, reference: float(chrf.sentence_score(hypothesis, [reference]).score)
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU(effective_order=True)
    return lambda hypothesis, reference: float(bleu.sentence_score(hypothesis, [reference]).score)
