"""Vectors of words and phrases: fastText's formulas, what is kept, and that a seed decides them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phraseloom.errors import DataError, DivergedError, UsageError
from phraseloom.options.text import VectorTraining
from phraseloom.phrases import embeddings
from phraseloom.phrases.embeddings import (
    EmbeddingProgress,
    EmbeddingSettings,
    TokenCounts,
    count_tokens,
    read_tokens,
    train_vectors,
)
from phraseloom.text.vectors import Vectors

LINES = ["went to the house", "he went_to  it", "", "the house the", "e\u0301tat zog zog_zog"] * 3
SMALL = EmbeddingSettings(width=6, epochs=2, min_count=1, buckets=40, sample=0.0)
Text = Callable[[], Iterator[str]]


@pytest.fixture
def fast_text() -> Any:
    pytest.importorskip("gensim")
    return embeddings.require_gensim()


def text(lines: list[str]) -> Text:
    return lambda: iter(lines)


def trained(lines: list[str], settings: EmbeddingSettings, **options: Any) -> Vectors:
    return train_vectors(text(lines), count_tokens(text(lines), settings.min_count), settings, **options)


# --- counting -----------------------------------------------------------------------------------------------------------


def test_tokens_by_frequency_then_code_point() -> None:
    counted = count_tokens(text(["b a b", "", "c  a\tx", "é z é Z"]), 1)
    assert list(counted.tokens.items()) == [("b", 2), ("é", 2), ("Z", 1), ("a", 1), ("a\tx", 1), ("c", 1), ("z", 1)]
    assert (counted.lines, counted.words) == (4, 9)
    assert list(count_tokens(text(["b a b", "é é"]), 2).tokens) == ["b", "é"]
    assert count_tokens(text(["b a b", "é é"]), 2).words == 5


def test_a_share_of_one_leaves_every_token_in(fast_text: Any) -> None:
    """gensim takes a `sample` of 1 for a number of tokens, and would leave out nearly all."""
    lines = LINES * 20
    whole = trained(lines, replace(SMALL, sample=0.0)).matrix_VM
    assert np.array_equal(trained(lines, replace(SMALL, sample=1.0)).matrix_VM, whole)
    assert not np.array_equal(trained(lines, replace(SMALL, sample=0.01)).matrix_VM, whole)


def test_a_text_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(DataError, match=r"t\.en: a text without words"):
        count_tokens(text(["", "  "]), 1, name="t.en")
    with pytest.raises(
        DataError, match=r"t\.en: no token is there 3 times; the most frequent, 'a', 2 times; .*min-count"
    ):
        count_tokens(text(["a b a"]), 3, name="t.en")


def test_tokens_of_a_phrase_table(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_bytes(b"went to\t7\t1.5\nquality_of_life\nno_1 place\nhouse\nwent to\t1\n")
    assert read_tokens(path) == ["house", "no&#95;1_place", "quality_of_life", "went_to"]


# --- what is written ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fast_text")
def test_rows_are_the_tokens_of_the_text_then_the_others() -> None:
    counted = count_tokens(text(LINES), 6)
    assert list(counted.tokens) == ["the", "house"]
    extra = ["zz", "house", "he", "zz", "", "a"]
    vectors = train_vectors(text(LINES), counted, EmbeddingSettings(width=6, min_count=6, ngrams=(4, 6)), extra=extra)
    assert vectors.tokens == ["the", "house", "zz", "he"]  # "<a>" holds no 4 characters
    assert vectors.matrix_VM.shape == (4, 6)
    assert vectors.matrix_VM.dtype == np.float32
    assert vectors.matrix_VM.any(1).all()


def fnv(ngram: str) -> int:
    """fastText's hash of an n-gram: FNV-1a in 32 bits over its bytes, each taken as signed."""
    value = 2166136261
    for byte in ngram.encode():
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
    return value


def ngrams(token: str, shortest: int, longest: int) -> list[str]:
    marked = f"<{token}>"
    found = [marked[i : i + n] for n in range(shortest, longest + 1) for i in range(len(marked) - n + 1)]
    return [one for one in found if len(one) > 1 or one not in "<>"]


