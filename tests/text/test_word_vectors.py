"""The table of a vocabulary: taking off what all vectors have in common."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydantic
import pytest

from phraseloom.options.text import WordsConfig
from phraseloom.text.vectors import write_vectors
from phraseloom.text.vocabulary import BOS, EOS, PAD, UNK
from phraseloom.text.word_vectors import table_of
from phraseloom.text.words import learn


def test_the_mean_is_taken_off(tmp_path: Path) -> None:
    """By a loop in float64: unit rows, less their mean, made unit rows again; the others' mean less the same."""
    tokens, m = ["a", "b", "c_d", "x", "y"], 7
    rows = np.random.default_rng(2).normal(loc=1.0, size=(5, m)).astype(np.float32)
    path = tmp_path / "v.vec"
    write_vectors(path, tokens, rows)
    words, phrases, table = table_of(str(path), ["b", "a"], ["c_d"], center=True)
    assert (words, phrases) == (["b", "a"], ["c_d"])
    units = [rows[i].astype(float) / np.linalg.norm(rows[i]) for i in (1, 0, 2)]
    mean = sum(units) / 3
    for found, row in zip(table[4:], units, strict=True):
        expected = (row - mean) / np.linalg.norm(row - mean)
        assert np.allclose(found, expected, atol=1e-5)
    of_others = (rows[3].astype(float) + rows[4]) / 2
    of_others = of_others / np.linalg.norm(of_others) - mean
    assert np.allclose(table[UNK], of_others / np.linalg.norm(of_others), atol=1e-5)
    assert not table[[PAD, BOS]].any() and np.allclose(table[EOS], m**-0.5)
    plain = table_of(str(path), ["b", "a"], ["c_d"])[2]
    assert (plain[4:] @ plain[4:].T).mean() > 0.5 > (table[4:] @ table[4:].T).mean()


def test_words_are_learned_with_it(tmp_path: Path) -> None:
    path = tmp_path / "v.vec"
    write_vectors(path, ["a", "b"], np.array([[3.0, 4.0], [4.0, 3.0]]))
    options = {"joined": True, "vectors": str(path)}
    found = learn(["a b a"], WordsConfig(**options, center=True)).vectors
    assert found is not None and np.allclose(found[4:], [[-(0.5**0.5), 0.5**0.5], [0.5**0.5, -(0.5**0.5)]], atol=1e-5)


def test_rows_that_are_the_mean_stay(tmp_path: Path) -> None:
    path = tmp_path / "v.vec"
    write_vectors(path, ["a", "b"], np.array([[3.0, 4.0], [6.0, 8.0]]))
    table = table_of(str(path), ["a", "b"], [], center=True)[2]
    assert np.allclose(table[4:], [[0.6, 0.8], [0.6, 0.8]], atol=1e-5) and np.isfinite(table).all()


def test_nothing_to_center() -> None:
    with pytest.raises(pydantic.ValidationError, match="center is given, but no vectors"):
        WordsConfig(center=True)
