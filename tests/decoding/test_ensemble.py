"""Ensembles: means in float64, one model twice is that model, different architectures together, and who cannot be one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.analysis.explain_kinds import joined_tokenizer, translator_of
from tests.decoding.conftest import lines_of_words
from tests.helpers import LINES, in_turn, tiny_tokenizer

from phraseloom.analysis.explain.sentence import explain
from phraseloom.decoding.ensemble import Ensemble, Member, average, build_ensemble
from phraseloom.decoding.translator import Translator
from phraseloom.errors import UsageError
from phraseloom.layers.table import TargetTable
from phraseloom.models import tasks
from phraseloom.models.store import save_model
from phraseloom.options.decoding import DecodingConfig, EnsembleMean
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import SentencepieceConfig, TextConfig
from phraseloom.outputs import ContinuousOutput
from phraseloom.text.tokenizer import Tokenizer, learn_subwords
from phraseloom.text.vocabulary import BOS, EOS
from phraseloom.text.words import Words, other_vectors

SMALL = {"width": 16, "heads": 2, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 1}}
KINDS: dict[str, dict[str, Any]] = {
    "base": {},
    "queryk": {"attention": "queryk heterogeneous 1-2"},
    "recurrent": {"encoder": {"kind": "recurrent", "layers": 1}, "decoder": {"kind": "recurrent", "layers": 1}},
    "no encoder": {"encoder": {"kind": "none"}},
    "phrases": {"phrases": {}},
}
MEANS: tuple[EnsembleMean, ...] = ("probabilities", "log_probabilities")
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A model folder of a kind, with random weights that give sharp distributions."""
    shared = tiny_tokenizer(tmp_path_factory.mktemp("text"))
    known: dict[str, Path] = {}

    def folder(kind: str, tokenizer: Tokenizer = shared) -> Path:
        name = kind.replace(" ", "-") + ("" if tokenizer is shared else "-other")
        if name not in known:
            torch.manual_seed(len(known))
            config = ModelConfig.model_validate({**SMALL, "tied": "none", "init": "xavier_uniform", **KINDS[kind]})
            model = tasks.build(config, tokenizer)
            with torch.no_grad():
                model.output.weight.mul_(4)
            known[name] = tmp_path_factory.mktemp("models") / name
            generation = {"max_length": {"factor": 1.0, "constant": 4}}
            save_model(known[name], model, config, tokenizer, languages=("en", "de"), generation=generation)
        return known[name]

    return folder


@pytest.mark.parametrize("mean", MEANS)
def test_the_mean_by_its_definition(mean: EnsembleMean) -> None:
    rng = np.random.default_rng(1)
    rows = [torch.from_numpy(rng.normal(size=(3, 11)) * 30).log_softmax(-1) for _ in range(3)]
    rows[0][0, 2] = rows[1][0, 2] = rows[2][0, 2] = -math.inf
    p = np.stack([row.numpy().astype(np.longdouble) for row in rows])
    with np.errstate(divide="ignore"):
        expected = p.mean(0) if mean == "log_probabilities" else np.log(np.exp(p).mean(0))
    found = average([row.float() for row in rows], mean)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(average(rows, mean).numpy(), expected.astype(np.float64), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("options", "mean"), in_turn([{"beam": 1}, {"beam": 4, "n_best": 3}, {"sample": True, "n_best": 2}], MEANS)
)
def test_a_model_twice_is_this_model(make: Make, mean: EnsembleMean, options: dict) -> None:
    lines = lines_of_words(12, seed=1)
    for kind in KINDS:
        alone = Translator.from_pretrained(make(kind))
        twice = Translator.from_pretrained(make(kind), ensemble=[make(kind)], ensemble_mean=mean)
        first, second = (t.translate(lines, alignments=alone.can_align, workers=1, **options) for t in (alone, twice))
        for one, two in zip(first, second, strict=True):
            assert [t.text for t in one.n_best] == [t.text for t in two.n_best]
            assert [t.alignment for t in one.n_best] == [t.alignment for t in two.n_best]
            assert [t.log_prob for t in one.n_best] == pytest.approx([t.log_prob for t in two.n_best], abs=1e-5)


