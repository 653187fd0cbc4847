"""Segments of translations and of given pairs; known phrases among them."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from tests.helpers import bpe_tokenizer, tagged_tokenizer, tiny_tokenizer

from phraseloom.data.tensors import make_batch
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, ModelError, UsageError
from phraseloom.models.build import build_model
from phraseloom.npmt.analysis import (
    Segmented,
    TargetPhrase,
    Written,
    _in_pieces,
    _InPieces,
    _Tally,
    lengths_of,
    of_pairs,
    of_translations,
    read_target_phrases,
)
from phraseloom.options.decoding import DecodingConfig
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.text.tokenizer import Tokenizer

SOURCES = ["the old man sleeps .", "", "a cow", "we invite them tonight ."]
TARGETS = ["a cow is small .", "zwei", "the winter garden", "tonight ."]


def translator_of(folder: Path, segmental: bool = True, tokenizer: Tokenizer | None = None, **options) -> Translator:
    """Segments of up to three subwords, of a model that ends them by itself."""
    tokenizer = tokenizer or tiny_tokenizer(folder)
    size = len(tokenizer.source.vocabulary)
    sizes = {"width": 16, "heads": 2, "ffn_width": 16, "encoder": {"kind": "columns"}}
    decoder = {"kind": "segmental", "max_segment": 3}
    made = {**sizes, "decoder": decoder, "output": {"bias": True}} if segmental else {"preset": "tiny"}
    torch.manual_seed(1)
    model = build_model(ModelConfig.model_validate(made), size, size)
    if segmental:
        with torch.no_grad():
            model.output.bias[-1] = 2.0
    return Translator(model, tokenizer, DecodingConfig(**options))


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Translator:
    return translator_of(tmp_path_factory.mktemp("text"))


def test_segments_of_translations(translator):
    found = of_translations(translator, SOURCES)
    assert found[1] == Segmented([], [], [], 0.0)
    for one, translation in zip(found, translator.translate(SOURCES), strict=True):
        assert one.target == translation.tokens
        assert [(s.source, s.start, s.end) for s in one.segments] == [s[:3] for s in translation.segments or []]
        for own, s in zip(one.segments, translation.segments or [], strict=True):
            assert own.probability == pytest.approx(math.exp(s.log_prob))
    assert found[0].source[0] == "▁the"


def test_what_a_model_does_not_read_writes_nothing(tmp_path):
    translator = translator_of(tmp_path, max_input_tokens=3)
    (found,) = of_translations(translator, ["the old man sleeps ."])
    assert len(found.source) == 3 and sum(lengths_of([found]).values()) == 3


def test_segments_of_pairs_are_the_likeliest(translator):
    found = of_pairs(translator, SOURCES, TARGETS)
    assert found.left_out == {"blank": 1, "too_long": 0, "impossible": 0}
    assert found.phrases == {}
    assert found.sentences[1] is None
    sides = translator.tokenizer.source, translator.tokenizer.target
    for source, target, one in zip(SOURCES, TARGETS, found.sentences, strict=True):
        if one is None:
            continue
        batch = make_batch([sides[0].encode(source)], [sides[1].encode(target)])
        assert one.log_prob == pytest.approx(float(translator.model.score(batch).double().sum()), rel=1e-4)
        assert [i for s in one.segments for i in range(s.start, s.end)] == list(range(len(one.target)))
        assert all(s.end - s.start <= 3 and 0 <= s.probability <= 1 + 1e-9 for s in one.segments)


def test_pairs_are_read_with_the_tags_of_the_model(tmp_path):
    tokenizer = tagged_tokenizer("<2de>", "<news>")
    translator = translator_of(tmp_path, tokenizer=tokenizer, tags=["<2de>", "<news>"])
    (found,) = of_pairs(translator, ["a cow"], ["a cow is"]).sentences
    assert found.log_prob == pytest.approx(translator.score(["a cow"], ["a cow is"])[0].log_prob, rel=1e-5)
    assert "".join(found.source) == "▁a▁cow"
    target = "a " * 4 * len(tokenizer.source.encode("a"))
    found = of_pairs(translator, ["a"], [target]).sentences[0]  # longer than the subwords of the line can hold
    assert len(found.target) > 3 * len(found.source)
    assert {s.source for s in found.segments} <= set(range(len(found.source)))


def test_pairs_that_are_left_out(tmp_path):
    translator = translator_of(tmp_path, max_input_tokens=8)
    found = of_pairs(translator, ["a", "a " * 9, "a cow"], ["a " * 7, "a", "a cow"])
    assert found.left_out == {"blank": 0, "too_long": 1, "impossible": 1}
    assert [one is None for one in found.sentences] == [True, True, False]


def test_phrases_of_the_world(tmp_path):
    lines = ["1:3-2:4=idiom 4:5-4:6,9:10=expansion 6:8-8:9=compound", "", "0:1-0:3 2:3-3:5,5:6=separable"]
    forward = read_target_phrases(lines, file="p")
    assert forward == [
        [TargetPhrase((2, 4), frozenset({1, 2}), "idiom")],
        [],
        [TargetPhrase((0, 3), frozenset({0}), ""), TargetPhrase((3, 6), frozenset({2}), "separable")],
    ]
    backward = read_target_phrases(lines, file="p", reverse=True)
    assert [p.target for p in backward[0]] == [(1, 3), (6, 8)]
    assert backward[0][1] == TargetPhrase((6, 8), frozenset({8}), "compound")
    assert read_target_phrases(lines, file="p", kinds=["compound"], reverse=True)[0] == backward[0][1:]
    with pytest.raises(DataError) as caught:
        read_target_phrases(["", "0-2"], file="p")
    assert (caught.value.file, caught.value.line) == ("p", 2)


def tally(sentence, start, end, source, chances=None):
    result = _Tally()
    result.add(sentence, _InPieces(start, end, frozenset(source), ""), chances or [[0.0] * 4 for _ in range(7)])
    return result.summary()


def test_what_becomes_of_a_phrase():
    """[0 1] [2] [3 4 5] of six subwords; segments may have three."""
    segments = [Written(0, 0, 2, 0.5), Written(2, 2, 3, 0.5), Written(3, 3, 6, 0.5)]
    sentence = Segmented(list("abcd"), list("uvwxyz"), segments, -1.0)
    whole = tally(sentence, 0, 2, {0, 1})
    assert (whole["segment"], whole["inside"], whole["split"], whole["from_its_source"]) == (1.0, 0.0, 0.0, 1.0)
    assert whole["chance"] == pytest.approx(1 / 5)
    assert tally(sentence, 0, 2, {1})["from_its_source"] == 0.0
    inside = tally(sentence, 3, 5, {0})
    assert (inside["segment"], inside["inside"], inside["split"], inside["from_its_source"]) == (0.0, 1.0, 0.0, None)
    split = tally(sentence, 1, 3, {0})
    assert (split["segment"], split["inside"], split["split"]) == (0.0, 0.0, 1.0)
    chances = [[0.0] * 4 for _ in range(7)]
    chances[1][2] = 0.25
    assert tally(sentence, 1, 3, {0}, chances)["posterior"] == 0.25
    long = tally(sentence, 0, 5, {0})
    assert (long["longer_than_a_segment"], long["posterior"], long["split"], long["chance"]) == (1, 0.0, 1.0, 0.0)
    assert lengths_of([sentence, None]) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_chance_is_the_mean_over_all_places():
    """Over all runs of two subwords, as many are segments as chance says."""
    segments = [Written(0, 0, 2, 0.5), Written(1, 2, 4, 0.5), Written(2, 4, 5, 0.5)]
    sentence = Segmented(list("abc"), list("vwxyz"), segments, -1.0)
    found = [tally(sentence, start, start + 2, {0}) for start in range(4)]
    assert sum(f["segment"] for f in found) == pytest.approx(sum(f["chance"] for f in found))


def test_known_phrases_in_subwords(translator):
    """Words of several subwords; the posterior of all cuts of a sentence is what enumeration of its segments gives."""
    phrases = [[TargetPhrase((0, 2), frozenset({1}), "idiom"), TargetPhrase((2, 5), frozenset({0}), "")], [], [], []]
    found = of_pairs(translator, SOURCES, TARGETS, phrases).phrases
    assert set(found) == {"", "idiom"}
    assert (found[""]["phrases"], found["idiom"]["phrases"]) == (2, 1)
    side = translator.tokenizer.target
    ids = side.encode(TARGETS[0])
    own = [i for i, word in enumerate(side.word_of_piece(ids)) if word < 2]
    batch = make_batch([translator.tokenizer.source.encode(SOURCES[0])], [ids])
    posterior = translator.model.segments(batch).posterior_BSCX[0].sum(0)
    expected = float(posterior[0][len(own)]) if len(own) <= 3 else 0.0
    assert found["idiom"]["posterior"] == pytest.approx(expected)
    total = sum(float(posterior[j][n]) * n for j, n in itertools.product(range(len(ids)), (1, 2, 3)))
    assert total == pytest.approx(len(ids), rel=1e-5)


def test_nothing_to_count(translator):
    found = of_pairs(translator, SOURCES, TARGETS, [[], [], [], []]).phrases
    assert found[""]["phrases"] == 0
    assert found[""]["segment"] is None


@pytest.mark.parametrize("phrase", [TargetPhrase((3, 9), frozenset({0}), ""), TargetPhrase((0, 2), frozenset({8}), "")])
def test_phrases_beyond_their_line(translator, phrase):
    with pytest.raises(DataError, match="p:1: the sentence has 5 and 5 words"):
        of_pairs(translator, SOURCES, TARGETS, [[phrase], [], [], []], files=("s", "t", "p"))


def test_unknown_pieces_stay_in_their_words(translator):
    other = Translator(translator.model, bpe_tokenizer())
    phrase = TargetPhrase((0, 2), frozenset({2}), "")
    with pytest.raises(DataError, match="phrases:1: the sentence has 2 and 3 words"):
        of_pairs(other, [" th★e c★w"], ["a c★★w ."], [[phrase]])


def test_known_phrases_count_the_words_before_tokenisation(translator):
    """Moses makes two words of `old,`; the phrase `a cow` is still words 1 and 2 of its line."""
    own = translator.tokenizer
    moses = Tokenizer(TextConfig(tokenize="moses"), "en", "de", own.source.subwords, own.target.subwords)
    other = Translator(translator.model, moses)
    phrase = TargetPhrase((1, 3), frozenset({1}), "")
    ids, target = moses.source.encode("old, man"), moses.target.encode("small, a cow")
    (found,) = _in_pieces(moses, 0, ("old, man", "small, a cow"), (ids, target), [phrase], ("s", "t", "p"))
    pieces = [moses.target.vocabulary.piece(n) for n in target]
    assert "".join(pieces[found.start : found.end]) == "▁a▁cow"
    assert "".join(moses.source.vocabulary.piece(n) for n in (ids[i] for i in sorted(found.source))) == "▁man"
    assert of_pairs(other, ["old, man"], ["small, a cow"], [[phrase]]).phrases[""]["phrases"] == 1
    with pytest.raises(DataError, match="p:1: the sentence has 2 and 3 words"):
        of_pairs(
            other, ["old, man"], ["small, a cow"], [[TargetPhrase((2, 4), frozenset(), "")]], files=("s", "t", "p")
        )


def test_wrong_models_and_numbers(tmp_path, translator):
    other = translator_of(tmp_path, segmental=False)
    for call in (lambda: of_translations(other, SOURCES), lambda: of_pairs(other, SOURCES, TARGETS)):
        with pytest.raises(ModelError, match="writes no segments"):
            call()
    with pytest.raises(UsageError, match="4 sources, 1 targets"):
        of_pairs(translator, SOURCES, TARGETS[:1])