def test_a_vector_is_made_of_its_ngrams(fast_text: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a token of the text its own row and its n-grams, of any other token its n-grams alone."""
    made: list[Any] = []

    def remember(**options: Any) -> Any:
        made.append(fast_text(**options))
        return made[0]

    monkeypatch.setattr(embeddings, "require_gensim", lambda: remember)
    extra = ["went_home", "été"]
    vectors = trained(LINES, SMALL, extra=extra)
    model = made[0].wv
    assert model.vectors_ngrams.shape == (40, 6)
    for token, vector in zip(vectors.tokens, vectors.matrix_VM, strict=True):
        rows = model.vectors_ngrams[[fnv(one) % 40 for one in ngrams(token, 3, 6)]].sum(0)
        count = len(ngrams(token, 3, 6))
        own = token not in extra
        expected = (model.vectors_vocab[model.key_to_index[token]] + rows) / (count + 1) if own else rows / count
        np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-6, err_msg=token)


def test_settings_reach_gensim(fast_text: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def remember(**options: Any) -> Any:
        given.update(options)
        return fast_text(**options)

    monkeypatch.setattr(embeddings, "require_gensim", lambda: remember)
    trained(LINES, EmbeddingSettings(7, 3, 1, 4, (2, 5), 50, 3, 0.1, 0.5, 9), jobs=2)
    expected = {
        "sg": 1, "vector_size": 7, "epochs": 3, "window": 4, "min_n": 2, "max_n": 5, "bucket": 50, "negative": 3,
        "alpha": 0.1, "min_alpha": 0.0, "sample": 0.5, "seed": 9, "workers": 2, "min_count": 1, "sorted_vocab": 0,
    }  # fmt: skip
    assert {name: given[name] for name in expected} == expected
    given.clear()
    trained(LINES, EmbeddingSettings(min_count=1))
    defaults = {
        "vector_size": 300,
        "epochs": 20,
        "sample": 1e-3,
        "window": 5,
        "min_n": 3,
        "max_n": 6,
        "negative": 5,
        "alpha": 0.05,
    }
    assert {name: given[name] for name in defaults} == defaults
    assert EmbeddingSettings().min_count == 5
    learned = VectorTraining()  # by `prepare`
    assert (learned.epochs, learned.sample) == (EmbeddingSettings().epochs, EmbeddingSettings().sample)


@pytest.mark.usefixtures("fast_text")
def test_rows_for_ngrams_are_as_many_as_needed() -> None:
    assert embeddings._needed_buckets(["ab"], (3, 6)) == 8  # <ab ab> <ab>
    assert embeddings._needed_buckets(["ab", "ab"], (3, 3)) == 4  # <ab ab>
    assert embeddings._needed_buckets([], (3, 3)) == 2
    rng = random.Random(1)
    many = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=40)) for _ in range(12_000)]
    assert embeddings._needed_buckets(many, (3, 6)) == 2_000_000


@pytest.mark.usefixtures("fast_text")
def test_matrices_that_gensim_cannot_address_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code multiplies 32-bit numbers, so a row at 2³² numbers or later would be another one."""
    assert embeddings.ADDRESSED == 2**32
    monkeypatch.setattr(embeddings, "ADDRESSED", 40 * 20)
    trained(LINES, EmbeddingSettings(width=19, min_count=1, buckets=40))
    for settings in (
        EmbeddingSettings(width=20, min_count=1, buckets=40),
        EmbeddingSettings(width=90, min_count=1, buckets=8),
    ):
        with pytest.raises(UsageError, match=r"40 rows of 20 numbers|10 rows of 90 numbers"):
            trained(LINES, settings)


# --- what is learned ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fast_text")
def test_tokens_of_the_same_contexts_come_together() -> None:
    """Two topics of words that share no n-gram; the phrase lands among the words of its topic."""
    rng = random.Random(3)
    topics = [["bim", "dov_kel", "fug", "haz"], ["juq", "lyx", "nop", "ret"]]
    lines = [" ".join(rng.choices(rng.choice(topics), k=6)) for _ in range(600)]
    vectors = trained(lines, EmbeddingSettings(width=12, epochs=10, sample=0.0))
    unit = vectors.matrix_VM / np.linalg.norm(vectors.matrix_VM, axis=1, keepdims=True)
    cosines = unit @ unit.T
    same = np.array([[(a in topics[0]) == (b in topics[0]) for b in vectors.tokens] for a in vectors.tokens])
    assert cosines[same].min() > cosines[~same].max() + 0.3


@pytest.mark.usefixtures("fast_text")
def test_the_seed_decides() -> None:
    first, again = trained(LINES, SMALL), trained(LINES, SMALL)
    assert first.tokens == again.tokens
    np.testing.assert_array_equal(first.matrix_VM, again.matrix_VM)
    other = trained(LINES, EmbeddingSettings(width=6, epochs=2, min_count=1, buckets=40, sample=0.0, seed=2))
    assert (other.matrix_VM != first.matrix_VM).any()


SCRIPT = """
import hashlib
from phraseloom.phrases.embeddings import EmbeddingSettings, count_tokens, train_vectors
lines = ["went to the house", "he went_to it", "the house the"] * 50
text = lambda: iter(lines)
vectors = train_vectors(text, count_tokens(text, 1), EmbeddingSettings(width=6), extra=["went_home", "x_y"])
print(vectors.tokens, hashlib.sha256(vectors.matrix_VM.tobytes()).hexdigest())
"""


@pytest.mark.usefixtures("fast_text")
def test_every_process_gets_the_same() -> None:
    """Python's hash of a string differs from process to process."""
    found = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@pytest.mark.usefixtures("fast_text")
def test_several_threads_learn_too() -> None:
    vectors = trained(LINES, SMALL, jobs=2)
    assert np.isfinite(vectors.matrix_VM).all()


# --- the text as it is read -----------------------------------------------------------------------------------------------


def sentences(lines: list[str], tokens: list[str], told: list[EmbeddingProgress]) -> embeddings._Sentences:
    counted = TokenCounts(len(lines), 0, dict.fromkeys(tokens, 1))
    return embeddings._Sentences(text(lines), counted, 2, told.append)


def test_no_word_of_a_long_line_is_lost() -> None:
    """gensim reads 10,000 words of a sentence, and drops the others."""
    line = " ".join(["a", "rare", "b"] * 8_000)
    found = list(sentences([line, "", "rare", "b rare a"], ["a", "b"], []))
    assert [len(one) for one in found] == [10_000, 6_000, 2]
    assert [token for one in found for token in one] == ["a", "b"] * 8_000 + ["b", "a"]


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "REPORT_LINES", 2)
    told: list[EmbeddingProgress] = []
    read = sentences(["a"] * 4, ["a"], told)
    assert len(list(read)) == len(list(read)) == 4
    assert told == [
        EmbeddingProgress(1, 2, 2, 4),
        EmbeddingProgress(1, 2, 4, 4),
        EmbeddingProgress(2, 2, 2, 4),
        EmbeddingProgress(2, 2, 4, 4),
    ]


@pytest.mark.usefixtures("fast_text")
def test_an_error_of_the_text_ends_training() -> None:
    """gensim reads it in a thread, and would wait for ever."""

    def fails() -> Iterator[str]:
        yield "went to the house"
        raise DataError("changed while it was read", file="t.en")

    def stop(*_: object) -> None:
        raise AssertionError("training hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    try:
        with pytest.raises(DataError, match=r"t\.en: changed while it was read"):
            train_vectors(fails, count_tokens(text(LINES), 1), SMALL)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_vectors_that_are_not_finite_are_refused(fast_text: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(fast_text):  # type: ignore[misc]
        def train(self, *arguments: Any, **options: Any) -> Any:
            super().train(*arguments, **options)
            self.wv.vectors[0, 0] = np.inf

    monkeypatch.setattr(embeddings, "require_gensim", lambda: Broken)
    with pytest.raises(DivergedError, match="not finite"):
        trained(LINES, SMALL)


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim", None)
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(UsageError, match=r"needs the package gensim; pip install 'phraseloom\[embeddings\]'"):
        embeddings.require_gensim()