@pytest.mark.parametrize("mean", MEANS)
def test_several_architectures_together(make: Make, mean: EnsembleMean) -> None:
    """Greedy search, step by step from the forward passes of the models; the score of an output; alignments of the first."""
    folders = [make(kind) for kind in KINDS]
    together = Translator.from_pretrained(folders[0], ensemble=folders[1:], ensemble_mean=mean)
    lines = lines_of_words(4, seed=3)
    found = together.translate(lines, beam=1, workers=1)
    models = [Translator.from_pretrained(folder).model for folder in folders]
    for line, translation in zip(lines, found, strict=True):
        source = torch.tensor([[*together.tokenizer.source.encode(line), EOS]])
        ids = [together.tokenizer.target.vocabulary.id(piece) for piece in translation.tokens]
        total = 0.0
        for step, token in enumerate([*ids, EOS]):
            rows = []
            for model in models:
                with torch.inference_mode():
                    decoded = model.decode(torch.tensor([[BOS, *ids[:step]]]), model.encode(source, None))
                    rows.append(model.output.log_probs(decoded.hidden[0, -1:]).double().clone())
            p = torch.stack(rows)
            row = (p.mean(0) if mean == "log_probabilities" else p.exp().mean(0).log())[0]
            total += float(row[token])
            row[[0, 1, 2] + ([EOS] if step == 0 else [])] = -math.inf
            assert token == int(row.argmax()) or (step == len(ids) and translation.hit_max_length)
        assert translation.log_prob == pytest.approx(total, abs=1e-4)
    scores = together.score(lines, [t.text for t in found])
    for t, score in zip(found, scores, strict=True):
        if score.tokens == t.tokens:
            assert score.log_prob == pytest.approx(t.log_prob, abs=1e-4)
    alone = Translator.from_pretrained(folders[0])
    assert together.first_model().translate(lines) == alone.translate(lines)
    assert any(a.text != b.text for a, b in zip(found, alone.translate(lines, beam=1), strict=True))


@pytest.mark.parametrize("mean", MEANS)
def test_scores_are_sums_of_the_means_of_every_step(make: Make, mean: EnsembleMean) -> None:
    """Given targets, by brute force: a forward pass of each model for every prefix, the mean in float64, the sum."""
    folders = [make(kind) for kind in KINDS]
    together = Translator.from_pretrained(folders[0], ensemble=folders[1:], ensemble_mean=mean)
    sources, targets = lines_of_words(5, longest=7, seed=8), lines_of_words(5, longest=7, seed=9)
    scores = together.score(sources, targets)
    models = [Translator.from_pretrained(folder).model for folder in folders]
    for source, target, score in zip(sources, targets, scores, strict=True):
        source_ids = torch.tensor([[*together.tokenizer.source.encode(source), EOS]])
        ids = together.tokenizer.target.encode(target)
        expected = []
        for step, token in enumerate([*ids, EOS]):
            probabilities = []
            for model in models:
                with torch.inference_mode():
                    decoded = model.decode(torch.tensor([[BOS, *ids[:step]]]), model.encode(source_ids, None))
                    probabilities.append(float(model.output.log_probs(decoded.hidden[0, -1:])[0, token].double().exp()))
            whole = np.array(probabilities)
            expected.append(float(np.log(whole).mean() if mean == "log_probabilities" else np.log(whole.mean())))
        assert score.token_log_probs == pytest.approx(expected, abs=1e-4)
        assert score.log_prob == pytest.approx(sum(score.token_log_probs))


def test_the_result_does_not_depend_on_the_batch(make: Make) -> None:
    together = Translator.from_pretrained(make("base"), ensemble=[make("recurrent")])
    lines = lines_of_words(10, seed=4)
    for options in ({"beam": 3}, {"sample": True, "mbr": 4}):
        whole = [t.text for t in together.translate(lines, **options)]
        assert [t.text for t in together.translate(lines, batch_sentences=1, workers=2, **options)] == whole
    assert "".join(together.stream(lines[0])) == together.translate(lines[:1], beam=1)[0].text


def test_other_vocabularies_are_refused(make: Make, tmp_path: Path) -> None:
    subwords = learn_subwords(LINES, SentencepieceConfig(size=40, byte_fallback=False))
    other = Tokenizer(TextConfig(), "en", "de", subwords, subwords)
    with pytest.raises(
        UsageError, match=r"cannot form an ensemble: their source vocabularies differ \(60 and 40 entries\)"
    ):
        Translator.from_pretrained(make("base"), ensemble=[make("base", other)])


