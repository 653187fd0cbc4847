"""The vectors of docs/experiments/036-random-vectors.md: a phrase is near its words, most of all the rarer ones."""

import runpy

import numpy as np
import pytest
from tests.docs.pages import ROOT

COMPOSED = runpy.run_path(str(ROOT / "docs" / "experiments" / "composed_vectors.py"))["composed"]
LINES = ["a man is_running", "the man is the man", "__ tank_top man"]


def test_a_phrase_is_near_its_words() -> None:
    tokens, rows = COMPOSED(LINES, 1, 4096)
    assert tokens == ["man", "is", "the", "__", "a", "running", "tank", "top", "is_running", "tank_top"]
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1)
    cosine = {token: dict(zip(tokens, rows @ row, strict=True)) for token, row in zip(tokens, rows, strict=True)}
    assert cosine["tank_top"]["tank"] == pytest.approx(0.5, abs=0.05) == cosine["tank_top"]["top"]
    assert cosine["is_running"]["running"] > cosine["is_running"]["is"] + 0.1  # twice as frequent
    assert abs(cosine["tank_top"]["man"]) < 0.05 and abs(cosine["man"]["tank"]) < 0.05
    assert not np.array_equal(rows, COMPOSED(LINES, 2, 4096)[1])
