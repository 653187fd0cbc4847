from __future__ import annotations

import numpy as np
import pytest

from phraseloom.decoding.alignment import METHODS, alignment_layer, link_words
from phraseloom.errors import UsageError


def test_columns_are_summed_and_rows_averaged_over_pieces() -> None:
    weights = np.array(
        [
            [0.3, 0.3, 0.4, 0.0],  # word 0: pieces 0 and 1 of source word 0 outweigh word 1
            [0.1, 0.1, 0.2, 0.6],  # word 1, first piece: EOS does not count
            [0.5, 0.1, 0.3, 0.1],  # word 1, second piece
            [0.0, 0.0, 0.0, 1.0],  # EOS
        ]
    )
    assert link_words(weights, [0, 0, 1], [0, 1, 1]) == [(0, 0), (0, 1)]
    assert link_words(weights, [0, 1, 2], [0, 1, 2]) == [(2, 0), (2, 1), (0, 2)]


def test_equal_weights_go_to_the_lower_source_word() -> None:
    assert link_words(np.full((3, 4), 0.25), [0, 1, 2], [0, 1]) == [(0, 0), (0, 1)]


def test_nothing_to_link() -> None:
    assert link_words(np.ones((1, 1)), [], []) == []
    assert link_words(np.ones((1, 3)), [0, 1], []) == []


def test_slow_reference() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        source = np.cumsum(rng.integers(0, 2, rng.integers(1, 9))).tolist()
        target = np.cumsum(rng.integers(0, 2, rng.integers(1, 9))).tolist()
        source, target = [s - source[0] for s in source], [t - target[0] for t in target]
        weights = rng.dirichlet(np.ones(len(source) + 1), len(target) + 1)
        expected = []
        for word in range(max(target) + 1):
            rows = [t for t in range(len(target)) if target[t] == word]
            mass = [
                np.mean([sum(weights[t][s] for s in range(len(source)) if source[s] == w) for t in rows])
                for w in range(max(source) + 1)
            ]
            expected.append((int(np.argmax(mass)), word))
        assert link_words(weights, source, target) == expected


PHRASES = [range(1), range(1, 4), range(4, 5), range(5, 7)]


def test_what_is_linked_to_a_phrase_is_linked_to_all_its_words() -> None:
    weights = np.array([[0.9, 0.1, 0, 0], [0.1, 0.7, 0.2, 0], [0.2, 0.1, 0.7, 0], [0.1, 0.6, 0.3, 0], [0, 0, 0, 1]])
    to_source = [(0, 0), (1, 1), (1, 2), (1, 3), (2, 4), (1, 5), (1, 6)]
    assert link_words(weights, [0, 1, 2], PHRASES) == to_source
    # Source word 1 chooses the first phrase, all of it, and not the second one.
    assert link_words(weights, [0, 1, 2], PHRASES, "source-to-target") == to_source[:5]


@pytest.mark.parametrize("method", METHODS)
def test_a_phrase_counts_as_one_word(method: str) -> None:
    """The links are those of the tokens. Growing methods look at neighbours, so numbers must not have gaps."""
    rng = np.random.default_rng(1)
    for _ in range(30):
        source = list(range(rng.integers(2, 7)))
        sizes = rng.integers(1, 4, rng.integers(2, 7)).tolist()
        starts = np.cumsum([0, *sizes]).tolist()
        words = [range(start, start + size) for start, size in zip(starts, sizes, strict=False)]
        weights = rng.dirichlet(np.ones(len(source) + 1), len(sizes) + 1)
        of_tokens = link_words(weights, source, list(range(len(sizes))), method)
        expected = [(s, word) for s, token in of_tokens for word in words[token]]
        assert link_words(weights, source, words, method) == sorted(expected, key=lambda link: (link[1], link[0]))


def test_pieces_of_a_word_and_phrases_together() -> None:
    weights = np.array([[0.6, 0.4, 0], [0.1, 0.9, 0], [0.8, 0.2, 0], [0, 0, 1]])
    ranges = [range(1), range(1), range(1, 3)]
    assert link_words(weights, [0, 1], ranges) == [(1, 0), (0, 1), (0, 2)]


def test_layer() -> None:
    assert [alignment_layer(None, n) for n in (1, 2, 3, 6)] == [0, 0, 1, 4]
    assert alignment_layer(4, 6) == 3
    with pytest.raises(UsageError, match="the decoder has 2 layers"):
        alignment_layer(3, 2)
