"""Word alignments from attention: the protocol of paper 004 §5 in slow loops; words of raw lines; choices; whole models."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from tests.analysis.explain_kinds import joined_tokenizer, translator_of
from tests.helpers import LINES, tagged_tokenizer, tiny_tokenizer

from phraseloom.align.links import Gold, symmetrize
from phraseloom.analysis import alignment
from phraseloom.analysis.alignment import MeasuredAlignment, align_pairs, measure, ranked, remember, word_of_piece
from phraseloom.analysis.attention import Attended
from phraseloom.decoding.alignment import METHODS, choose, combine, directions, link_words, word_weights
from phraseloom.decoding.translator import Translator
from phraseloom.errors import CorruptError, DataError, ModelError, UsageError
from phraseloom.files import sha256_file
from phraseloom.layers.attention.structure import HeadGroup, Structure
from phraseloom.metrics.aer import AlignmentScore, score_alignment
from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.decoding import AlignmentMethod, DecodingConfig
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import SentencepieceConfig, SubwordNmtConfig, TextConfig
from phraseloom.phrases.segmenters import TreeSegmenter
from phraseloom.text.normalize import Normaliser
from phraseloom.text.tokenizer import Side, Tokenizer, learn_subwords

Links = set[tuple[int, int]]


# The protocol in loops -------------------------------------------------------------------------------------------------


def by_loops(heads: Sequence[np.ndarray], source: Sequence[int], target: Sequence[int]) -> tuple[Links, Links]:
    """Spec §6.3, sentence by sentence: the sum over heads; columns summed, rows averaged; the best of each word."""
    total: dict[tuple[int, int], float] = {}
    for s in set(source):
        for t in set(target):
            rows = [i for i in range(len(target)) if target[i] == t]
            columns = [j for j in range(len(source)) if source[j] == s]
            per_row = [math.fsum(float(head[i][j]) for head in heads for j in columns) for i in rows]
            total[s, t] = math.fsum(per_row) / len(rows)
    to_source, to_target = set(), set()
    for t in set(target):
        best = None
        for s in sorted(set(source)):
            if best is None or total[s, t] > total[best, t]:
                best = s
        to_source.add((best, t))
    for s in set(source):
        best = None
        for t in sorted(set(target)):
            if best is None or total[s, t] > total[s, best]:
                best = t
        to_target.add((s, best))
    return to_source, to_target  # type: ignore[return-value]


def largest(heads: Sequence[np.ndarray]) -> np.ndarray:
    """Paper 004, footnote 7: of each cell the largest weight of any head."""
    result = np.zeros(np.shape(heads[0]))
    for row in range(len(result)):
        for column in range(len(result[row])):
            for head in heads:
                result[row][column] = max(result[row][column], float(head[row][column]))
    return result


def random_words(rng: np.random.Generator) -> list[int]:
    """Words of pieces in ascending order; now and then a word without a piece, also at the beginning."""
    return np.cumsum(rng.choice([0, 0, 1, 1, 1, 2], rng.integers(1, 9))).tolist()


def test_words_and_directions_are_those_of_slow_loops() -> None:
    rng, several = np.random.default_rng(0), 0
    for _ in range(300):
        source, target = random_words(rng), random_words(rng)
        heads = rng.dirichlet(np.full(len(source) + 1, 0.4), (3, len(target) + 1)).astype(np.float32)
        several += len(set(source)) > 1 < len(set(target)) and len(source) > len(set(source)) < len(target)
        for chosen in (heads, heads[1:2]):
            to_source, to_target = by_loops(chosen, source, target)
            mean = chosen.astype(np.float64).mean(0)
            assert directions(word_weights(mean, source, target)) == (to_source, to_target)
            expected = {
                "target-to-source": to_source,
                "source-to-target": to_target,
                "union": to_source | to_target,
                "intersection": to_source & to_target,
            }
            for method in METHODS:
                found = link_words(mean, source, target, method)
                assert found == sorted(found, key=lambda link: (link[1], link[0]))
                both = frozenset(to_source), frozenset(to_target)
                assert set(found) == (expected[method] if method in expected else symmetrize(*both, method))
    assert several > 50


def test_heads_side_by_side_are_each_head_alone() -> None:
    rng = np.random.default_rng(1)
    heads = rng.random((4, 5, 6)).astype(np.float32)
    words = word_weights(heads, [0, 1, 1, 3, 3], [0, 0, 2, 3])
    for head, weights in zip(heads, words.weights, strict=True):
        np.testing.assert_array_equal(word_weights(head, [0, 1, 1, 3, 3], [0, 0, 2, 3]).weights, weights)
    assert (words.source, words.target) == ([0, 1, 3], [0, 2, 3])
    assert words.weights.dtype == np.float64


def test_ties_go_to_the_lower_word_on_both_sides() -> None:
    even = np.full((4, 5), 0.2, np.float32)
    assert link_words(even, [0, 1, 2, 3], [0, 1, 2]) == [(0, 0), (0, 1), (0, 2)]
    assert link_words(even, [0, 1, 2, 3], [0, 1, 2], "source-to-target") == [(0, 0), (1, 0), (2, 0), (3, 0)]
    for triple in ([0.01, 0.01, 0.13], [0.13, 0.01, 0.01]):  # the same sum in any order, but not in float32
        row = np.array([[*triple, *reversed(triple), 0.7]] * 2, np.float32)
        assert link_words(row, [0, 0, 0, 1, 1, 1], [0]) == [(0, 0)]


def test_a_word_without_pieces_is_never_linked() -> None:
    all_on_eos = np.zeros((3, 3), np.float32)
    all_on_eos[:, 2] = 1
    assert link_words(all_on_eos, [1, 2], [1, 3]) == [(1, 1), (1, 3)]
    assert link_words(all_on_eos, [1, 2], [1, 3], "source-to-target") == [(1, 1), (2, 1)]


def test_eos_counts_on_neither_side() -> None:
    weights = np.array([[0.1, 0.2, 0.7], [0.4, 0.2, 0.4], [0.9, 0.1, 0.0]], np.float32)
    assert link_words(weights, [0, 1], [0, 1]) == [(1, 0), (0, 1)]
    assert link_words(weights, [0, 1], [0, 1], "source-to-target") == [(1, 0), (0, 1)]


def test_the_directions_are_joined_in_their_order() -> None:
    """Of grow-diag-final the order matters: the links of target words come first."""
    forward, backward = frozenset({(0, 1), (2, 0)}), frozenset({(0, 0), (2, 1)})
    assert symmetrize(forward, backward, "grow-diag-final-and") != symmetrize(backward, forward, "grow-diag-final-and")
    found = combine(forward, backward, "grow-diag-final-and")
    assert found == symmetrize(forward, backward, "grow-diag-final-and")


def test_methods_are_those_of_the_options() -> None:
    assert set(get_args(AlignmentMethod)) == set(METHODS)
    with pytest.raises(UsageError, match="no symmetrisation 'best'"):
        combine(frozenset(), frozenset(), "best")


# Words of raw lines ----------------------------------------------------------------------------------------------------


MOSES = TextConfig(normalize="moses", tokenize="moses", lowercase=True)
RAW = [
    "The old man's dog sleeps.",
    "“Don't!” said she; it's 10\u00a0000 %.",
    "a  cow   is small,but  dark .",
    "…Really?!  «Oui» – (or not) …",
    "  Leading, and trailing.  ",
    "İstanbul STRASSE Straße",
    "word\u200b-by-word t'was 3,5",
]


def side_of(text: TextConfig, kind: str) -> Side:
    lines = [*LINES, *RAW, *map(Normaliser(text, "en"), RAW)]
    if kind == "bpe":
        subwords = learn_subwords(lines, SubwordNmtConfig(merges=60))
    else:
        subwords = learn_subwords(
            lines, SentencepieceConfig(size=360 if kind == "bytes" else 120, byte_fallback=kind == "bytes")
        )
    return Tokenizer(text, "en", "de", subwords, subwords).source


@pytest.fixture(scope="module", params=["sentencepiece", "bytes", "bpe"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("text", [TextConfig(), MOSES, TextConfig(lowercase=True)], ids=["as is", "moses", "lower"])
def test_every_word_of_a_raw_line_gets_the_pieces_of_its_characters(kind: str, text: TextConfig) -> None:
    side = side_of(text, kind)
    for line in [*RAW, *LINES]:
        words, ids = [w for w in line.split(" ") if w], side.encode(line)
        of_word = word_of_piece(side, line, ids)
        assert len(of_word) == len(ids)
        assert of_word == sorted(of_word)
        for number, word in enumerate(words):
            own = side.subwords.decode([i for i, n in zip(ids, of_word, strict=True) if n == number])
            assert "".join(own.split()) == "".join(side.normaliser(word).split()), (line, word)


def test_unknown_pieces_do_not_shift_the_words(kind: str) -> None:
    """`xyz` unknown in the middle of words: the tokenizer cannot see where words begin, the line can."""
    side = side_of(TextConfig(), kind)
    line = "a QQ cow ZQZa is ЖЖ small"
    of_word = word_of_piece(side, line, side.encode(line))
    assert sorted(set(of_word)) == list(range(7))
    starts = {of_word.index(n) for n in range(7)}
    pieces = side.pieces(line)
    assert [p.strip("▁@") for i, p in enumerate(pieces) if i in starts and of_word[i] in (0, 2, 4, 6)] == [
        next(p for p in side.pieces(word)).strip("▁@") for word in ("a", "cow", "is", "small")
    ]


def test_other_spaces_stand_inside_words() -> None:
    side = side_of(TextConfig(), "sentencepiece")
    line = "a\u3000cow\tis small"
    assert len(set(word_of_piece(side, line, side.encode(line)))) == 2


def test_a_full_stop_and_a_quote_may_change_places() -> None:
    """German punctuation: the stop goes behind the quote if something follows, which a word alone does not show."""
    line = "Warum jetzt aufhören.“ Des Weiteren."
    subwords = learn_subwords([line.lower(), 'a " .', *LINES], SentencepieceConfig(size=60, byte_fallback=False))
    side = Tokenizer(MOSES, "de", "de", subwords, subwords).source
    assert side.normaliser(line) == 'warum jetzt aufhören " . des weiteren .'
    assert side.normaliser("aufhören.“") == 'aufhören . "'
    of_word = word_of_piece(side, line, side.encode(line))
    own = [i for i, n in zip(side.encode(line), of_word, strict=True) if n == 2]
    assert "".join(side.subwords.decode(own).split()).endswith('".')


def test_a_line_that_cannot_be_laid_beside_its_subwords_is_refused() -> None:
    side = side_of(TextConfig(lowercase=True), "sentencepiece")
    for becomes in ("something else", "c awo"):  # the second has as many characters, but not in these words
        side.normaliser = {"A cow": becomes, "A": "a", "cow": "cow"}.__getitem__  # type: ignore[assignment]
        with pytest.raises(DataError, match="normalisation changes more than the single words"):
            word_of_piece(side, "A cow", side.encode("A cow"))
    side.normaliser = str.lower  # type: ignore[assignment]
    assert word_of_piece(side, " \u3000", []) == []


# Models ----------------------------------------------------------------------------------------------------------------


SIZES = {"width": 16, "heads": 4, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 3}}
RECURRENT = {"kind": "recurrent", "layers": 2, "cell": "gru"}
VARIANTS: dict[str, dict[str, Any]] = {
    "token": {},
    "homogeneous": {"attention": "queryk homogeneous 22"},
    "heterogeneous": {"attention": "convkv heterogeneous 1-2-3"},
    "interleaved": {"attention": "queryk interleaved 1-2"},
    "without encoder": {"encoder": {"kind": "none"}},
    "recurrent": {"encoder": {"kind": "recurrent", "layers": 1}, "decoder": {**RECURRENT, "attention": "mlp"}},
}
FIXED = {"encoder": {"kind": "recurrent", "layers": 1}, "decoder": {**RECURRENT, "attention": "fixed"}}
SOURCES = [*LINES, "", "a .", "tonight", "", "small  cow ,"]
TARGETS = ["zwei Büros .", *LINES[:3], "a", "", "we invite", "", "the garden is dark ."]


def made(folder: Path, variant: dict[str, Any], segmenter: Any = None, **options: Any) -> Translator:
    tokenizer = tagged_tokenizer(*options["tags"]) if "tags" in options else tiny_tokenizer(folder)
    torch.manual_seed(4)
    size = len(tokenizer.source.vocabulary)
    model = build_model(ModelConfig.model_validate({**SIZES, **variant}), size, size)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return Translator(model, tokenizer, DecodingConfig(**options), segmenter=segmenter)


@pytest.fixture(scope="module", params=VARIANTS)
def translator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return made(tmp_path_factory.mktemp("text"), VARIANTS[request.param])


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return made(tmp_path_factory.mktemp("text"), {})


def spread(weights: np.ndarray, structure: Structure, head: int) -> np.ndarray:
    """The weights (rows, slots) of one head on tokens: every slot gives each token of its window an even share."""
    length, rows = weights.shape[1] // len(structure.blocks), weights.shape[0] // len(structure.query_orders)
    first = structure.query_orders.index(1) * rows
    result = np.zeros((rows, length))
    for g, block in enumerate(structure.blocks):
        order = next(p.order for p in block if p.first <= head < p.last)
        for last in range(length):
            window = [k for k in range(last - order + 1, last + 1) if k >= 0]
            for row in range(rows):
                for k in window:
                    result[row, k] += float(weights[first + row, g * length + last]) / len(window)
    return result


def test_links_of_a_model_are_those_of_its_weights_in_loops(translator: Translator) -> None:
    """One pair at a time through the model; slots spread over tokens by hand; then the loops above."""
    from phraseloom.data.tensors import make_batch

    structures = translator.model.decoder.cross_structures
    source_side, target_side = translator.tokenizer.source, translator.tokenizer.target
    expected: dict[tuple[int, int | str | None], list[Any]] = {}
    for source, target in zip(SOURCES, TARGETS, strict=True):
        ids = source_side.encode(source), target_side.encode(target)
        weights: list[Any] = [None] * len(structures)
        if all(ids):
            batch = make_batch([ids[0]], [ids[1]])
            with torch.inference_mode():
                memory = translator.model.encode(batch.source_BS, batch.source_lengths_B)
                weights = translator.model.decode(batch.target_in_BT, memory, keep_weights=True)[1]
        for layer, structure in enumerate(structures):
            for head in (None, "max", *range(structure.heads)):
                found: Any = None
                if all(ids):
                    chosen = [head] if isinstance(head, int) else range(structure.heads)
                    on_tokens = [spread(weights[layer][0, h].numpy(), structure, h) for h in chosen]
                    on_tokens = [largest(on_tokens)] if head == "max" else on_tokens
                    found = by_loops(on_tokens, source_side.word_of_piece(ids[0]), target_side.word_of_piece(ids[1]))
                expected.setdefault((layer, head), []).append(found)
    for (layer, head), pairs in expected.items():
        for method in ("target-to-source", "source-to-target", "union", "intersection"):
            options = {"alignment_head": head + 1 if isinstance(head, int) else head, "alignment_method": method}
            chosen_one = translator.with_options(alignment_layer=layer + 1, **options)
            for one, pair in zip(align_pairs(chosen_one, SOURCES, TARGETS), pairs, strict=True):
                if pair is None:
                    assert one == (frozenset(), {}, False)
                    continue
                to_source, to_target = pair
                assert (
                    one.links
                    == {
                        "target-to-source": to_source,
                        "source-to-target": to_target,
                        "union": to_source | to_target,
                        "intersection": to_source & to_target,
                    }[method]
                ), (layer, head, method)
                assert set(one.weights) == one.links


def test_links_do_not_depend_on_the_batch(translator: Translator) -> None:
    pairs = list(zip(SOURCES, TARGETS, strict=True)) * 3
    random.Random(2).shuffle(pairs)
    sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
    chosen = translator.with_options(alignment_method="grow-diag-final")
    alone = {pair: next(align_pairs(chosen, [pair[0]], [pair[1]])) for pair in set(pairs)}
    for batch in (1, 2, 7):
        together = list(align_pairs(chosen.with_options(batch_sentences=batch, workers=2), sources, targets))
        for pair, one in zip(pairs, together, strict=True):
            assert one.links == alone[pair].links
            assert one.weights == pytest.approx(alone[pair].weights, abs=1e-6)


def test_translate_links_words_as_the_alignment_of_its_own_output_does(translator: Translator) -> None:
    """One rule: the same links for every choice, of a translation that is forced to be the target."""
    pairs = [(s, t) for s, t in zip(SOURCES, TARGETS, strict=True) if s and t]
    sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
    choices: list[dict[str, Any]] = [
        {},
        {"alignment_method": "union"},
        {"alignment_layer": 1, "alignment_head": 1, "alignment_method": "grow-diag"},
        {"alignment_head": 1, "alignment_method": "source-to-target"},
        {"alignment_head": "max", "alignment_method": "union"},
    ]
    found = []
    for choice in choices:
        chosen = translator.with_options(**choice, beam=2, max_length={"constant": 0}, min_length={"constant": 0})
        translations = chosen.translate(sources, prefixes=targets, alignments=True)
        assert [t.text for t in translations] == targets
        aligned = list(align_pairs(chosen, sources, targets))
        assert [set(t.alignment or []) for t in translations] == [one.links for one in aligned]
        found.append([one.links for one in aligned])
    assert all(some != found[0] for some in found[1:])


def test_links_of_a_phrase_of_joined_text_hold_for_its_words() -> None:
    """A phrase is one row of the weights, but all its words are linked; one that the vocabulary lacks is read as words."""
    joined = translator_of("words or phrases", joined_tokenizer(), seed=3)
    sources = ["the cow sleeps", "cow the .", "the . cow sleeps"]
    targets = ["cow old_man .", "the_old_man old_man", "old_cow sleeps the_old_man"]
    words = [[[0], [1, 2], [3]], [[0, 1, 2], [3, 4]], [[0], [1], [2], [3, 4, 5]]]
    for method in ("target-to-source", "union", "grow-diag-final"):
        chosen = joined.with_options(alignment_method=method, alignment_layer=2)
        aligned = list(align_pairs(chosen, sources, targets))
        assert [{t for _, t in pair.links} for pair in aligned] == [
            {t for unit in units for t in unit} for units in words
        ]
        for units, pair in zip(words, aligned, strict=True):
            assert set(pair.weights) == pair.links
            for unit in units:
                of_word = [{(s, pair.weights[s, u]) for s, u in pair.links if u == t} for t in unit]
                assert all(links == of_word[0] for links in of_word)
        gold = [Gold(pair.links, pair.links) for pair in aligned]
        scores = [
            m.score.aer
            for m in measure(chosen, sources, targets, gold)
            if (m.layer, m.head, m.method) == (2, None, method)
        ]
        assert scores == [0.0]


@pytest.mark.parametrize("variant", ["token", "heterogeneous", "recurrent"])
def test_tags_belong_to_no_word(variant: str, tmp_path: Path) -> None:
    """The links of `translate`, which drops the columns of tags; tags do not make a source too long."""
    pairs = [(s, t) for s, t in zip(SOURCES, TARGETS, strict=True) if s and t]
    sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
    tagged = made(
        tmp_path, VARIANTS[variant], tags=["<2de>", "<news>"], max_length={"constant": 0}, min_length={"constant": 0}
    )
    for options in ({}, {"alignment_method": "union"}, {"alignment_head": "max"}):
        chosen = tagged.with_options(**options, beam=2)
        translations = chosen.translate(sources, prefixes=targets, alignments=True)
        assert [t.text for t in translations] == targets
        links = [one.links for one in align_pairs(chosen, sources, targets)]
        assert links == [set(t.alignment or []) for t in translations]
    sizes = [len(tagged.tokenizer.source.encode(source)) for source in sources]
    for size in sorted(set(sizes)):
        short = tagged.with_options(max_input_tokens=size, max_length={"constant": 99})
        assert [one.cropped for one in align_pairs(short, sources, targets)] == [n > size for n in sizes]


def test_the_choice_of_layer_and_head(token: Translator) -> None:
    structures = token.model.decoder.cross_structures
    assert choose(DecodingConfig(), structures) == (1, None, "target-to-source")
    config = DecodingConfig(alignment_layer=3, alignment_head=4, alignment_method="union")
    assert choose(config, structures) == (2, 3, "union")
    assert choose(DecodingConfig(alignment_head="max"), structures) == (1, "max", "target-to-source")
    for options, message in (
        ({"alignment_layer": 4}, "alignment_layer 4: the decoder has 3 layers"),
        ({"alignment_head": 5}, "alignment_head 5: layer 2 of the decoder attends with 4 heads"),
    ):
        with pytest.raises(UsageError, match=message):
            list(align_pairs(token.with_options(**options), SOURCES, TARGETS))
        with pytest.raises(UsageError, match=message):
            token.translate(["a"], alignments=True, **options)


def test_another_layer_forgets_the_head(token: Translator) -> None:
    chosen = token.with_options(alignment_layer=2, alignment_head=3)
    assert chosen.config.alignment_head == 3
    assert chosen.with_options(alignment_method="union").config.alignment_head == 3
    assert chosen.with_options(alignment_layer=1).config.alignment_head is None
    assert chosen.with_options(alignment_layer=1, alignment_head=2).config.alignment_head == 2


def test_a_head_that_sees_bigrams_only(tmp_path: Path) -> None:
    """Homogeneous attention: a word link of head 3 comes from its bigrams, and so do phrase links."""
    chosen = made(tmp_path, VARIANTS["homogeneous"], alignment_head=3, max_length={"constant": 5})
    assert chosen.model.decoder.cross_structures[1] == Structure(
        4, ((HeadGroup(1, 0, 2), HeadGroup(2, 2, 4)),), zero_extended=True
    )
    found = chosen.translate([LINES[1]], alignments=True)[0]
    whole = made(tmp_path, VARIANTS["homogeneous"], max_length={"constant": 5}).translate([LINES[1]], alignments=True)[
        0
    ]
    assert found.text == whole.text
    assert found.phrases != whole.phrases
    side = chosen.tokenizer.source
    pieces = side.word_of_piece(side.encode(LINES[1]))
    bigrams = {(pieces[max(0, i - 1)], pieces[i] + 1) for i in range(len(pieces))} | {(pieces[-1], pieces[-1] + 1)}
    assert {p.source for p in found.phrases or []} <= bigrams


def test_a_model_that_attends_to_nothing_says_so(tmp_path: Path) -> None:
    blind = made(tmp_path, FIXED, max_length={"constant": 3})
    with pytest.raises(ModelError, match="attends to no source tokens"):
        list(align_pairs(blind, ["a"], ["b"]))
    with pytest.raises(ModelError, match="attends to no source tokens"):
        measure(blind, ["a"], ["b"], [Gold()])
    with pytest.raises(ModelError, match="cannot align words"):
        blind.translate(["a"], alignments=True)
    assert not blind.can_align
    assert blind.translate(["a"])[0].alignment is None


def test_long_sources_keep_the_links_of_what_the_model_saw(token: Translator) -> None:
    line = " ".join(["a", "cow"] * 10)
    short = token.with_options(max_input_tokens=7)
    (one,) = align_pairs(short, [line], ["the man"])
    seen = token.tokenizer.source.word_of_piece(token.tokenizer.source.encode(line)[:7])
    assert one.cropped
    assert max(s for s, _ in one.links) <= seen[-1] < 19
    assert not next(align_pairs(token, [line], ["the man"])).cropped


def test_errors_name_the_line(token: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="2 sources, but 1 targets"):
        list(align_pairs(token, ["a", "b"], ["c"]))
    with pytest.raises(DataError, match="1 gold alignments, but 2 sentence pairs"):
        measure(token, ["a", "b"], ["c", "d"], [Gold()])
    real = alignment.word_of_piece

    def refuses(side: Side, line: str, ids: list[int]) -> list[int]:
        if line == "tonight" and side is token.tokenizer.target:
            raise DataError("no")
        return real(side, line, ids)

    monkeypatch.setattr(alignment, "word_of_piece", refuses)
    with pytest.raises(DataError, match=r"t\.de:12: no"):
        pairs = align_pairs(token, ["a", "", "b"], ["c", "", "tonight"], files=("t.en", "t.de"), first_line=10)
        list(pairs)


def test_trees_beside_blank_lines(tmp_path: Path) -> None:
    translator = made(
        tmp_path, {"phrases": {"segments": {"kind": "dataset"}}}, TreeSegmenter(max_tokens=3, min_chunks=1, floor=1)
    )
    sources, targets = ["", "a cow", "", "a ."], ["", "the man", "x", "we"]
    trees = ["", "(NP (D a) (N cow))", "", "(S (D a) (. .))"]
    found = list(align_pairs(translator, sources, targets, trees=trees))
    assert [bool(one.links) for one in found] == [False, True, False, True]
    with pytest.raises(DataError, match="does not fit its line") as caught:
        list(align_pairs(translator, sources, targets, trees=[*trees[:3], "(S (D the) (. .))"]))
    assert caught.value.line == 4
    with pytest.raises(UsageError, match="4 lines, but 3 trees"):
        list(align_pairs(translator, sources, targets, trees=trees[:3]))
    with pytest.raises(UsageError, match="needs parse trees to find source phrases"):
        list(align_pairs(translator, sources, targets))


# Scores ----------------------------------------------------------------------------------------------------------------


GOLD = [
    Gold(frozenset({(i, j) for i in range(2) for j in range(2)}), frozenset({(i, i) for i in range(4)}))
    for _ in SOURCES
]


def test_scores_are_those_of_the_links(translator: Translator) -> None:
    measured = measure(translator, SOURCES, TARGETS, GOLD)
    structures = translator.model.decoder.cross_structures
    assert [(m.layer, m.head, m.method) for m in measured] == [
        (layer, head, method)
        for layer, structure in enumerate(structures, 1)
        for head in (None, "max", *range(1, structure.heads + 1))
        for method in METHODS
    ]
    for m in measured[:: 5 if len(structures) > 1 else 1]:
        options = {"alignment_layer": m.layer, "alignment_head": m.head, "alignment_method": m.method}
        links = [one.links for one in align_pairs(translator.with_options(**options), SOURCES, TARGETS)]
        assert m.score == score_alignment(links, GOLD), m


def test_the_best_comes_first_and_equals_keep_their_order() -> None:
    def one(layer: int, head: int | None, right: int) -> MeasuredAlignment:
        return MeasuredAlignment(layer, head, "union", AlignmentScore(1, 10, 10, 10, right, right))

    found = [one(1, None, 5), one(1, 1, 9), one(2, None, 9), one(2, 1, 2)]
    assert ranked(found) == [found[1], found[2], found[0], found[3]]


def test_one_hot_attention_gives_the_known_alignment_back(token: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Head 2 of layer 3 looks at the first piece of the word that is right; the other heads do not."""
    rng = random.Random(5)
    sources = [" ".join(rng.sample(LINES[1].split(), 6)) for _ in range(12)]
    links = []
    targets = []
    for source in sources:
        words = source.split()
        order = rng.sample(range(6), 6)
        links.append(frozenset((s, t) for t, s in enumerate(order)))
        targets.append(" ".join(words[s] for s in order))

    def attention(_: Any, given: Sequence[str], forced: Sequence[list[int]], **__: Any) -> Iterator[Attended]:
        side = token.tokenizer.source
        for source, ids, of_pair in zip(given, forced, links, strict=True):
            source_word = side.word_of_piece(side.encode(source))
            target_word = token.tokenizer.target.word_of_piece(ids)
            layers = [np.full((4, len(ids) + 1, len(source_word) + 1), 0.1, np.float32) for _ in range(3)]
            layers[2][:] = 0
            layers[2][[0, 2, 3], :, 0] = 1
            of_target = {t: s for s, t in of_pair}
            for row, word in enumerate(target_word):
                layers[2][1, row, source_word.index(of_target[word])] = 1
            layers[2][1, -1, -1] = 1
            yield Attended(layers, layers, source_word, target_word)

    monkeypatch.setattr(alignment, "forced_attention", attention)
    gold = [Gold(some) for some in links]
    right = [m for m in measure(token, sources, targets, gold) if m.score.aer == 0 and m.head is not None]
    assert [(m.layer, m.head, m.method) for m in right] == [(3, 2, method) for method in METHODS]
    for method in METHODS:
        chosen = token.with_options(alignment_layer=3, alignment_head=2, alignment_method=method)
        found = list(align_pairs(chosen, sources, targets))
        assert [one.links for one in found] == links
        assert all(0 < weight <= 1 for one in found for weight in one.weights.values())


