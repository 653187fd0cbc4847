"""The word aligner: bitext as arrays, expectation maximisation against slow loops, and what the links of a text are."""

from __future__ import annotations

import errno
import math
import random
import threading
import tracemalloc
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.reference import ibm as reference

from phraseloom.align import aligner as aligner_module
from phraseloom.align import ibm
from phraseloom.align import ibm as bitext_module
from phraseloom.align.aligner import FLOOR, Aligner, Table, choose_method, learn_aligner, save_aligner
from phraseloom.align.ibm import (
    DIRECTIONS,
    Bitext,
    DiagonalPrior,
    IBMSettings,
    WordPairs,
    digamma,
    estimate,
    read_bitext,
    split,
)
from phraseloom.align.links import METHODS, read_gold, symmetrize
from phraseloom.errors import DataError, FileProblem, UsageError
from phraseloom.files import disk
from phraseloom.metrics.aer import score_alignment
from phraseloom.text.lines import read_lines
from phraseloom.world.writer import write_world

Lines = list[tuple[str, str]]


def toy(pairs: int = 40, seed: int = 1, repeat: bool = True) -> Lines:
    """Sentences of 1 to 6 words out of eight; the translation is word by word, with words exchanged, left out and put in."""
    rng = random.Random(seed)
    lines = []
    for _ in range(pairs):
        source = rng.choices("abcdefgh", k=rng.randint(1, 6)) if repeat else rng.sample("abcdefgh", rng.randint(1, 6))
        target = [word.upper() for word in source if rng.random() < 0.9] or ["X"]
        if rng.random() < 0.3:
            target.insert(rng.randint(0, len(target)), "THE")
        if rng.random() < 0.3:
            target.reverse()
        lines.append((" ".join(source), " ".join(target)))
    return lines


def pairs_of(bitext: Bitext, pairs: WordPairs, values: np.ndarray) -> dict[tuple[str, str], float]:
    words = zip(pairs.source.tolist(), pairs.target.tolist(), values.tolist(), strict=True)
    return {(bitext.source_words[s], bitext.target_words[t]): value for s, t, value in words}


# --- the text as arrays -----------------------------------------------------------------------------------------------


def test_groups_have_every_pair_once_in_order() -> None:
    lines = toy()
    bitext = read_bitext(lines)
    seen = []
    for group in bitext.groups:
        assert (group.target_BT.shape[1], group.source_BS.shape[1]) == group.shape
        assert group.numbers.tolist() == sorted(group.numbers.tolist())
        for number, source, target in zip(*(part.tolist() for part in group), strict=True):
            seen.append(number)
            words = ([bitext.source_words[w] for w in source], [bitext.target_words[w] for w in target])
            assert words == (lines[number][0].split(" "), lines[number][1].split(" "))
    assert sorted(seen) == list(range(len(lines)))
    shapes = [group.shape for group in bitext.groups]
    assert len(set(shapes)) == len(shapes)


@pytest.mark.parametrize("sorted_at_a_time", [1, 7, 2**18])
def test_word_pairs_are_distinct_and_their_occurrences_are_theirs(
    sorted_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bitext_module, "SORTED", sorted_at_a_time)
    bitext = read_bitext(toy())
    pairs = WordPairs(bitext)
    keys = list(zip(pairs.source.tolist(), pairs.target.tolist(), strict=True))
    assert keys == sorted(set(keys))
    found = set()
    for group, numbers in zip(bitext.groups, pairs.occurrences, strict=True):
        for (b, t, s), number in np.ndenumerate(numbers):
            assert keys[number] == (group.source_BS[b, s], group.target_BT[b, t])
            found.add(number)
    assert found == set(range(len(keys)))


def test_blank_and_long_pairs_are_left_out_and_counted() -> None:
    lines = [("a", "x"), ("", "x"), ("  ", ""), ("a", ""), ("a b c", "x"), ("a b", "x y z"), ("a  b", " x y ")]
    bitext = read_bitext(lines, max_words=2)
    assert bitext.counted == (2, 3, 2)
    assert bitext.source_words == ["a", "b"]
    assert bitext.target_words == ["x", "y"]


def test_words_stand_between_blanks_only() -> None:
    assert split(" a\u3000b  c\td\u00a0e ") == ["a\u3000b", "c\td\u00a0e"]
    assert split("Ab ÄB", lowercase=True) == ["ab", "äb"]
    assert read_bitext([("A a", "x"), ("a", "X")], lowercase=True)[:2] == (["a"], ["x"])


