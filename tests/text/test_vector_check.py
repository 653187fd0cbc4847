"""Figures of tables against loops, and which tables are called bad."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest

from phraseloom.errors import DataError
from phraseloom.text.vector_check import TrigramModel, check_tables, problems, random_rows, remedy, variants


def unit_rows(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def some_lines(count: int, size: int, seed: int = 1) -> list[list[int]]:
    """Lines in which the next token depends on the two before it; now and then a token that has no row."""
    rng, lines = random.Random(seed), []
    for _ in range(count):
        line = [rng.randrange(size)]
        while len(line) < 9:
            line.append((line[-1] * 3 + sum(line[-2:-1]) + min(rng.randrange(4), 2)) % size)
        lines.append([-1 if rng.random() < 0.05 else token for token in line])
    return lines


def slow_posterior(lines: list[list[int]], size: int, before: int, last: int) -> list[float]:
    """Witten and Bell's interpolation, order by order."""
    triples = [
        (a, b, c) for line in lines for a, b, c in zip([-2, -2, *line], [-2, *line], line, strict=False) if c >= 0
    ]
    counts = Counter(c for _, _, c in triples)
    p = [counts[w] / len(triples) for w in range(size)]
    for after in (
        Counter(c for _, b, c in triples if b == last),
        Counter(c for a, b, c in triples if (a, b) == (before, last)),
    ):
        total, types = after.total(), len(after)
        if total:
            p = [(after[w] + types * p[w]) / (total + types) for w in range(size)]
    return p


def test_the_posterior_is_that_of_a_loop() -> None:
    lines, size = some_lines(40, 11), 11
    model = TrigramModel(lines, size)
    contexts = [(-2, -2), (-2, 3), (4, 1), (-1, 5), (7, -1), (10, 10)]
    found = model.posterior(np.array(contexts))
    for row, context in zip(found, contexts, strict=True):
        assert np.allclose(row, slow_posterior(lines, size, *context), atol=1e-12)
        assert math.isclose(row.sum(), 1.0)


def test_figures_by_loops() -> None:
    size, width = 30, 6
    rows = unit_rows(np.random.default_rng(3).normal(0.5, 1.0, (size, width)))
    lines = some_lines(200, size)
    found = check_tables({"a": rows}, lines)["a"]
    cosines = rows.astype(float) @ rows.T.astype(float)
    assert found.mean_cosine == pytest.approx((cosines.sum() - size) / (size * (size - 1)), abs=1e-6)
    nearest = (cosines - 9 * np.eye(size)).max(1)
    assert found.nearest_cosine == pytest.approx(float(np.median(nearest)), abs=1e-6)
    shares = np.linalg.svd(rows - rows.mean(0), compute_uv=False) ** 2
    shares = shares / shares.sum()
    assert found.effective_rank == pytest.approx(math.exp(-(shares * np.log(shares)).sum()), rel=1e-4)
    assert found.share_of_64 == pytest.approx(1.0)

    counted = [line for n, line in enumerate(lines) if n % 10 != 9]
    right = expected = best = total = 0.0
    for line in lines[9::10]:
        for a, b, c in zip([-2, -2, *line], [-2, *line], line, strict=False):
            if c >= 0:
                p = slow_posterior(counted, size, a, b)
                chosen = int((rows.astype(float) @ (np.array(p) @ rows)).argmax())
                total, right = total + 1, right + (p[chosen] > max(p) - 1e-15)
                expected, best = expected + p[chosen], best + max(p)
    assert found.likeliest == pytest.approx(right / total, abs=2 / total)
    assert found.expected == pytest.approx(expected / total, abs=0.01)
    assert found.best == pytest.approx(best / total)


def test_a_direction_in_common_is_seen_and_cured() -> None:
    """Rows with a large common part and few other dimensions fail the test; centred they do better, whitened as random ones."""
    draw = np.random.default_rng(5)
    size, width = 300, 40
    rows = unit_rows(draw.standard_normal((size, width)) * 0.7 ** np.arange(width) + 4 * np.eye(width)[0])
    found = check_tables(variants(rows), some_lines(2000, size))
    share = {name: figures.likeliest or 0.0 for name, figures in found.items()}
    assert share["as they are"] < share["centred"] < share["whitened"]
    assert share["whitened"] > 0.9 * share["random"]
    assert found["whitened"].effective_rank > 2 * found["as they are"].effective_rank
    told = problems(found["as they are"], found["random"])
    assert len(told) == 3 and "two vectors have a cosine of" in told[0] and "is the likeliest in" in told[2]
    assert not problems(found["whitened"], found["random"])
    assert not problems(found["random"], found["random"])


def test_rows_of_few_dimensions_are_not_blamed_for_their_neighbours() -> None:
    rows = unit_rows(np.random.default_rng(1).standard_normal((200, 2)))
    figures = check_tables({"a": rows, "random": random_rows(rows)})
    assert (figures["a"].nearest_cosine or 0) > 0.85
    assert not problems(figures["a"], figures["random"])


def test_the_same_again_and_one_row() -> None:
    rows = unit_rows(np.random.default_rng(2).standard_normal((50, 8)))
    lines = some_lines(100, 50)
    assert check_tables(variants(rows), lines) == check_tables(variants(rows), lines)
    alone = check_tables({"a": rows[:1]})["a"]
    assert (alone.mean_cosine, alone.nearest_cosine, alone.likeliest) == (None, None, None)


def test_too_little_text() -> None:
    rows = unit_rows(np.eye(3))
    with pytest.raises(DataError, match="too short for the posterior-mean test"):
        check_tables({"a": rows}, [[0, 1]] * 9)
    with pytest.raises(DataError, match="too short for the posterior-mean test"):
        check_tables({"a": rows}, [[0, 1]] * 9 + [[-1]])


def test_the_advice_leaves_out_what_is_done_already() -> None:
    whiten = "for a density as loss, whiten them (data.subwords.whiten: true)"
    assert remedy() == (
        "subtract their mean (data.subwords.center: true), or learn them from more text or in more epochs (embeddings train "
        f"--epochs), or {whiten}"
    )
    learned = "learn them from more text or in more epochs (data.subwords.vectors.train)"
    assert remedy(center=True, learned=True) == f"{learned}, or {whiten}"
    assert remedy(whiten=True, learned=True) == learned
