from __future__ import annotations

import json
import math

import pytest

from phraseloom.metrics.perplexity import Perplexity, count_words, exp_mean


def test_line_ends_count_once_a_line_in_both() -> None:
    """Two lines of 3 and 1 words, 5 and 2 subwords, uniform over 10 tokens: NLL is 9 ln 10."""
    sums = Perplexity(1, 3, 5, 1, 6 * math.log(10)) + Perplexity(1, 1, 2, 0, 3 * math.log(10))
    assert (sums.lines, sums.words, sums.subwords, sums.unknown) == (2, 4, 7, 1)
    assert sums.per_subword == pytest.approx(10.0)
    assert sums.per_word == pytest.approx(10 ** (9 / 6))
    assert sums.as_dict() == {
        "lines": 2,
        "words": 4,
        "subwords": 7,
        "unknown": 1,
        "log_prob": pytest.approx(-9 * math.log(10)),
        "perplexity": pytest.approx(10.0),
        "word_perplexity": pytest.approx(31.6227766),
    }
    assert "7 subwords (1 unknown): perplexity 10.000 per subword, 31.623 per word" in str(sums)


def test_words_stand_between_any_white_space() -> None:
    assert count_words(["a  b\tc", "", " \u3000", "x\u00a0y\u2003z "]) == 6


def test_what_is_not_finite_is_no_number_in_json() -> None:
    assert exp_mean(1e9, 3) == math.inf and math.isnan(exp_mean(math.nan, 3))
    text = json.dumps(Perplexity(1, 0, 2000, 0, 9000.0).as_dict(), allow_nan=False)
    assert '"word_perplexity": null' in text and '"perplexity": 8' in text


def test_no_line_has_no_perplexity() -> None:
    nothing = Perplexity()
    assert math.isnan(nothing.per_word) and math.isnan(nothing.per_subword)
    assert nothing.as_dict()["perplexity"] is None and str(nothing) == "no line was scored: no perplexity"
