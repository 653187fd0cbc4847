"""Minimum Bayes risk against a brute-force reference."""

from __future__ import annotations

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from tests.decoding.conftest import lines_of_words

from phraseloom.decoding.cancellation import Cancelled
from phraseloom.decoding.mbr import expected_similarity
from phraseloom.decoding.translator import Translator
from phraseloom.errors import ConfigError

SCORES = {
    "chrf": lambda h, r: CHRF().sentence_score(h, [r]).score,
    "bleu": lambda h, r: BLEU(effective_order=True).sentence_score(h, [r]).score,
}


@pytest.mark.parametrize("metric", SCORES)
def test_the_utility_is_the_mean_over_all_samples(metric) -> None:
    texts = ["a small cow", "a small dog", "a small cow", "", "the cow is small", "a cow , small ."]
    found = expected_similarity(texts, metric)
    assert found == pytest.approx([sum(SCORES[metric](h, r) for r in texts) / len(texts) for h in texts])
    assert found[0] == found[2] and len(set(found)) == 5
    with pytest.raises(Cancelled):
        expected_similarity(texts, metric, lambda: True)


@pytest.mark.parametrize("metric", SCORES)
def test_translations_are_the_best_of_the_samples(translator: Translator, metric) -> None:
    lines = [*lines_of_words(6, seed=9), ""]
    options = {"seed": 4, "top_p": 0.8, "max_length": {"factor": 0.0, "constant": 8}}
    samples = translator.translate(lines, sample=True, n_best=7, **options)
    found = translator.translate(lines, mbr=7, mbr_metric=metric, n_best=3, **options)
    again = translator.translate(lines, mbr=7, mbr_metric=metric, n_best=3, batch_sentences=2, workers=2, **options)
    assert [[(t.text, t.score) for t in x.n_best] for x in found] == [
        [(t.text, t.score) for t in x.n_best] for x in again
    ]
    for drawn, best in zip(samples[:6], found[:6], strict=True):
        texts = [t.text for t in drawn.n_best]
        utility = {h: sum(SCORES[metric](h, r) for r in texts) / 7 for h in texts}
        assert [t.score for t in best.n_best] == pytest.approx(sorted((utility[t] for t in texts), reverse=True)[:3])
        assert all(t.score == pytest.approx(utility[t.text]) for t in best.n_best)
    assert found[6].blank
    assert any(best.text != drawn.text for drawn, best in zip(samples, found, strict=True))


def test_ties_go_to_the_first_sample(translator: Translator) -> None:
    """At a temperature near 0 all samples are equal."""
    [found] = translator.translate(["a cow"], mbr=5, temperature=0.001)
    assert found.text == translator.translate(["a cow"], beam=1)[0].text and found.score == pytest.approx(100)


def test_more_than_the_samples_is_refused(translator: Translator) -> None:
    with pytest.raises(ConfigError, match="n_best 4 is larger than mbr 3; set mbr to 4 or more"):
        translator.translate(["a"], mbr=3, n_best=4)
