"""Neighbours of hand-made matrices; agreement of two models; frequencies; what is left out."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from phraseloom.analysis import neighbours
from phraseloom.analysis.neighbours import Embeddings, PieceNeighbour, compare, correlation, frequencies, nearest, ranks
from phraseloom.errors import DataError, ModelError, UsageError
from phraseloom.text.vocabulary import SPECIALS, Vocabulary


def model(name: str, pieces: str, vectors: Any) -> Embeddings:
    """One-letter pieces; four special rows, which all point where the first piece does, are put before `vectors`."""
    matrix = torch.as_tensor(vectors, dtype=torch.float32)
    vocabulary = Vocabulary([*SPECIALS, *pieces])

    def encode_batch(lines: list[str]) -> list[list[int]]:
        return [vocabulary.ids(list(line.replace(" ", ""))) for line in lines]

    side: Any = SimpleNamespace(vocabulary=vocabulary, encode_batch=encode_batch)
    return Embeddings(name, side, torch.cat([matrix[:1].expand(4, -1), matrix]))


def angles(*degrees: float) -> list[list[float]]:
    """Vectors of the plane, of lengths 1, 2, 3, …"""
    return [
        [n * math.cos(math.radians(d)), n * math.sin(math.radians(d))] for n, d in enumerate(map(float, degrees), 1)
    ]


def names(found: neighbours.Neighbours, which: int = 0) -> list[str]:
    return ["".join(n.piece for n in token.neighbours[which]) for token in found.tokens]


def test_neighbours_by_angle_and_not_by_length() -> None:
    found = compare([model("m", "abcde", angles(0, 10, 30, 180, 100))], tokens=9, count=2)
    assert [t.piece for t in found.tokens] == list("abcde")
    assert names(found) == ["bc", "ac", "ba", "ec", "cd"]
    assert found.tokens[0].neighbours[0][0] == PieceNeighbour("b", pytest.approx(math.cos(math.radians(10)), abs=1e-6))
    assert (found.candidates, found.zero, found.count) == (5, 0, 2)
    assert found.overlap is found.pearson is found.spearman is None
    assert all(t.count is None for t in found.tokens)


def test_all_neighbours_of_a_token_are_the_others() -> None:
    found = compare([model("m", "abc", angles(0, 170, 90))], count=2)
    assert names(found) == ["cb", "ca", "ba"]
    assert found.chance == 1
    with pytest.raises(UsageError, match="3 pieces; 3 neighbours need 4"):
        compare([model("m", "abc", angles(0, 170, 90))], count=3)


def test_ties_go_to_the_lower_id() -> None:
    """Rows that are equal up to length, wherever they stand: what a product rounds differently is a tie as well."""
    torch.manual_seed(1)
    matrix = torch.randn(301, 37)
    same = [290, 300, 7, 133, 12, 211]
    matrix[same] = matrix[5] * torch.tensor([[1.0], [3.0], [0.1], [7.0], [1e-3], [1e3]])
    ids, cosines = nearest(matrix, torch.tensor([5, 12]), 7)
    assert ids[0, :6].tolist() == sorted(same) and ids[1, :6].tolist() == sorted({5, *same} - {12})
    assert (cosines[:, :6] == 1).all() and (cosines[:, 6] < 1).all()


@pytest.mark.parametrize("cells", [1, 50, 700, 2**24])
def test_in_pieces_as_in_loops(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "CELLS", cells)
    torch.manual_seed(2)
    matrix = torch.randn(23, 6)
    rows = [3, 0, 22, 17]
    ids, cosines = nearest(matrix, torch.tensor(rows), 4)
    for i, row in enumerate(rows):
        values = [
            float(matrix[row] @ matrix[n]) / float(matrix[row].norm() * matrix[n].norm()) for n in range(len(matrix))
        ]
        others = sorted((n for n in range(len(matrix)) if n != row), key=lambda n: -values[n])[:4]
        assert ids[i].tolist() == others
        assert cosines[i].tolist() == pytest.approx([values[n] for n in others], abs=1e-6)


def test_pieces_without_direction_are_left_out() -> None:
    vectors = angles(0, 10, 20, 30, 180)
    vectors[1] = [0, 0]
    one = compare([model("m", "abcde", vectors)], count=2)
    assert [t.piece for t in one.tokens] == list("acde") and names(one)[0] == "cd"
    assert (one.candidates, one.zero) == (4, 1)
    other = angles(0, 10, 20, 30, 180)
    other[3] = [0, 0]
    both = compare([model("m", "abcde", vectors), model("n", "abcde", other)], count=1)
    assert [t.piece for t in both.tokens] == list("ace") and (both.candidates, both.zero) == (3, 2)


def test_the_most_frequent_pieces_of_a_text() -> None:
    some = model("m", "abcdef", angles(0, 10, 21, 30, 40, 50))
    lines = ["f d", "", "d f e", "xyz xyz xyz", "b"]
    assert frequencies(some.side, lines).tolist() == [0, 9, 0, 0, 0, 1, 0, 2, 1, 2]
    found = compare([some], tokens=3, count=1, lines=iter(lines))
    assert [(t.piece, t.count) for t in found.tokens] == [("d", 2), ("f", 2), ("b", 1)]
    all_found = compare([some], tokens=99, count=1, lines=lines)
    assert [t.piece for t in all_found.tokens] == ["d", "f", "b", "e"]
    assert names(all_found)[0] == "c"  # a neighbour need not be in the text
    with pytest.raises(DataError, match="the text has none of the pieces"):
        compare([some], count=1, lines=["xyz"])


def test_long_texts_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "LINES", 2)
    some = model("m", "ab", angles(0, 10))
    assert frequencies(some.side, ["a", "b b", "a a", "", "b"]).tolist()[4:] == [3, 3]


def test_two_models() -> None:
    first = model("m", "abcde", angles(0, 10, 25, 60, 170))
    second = model("n", "abcde", angles(0, 10, 200, 60, 25))
    found = compare([first, second], tokens=2, count=2)
    assert names(found, 0) == ["bc", "ac"] and names(found, 1) == ["be", "ae"]
    assert [t.shared for t in found.tokens] == [1, 1]
    assert (found.overlap, found.chance) == (0.5, 0.5) and found.models == ["m", "n"]
    assert found.pearson is None and len(found.pairs[0]) == 1
    three = compare([first, second], tokens=3, count=1)
    cosines = [[math.cos(math.radians(d)) for d in row] for row in ((10, 25, 15), (10, 200, 190))]
    np.testing.assert_allclose(three.pairs, cosines, atol=1e-6)
    assert three.pearson == pytest.approx(np.corrcoef(*cosines)[0, 1], abs=1e-6)
    assert three.spearman == pytest.approx(0.5)  # of the ranks 2 0 1 and 2 1 0


def test_other_vocabularies_are_compared_on_what_is_common() -> None:
    first = model("m", "abcdef", angles(0, 10, 25, 60, 170, 5))
    second = model("n", "cexabd", angles(25, 170, 2, 0, 10, 60))
    found = compare([first, second], count=2, lines=["f f f a x e e"])
    assert found.candidates == 5 and found.chance == 0.5
    assert [(t.piece, t.count) for t in found.tokens] == [("e", 2), ("a", 1)]
    assert found.overlap == 1 and names(found, 0) == names(found, 1) == ["dc", "bc"]
    with pytest.raises(UsageError, match="2 pieces are in both vocabularies; 2 neighbours need 3"):
        compare([model("m", "abc", angles(0, 1, 2)), model("n", "xab", angles(0, 1, 2))], count=2)


def test_a_turned_matrix_agrees_wholly_and_drawn_ones_by_chance() -> None:
    torch.manual_seed(3)
    letters = "".join(chr(0x4E00 + n) for n in range(81))
    first, other = torch.randn(81, 20), torch.randn(81, 20)
    turn = torch.linalg.qr(torch.randn(20, 20)).Q
    same = compare([model("m", letters, first), model("n", letters, 3 * first @ turn)], count=8)
    assert same.overlap == 1
    assert same.pearson == pytest.approx(1) and same.spearman == pytest.approx(1, abs=1e-4)
    drawn = compare([model("m", letters, first), model("n", letters, other)], count=8)
    assert drawn.chance == 0.1
    assert drawn.overlap == pytest.approx(0.1, abs=3 * math.sqrt(0.1 * 0.9 / 8 / 81))
    assert drawn.pearson == pytest.approx(0, abs=0.06)


def test_ranks_and_correlations() -> None:
    assert ranks(np.array([0.5, -1, 0.5, 3, 0.5])).tolist() == [2, 0, 2, 4, 2]
    assert correlation(np.array([1.0, 2, 4]), np.array([-2.0, -4, -8])) == pytest.approx(-1)
    assert correlation(np.array([1.0, 1]), np.array([1.0, 2])) is None
    assert correlation(np.array([1.0]), np.array([1.0])) is None
    a, b = np.array([1.0, 2, 3, 4]), np.array([1.0, 8, 27, 1000])
    assert correlation(ranks(a), ranks(b)) == pytest.approx(1)
    assert correlation(a, b) < 0.9  # type: ignore[operator]


def test_pairs_of_many_tokens_are_those_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "PAIRED_TOKENS", 3)
    found = compare([model("m", "abcde", angles(0, 10, 25, 60, 170))], count=1)
    assert len(found.tokens) == 5 and len(found.pairs[0]) == 3


def test_matrices_that_are_not_finite() -> None:
    with pytest.raises(ModelError, match="broken: the embeddings are not finite"):
        compare([model("broken", "abc", [[0, 1], [math.nan, 1], [1, 0]])], count=1)