# --- the equations ----------------------------------------------------------------------------------------------------


def test_digamma() -> None:
    x = np.concatenate([np.logspace(-9, 9, 2000), np.linspace(0.01, 30, 2000)])
    expected = torch.digamma(torch.from_numpy(x)).numpy()
    assert np.abs(digamma(x) - expected).max() / np.abs(expected).max() < 1e-13
    assert (np.abs(digamma(x) - expected) <= 1e-13 * np.maximum(1, np.abs(expected))).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("tension", "p_null"), [(0.0, None), (4.0, 0.08), (14.0, 0.0)])
def test_the_prior_is_that_of_the_equation(direction: str, tension: float, p_null: float | None) -> None:
    shapes = [(1, 1), (1, 4), (3, 2), (5, 5)]
    for target, source in shapes:
        found = DiagonalPrior(direction).of((target, source), tension, p_null)
        m, n = (target, source) if direction == "forward" else (source, target)
        words = found.words_TS if direction == "forward" else found.words_TS.T
        expected = [reference.prior(i, m, n, tension, p_null) for i in range(1, m + 1)]
        np.testing.assert_allclose(words, [row[1:] for row in expected], rtol=1e-13)
        assert found.null == expected[0][0]


CASES = {
    "ibm1": (IBMSettings("ibm1", 4, variational_bayes=False), (0.0, None)),
    "ibm1 with its own null": (IBMSettings("ibm1", 4, variational_bayes=False, p_null=0.2), (0.0, 0.2)),
    "ibm1 without null": (IBMSettings("ibm1", 4, variational_bayes=False, p_null=0.0), (0.0, 0.0)),
    "ibm1 with Bayes": (IBMSettings("ibm1", 4), (0.0, None)),
    "diagonal": (IBMSettings("diagonal", 4, variational_bayes=False), (4.0, 0.08)),
    "diagonal with Bayes": (IBMSettings("diagonal", 4), (4.0, 0.08)),
    "optimised": (IBMSettings("diagonal", 4, variational_bayes=False, optimize_tension=True), (4.0, 0.08)),
    "optimised with Bayes": (IBMSettings("diagonal", 4, tension=2.5, optimize_tension=True), (2.5, 0.08)),
    "another alpha": (IBMSettings("diagonal", 3, alpha=0.3, p_null=0.3), (4.0, 0.3)),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", CASES)
def test_expectation_maximisation_is_that_of_the_loops(name: str, direction: str) -> None:
    settings, (tension, p_null) = CASES[name]
    lines = toy()
    words = [(source.split(), target.split()) for source, target in lines]
    expected = reference.estimate(
        words if direction == "forward" else [(t, s) for s, t in words],
        iterations=settings.iterations,
        tension=tension,
        p_null=p_null,
        alpha=settings.alpha if settings.variational_bayes else None,
        optimize=settings.optimize_tension,
    )
    bitext = read_bitext(lines)
    pairs = WordPairs(bitext)
    seen: list[float] = []
    found = estimate(bitext, pairs, direction, settings, lambda now: seen.append(now.log_likelihood))
    np.testing.assert_allclose(seen, expected.log_likelihoods, rtol=1e-12)
    assert math.isclose(found.tension, expected.tension, rel_tol=1e-9)
    assert found.p_null == p_null
    for (s, t), value in pairs_of(bitext, pairs, found.pairs).items():
        assert math.isclose(
            value, expected.t[(t, s) if direction == "forward" else (s, t)], rel_tol=1e-8, abs_tol=1e-10
        )
    choosers = bitext.target_words if direction == "forward" else bitext.source_words
    for word, value in zip(choosers, found.null.tolist(), strict=True):
        assert math.isclose(value, expected.t[word, reference.NULL], rel_tol=1e-8, abs_tol=1e-10)
    model = learn_aligner(bitext, settings, directions=[direction])
    for (source, target), one in zip(words, model.align(lines), strict=True):
        if direction == "forward":
            assert one.links == reference.align(source, target, expected, p_null)
        else:
            assert one.links == {(s, t) for t, s in reference.align(target, source, expected, p_null)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("model", ibm.MODELS)
def test_the_likelihood_never_falls(model: str, direction: str, seed: int) -> None:
    bitext = read_bitext(toy(80, seed))
    seen: list[float] = []
    settings = IBMSettings(model, 25, variational_bayes=False, optimize_tension=True)
    estimate(bitext, WordPairs(bitext), direction, settings, lambda now: seen.append(now.log_likelihood))
    assert len(seen) == 25
    assert all(after >= before - 1e-9 for before, after in pairwise(seen))
    assert seen[-1] > seen[0]


@pytest.mark.parametrize("start", [0.1, 3.0, 14.0])
@pytest.mark.parametrize("strength", [0.05, 0.7, 5.0, 13.0, 40.0])
def test_the_best_tension_makes_the_links_likeliest(strength: float, start: float) -> None:
    shapes = [(3, 5), (4, 4), (7, 2)]
    prior = DiagonalPrior("forward")
    counts = [prior.of(shape, strength, 0.0).words_TS for shape in shapes]
    assert math.isclose(prior.best_tension(counts, start), min(max(strength, 0.1), 14.0), rel_tol=1e-7)


def test_tables_sum_to_one() -> None:
    bitext = read_bitext(toy())
    pairs = WordPairs(bitext)
    for direction, given in zip(DIRECTIONS, (pairs.source, pairs.target), strict=True):
        found = estimate(bitext, pairs, direction, IBMSettings(variational_bayes=False))
        np.testing.assert_allclose(np.bincount(given, found.pairs), 1, rtol=1e-12)
        assert math.isclose(found.null.sum(), 1, rel_tol=1e-12)


# --- invariances ------------------------------------------------------------------------------------------------------


OPTIMISED = IBMSettings(optimize_tension=True)


def estimates(lines: Lines, settings: IBMSettings = OPTIMISED) -> dict[str, tuple[dict[tuple[str, str], float], float]]:
    bitext = read_bitext(lines)
    pairs = WordPairs(bitext)
    found = {d: estimate(bitext, pairs, d, settings) for d in DIRECTIONS}
    return {d: (pairs_of(bitext, pairs, one.pairs), one.tension) for d, one in found.items()}


def same(one: dict[tuple[str, str], float], other: dict[tuple[str, str], float]) -> bool:
    return one.keys() == other.keys() and all(math.isclose(one[k], other[k], rel_tol=1e-9) for k in one)


def test_the_order_of_the_sentences_does_not_matter() -> None:
    lines = toy(60)
    shuffled = random.Random(5).sample(lines, len(lines))
    for direction in DIRECTIONS:
        one, other = estimates(lines)[direction], estimates(shuffled)[direction]
        assert same(one[0], other[0])
        assert math.isclose(one[1], other[1], rel_tol=1e-9)


def test_backward_is_forward_of_the_exchanged_sides() -> None:
    lines = toy(60)
    there, back = estimates(lines), estimates([(t, s) for s, t in lines])
    for direction, reverse in (DIRECTIONS, DIRECTIONS[::-1]):
        assert same(there[direction][0], {(s, t): value for (t, s), value in back[reverse][0].items()})
        assert math.isclose(there[direction][1], back[reverse][1], rel_tol=1e-9)


@pytest.mark.parametrize("block", [1, 10, 100])
def test_blocks_change_nothing_but_rounding(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = toy(60)
    whole, links = estimates(lines), learn_aligner(read_bitext(lines), OPTIMISED).align(lines)
    monkeypatch.setattr(ibm, "BLOCK", block)
    monkeypatch.setattr(aligner_module, "BLOCK", block)
    for direction, (table, tension) in estimates(lines).items():
        assert same(table, whole[direction][0])
        assert math.isclose(tension, whole[direction][1], rel_tol=1e-9)
    assert learn_aligner(read_bitext(lines), OPTIMISED).align(lines) == links


def test_two_jobs_give_the_same_bits() -> None:
    bitext = read_bitext(toy(60))
    one, two = (learn_aligner(bitext, OPTIMISED, jobs=jobs) for jobs in (1, 2))
    for direction in DIRECTIONS:
        for name in ("source", "target", "probabilities", "null"):
            assert np.array_equal(getattr(one.tables[direction], name), getattr(two.tables[direction], name))
        assert one.tables[direction].tension == two.tables[direction].tension


def test_an_error_in_one_direction_ends_the_other() -> None:
    backward: list[int] = []
    began = threading.Event()

    def report(now: ibm.IBMProgress) -> None:
        if now.direction == "forward":
            assert began.wait(20)
            raise RuntimeError("told")
        backward.append(now.iteration)
        began.set()

    with pytest.raises(RuntimeError, match="told"):
        learn_aligner(read_bitext(toy()), IBMSettings(iterations=3000), jobs=2, report=report)
    assert len(backward) < 3000


# --- links ------------------------------------------------------------------------------------------------------------


def test_a_small_text_is_aligned_as_people_would() -> None:
    """Das Haus is the house, das Buch the book, ein Buch a book (Koehn 2010, §4.1), and red stands before what it is of."""
    lines = [("das Haus", "the house"), ("das Buch", "the book"), ("ein Buch", "a book"), ("ein Haus", "a house")]
    lines += [("Haus", "house"), ("la maison rouge".upper(), "the red house"), ("LA MAISON", "the house")]
    model = learn_aligner(read_bitext(lines), IBMSettings("ibm1", 30, p_null=0.0, variational_bayes=False))
    found = [one.links for one in model.align([*lines[:5], ("Buch ein", "a book")], method="intersection")]
    assert found[:5] == [{(0, 0), (1, 1)}] * 4 + [{(0, 0)}]
    assert found[5] == {(0, 1), (1, 0)}


def test_the_built_in_world_is_aligned_well(tmp_path: Path) -> None:
    """Gold links by construction; 8.8 and 12.4 when this was written."""
    write_world(tmp_path / "world", train=2000, valid=10, test=200, contrastive=10)
    train, test = (
        list(zip(*(read_lines(tmp_path / "world" / f"{name}.{side}") for side in ("en", "de")), strict=True))
        for name in ("train", "test")
    )
    gold = read_gold(tmp_path / "world" / "test.align", lines=test)

    def aer(settings: IBMSettings) -> float:
        found = learn_aligner(read_bitext(train), settings).align(test)
        return score_alignment([one.links for one in found], gold).aer

    assert aer(IBMSettings()) < 0.095
    assert aer(IBMSettings("ibm1")) < 0.135


def test_the_diagonal_decides_between_repeated_words() -> None:
    lines = [("x a x", "u v u"), ("a", "v"), ("x", "u"), ("x x", "u u")] * 5
    model = learn_aligner(read_bitext(lines), IBMSettings())
    assert model.align(lines[:4])[0].links == {(0, 0), (1, 1), (2, 2)}
    assert model.align(lines[:4])[3].links == {(0, 0), (1, 1)}


def test_blank_and_long_sides_have_no_links_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aligner_module, "MAX_WORDS", 6)
    lines = [("a", "A"), ("", "A"), ("a", "  "), ("", ""), ("a " * 7, "A"), ("a", "A"), ("", "A " * 7)]
    found = learn_aligner(read_bitext(toy()), IBMSettings()).align(lines, weights=True)
    assert [one.left_out for one in found] == ["", "blank", "blank", "blank", "long", "", "blank"]
    assert [one.links for one in found] == [{(0, 0)}, set(), set(), set(), set(), {(0, 0)}, set()]


def test_unknown_words_go_where_the_prior_sends_them() -> None:
    model = learn_aligner(read_bitext(toy(200)), IBMSettings())
    assert model.align([("a new b", "A NEU B")])[0].links == {(0, 0), (1, 1), (2, 2)}
    assert model.align([("new", "NEU")])[0].links == {(0, 0)}
    weights = [model.align([pair], method="forward", weights=True)[0].weights for pair in (("a", "NEU"), ("new", "A"))]
    assert weights == [
        {(0, 0): pytest.approx(0.92)},
        {},
    ]  # A is likelier without a link than beside a word that it never met
    assert model.align([("", "NEU")])[0].links == set()
    long = [("new " * 60, "NEU " * 60)]  # δ(j) is about 0.92 · 4 / (2 · 60) at most, δ(0) 0.08
    assert empty_model(p_null=0.08).align(long)[0].links == set()
    assert empty_model(p_null=0.0).align(long)[0].links == {(i, i) for i in range(60)}


def empty_model(p_null: float) -> Aligner:
    numbers, none = np.empty(0, np.int32), np.empty(0, np.float32)
    return Aligner(["a"], ["A"], {"forward": Table(numbers, numbers, none, np.ones(1, np.float32), 4.0, p_null)})


def hand_made(probabilities: dict[tuple[int, int], float], null: list[float], p_null: float) -> Aligner:
    """A forward model of two source and two target words without a diagonal."""
    keys = sorted(probabilities)
    table = Table(
        np.array([s for s, _ in keys], np.int32),
        np.array([t for _, t in keys], np.int32),
        np.array([probabilities[k] for k in keys], np.float32),
        np.array(null, np.float32),
        0.0,
        p_null,
    )
    return Aligner(["a", "b"], ["A", "B"], {"forward": table})


def test_the_null_word_must_be_more_probable_and_the_first_of_equals_wins() -> None:
    words, line = {(0, 0): 0.5, (1, 0): 0.5, (1, 1): 0.5}, [("a b", "A B")]
    equal = hand_made(words, [0.25, 0.25], 0.5)  # δ(j) t = 1/4 · 1/2, δ(0) t = 1/2 · 1/4
    assert equal.align(line)[0].links == {(0, 0), (1, 1)}
    null = hand_made(words, [0.25, 0.2500001], 0.5)
    assert null.align(line)[0].links == {(0, 0)}


def test_weights_are_posteriors() -> None:
    model = hand_made({(0, 0): 0.5, (1, 0): 0.25, (1, 1): 0.5}, [0.25, FLOOR], 0.5)
    found = model.align([("a b", "A B")], weights=True)[0].weights
    assert found == {(0, 0): pytest.approx(0.25 * 0.5 / (0.25 * 0.75 + 0.5 * 0.25)), (1, 1): pytest.approx(1, abs=1e-6)}
    lines = toy()
    both = learn_aligner(read_bitext(lines), IBMSettings())
    each = [both.align(lines, method=name, weights=True) for name in (*DIRECTIONS, "intersection")]
    for forward, backward, joined in zip(*each, strict=True):
        for link in joined.links:
            assert joined.weights[link] == pytest.approx((forward.weights[link] + backward.weights[link]) / 2)
            assert 0 < joined.weights[link] <= 1


@pytest.mark.parametrize("method", METHODS)
def test_methods_join_both_directions(method: str) -> None:
    lines = toy()
    model = learn_aligner(read_bitext(lines), IBMSettings())
    forward, backward = ([one.links for one in model.align(lines, method=name)] for name in DIRECTIONS)
    expected = [symmetrize(f, b, method) for f, b in zip(forward, backward, strict=True)]
    assert [one.links for one in model.align(lines, method=method)] == expected
    if method == "grow-diag-final-and":
        assert [one.links for one in model.align(lines)] == expected


def test_forward_comes_first_when_both_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = toy()
    model = learn_aligner(read_bitext(lines), IBMSettings())
    forward = model.align(lines, method="forward")
    assert forward != model.align(lines, method="backward")
    monkeypatch.setattr(aligner_module, "symmetrize", lambda one, other, method: one)
    assert model.align(lines, method="union") == forward


def test_lowercase_is_of_the_model() -> None:
    model = learn_aligner(read_bitext([("Das", "The")], lowercase=True), IBMSettings(), lowercase=True)
    assert model.source_words == ["das"]
    assert model.align([("DAS", "THE")], weights=True)[0].weights[0, 0] > 0.5


# --- numbers and refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        IBMSettings("ibm1", 60, False),
        IBMSettings("diagonal", 60, False, optimize_tension=True),
        IBMSettings(alpha=1e-6),
    ],
)
def test_nothing_underflows_to_nan(settings: IBMSettings) -> None:
    lines = [*toy(20), ("z " * 150, "Z " * 150), ("z", "Z " * 190), ("z " * 190, "Z")]
    seen: list[float] = []
    bitext = read_bitext(lines)
    for p_null in (None, 0.0):
        chosen = replace(settings, p_null=p_null)
        model = learn_aligner(bitext, chosen, report=lambda now: seen.append(now.log_likelihood))
        for table in model.tables.values():
            assert np.isfinite(table.probabilities).all()
            assert (table.null > 0).all()
        assert all(math.isfinite(w) for one in model.align(lines, weights=True) for w in one.weights.values())
    assert len(seen) == 4 * settings.iterations
    assert np.isfinite(seen).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model": "hmm"}, "no alignment model 'hmm'; choose from ibm1, diagonal"),
        ({"iterations": 0}, "0 iterations"),
        ({"alpha": 0.0}, "alpha 0"),
        ({"alpha": math.nan}, "alpha nan"),
        ({"p_null": 1.0}, "null probability 1"),
        ({"p_null": -0.1}, "null probability -0.1"),
        ({"tension": 0.0}, "tension 0"),
        ({"tension": math.inf}, "tension inf"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        IBMSettings(**wrong)  # type: ignore[arg-type]


def test_a_text_without_pairs_is_refused() -> None:
    with pytest.raises(DataError, match="no sentence pair"):
        learn_aligner(read_bitext([("", "x")]), IBMSettings())


def test_methods_that_cannot_be_had_are_refused() -> None:
    assert choose_method(None, ["backward"]) == "backward"
    assert choose_method(None, DIRECTIONS) == "grow-diag-final-and"
    with pytest.raises(UsageError, match="union needs a model of the backward direction"):
        choose_method("union", ["forward"])
    with pytest.raises(UsageError, match="forward needs a model of the forward"):
        choose_method("forward", ["backward"])
    with pytest.raises(UsageError, match="no method 'best'"):
        choose_method("best", DIRECTIONS)


# --- the text in files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 7, 2**17])
@pytest.mark.parametrize("jobs", [1, 2])
def test_files_give_the_same_bytes_as_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, jobs: int
) -> None:
    lines = [*toy(60), ("", "x"), ("x " * 30, "x"), *toy(40, 4)]
    with_tension = IBMSettings(iterations=3, optimize_tension=True)
    read = partial(read_bitext, lines, max_words=12)
    save_aligner(tmp_path / "memory", learn_aligner(read(), with_tension))
    monkeypatch.setattr(bitext_module, "PAIRS", block)
    monkeypatch.setattr(bitext_module, "SORTED", 5 * block)
    (tmp_path / "files").mkdir()
    bitext = read(folder=tmp_path / "files")
    in_memory = read()
    assert bitext[:2] == in_memory[:2] and bitext.counted == in_memory.counted
    for group, expected in zip(bitext.groups, in_memory.groups, strict=True):
        for one, other in zip(group, expected, strict=True):
            assert one.dtype == other.dtype and np.array_equal(one, other)
    save_aligner(tmp_path / "disk", learn_aligner(bitext, with_tension, folder=tmp_path / "files", jobs=jobs))
    assert (tmp_path / "disk").read_bytes() == (tmp_path / "memory").read_bytes()
    assert sorted(p.name for p in (tmp_path / "files").iterdir()) == ["numbers", "occurrences", "source", "target"]


