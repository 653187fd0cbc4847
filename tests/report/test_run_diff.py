"""What is different in two runs: recipe, data, versions, curves, and the sentences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phraseloom.errors import plural
from phraseloom.metrics.bleu import make_scorer
from phraseloom.metrics.seeds import TWO_SEEDS
from phraseloom.report.diff.diff import (
    ReachedValue,
    RunComparison,
    SystemSide,
    build,
    compare_sentences,
    marked,
    sentence_chrf,
)
from phraseloom.report.diff.page import diff_page
from phraseloom.report.diff.text import differences, numbers, render
from phraseloom.report.run.measured import ScoredOn, score_parts
from phraseloom.report.run.runs import SystemFacts

from .made_runs import make_run
from .test_run_report import BAD, Checker, systems_of

REFERENCES = ["the old man sees a house", "a small garden", "two red houses", "the end"]
FIRST = ["the old man sees a house", "one big forest", "two red houses", "the end"]
SECOND = ["an old person sees the building", "a small garden", "two red house", "the end"]


@pytest.fixture
def systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[SystemFacts]:
    monkeypatch.chdir(tmp_path)
    make_run(Path("a"), perplexities={10: 9.0, 20: 5.0})
    make_run(Path("b"), seed=2, width=32, perplexities={10: 6.0, 20: 4.5, 30: 4.0}, data="cd" * 32)
    return systems_of("a", "b")


def test_what_differs_and_what_does_not(systems: list[SystemFacts]) -> None:
    found = build(systems)
    different = {r.key: r.values for r in found.configuration.different}
    assert different["model.width"] == ["16", "32"]
    assert different["training.seed"] == ["1", "2"]
    assert "training.bleu_every" not in different
    data = {r.what: r for r in found.data}
    assert data["dataset (sha256)"].values == ["abababababab…", "cdcdcdcdcdcd…"]
    assert not data["train, source"].same
    assert all(row.same for row in found.versions)
    rows = {r.key: r for r in found.training}
    assert rows["seconds"].difference == 5.0
    assert rows["valid_perplexity"].difference == -1.0
    assert rows["parameters"].values == [None, None]
    assert any("dataset folder" in lack.why for lack in found.lacks)


def test_losses_of_different_outputs_are_not_subtracted(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / str(n), perplexities={}, losses={1: 4.0, 2: 3.0}) for n in range(2)]
    first, second = systems_of(*map(str, folders))
    for output, keys in (("softmax", ["nll"]), ("continuous", [])):
        runs = [
            [run.model_copy(update={"output": kind}) for run in s.runs]
            for s, kind in ((first, "softmax"), (second, output))
        ]
        both = [s.model_copy(update={"runs": own}) for s, own in zip((first, second), runs, strict=True)]
        assert [curve.key for curve in build(both).curves] == keys


def test_curves_and_who_reaches_whom(systems: list[SystemFacts]) -> None:
    curve = next(c for c in build(systems).curves if c.key == "perplexity")
    assert [(r.update, r.difference) for r in curve.rows] == [(10, -3.0), (20, -0.5)]
    assert curve.reached == [ReachedValue(value=4.0, update=None), ReachedValue(value=5.0, update=20)]


@pytest.mark.parametrize(
    ("lengths", "points"), [((1200, 2400), 120), ((2400, 1200), 120), ((2000, 10000), 117), ((90, 2000), 90)]
)
def test_losses_of_runs_of_different_length(tmp_path: Path, lengths: tuple[int, int], points: int) -> None:
    """The same losses, to the end of the shorter run, differ by nothing."""
    folders = [
        make_run(tmp_path / str(n), perplexities={}, losses={u: 10 / u**0.5 for u in range(1, n + 1)}) for n in lengths
    ]
    (curve,) = build(systems_of(*map(str, folders))).curves
    assert (curve.key, len(curve.rows), curve.rows[-1].update) == ("nll", points, min(lengths))
    assert [row.difference for row in curve.rows] == [0.0] * points
    longer, shorter = sorted((0, 1), key=lambda i: -lengths[i])
    assert curve.reached[shorter].update is None
    update = curve.reached[longer].update
    assert update is not None and min(lengths) <= update <= min(lengths) + 20


def test_the_sentences_that_differ_most() -> None:
    sides = [
        SystemSide("a", [FIRST], [[-1.0, -9.0, -2.0, -1.0]]),
        SystemSide("b", [SECOND], [[-4.0, -1.0, -2.5, -1.0]]),
    ]
    found = compare_sentences(sides, REFERENCES, REFERENCES, most=2)
    scorer = make_scorer("chrf")
    by_hand = [scorer.corpus([b], [[r]]).value - scorer.corpus([a], [[r]]).value
               for a, b, r in zip(FIRST, SECOND, REFERENCES, strict=True)]  # fmt: skip
    assert [one.line for one in found.listed] == [2, 1]
    assert [one.chrf_difference for one in found.listed] == pytest.approx([by_hand[1], by_hand[0]])
    assert found.listed[0].log_prob_difference == 8.0
    assert (found.better, found.likelier, found.same_translation) == ([2, 1, 1], [2, 1, 1], 1)
    by_log_prob = compare_sentences(sides, REFERENCES, REFERENCES, by="log-prob", most=9)
    assert [one.line for one in by_log_prob.listed] == [2, 1, 3]


def test_a_reference_that_a_model_cannot_write_has_no_log_p() -> None:
    """A segmental model gives a long target no probability: the other one is likelier, and the number is left out."""
    never = float("-inf")
    sides = [
        SystemSide("a", [FIRST], [[-1.0, never, -2.0, never]]),
        SystemSide("b", [SECOND], [[-4.0, -1.0, -2.5, never]]),
    ]
    for by in ("chrf", "log-prob"):
        found = compare_sentences(sides, REFERENCES, REFERENCES, by=by, most=9)
        second = next(one for one in found.listed if one.line == 2)
        assert (second.log_prob_difference, [s.log_prob for s in second.systems]) == (None, [None, -1.0])
        assert found.likelier == [2, 1, 1]
        assert "log P" not in differences(second) and "log P" not in numbers(second.systems[0])
    assert [one.line for one in found.listed] == [2, 1, 3]


def test_without_a_reference_the_least_alike_come_first() -> None:
    found = compare_sentences([SystemSide("a", [FIRST]), SystemSide("b", [SECOND])], REFERENCES, None)
    expected = [100 - value for value in sentence_chrf(SECOND, FIRST)]
    assert found.better is None
    assert found.listed[0].unlike == pytest.approx(max(expected))
    assert [one.line for one in found.listed] == sorted((1, 2, 3), key=lambda n: -expected[n - 1])


def test_equal_lines_are_not_listed_even_if_empty() -> None:
    found = compare_sentences([SystemSide("a", [["", "x"]]), SystemSide("b", [["", "y"]])], ["", "z"], None)
    assert [one.line for one in found.listed] == [2]


def test_several_runs_are_averaged() -> None:
    runs = SystemSide("b", [FIRST, SECOND], [[-1.0] * 4, [-3.0] * 4])
    found = compare_sentences([SystemSide("a", [FIRST], [[-1.0] * 4]), runs], None, REFERENCES)
    one = next(one for one in found.listed if one.line == 1)
    assert one.systems[1].translations == [FIRST[0], SECOND[0]]
    assert one.systems[1].log_prob == -2.0
    assert one.chrf_difference == pytest.approx((sentence_chrf([SECOND[0]], [REFERENCES[0]])[0] - 100) / 2)


def test_marks_are_the_words_that_differ() -> None:
    first, second = marked("the old man sleeps", "the man sleeps well")
    assert first == [("the", False), ("old", True), ("man sleeps", False)]
    assert second == [("the", False), ("man sleeps", False), ("well", True)]


def test_text_and_page_say_the_same(systems: list[SystemFacts]) -> None:
    phrases = ["old man → alter Mann (0.90)", "", "", ""]
    sides = [SystemSide("a", [FIRST], [[-1.0] * 4], phrases), SystemSide("b", [SECOND], [[-2.0] * 4])]
    sentences = compare_sentences(sides, REFERENCES, REFERENCES)
    scores = score_parts({"a": [FIRST], "b": [SECOND]}, ScoredOn(REFERENCES, samples=20))[0]
    document = build(systems, scores=scores, sentences=sentences)
    written = json.dumps(document.as_json(), allow_nan=False)
    assert RunComparison.model_validate(json.loads(written)) == document
    text, html = render(document), diff_page(document)
    page = "".join(Checker(html).texts)
    for said in ("model.width", "cdcdcdcdcdcd…", "old man → alter Mann (0.90)", "a reaches the best of b (4.00) never"):
        assert said in text
        assert said in page
    assert "! Not all runs were trained on the same dataset" in text
    assert "between these two runs and says nothing about other seeds" in text
    assert "between these two runs and says nothing about other seeds" in page
    several = score_parts({"a": [FIRST, SECOND], "b": [SECOND, FIRST]}, ScoredOn(REFERENCES, samples=20))[0]
    both = build(systems, scores=several, sentences=sentences)
    assert "between these two runs" not in render(both) + diff_page(both)
    assert TWO_SEEDS in render(both) and TWO_SEEDS in diff_page(both) and TWO_SEEDS not in text + page
    few = f"ntervals and p of {plural(len(REFERENCES), 'sentence')} are too small to mean anything"
    assert few in render(both) and few in diff_page(both)
    for one in sentences.listed:
        assert f"line {one.line}:" in text
        assert f"Line {one.line}" in page
    assert "<del>one big forest</del>" in html
    assert "<ins>a small garden</ins>" in html


def test_texts_cannot_break_anything(systems: list[SystemFacts]) -> None:
    systems = [system.model_copy(update={"name": system.name + BAD}) for system in systems]
    sides = [SystemSide(systems[0].name, [[BAD]], [[0.0]], [BAD]), SystemSide(systems[1].name, [["x"]], [[1.0]])]
    document = build(systems, sentences=compare_sentences(sides, [BAD], [BAD]))
    page = Checker(diff_page(document))
    assert "img" not in page.tags
    assert "\x1b" not in render(document)
