"""Search and translation with segmental models as they are built: against their own sums over all segmentations."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from tests.decoding.conftest import lines_of_words
from tests.helpers import bpe_tokenizer, tiny_tokenizer

from phraseloom.data.tensors import make_batch
from phraseloom.decoding.batching import Piece
from phraseloom.decoding.limits import Hypothesis, Limits, SearchOptions, Segment
from phraseloom.decoding.search import search
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, UsageError
from phraseloom.models.build import build_model
from phraseloom.npmt.search import link_segments, links, unknown_of_segments
from phraseloom.options.decoding import DecodingConfig
from phraseloom.options.model import ModelConfig
from phraseloom.phrases.source import word_of_piece
from phraseloom.text.vocabulary import EOS, UNK

BANNED = (0, 1, 2)


def config(connect: bool, cell: str = "gru", max_segment: int = 2) -> ModelConfig:
    decoder = {"kind": "segmental", "layers": 2, "cell": cell, "max_segment": max_segment, "connect": connect}
    encoder = {"kind": "columns", "layers": 2, "cell": cell}
    sizes = {"width": 16, "heads": 4, "ffn_width": 16, "reordering": {"window": 3}, "dropout": 0.0}
    sizes["init"] = "xavier_uniform"  # the outputs that these tests look at are of these weights
    return ModelConfig.model_validate({**sizes, "encoder": encoder, "decoder": decoder, "output": {"bias": True}})


def tiny(connect: bool, cell: str = "gru", seed: int = 0):
    """Two words beside the special ids; loud enough that no two outputs are alike."""
    torch.manual_seed(seed)
    model = build_model(config(connect, cell), 8, 6).double().eval()
    with torch.no_grad():
        model.output.weight.mul_(3.0)
    return model


def found_by(model, sources, *, beam, **limits):
    batch = make_batch(sources, [[] for _ in sources])
    with torch.inference_mode():
        memory = model.encode(batch.source_BS, batch.source_lengths_B)
    bounds = Limits.of([99] * len(sources), **limits)
    return search(model, memory, bounds, SearchOptions(beam=beam, n_best=beam, banned=BANNED))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("connect", [False, True])
def test_a_wide_beam_finds_what_the_model_says_of_each_output(connect, cell):
    model = tiny(connect, cell)
    sources = [[4, 5], [6], [7, 4, 5]]
    for b, some in enumerate(found_by(model, sources, beam=31 * 7)):  # segments of all hypotheses share the beam
        assert len(some) == 2 ** (2 * len(sources[b]) + 1) - 1  # every output of up to two words a position
        batch = make_batch([sources[b]] * len(some), [h.tokens for h in some])
        expected = model.score(batch).sum(1).tolist()
        assert [h.log_prob for h in some] == pytest.approx(expected, abs=1e-8)
        segments = model.segments(batch)
        for h, lengths in zip(some, segments.lengths_BS.tolist(), strict=True):
            own = {s.source: s.end - s.start for s in h.segments}
            assert [own.get(t, 0) for t in range(len(sources[b]))] == lengths


@pytest.mark.parametrize("connect", [False, True])
def test_a_narrow_beam_says_no_more(connect):
    model, source = tiny(connect, seed=4), [4, 5, 6, 7]
    (some,) = found_by(model, [source], beam=2)
    exact = model.score(make_batch([source] * 2, [h.tokens for h in some])).sum(1).tolist()
    assert all(h.log_prob <= p + 1e-9 for h, p in zip(some, exact, strict=True))


def translator_of(connect: bool, folder: Path) -> Translator:
    """A model whose segments end by themselves, at different lengths."""
    tokenizer = tiny_tokenizer(folder)
    torch.manual_seed(3)
    size = len(tokenizer.source.vocabulary)
    model = build_model(config(connect, max_segment=4), size, size)
    with torch.no_grad():
        model.output.weight.mul_(1.5)
        model.output.bias[-1] = 2.0
    return Translator(model, tokenizer)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "connected"])
def translator(request, tmp_path_factory) -> Translator:
    return translator_of(request.param, tmp_path_factory.mktemp("text"))


def assert_same(one, other):
    """Equal but for rounding, which batches of other sizes may change."""
    assert (one.text, one.tokens, one.alignment) == (other.text, other.tokens, other.alignment)
    assert one.log_prob == pytest.approx(other.log_prob, rel=1e-5)
    assert [s[:3] for s in one.segments or []] == [s[:3] for s in other.segments or []]


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_carry_their_segments(translator, beam):
    lines = [*lines_of_words(12), "", "the old man sleeps ."]
    result = translator.translate(lines, beam=beam, n_best=beam, alignments=True)
    for line, together in zip(lines, result, strict=True):
        (alone,) = translator.translate([line], beam=beam, n_best=beam, alignments=True)
        for one, other in zip(together.n_best, alone.n_best, strict=True):
            assert_same(one, other)
    assert result[-2].segments is None and result[-2].phrases == []
    for line, best in zip(lines, result, strict=True):
        if not line:
            continue
        source = translator.tokenizer.source
        words = source.word_of_piece(source.encode(line))
        for one in best.n_best:
            assert [i for s in one.segments for i in range(s.start, s.end)] == list(range(len(one.tokens)))
            assert [s.source for s in one.segments] == sorted({s.source for s in one.segments})
            assert max(s.end - s.start for s in one.segments) <= 4
            assert {s for s, _ in one.alignment} == {words[s.source] for s in one.segments}
            assert [w for p in one.phrases for w in range(*p.target)] == list(range(len(one.words)))
            assert all(p.source[1] == p.source[0] + 1 and 0 < p.weight <= 1 for p in one.phrases)
            told = json.loads(json.dumps(one.as_dict()))
            assert [s["target"] for s in told["segments"]] == [[s.start, s.end] for s in one.segments]
            assert told["segments"][0]["source"] == one.segments[0].source


def test_score_of_a_translation_is_not_below_what_the_search_claims(translator):
    lines = lines_of_words(6, seed=2)
    best = translator.translate(lines, beam=4)
    again = []
    for line, one in zip(lines, best, strict=True):
        ids = [translator.tokenizer.target.vocabulary.id(t) for t in one.tokens]
        batch = make_batch([translator.tokenizer.source.encode(line)], [ids])
        again.append(float(translator.model.score(batch).double().sum()))
    assert all(p >= one.log_prob - 1e-4 for p, one in zip(again, best, strict=True))


def test_segments_of_a_split_line_count_on(translator):
    line = " ".join(lines_of_words(4))
    (one,) = translator.translate([line], max_input_tokens=9, long_lines="split", alignments=True)
    assert one.parts > 2
    assert [i for s in one.segments for i in range(s.start, s.end)] == list(range(len(one.tokens)))
    source = translator.tokenizer.source.encode(line)
    assert [s.source for s in one.segments] == sorted({s.source for s in one.segments})
    assert 9 < one.segments[-1].source < len(source)
    words = translator.tokenizer.source.word_of_piece(source)
    spoke = {words[s.source] for s in one.segments}
    assert {s for s, _ in one.alignment} == spoke >= {p.source[0] for p in one.phrases}


def test_a_translation_begins_as_it_must(translator):
    lines, prefixes = ["the old man sleeps .", "we invite them tonight ."], ["a cow", ""]
    for beam in (1, 3):
        result = translator.translate(lines, prefixes=prefixes, beam=beam)
        begun = translator.tokenizer.target.encode(prefixes[0])
        pieces = [translator.tokenizer.target.vocabulary.piece(i) for i in begun]
        assert result[0].tokens[: len(pieces)] == pieces
        assert_same(result[1], translator.translate([lines[1]], beam=beam)[0])


def test_bounds_of_the_length_hold(translator):
    exact = {"factor": 0.0, "constant": 5}
    for beam in (1, 3):
        for one in translator.translate(lines_of_words(5, seed=3), beam=beam, min_length=exact, max_length=exact):
            assert len(one.tokens) == 5 or (len(one.tokens) < 5 and one.segments[-1].source == 0)
    assert translator.translate(["the old man"], max_length={"constant": 1}, word_bonus=3.0)[0].hit_max_length


def test_a_word_bonus_makes_outputs_longer(translator):
    lines = lines_of_words(6, seed=5)
    sizes = [
        sum(len(one.tokens) for one in translator.translate(lines, word_bonus=bonus, length_penalty={"kind": "none"}))
        for bonus in (-2.0, 0.0, 2.0)
    ]
    assert sizes[0] <= sizes[1] < sizes[2]


def test_scores_have_the_bonus_by_which_translations_are_ranked(translator):
    rewarded = translator.with_options(word_bonus=0.7, length_penalty={"kind": "none"})
    lines = lines_of_words(3, seed=5)
    for one in (*rewarded.translate(lines), *rewarded.score(lines, ["the old man", "the", "cow"])):
        assert one.tokens and one.score == pytest.approx(one.log_prob + 0.7 * len(one.tokens), abs=1e-6)


def test_attention_cannot_be_chosen(translator):
    with pytest.raises(UsageError, match="a segmental model has none"):
        translator.translate(["the old man"], alignment_layer=1)


@pytest.mark.parametrize("connect", [False, True])
def test_unknown_words_are_replaced_by_what_emitted_them(connect, tmp_path):
    translator = translator_of(connect, tmp_path)
    with torch.no_grad():
        translator.model.output.bias[UNK] = 30.0
    (one,) = translator.translate(["the old man"], unknown="replace", beam=2, max_length={"constant": 3})
    assert one.replaced
    source = translator.tokenizer.source
    words, pieces = source.words("the old man"), source.word_of_piece(source.encode("the old man"))
    for replaced in one.replaced:
        assert replaced.word == replaced.original == words[replaced.source]
    assert {r.source for r in one.replaced} <= {pieces[s.source] for s in one.segments}


def test_an_unknown_character_tears_no_source_word():
    tokenizer = bpe_tokenizer()
    torch.manual_seed(3)
    model = build_model(config(False), *[len(tokenizer.source.vocabulary)] * 2)
    with torch.no_grad():
        model.output.bias[UNK] = 30.0
    line = " th★e m★n "
    (one,) = Translator(model, tokenizer).translate([line], unknown="replace", alignments=True)
    words = word_of_piece(tokenizer.source, line, tokenizer.source.encode(line))
    assert one.replaced
    assert all(r.original == line.split()[r.source] for r in one.replaced)
    assert {r.source for r in one.replaced} <= {words[s.source] for s in one.segments}
    assert {s for s, _ in one.alignment} == {words[s.source] for s in one.segments}


def test_tags_are_no_subwords_of_the_line(tmp_path):
    tokenizer = translator_of(False, tmp_path).tokenizer
    ids = tokenizer.source.encode("a cow")
    piece = Piece(0, [5, 6, *ids], first_word=4, first_id=9, tags=2)
    hypothesis = Hypothesis([7, 8, 9], -1.0, -1.0, False, [Segment(n, n, n + 1, -1.0) for n in range(3)])
    [result] = links(
        None, tokenizer, [piece], [[hypothesis]], None, DecodingConfig(), alignments=False, replacing=False
    )
    assert [segment.source for segment in result.hypotheses[0].segments or ()] == [9, 9, 9]
    hypothesis = hypothesis._replace(segments=[Segment(3, 0, 3, -1.0)])
    [result] = links(
        None, tokenizer, [piece], [[hypothesis]], None, DecodingConfig(), alignments=False, replacing=False
    )
    assert [segment.source for segment in result.hypotheses[0].segments or ()] == [10]


def test_links_of_torn_words_and_phrases():
    segments = [Segment(0, 0, 2, math.log(0.5)), Segment(2, 2, 3, math.log(0.25)), Segment(3, 3, 5, 1e-7)]
    words = [range(1), range(1, 2), range(1, 2), range(1, 2), range(2, 5)]
    found = link_segments(segments, [0, 0, 1, 2], words)
    assert found.words == [(0, 0), (0, 1), (1, 1), (2, 1), (2, 2), (2, 3), (2, 4)]
    assert [str(p) for p in found.phrases] == ["0:1-0:2=0.5000", "2:3-2:5=1.0000"]
    (unknown,) = unknown_of_segments(segments, [9, 9, UNK, UNK, 9], [0, 0, 1, 2], words)
    assert (unknown.number, unknown.place, unknown.source) == (1, 1, [1])


def test_other_models_have_no_word_bonus(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path)
    size = len(tokenizer.source.vocabulary)
    other = build_model(ModelConfig.model_validate({"preset": "tiny"}), size, size)
    with pytest.raises(UsageError, match=r"word_bonus 0\.5 is for segmental models"):
        Translator(other, tokenizer).translate(["the old man"], word_bonus=0.5)
    for own in ({"include": ["cow"]}, {"exclude": ["cow"]}):
        with pytest.raises(UsageError, match=r"word_bonus 0\.5 is for segmental models"):
            Translator(other, tokenizer).translate(["the old man"], constraints=[own], word_bonus=0.5)
    with pytest.raises(UsageError, match=r"word_bonus 0\.5 is for segmental models"):
        Translator(other, tokenizer).stream("the old man", word_bonus=0.5)
    assert EOS not in (tokenizer.target.encode("the"))


def test_a_prefix_beyond_all_segments_is_refused_by_its_line(translator):
    side = translator.tokenizer.target
    lines, prefix = ["the old man", "we", "", "we"], "the old man sleeps . " * 4
    size, most = len(side.encode(prefix)), 4 * len(translator.tokenizer.source.encode("we"))
    assert size > most
    with pytest.raises(
        DataError, match=rf"^prefixes:4: a prefix of {size} subwords, but .* write at most {most}; each"
    ):
        translator.translate(lines, prefixes=["the", "", "", prefix])
    longest = side.decode(side.encode(prefix)[:most])
    assert len(side.encode(longest)) == most
    assert translator.translate(["we"], prefixes=[longest])[0].text == longest
