"""The table of a vocabulary: taking off what all vectors have in common."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydantic
import pytest

from phraseloom.errors import DataError
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
    words, phrases, table, transform = table_of(str(path), ["b", "a"], ["c_d"], center=True)
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
    assert transform is not None and np.allclose(transform.mean_M, mean, atol=1e-6)
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


def covariance(rows: np.ndarray) -> np.ndarray:
    centred = rows - rows.mean(0)
    return np.asarray(centred.T @ centred / len(rows))


def test_whitened_rows_by_the_definition(tmp_path: Path) -> None:
    """diag(λ)^(-1/2) Uᵀ (u - μ), made unit rows; the components come in falling order, UNK is treated as a row."""
    size, m = 60, 5
    tokens = [f"t{n}" for n in range(size + 1)]
    rows = (np.random.default_rng(4).normal(1.0, 1.0, (size + 1, m)) * [5, 3, 2, 1, 0.5]).astype(np.float32)
    path = tmp_path / "v.vec"
    write_vectors(path, tokens, rows)
    units = rows.astype(float) / np.linalg.norm(rows, axis=1, keepdims=True)
    mean = units[:size].mean(0)
    variances, axes = np.linalg.eigh(covariance(units[:size]))
    whole = (units - mean) @ axes[:, ::-1] / np.sqrt(variances[::-1])
    table = table_of(str(path), tokens[:size], [], whiten=True)[2]
    expected = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    for found, row in zip([*table[4:], table[UNK]], expected, strict=True):
        assert np.allclose(np.abs(found), np.abs(row), atol=1e-3)  # the sign of an axis is free
    assert np.allclose(table[4:] @ table[4:].T, expected[:size] @ expected[:size].T, atol=1e-3)
    leading = table_of(str(path), tokens[:size], [], whiten=True, dimensions=2)[2]
    assert leading.shape == (size + 4, 2) and np.allclose(leading[EOS], 0.5**0.5)
    short = whole[:size, :2] / np.linalg.norm(whole[:size, :2], axis=1, keepdims=True)
    assert np.allclose(leading[4:] @ leading[4:].T, short @ short.T, atol=1e-3)
    centred = table_of(str(path), tokens[:size], [], center=True, dimensions=2)[2]
    flat = ((units - mean) @ axes[:, ::-1])[:size, :2]
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    assert np.allclose(centred[4:] @ centred[4:].T, flat @ flat.T, atol=1e-3)


def test_rows_are_mixed_with_random_directions(tmp_path: Path) -> None:
    """√(1 - s) u + √s r, made a unit row: near rows end at a cosine of 1 - s, and each keeps √(1 - s) of itself."""
    size, m, share = 300, 256, 0.4
    tokens = [f"t{n:03}" for n in range(size)]
    path = tmp_path / "v.vec"
    write_vectors(path, tokens, 1 + 0.01 * np.random.default_rng(4).normal(size=(size, m)))
    plain = table_of(str(path), tokens, [])[2]
    words, _, table, transform = table_of(str(path), tokens, [], random_share=share)
    assert words == tokens and transform is not None and transform.random_share == share
    assert np.allclose(transform(plain[4:]), plain[4:], atol=1e-6)  # new rows are not mixed
    assert np.array_equal(table[:4], plain[:4]) and np.allclose(np.linalg.norm(table[4:], axis=1), 1)
    cosines = table[4:] @ table[4:].T
    assert abs(cosines[~np.eye(size, dtype=bool)].mean() - (1 - share)) < 0.01
    assert abs((table[4:] * plain[4:]).sum(1).mean() - (1 - share) ** 0.5) < 0.01
    own = table[4:] - (1 - share) ** 0.5 * plain[4:]
    assert abs(np.linalg.norm(own, axis=1).mean() - share**0.5) < 0.02
    again, other = (table_of(str(path), tokens, [], random_share=share, random_seed=seed)[2] for seed in (1, 2))
    assert np.array_equal(again, table) and not np.allclose(other[4:], table[4:], atol=0.05)
    learned = learn(tokens, WordsConfig(vectors=str(path), random_share=share, random_seed=2, joined=True))
    assert np.array_equal(learned.vectors, other)


def test_components_without_variance_do_not_become_noise(tmp_path: Path) -> None:
    """Fewer rows than dimensions: what is only rounding is left out of the whitened rows."""
    rows = np.random.default_rng(6).normal(1.0, 1.0, (4, 9)).astype(np.float32)
    path = tmp_path / "v.vec"
    write_vectors(path, list("abcd"), rows)
    table = table_of(str(path), list("abcd"), [], whiten=True)[2]
    assert np.isfinite(table).all() and np.allclose(np.linalg.norm(table[4:], axis=1), 1)
    # Four points of a whitened simplex have the same angle to each other.
    assert np.allclose((table[4:] @ table[4:].T)[~np.eye(4, dtype=bool)], -1 / 3, atol=1e-3)
    same = table_of(str(_of_one_direction(tmp_path)), ["a", "b"], [], whiten=True)[2]
    assert np.isfinite(same).all() and np.allclose(np.linalg.norm(same[4:], axis=1), 1)


def _of_one_direction(folder: Path) -> Path:
    write_vectors(folder / "same.vec", ["a", "b"], np.array([[3.0, 4.0], [6.0, 8.0]]))
    return folder / "same.vec"


def test_random_vectors() -> None:
    config = WordsConfig.model_validate({"vectors": {"random": 16, "seed": 3}, "joined": True, "phrases": 5})
    first, again = learn(["a b a", "c_d"], config), learn(["a b a", "c_d"], config)
    assert first.vectors is not None and again.vectors is not None
    assert list(first.vocabulary)[4:] == ["a", "b", "c_d"]
    assert first.vectors.shape == (7, 16) and np.array_equal(first.vectors, again.vectors)
    assert np.allclose(np.linalg.norm(first.vectors[[EOS, UNK, 4, 5, 6]], axis=1), 1)
    assert not first.vectors[[PAD, BOS]].any()
    other = learn(["a b a", "c_d"], WordsConfig.model_validate({**config.model_dump(), "vectors": {"random": 16}}))
    assert not np.array_equal(first.vectors, other.vectors)
    large = learn([" ".join(f"w{n}" for n in range(2000))], WordsConfig.model_validate({"vectors": {"random": 64}}))
    assert large.vectors is not None
    assert abs((large.vectors[4:] @ large.vectors[4:].T).mean()) < 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"whiten": True}, "whiten is given, but no vectors"),
        ({"random_seed": 2, "vectors": "v"}, "random_seed draws the directions of random_share"),
        ({"random_share": 0.5}, "random_share is given, but no vectors"),
        ({"random_share": 0.5, "vectors": {"random": 8}}, "random_share is for vectors of a file"),
        ({"random_share": 1.0, "vectors": "v"}, "less than 1"),
        ({"dimensions": 3, "vectors": "v"}, "dimensions keeps principal components"),
        (
            {"dimensions": 9, "center": True, "vectors": {"train": {"width": 8}}},
            "dimensions: 9 is more than vectors.train.width: 8",
        ),
        ({"center": True, "vectors": {"random": 8}}, "center is for vectors of a file"),
        ({"vectors": {"random": 1}}, "greater than or equal to 2"),
        ({"vectors": {"Random": 8}}, "random"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, object], message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        WordsConfig.model_validate(options)


def test_more_dimensions_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dimensions: 3 of vectors of width 2"):
        table_of(str(_of_one_direction(tmp_path)), ["a"], [], whiten=True, dimensions=3)