def test_files_of_a_text_without_pairs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sentence pair"):
        learn_aligner(read_bitext([("", "x")], folder=tmp_path), IBMSettings(), folder=tmp_path)


def test_memory_does_not_grow_with_the_sentences_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAIRS", "SORTED", "BLOCK"):
        monkeypatch.setattr(bitext_module, name, 500)
    lines, peaks = toy(300), {}
    for copies in (8, 32):
        for place in ("files", "memory"):
            tries = []  # the least of two: other threads of the test run may allocate meanwhile
            for attempt in range(2):
                folder = tmp_path / f"{place}{copies}-{attempt}" if place == "files" else None
                if folder is not None:
                    folder.mkdir()
                tracemalloc.start()
                bitext = read_bitext((line for _ in range(copies) for line in lines), folder=folder)
                learn_aligner(bitext, IBMSettings(iterations=1), folder=folder)
                tries.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
                del bitext
            peaks[place, copies] = min(tries)
    assert peaks["memory", 32] > 2 * peaks["memory", 8]
    assert peaks["files", 32] < 1.2 * peaks["files", 8]


def test_memory_does_not_grow_with_the_lengths_of_sentences(tmp_path: Path) -> None:
    """The prior of all pairs of lengths would be 36 bytes for each pair of positions of each."""
    peaks = []
    for longest in (20, 60):
        lines = [
            (" ".join("ab"[n % 2] for n in range(s)), "x " * t)
            for s in range(1, longest, 2)
            for t in range(1, longest, 2)
        ]
        folder = tmp_path / str(longest)
        folder.mkdir()
        tracemalloc.start()
        bitext = read_bitext(lines, folder=folder)
        learn_aligner(bitext, IBMSettings(iterations=1), folder=folder)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        del bitext
    cells = sum(s * t for s in range(1, 60, 2) for t in range(1, 60, 2))
    assert peaks[1] < 8 * cells, peaks


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bitext = read_bitext(toy(), folder=tmp_path)

    def write(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(disk, "write", write)
    for work in (lambda: read_bitext(toy(), folder=tmp_path), lambda: WordPairs(bitext, tmp_path)):
        with pytest.raises(FileProblem, match="the disk is full") as caught:
            work()
        assert "\n" not in str(caught.value)