# Memory ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = made(tmp_path / "text", {})
    config = ModelConfig.model_validate(SIZES)
    save_model(tmp_path / "m", model.model, config, model.tokenizer, generation={"beam": 2})
    for name, lines in (("s", SOURCES), ("t", TARGETS), ("gold", [])):
        (tmp_path / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    return tmp_path / "m"


def files_of(folder: Path) -> dict[str, Path]:
    return {name: folder.parent / file for name, file in (("source", "s"), ("target", "t"), ("gold", "gold"))}


def test_a_remembered_choice_is_that_of_every_later_alignment(folder: Path) -> None:
    before = Translator.from_pretrained(folder)
    best = MeasuredAlignment(3, 2, "union", AlignmentScore(9, 10, 8, 8, 5, 6))
    assert remember(folder, best, **files_of(folder)) == folder
    config = Translator.from_pretrained(folder).config
    assert (config.alignment_layer, config.alignment_head, config.alignment_method) == (3, 2, "union")
    assert config.beam == 2
    selection = config.alignment_selection
    assert selection is not None
    assert selection.aer == best.score.aer
    assert selection.sentences == 9
    assert (selection.source.name, selection.source.sha256) == ("s", sha256_file(folder.parent / "s"))
    assert str(folder.parent) not in (folder / "generation_config.json").read_text()
    after = [one.links for one in align_pairs(Translator.from_pretrained(folder), SOURCES, TARGETS)]
    asked = before.with_options(alignment_layer=3, alignment_head=2, alignment_method="union")
    assert after == [one.links for one in align_pairs(asked, SOURCES, TARGETS)]
    remember(folder, MeasuredAlignment(1, None, "intersection", best.score), **files_of(folder))
    config = Translator.from_pretrained(folder).config
    assert (config.alignment_layer, config.alignment_head, config.alignment_method) == (1, None, "intersection")


def test_a_damaged_folder_stays_as_damaged_as_it_was(folder: Path) -> None:
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CorruptError, match=r"model\.safetensors"):
        remember(folder, MeasuredAlignment(1, None, "union", AlignmentScore(1, 1, 1, 1, 1, 1)), **files_of(folder))
    with pytest.raises(CorruptError, match=r"model\.safetensors"):
        Translator.from_pretrained(folder)
