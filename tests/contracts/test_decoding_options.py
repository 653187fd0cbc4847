"""What every model that writes tokens must do with samples, repetition, minimum Bayes risk, streams and ensembles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.decoding import test_added_phrases as continuous
from tests.decoding.conftest import lines_of_words
from tests.helpers import tiny_tokenizer

from phraseloom.decoding.ensemble import Ensemble
from phraseloom.decoding.translator import Translator
from phraseloom.errors import UsageError
from phraseloom.models import tasks
from phraseloom.npmt import search as segmental
from phraseloom.options.decoding import DecodingConfig
from phraseloom.options.model import ModelConfig

RECURRENT = {"kind": "recurrent", "layers": 2}
KINDS: dict[str, dict[str, Any]] = {
    "token": {},
    "relative": {"attention": {"encoder_self": "relative", "decoder_self": "relative"}},
    "queryk": {"attention": "queryk heterogeneous 1-2"},
    "convkv": {"attention": "convkv interleaved 1-2"},
    "source phrases": {"phrases": {}},
    "no encoder": {"encoder": {"kind": "none"}, "attention": "queryk heterogeneous 1-2"},
    "recurrent": {"encoder": RECURRENT, "decoder": RECURRENT},
}
OUTPUTS = ("continuous", "word_or_phrase")
BOUNDS = {"max_length": {"factor": 1.0, "constant": 6}}


@pytest.fixture(scope="module", params=[*KINDS, *OUTPUTS])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Translator, list[str]]:
    """A translator with random weights, and lines that it can read."""
    if request.param in OUTPUTS:
        tokenizer = continuous.tokenizer()
        return Translator(continuous.model(tokenizer, request.param), tokenizer), [
            "wir",
            "die wir",
            "",
            "wir die wir die",
        ]
    tokenizer = tiny_tokenizer(tmp_path_factory.mktemp("text"))
    config = {"width": 16, "heads": 2, "ffn_width": 32, "encoder": {"layers": 2}, "decoder": {"layers": 2}}
    torch.manual_seed(0)
    model = tasks.build(ModelConfig.model_validate({**config, "tied": "none", **KINDS[request.param]}), tokenizer)
    return Translator(model, tokenizer), [*lines_of_words(5, seed=2), ""]


def texts(found: list[Any]) -> list[list[str]]:
    return [[t.text for t in one.n_best] for one in found]


def test_samples(case: tuple[Translator, list[str]]) -> None:
    translator, lines = case
    options = {"sample": True, "n_best": 3, "seed": 2, "top_p": 0.95, **BOUNDS}
    whole = translator.translate(lines, **options)
    assert texts(translator.translate(lines, batch_sentences=1, workers=2, **options)) == texts(whole)
    assert texts(translator.translate(lines[::-1], numbers=range(len(lines))[::-1], **options))[::-1] == texts(whole)
    assert texts(translator.translate(lines, **options | {"seed": 3})) != texts(whole)
    greedy = translator.translate(lines, beam=1, **BOUNDS)
    assert texts(translator.translate(lines, sample=True, top_k=1, **BOUNDS)) == texts(greedy)
    sources = [line for line in lines if line]
    drawn = [one for one in whole if not one.blank]
    id_of = translator.tokenizer.target.vocabulary.id
    from phraseloom.decoding.scoring import score_pairs

    pairs = [
        (translator.tokenizer.source.encode(s), [id_of(t) for t in one.tokens])
        for s, one in zip(sources, drawn, strict=True)
    ]
    scores = score_pairs(translator.model, pairs, translator.config, translator.device)
    assert [one.log_prob for one in drawn] == pytest.approx([sum(row) for row in scores], abs=1e-4)


def test_no_ngram_twice(case: tuple[Translator, list[str]]) -> None:
    translator, lines = case
    for more in ({"beam": 1}, {"beam": 3}, {"sample": True}):
        for found in translator.translate(
            lines, no_repeat_ngram_size=1, min_length={"factor": 0.0, "constant": 4}, **BOUNDS, **more
        ):
            assert len(set(found.tokens)) == len(found.tokens)


def test_minimum_bayes_risk(case: tuple[Translator, list[str]]) -> None:
    translator, lines = case
    drawn = translator.translate(lines, sample=True, n_best=4, seed=3, **BOUNDS)
    for best, samples in zip(translator.translate(lines, mbr=4, seed=3, **BOUNDS), drawn, strict=True):
        assert best.text in [t.text for t in samples.n_best]


def test_streams(case: tuple[Translator, list[str]]) -> None:
    translator, lines = case
    for options in ({}, {"sample": True, "seed": 4}):
        for number, line in enumerate(lines):
            [expected] = translator.translate([line], beam=1, numbers=[number], **BOUNDS, **options)
            assert "".join(translator.stream(line, number=number, **BOUNDS, **options)) == expected.text


def test_an_ensemble_of_one_model_twice(case: tuple[Translator, list[str]]) -> None:
    translator, lines = case
    twice = Translator(Ensemble([translator.model] * 2), translator.tokenizer)
    for mean in ("probabilities", "log_probabilities"):
        for options in ({"beam": 1}, {"beam": 3, "n_best": 3}, {"sample": True, "n_best": 2}):
            ours, theirs = (t.translate(lines, ensemble_mean=mean, **BOUNDS, **options) for t in (twice, translator))
            assert texts(ours) == texts(theirs)
            assert [t.log_prob for t in ours] == pytest.approx([t.log_prob for t in theirs], abs=1e-5)


@pytest.mark.parametrize("options", [{"sample": True}, {"mbr": 3}, {"no_repeat_ngram_size": 2}])
def test_segmental_models_refuse_them_by_name(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(options))} is for models that write token by token"):
        segmental.check(None, DecodingConfig(**options), aligned=False)