def test_what_cannot_be_one_is_named(translator: Translator) -> None:
    first = Member("a", translator.model, translator.tokenizer, None)
    subwords = translator.tokenizer.source.subwords
    french = Tokenizer(TextConfig(), "en", "fr", subwords, subwords)
    lower = Tokenizer(TextConfig(lowercase=True), "en", "de", subwords, subwords)
    rows = torch.nn.functional.normalize(torch.randn(60, 5), dim=-1)
    continuous = SimpleNamespace(writes="tokens", output=ContinuousOutput(TargetTable(rows), width=8))
    cases = {
        "b writes segments": Member("b", SimpleNamespace(writes="segments"), translator.tokenizer, None),
        "a and b cannot form an ensemble: their target languages are de and fr": first._replace(
            name="b", tokenizer=french
        ),
        "their tokenizers cut text differently": first._replace(name="b", tokenizer=lower),
        "the output of one is softmax, of the other continuous": first._replace(name="b", model=continuous),
    }
    for message, other in cases.items():
        with pytest.raises(UsageError, match=message):
            build_ensemble([first, other])
    trees, table = SimpleNamespace(sha256="a"), SimpleNamespace(sha256="b")
    ensemble, segmenter = build_ensemble([first, first._replace(segmenter=trees), first._replace(segmenter=trees)])
    assert isinstance(ensemble, Ensemble) and segmenter is trees
    with pytest.raises(UsageError, match="source phrases from different segmenters"):
        build_ensemble([first._replace(segmenter=table), first._replace(segmenter=trees)])


def test_tables_of_other_vectors_are_named_as_such(tmp_path: Path) -> None:
    tokenizer = joined_tokenizer()
    words = tokenizer.target.subwords
    turned = Words(words.vocabulary, joined=True, vectors=np.roll(words.vectors, 1, axis=1))
    other = Tokenizer(tokenizer.text, "de", "en", tokenizer.source.subwords, turned)
    assert other_vectors(words, turned) and not other_vectors(words, tokenizer.source.subwords)
    model = translator_of("words or phrases", tokenizer).model
    with pytest.raises(UsageError, match="cannot form an ensemble: their target vectors differ"):
        build_ensemble([Member("a", model, tokenizer, None), Member("b", model, other, None)])
    together = Translator(build_ensemble([Member("m", model, tokenizer, None)] * 2)[0], tokenizer)
    (tmp_path / "more").write_bytes(b"old cow\n")
    with pytest.raises(UsageError, match="phrases cannot be added to an ensemble"):
        together.add_phrases(tmp_path / "more")


def test_set_gate_reaches_every_model_with_a_gate() -> None:
    tokenizer = joined_tokenizer()
    gated, other, without = (
        translator_of(kind, tokenizer, seed=seed).model
        for kind, seed in (("gate", 1), ("gate", 2), ("words or phrases", 3))
    )
    model, _ = build_ensemble([Member("m", one, tokenizer, None) for one in (without, gated, other)])
    ensemble = Translator(model, tokenizer)
    [before] = ensemble.score(["the old man"], ["the old_man sleeps"])
    ensemble.set_gate(score="density")
    [after] = ensemble.score(["the old man"], ["the old_man sleeps"])
    assert [one.output.score for one in (without, gated, other)] == ["mixture", "density", "density"]
    assert after.log_prob != before.log_prob


@pytest.mark.parametrize("together", [False, True])
def test_the_gate_options_of_a_call_are_its_own(together: bool) -> None:
    """A stream keeps its own while others translate; each translator of a model scores and explains with its own."""
    tokenizer = joined_tokenizer()
    models = [translator_of("gate", tokenizer, seed=seed).model for seed in (1, 2)]
    model = build_ensemble([Member("m", one, tokenizer, None) for one in models])[0] if together else models[0]
    line, target, tempered = "the old man sleeps .", "the old_man sleeps", {"phrase_odds": 1e6, "gate_weight": 5.0}
    plain = Translator(model, tokenizer, DecodingConfig(beam=1, max_length={"factor": 0.0, "constant": 4}))
    before, [scored] = plain.translate([line]), plain.score([line], [target])
    alone = plain.translate([line], **tempered)
    stream = plain.stream(line, **tempered)
    assert plain.translate([line]) == before != alone
    assert "".join(stream) == alone[0].text
    gate = explain({"m": plain.first_model()}, [line], [target])["sentences"][0]["views"][0]["gate"]
    other = plain.with_options(**tempered)
    assert plain.score([line], [target]) == [scored] != other.score([line], [target])
    other = plain.with_options(**tempered)
    for translator, is_plain in ((plain, True), (other, False)):
        shown = explain({"m": translator.first_model()}, [line], [target])["sentences"][0]["views"][0]["gate"]
        assert (shown == gate) == is_plain
