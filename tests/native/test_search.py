"""Search in the compiled library against the loops of `decoding/beam.py`: the same hypotheses, to the bit."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest
import torch
from tests.native.test_native import SIZE, SOURCES, built, encoded, needs_library, randomised

from phraseloom.decoding.beam import beam_search, greedy_search
from phraseloom.decoding.cancellation import Cancelled
from phraseloom.decoding.compiled import compiled_search
from phraseloom.decoding.limits import Hypothesis, Limits, SearchOptions
from phraseloom.decoding.penalties import NoPenalty, SockeyePenalty, WuPenalty
from phraseloom.decoding.search import search
from phraseloom.errors import ModelError
from phraseloom.models.build import build_language_model
from phraseloom.native.model import NativeModel, fast
from phraseloom.options.language_model import LanguageModelConfig

pytestmark = needs_library

MODELS = (
    "token", "marian", "phrases-gated", "lstm-final", "gru-general", "continuous-two-layers", "lstm-gate-mlp",
    "gate-queryk-heterogeneous-1-2-3",
)  # fmt: skip
PENALTIES = (NoPenalty(), WuPenalty(0.6), WuPenalty(1.3), SockeyePenalty(1.0, 0.5))


def in_python(searched: Any, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    return (greedy_search if options.beam == 1 else beam_search)(searched, memory, limits, options)


def drawn(draw: random.Random, searched: Any, memory: Any, sentences: int) -> tuple[Limits, SearchOptions]:
    """A search: the end is a token that the model writes, lengths from 0 on, any penalty and any rule for the end."""
    usual = in_python(searched, memory, Limits.of([6] * sentences), SearchOptions(beam=3, n_best=3))
    written = [token for n_best in usual for h in n_best for token in h.tokens]
    longest = [draw.choice([0, 1, 2, 4, 9, 70]) for _ in range(sentences)]
    shortest = [draw.choice([0, 0, 0, 1, 3, 5]) for _ in range(sentences)]
    beam = draw.choice([1, 1, 2, 3, 5, 8])
    options = SearchOptions(
        beam=beam,
        n_best=draw.randint(1, beam + 1),
        penalty=draw.choice(PENALTIES),
        end=draw.choice(written),
        begin=1,
        banned=draw.choice([(0, 3, 1), (), tuple(n for n in range(7, 30) if n not in written)]),
        exact=draw.random() < 0.5,
        transformers=draw.random() < 0.3,
    )
    return Limits.of(longest, shortest, expected=draw.choice([None, 2])), options


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_hypotheses_are_those_of_python(name: str, precision: Any) -> None:
    draw, searched = random.Random(name + precision), fast(built(name), "native", precision)
    ends = cuts = 0
    for _ in range(40):
        sources = draw.sample(SOURCES, draw.randint(1, len(SOURCES)))
        memory = encoded(searched, sources)
        limits, options = drawn(draw, searched, memory, len(sources))
        found = compiled_search(searched, memory, limits, options)
        assert found is not None
        assert found == in_python(searched, memory, limits, options) == search(searched, memory, limits, options)
        cuts += sum(h.cut for one in found for h in one)
        ends += sum(not h.cut for one in found for h in one)
    assert min(ends, cuts) > 20


@torch.inference_mode()
def test_ties() -> None:
    model = copy.deepcopy(built("token"))
    for parameter in model.output.parameters():
        parameter.zero_()  # every token is equally likely
    searched = fast(model, "native")
    memory, limits = encoded(searched, SOURCES[:2]), Limits.of([3, 5])
    for beam, end in itertools.product((1, 2, 5, 8), (4, 6, 9, 40)):
        options = SearchOptions(beam=beam, n_best=beam, end=end)
        assert compiled_search(searched, memory, limits, options) == in_python(searched, memory, limits, options)


@torch.inference_mode()
def test_language_models() -> None:
    config = {"width": 32, "heads": 4, "ffn_width": 48, "decoder": {"layers": 2}}
    searched = fast(randomised(build_language_model(LanguageModelConfig.model_validate(config), SIZE)), "native")
    for beam in (1, 4):
        options, limits = SearchOptions(beam=beam, n_best=beam, end=20), Limits.of([9, 3, 80])
        assert compiled_search(searched, 3, limits, options) == in_python(searched, 3, limits, options)


class NoModel(Exception):
    """Raised where Python would search."""


@torch.inference_mode()
def test_the_usual_search_is_the_compiled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*_: Any) -> None:
        raise NoModel

    monkeypatch.setattr(NativeModel, "step", step)
    searched = fast(built("token"), "native")
    memory, limits = encoded(searched, SOURCES), Limits.of([9] * len(SOURCES))
    for beam in (1, 5):
        search(searched, memory, limits, SearchOptions(beam=beam))
        with pytest.raises(NoModel):
            search(searched, memory, limits, SearchOptions(beam=beam, no_repeat_ngram_size=2))
        with pytest.raises(NoModel):
            search(
                searched, memory, Limits.of([9] * len(SOURCES), None, [[5]] * len(SOURCES)), SearchOptions(beam=beam)
            )


@pytest.mark.parametrize("beam", [1, 5])
@torch.inference_mode()
def test_no_sentences_and_no_output(beam: int) -> None:
    searched = fast(built("token"), "native")
    assert search(searched, None, Limits.of([]), SearchOptions(beam=beam)) == []
    memory = encoded(searched, SOURCES[:2])
    nothing = SearchOptions(beam=5, banned=tuple(n for n in range(SIZE) if n != 2), end=2)
    limits = Limits.of([4, 4], [0, 3])  # the second has to write three tokens, and may write none
    assert compiled_search(searched, memory, limits, nothing) is None
    with pytest.raises(ModelError, match="no output of the allowed length"):
        search(searched, memory, limits, nothing)


@pytest.mark.parametrize("beam", [1, 5])
@torch.inference_mode()
def test_it_stops_when_it_is_cancelled(beam: int) -> None:
    searched = fast(built("token"), "native")
    memory, limits = encoded(searched, SOURCES), Limits.of([30] * len(SOURCES), [30] * len(SOURCES))
    for asked in (0, 1, 30):
        answers = iter([False] * asked)
        with pytest.raises(Cancelled):
            search(searched, memory, limits, SearchOptions(beam=beam, should_cancel=lambda a=answers: next(a, True)))
        assert next(answers, None) is None
