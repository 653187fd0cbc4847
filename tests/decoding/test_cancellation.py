"""A search that nobody wants any more ends at its next step; one that is wanted is not touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.decoding.conftest import lines_of_words
from tests.decoding.toys import END, ToyModel, random_table
from tests.npmt.toys import ToySegmental

import phraseloom.npmt.candidates as segments_module
from phraseloom.analysis.explain.sentence import explain
from phraseloom.decoding.cancellation import Cancelled
from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.search import search
from phraseloom.decoding.translator import Translator


def after(count: int) -> Callable[[], bool]:
    """A question that is answered with no so many times, then with yes."""
    answers = iter([False] * count)
    return lambda: next(answers, True)


@pytest.mark.parametrize("beam", [1, 3])
def test_token_by_token(beam: int) -> None:
    model, limits = ToyModel(random_table(4, 0)), Limits.of([30] * 2, [30] * 2)
    with pytest.raises(Cancelled):
        search(model, [0, 1], limits, SearchOptions(beam=beam, begin=0, end=END, banned=(), should_cancel=after(4)))
    assert model.steps == 4


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("connects", [False, True])
def test_segment_by_segment(beam: int, connects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each source position; where all of them are one call, between its portions."""
    monkeypatch.setattr(segments_module, "CHUNK", 1)
    counts = []
    for limit in (0, 3, 1000):
        model, asked = ToySegmental(0, connects=connects), after(limit)
        calls, step = [], model.segment_step
        model.segment_step = lambda tokens, state, calls=calls, step=step: (calls.append(1), step(tokens, state))[1]
        options = SearchOptions(beam=beam, banned=(0, 1, 2), should_cancel=asked)
        given = (model, model.memory([3, 2]), Limits.of([100] * 2), options)
        if limit == 1000:
            assert len(search(*given)) == 2
        else:
            with pytest.raises(Cancelled):
                search(*given)
        counts.append(len(calls))
    assert 0 == counts[0] < counts[1] < counts[2]


def test_while_segments_are_joined() -> None:
    """Between two sentences: the lists of segments are there after one question."""
    model = ToySegmental(0, connects=False)
    with pytest.raises(Cancelled):
        search(model, model.memory([3, 2]), Limits.of([100] * 2), SearchOptions(beam=3, should_cancel=after(2)))


@pytest.mark.parametrize("workers", [1, 2])
def test_by_the_translator(translator: Translator, workers: int) -> None:
    lines = lines_of_words(20, seed=4)
    options = {"workers": workers, "batch_sentences": 4}
    assert translator.translate(lines, should_cancel=lambda: False, **options) == translator.translate(lines, **options)
    with pytest.raises(Cancelled):
        translator.translate(lines, should_cancel=after(9), **options)


def test_while_lines_are_split_into_sentences(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    split: list[str] = []

    def splitter(line: str, before_each: Callable[[], None]) -> tuple[list[str], list[str]]:
        before_each()
        split.append(line)
        return [line], ["", ""]

    monkeypatch.setattr(translator, "sentence_splitter", lambda: splitter)
    with pytest.raises(Cancelled):
        translator.translate(lines_of_words(6, seed=4), split_sentences=True, should_cancel=lambda: len(split) == 2)
    assert len(split) == 2


def test_of_an_explanation(translator: Translator) -> None:
    lines = lines_of_words(3, seed=4)
    for targets, count in ((None, 5), (lines, 2)):
        with pytest.raises(Cancelled):
            explain({"it": translator}, lines, targets, should_cancel=after(count))
