"""Phrase slots against gold phrases: windows, classes, chance, hand-made weights; files; whole models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.analysis.explain_kinds import CONTINUOUS, joined_tokenizer
from tests.helpers import bpe_tokenizer, tagged_tokenizer, tiny_tokenizer

from phraseloom.analysis.coverage import (
    GoldSpan,
    LayerTally,
    by_order,
    classify,
    exists,
    measure,
    parse_spans,
    read_phrases,
    strongest,
    summary,
    windows,
)
from phraseloom.data.tensors import make_batch
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, ModelError, UsageError
from phraseloom.layers.attention.structure import HeadGroup, Structure
from phraseloom.models import tasks
from phraseloom.models.build import build_model
from phraseloom.options.decoding import DecodingConfig
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.text.tokenizer import Tokenizer

HETEROGENEOUS = Structure.of_orders(2, [1, 2])
THREE = Structure.of_orders(1, [1, 2, 3])
HOMOGENEOUS = Structure(2, ((HeadGroup(1, 0, 1), HeadGroup(2, 1, 2)),), zero_extended=True)
INTERLEAVED = Structure.of_orders(1, [1, 2], query_orders=(1, 2))
# the | old | kit chen | ta ble | EOS: a phrase of words 2 and 3 in two subwords each
WORDS = [0, 1, 2, 2, 3, 3, 4]
PHRASE = GoldSpan((2, 4), (1,), "compound")
EXACT, INSIDE, CROSSING, OUTSIDE = range(4)


def test_windows_are_words_of_subwords() -> None:
    first, last = windows(WORDS, 3)
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 2),
        (2, 3),
        (2, 3),
        (3, 4),
    ]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (1, [OUTSIDE, OUTSIDE, INSIDE, INSIDE, INSIDE, INSIDE, OUTSIDE]),
        (2, [OUTSIDE, OUTSIDE, CROSSING, INSIDE, EXACT, INSIDE, CROSSING]),
        (3, [OUTSIDE, OUTSIDE, CROSSING, CROSSING, EXACT, EXACT, CROSSING]),
        (4, [OUTSIDE, OUTSIDE, CROSSING, CROSSING, CROSSING, EXACT, CROSSING]),
    ],
)
def test_classes(order: int, expected: list[int]) -> None:
    assert classify(WORDS, order, [(2, 4)]).tolist() == expected


def test_classes_of_several_phrases_and_of_none() -> None:
    words = [0, 1, 2, 3, 4]
    assert classify(words, 2, [(0, 2), (2, 4)]).tolist() == [INSIDE, EXACT, CROSSING, EXACT, CROSSING]
    assert classify(words, 2, [(0, 3), (1, 3)]).tolist() == [
        INSIDE,
        INSIDE,
        EXACT,
        CROSSING,
        OUTSIDE,
    ]  # the better of two
    assert classify(words, 2, []).tolist() == [OUTSIDE] * 5


def test_which_slots_exist() -> None:
    assert exists(4, 3, HETEROGENEOUS).tolist() == [False, False, True, True]
    assert exists(4, 3, HOMOGENEOUS).tolist() == [True] * 4
    assert not exists(2, 3, HETEROGENEOUS).any()


def uniform(structure: Structure, queries: int, keys: int) -> torch.Tensor:
    """Attention that is the same on every slot that exists, in the layout of the structure; one sentence."""
    weights = torch.zeros(1, structure.heads, len(structure.query_orders), queries, len(structure.blocks), keys)
    for g, block in enumerate(structure.blocks):
        for part in block:
            weights[:, part.first : part.last, :, :, g] = torch.from_numpy(exists(keys, part.order, structure)).float()
    weights /= weights.sum((-1, -2), keepdim=True)
    for m, order in enumerate(structure.query_orders):
        weights[:, :, m, : order - 1] = 0
    return weights.flatten(4, 5).flatten(2, 3)


@pytest.mark.parametrize("structure", [HETEROGENEOUS, THREE, HOMOGENEOUS, INTERLEAVED])
def test_mass_by_order_sums_to_one_for_every_query(structure: Structure) -> None:
    mass = by_order(uniform(structure, 5, 7), structure)
    assert sorted(mass) == list(structure.orders)
    np.testing.assert_allclose(sum(m.sum(-1) for m in mass.values()), np.ones((1, 5)), rtol=1e-6)


def test_mass_by_order_by_hand() -> None:
    weights = torch.zeros(1, 2, 2, 6)  # two heads, two queries, [order 1: 3 slots, order 2: 3 slots]
    weights[0, 0, 0, 1], weights[0, 1, 0, 5] = 1.0, 1.0
    weights[0, 0, 1, 4], weights[0, 1, 1, 4] = 0.5, 0.25
    mass = by_order(weights, HETEROGENEOUS)
    np.testing.assert_array_equal(mass[1][0], [[0, 0.5, 0], [0, 0, 0]])
    np.testing.assert_array_equal(mass[2][0], [[0, 0, 0.5], [0, 0.375, 0]])


def test_query_ngrams_that_do_not_exist_do_not_count() -> None:
    weights = torch.zeros(1, 1, 2 * 2, 2 * 3)  # rows: order 1 at 0, 1; order 2 at 0 (none), 1
    weights[0, 0, 0, 0], weights[0, 0, 1, 1], weights[0, 0, 3, 4] = 1.0, 1.0, 1.0
    weights[0, 0, 2, :] = 7.0  # whatever stands there
    mass = by_order(weights, INTERLEAVED)
    np.testing.assert_array_equal(mass[1][0], [[1, 0, 0], [0, 0.5, 0]])
    np.testing.assert_array_equal(mass[2][0], [[0, 0, 0], [0, 0.5, 0]])


def tally_of(weights: torch.Tensor, structure: Structure, rows: list[int], words: list[int] = WORDS) -> LayerTally:
    tally = LayerTally()
    mass = {order: some[0] for order, some in by_order(weights, structure).items()}
    tally.add(mass, words, [PHRASE], [rows], structure)
    return tally


@pytest.mark.parametrize("structure", [HETEROGENEOUS, THREE, HOMOGENEOUS, INTERLEAVED])
def test_uniform_attention_is_chance(structure: Structure) -> None:
    found = summary(tally_of(uniform(structure, 4, 7), structure, [1, 2]), samples=10)
    for entry in found["orders"]:
        assert entry["lift"]["value"] == pytest.approx(1.0)
        for name in ("exact", "inside", "crossing", "outside"):
            assert entry[name]["share"] == pytest.approx(entry[name]["chance"])
    assert found["strongest"][""]["share"]["value"] == pytest.approx(found["strongest"][""]["chance"])


def test_shares_chance_and_lift_by_hand() -> None:
    weights = torch.zeros(1, 2, 2, 14)
    weights[0, :, :, 0] = 0.4  # a token outside
    weights[0, :, :, 7 + 4] = 0.3  # exact
    weights[0, :, :, 7 + 3] = 0.1  # inside
    weights[0, :, :, 7 + 6] = 0.2  # crossing
    one, two = summary(tally_of(weights, HETEROGENEOUS, []), samples=10)["orders"]
    assert (one["order"], two["order"]) == (1, 2)
    assert two["mass"]["value"] == pytest.approx(0.6)
    assert [two[c]["share"] for c in ("exact", "inside", "crossing", "outside")] == pytest.approx(
        [3 / 6, 1 / 6, 2 / 6, 0]
    )
    # slots of order 2 end at tokens 1 … 6: outside, crossing, inside, exact, inside, crossing
    assert [two[c]["chance"] for c in ("exact", "inside", "crossing", "outside")] == pytest.approx(
        [1 / 6, 2 / 6, 2 / 6, 1 / 6]
    )
    assert two["lift"]["value"] == pytest.approx((4 / 6) / (3 / 6))
    assert one["covered"]["share"]["value"] == 0 and one["covered"]["chance"] == pytest.approx(4 / 7)


def test_several_orders_are_also_taken_together() -> None:
    weights = torch.zeros(1, 1, 1, 21)
    weights[0, 0, 0, 7 + 4], weights[0, 0, 0, 14 + 2] = 0.75, 0.25  # exact of order 2, crossing of order 3
    one, two, three, both = summary(tally_of(weights, THREE, []), samples=10)["orders"]
    assert (one["order"], two["order"], three["order"], both["order"]) == (1, 2, 3, "2–3")
    assert both["mass"]["value"] == 1.0 and both["exact"]["share"] == 0.75 and both["crossing"]["share"] == 0.25
    chance = 0.75 * 1 / 6 + 0.25 * 2 / 5
    assert both["exact"]["chance"] == pytest.approx(chance)
    assert one["lift"]["value"] is None and one["lift"]["interval"] is None  # no mass, no ratio


def test_the_strongest_slot_of_a_phrase() -> None:
    mass = {1: np.zeros((3, 7)), 2: np.zeros((3, 7))}
    mass[1][:, 0] = 0.6  # a token is stronger than any phrase slot: it does not count
    mass[2][1, 4], mass[2][1, 1], mass[2][0, 1], mass[2][2, 1] = 0.3, 0.1, 0.4, 0.4
    own = strongest(mass, WORDS, PHRASE, [1], HETEROGENEOUS, sentence=5)
    assert own is not None and (own.sentence, own.kind) == (5, "compound")
    assert (own.hit, own.exact, own.others) == (1, 1, 0)
    assert own.share == pytest.approx(0.75)
    assert (own.chance, own.exact_chance) == (pytest.approx(3 / 6), pytest.approx(1 / 6))
    other = strongest(mass, WORDS, PHRASE, [0], HETEROGENEOUS)
    assert other is not None and (other.hit, other.exact, other.share, other.others) == (0, 0, 0, 0)
    together = strongest(mass, WORDS, PHRASE, [0, 1], HETEROGENEOUS)
    assert together is not None and together.hit == 0  # 0.5 outside, 0.3 inside
    mass[2][1, 4] = 1.0  # the phrase's own queries are no part of the others
    loud = strongest(mass, WORDS, PHRASE, [1], HETEROGENEOUS)
    assert loud is not None and (loud.hit, loud.others) == (1, 0)
    assert strongest({1: mass[1]}, WORDS, PHRASE, [1], Structure.of_orders(1, [1])) is None
    short = {2: np.ones((1, 1))}
    assert strongest(short, [0], PHRASE, [0], HETEROGENEOUS) is None  # a sentence without any slot of order 2


def test_intervals_are_over_sentences() -> None:
    tally = LayerTally()
    rng = np.random.default_rng(1)
    shares = rng.choice([0.2, 0.8], 200)
    for share in shares:
        mass = {2: np.zeros((1, 7))}
        mass[2][0, 4], mass[2][0, 1] = share, 1 - share
        tally.add(mass, WORDS, [PHRASE], [[0]], Structure.of_orders(1, [2]))
    found = summary(tally, samples=2000)
    covered = found["orders"][0]["covered"]["share"]
    assert covered["value"] == pytest.approx(shares.mean())
    low, high = covered["interval"]
    assert (high - low) / 2 == pytest.approx(1.96 * shares.std() / np.sqrt(200), rel=0.1)
    assert found["strongest"]["compound"] == found["strongest"][""]
    assert found["strongest"][""]["hit"]["value"] == pytest.approx((shares > 0.5).mean())


def test_spans() -> None:
    assert parse_spans("") == []
    assert parse_spans("0:2 3:6-2:3,5:7=idiom 1:3-0:1") == [
        GoldSpan((0, 2)),
        GoldSpan((3, 6), (2, 5, 6), "idiom"),
        GoldSpan((1, 3), (0,)),
    ]
    for wrong in ("2", "2:1", "1:1", "1:3-", "1:3-2:2", "1:3=", "a:b", "1:3-2=idiom"):
        with pytest.raises(DataError, match="not a phrase"):
            parse_spans(wrong)


def test_phrases_of_two_and_more_words_of_the_wanted_kinds() -> None:
    lines = ["0:1-0:2=expansion 2:4-1:2=compound", "", "1:4-0:3=idiom"]
    assert [[p.source for p in some] for some in read_phrases(lines, file="f")] == [[(2, 4)], [], [(1, 4)]]
    assert [len(some) for some in read_phrases(lines, file="f", kinds=["idiom"])] == [0, 0, 1]
    linked = read_phrases(lines, file="f", links=["2-3 3-5 1-1 4-6", "", "0-7"])
    assert [[p.target for p in some] for some in linked] == [[(3, 5)], [], [()]]
    with pytest.raises(DataError, match="f:2: not a phrase"):
        read_phrases(["", "x"], file="f")
    with pytest.raises(DataError, match="g:1: not a word link"):
        read_phrases(["0:2"], file="f", links=["0"], links_file="g")


SOURCES = ["the old man sleeps .", "a winter garden is dark .", "we invite them tonight .", "the cow ."]
TARGETS = ["zwei Büros .", "the winter garden .", "we sleeps .", "a cow ."]
TAG = "<2de>"
PHRASES = ["0:2-0:1=compound 1:3-1:2=idiom", "1:3-1:2=compound", "", "0:2"]


def translator(folder: Path, attention: object, **options: object) -> Translator:
    torch.manual_seed(1)
    tokenizer = tagged_tokenizer(TAG) if "tags" in options else tiny_tokenizer(folder)
    config = ModelConfig.model_validate(
        {
            "width": 16,
            "heads": 2,
            "ffn_width": 32,
            "encoder": {"layers": 2},
            "decoder": {"layers": 1},
            "attention": attention,
        }
    )
    sizes = len(tokenizer.source.vocabulary), len(tokenizer.target.vocabulary)
    return Translator(build_model(config, *sizes), tokenizer, DecodingConfig.model_validate(options))


@pytest.mark.parametrize(
    "attention",
    ["queryk heterogeneous 1-2", "convkv homogeneous 11", "queryk interleaved 1-2", "convkv heterogeneous 1-2-3"],
)
def test_a_model(attention: str, tmp_path: Path) -> None:
    model = translator(tmp_path, attention)
    found = measure(model, SOURCES, TARGETS, read_phrases(PHRASES, file="f"), samples=20)
    assert (found["sentences"], found["phrases"], found["left_out"]) == (3, 4, {"without_phrases": 1, "too_long": 0})
    assert [len(found["uses"][use]) for use in ("encoder-self", "cross")] == [2, 1]
    for use, layers in found["uses"].items():
        for layer in layers:
            orders = [e for e in layer["orders"] if isinstance(e["order"], int)]
            assert sum(e["mass"]["value"] for e in orders) == pytest.approx(1.0, abs=1e-5)
            for entry in orders:
                assert sum(entry[c]["share"] for c in ("exact", "inside", "crossing", "outside")) == pytest.approx(1.0)
            assert layer["strongest"][""]["phrases"] == (4 if use == "encoder-self" else 3)  # one has no target words
    same = measure(model, SOURCES, TARGETS, read_phrases(PHRASES, file="f"), samples=20)
    assert same == found


@pytest.mark.parametrize("attention", ["queryk heterogeneous 1-2", "convkv homogeneous 11"])
def test_the_model_reads_its_tags_and_they_belong_to_no_phrase(attention: str, tmp_path: Path) -> None:
    model, source, target = translator(tmp_path, attention, tags=[TAG]), SOURCES[3], TARGETS[3]
    tokenizer = model.tokenizer
    found = measure(model, [source], [target], read_phrases(["0:2-0:1"], file="f"), samples=5)
    ids = [*tokenizer.tag_ids([TAG]), *tokenizer.source.encode(source)]
    words = [-1, *tokenizer.source.word_of_piece(ids[1:]), 9]
    batch = make_batch([ids], [tokenizer.target.encode(target)])
    with torch.inference_mode():
        maps = model.model.attention_maps(batch.source_BS, batch.source_lengths_B, batch.target_in_BT)
    own = [i for i, word in enumerate(words) if word in (0, 1)]
    aligned = [t for t, word in enumerate(tokenizer.target.word_of_piece(tokenizer.target.encode(target))) if word == 0]
    for use, layer, rows in (("encoder-self", maps.encoder_self[0], own), ("cross", maps.cross[0], aligned)):
        tally = LayerTally()
        mass = {order: weights[0] for order, weights in by_order(*layer).items()}
        tally.add(mass, words, [GoldSpan((0, 2), (0,))], [rows], layer[1])
        expected = summary(tally, samples=5)
        for mine, theirs in zip(found["uses"][use][0]["orders"], expected["orders"], strict=True):
            for name in ("exact", "inside", "crossing", "outside"):
                assert mine[name] == pytest.approx(theirs[name], rel=1e-5)
        (hit,) = tally.hits
        strong = found["uses"][use][0]["strongest"][""]
        assert (strong["share"]["value"], strong["chance"]) == pytest.approx((hit.share, hit.chance), rel=1e-5)
    assert classify(words, 2, [(0, 2)])[:2].tolist() == [OUTSIDE, CROSSING]
    untagged = measure(model.with_options(tags=[]), [source], [target], [[GoldSpan((0, 2), (0,))]], samples=5)
    assert untagged["uses"] != found["uses"]


def test_padding_and_the_other_sentences_change_nothing(tmp_path: Path) -> None:
    model = translator(tmp_path, "queryk heterogeneous 1-2")
    phrases = read_phrases(PHRASES, file="f")
    together = measure(model, SOURCES, TARGETS, phrases, samples=5)
    alone = [measure(model, SOURCES[i : i + 1], TARGETS[i : i + 1], phrases[i : i + 1], samples=5) for i in (0, 1, 3)]
    rows = [model.tokenizer.target.encode(t) for t in (TARGETS[0], TARGETS[1], TARGETS[3])]
    weights = np.array([len(r) + 1.0 for r in rows])
    mass = [a["uses"]["cross"][0]["orders"][1]["mass"]["value"] for a in alone]
    expected = float((weights * mass).sum() / weights.sum())
    assert together["uses"]["cross"][0]["orders"][1]["mass"]["value"] == pytest.approx(expected, rel=1e-5)


def test_only_the_uses_with_phrase_slots_are_reported(tmp_path: Path) -> None:
    model = translator(
        tmp_path, {"encoder_self": "token", "decoder_self": "token", "cross": "queryk heterogeneous 1-2"}
    )
    found = measure(model, SOURCES, TARGETS, read_phrases(PHRASES, file="f"), samples=5)
    assert found["uses"]["encoder-self"] == [] and len(found["uses"]["cross"]) == 1


def test_what_cannot_be_measured(tmp_path: Path) -> None:
    model = translator(tmp_path, "queryk heterogeneous 1-2")
    phrases = read_phrases(PHRASES, file="f")
    with pytest.raises(ModelError, match=r"no phrase slots.*n-gram slots"):
        measure(translator(tmp_path, "token"), SOURCES, TARGETS, phrases)
    with pytest.raises(UsageError, match="4 sources, 3 targets"):
        measure(model, SOURCES, TARGETS[:3], phrases)
    with pytest.raises(UsageError, match="at least 1 resample"):
        measure(model, SOURCES, TARGETS, phrases, samples=0)
    with pytest.raises(DataError, match="no sentence has a gold phrase"):
        measure(model, SOURCES, TARGETS, [[], [], [], []])
    with pytest.raises(DataError, match=r"phrases:4: the sentence has 3 and 3 words.*2:9"):
        measure(model, SOURCES, TARGETS, read_phrases(["", "", "", "2:9"], file="f"))
    with pytest.raises(DataError, match="target word 8"):
        measure(model, SOURCES, TARGETS, read_phrases(["0:2-8:9", "", "", ""], file="f"))
    with pytest.raises(ModelError, match="no encoder"):
        measure(Translator(torch.nn.Linear(1, 1), model.tokenizer), SOURCES, TARGETS, phrases)
    broken = translator(tmp_path, "queryk heterogeneous 1-2")
    next(broken.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(ModelError, match="NaN"):
        measure(broken, SOURCES, TARGETS, phrases)


def test_unknown_pieces_stay_in_their_words(tmp_path: Path) -> None:
    tokenizer = bpe_tokenizer()
    config = ModelConfig.model_validate({"preset": "tiny", "attention": "queryk heterogeneous 1-2"})
    model = Translator(build_model(config, *[len(tokenizer.source.vocabulary)] * 2), tokenizer)
    with pytest.raises(DataError, match="phrases:1: the sentence has 2 and 3 words"):
        measure(model, [" th★e c★w"], ["a c★★w ."], read_phrases(["1:3"], file="f"))


def test_gold_counts_the_words_before_tokenisation(tmp_path: Path) -> None:
    """Moses makes two words of `old,`: the gold of a line is that of the same line without its comma."""
    plain = translator(tmp_path, "queryk heterogeneous 1-2")
    own = plain.tokenizer
    moses = Tokenizer(TextConfig(tokenize="moses"), "en", "de", own.source.subwords, own.target.subwords)
    model = Translator(plain.model, moses)
    raw = ("the old, winter garden .", "small, a cow .", "2:4-1:3")
    cut = ("the old , winter garden .", "small , a cow .", "3:5-2:4")
    found, same = (
        measure(model, [source], [target], read_phrases([gold], file="f"), samples=5)
        for source, target, gold in (raw, cut)
    )
    assert found == same
    with pytest.raises(DataError, match="phrases:1: the sentence has 5 and 4 words"):
        measure(model, [raw[0]], [raw[1]], read_phrases(["2:6"], file="f"))


def test_target_words_of_joined_text() -> None:
    """A phrase counts for the rows of every joined token that has one of its words, and for its last word."""
    torch.manual_seed(1)
    kind = {**CONTINUOUS["words or phrases"], "attention": {"cross": "queryk heterogeneous 1-2"}}
    tokenizer = joined_tokenizer()
    model = Translator(tasks.build(ModelConfig.model_validate(kind), tokenizer), tokenizer)
    hits = {}
    for target, gold in (
        ("the_old_man sleeps", "0:2-2:3"),
        ("the_old_man sleeps", "0:2-0:1"),
        ("the_old_man sleeps", "0:2-3:4"),
    ):
        found = measure(model, ["the old man sleeps ."], [target], read_phrases([gold], file="f"), samples=5)
        hits[gold] = found["uses"]["cross"][0]["strongest"][""]
        assert hits[gold]["phrases"] == 1
    assert hits["0:2-2:3"] == hits["0:2-0:1"] != hits["0:2-3:4"]
    with pytest.raises(DataError, match=r"phrases:1: the sentence has 5 and 3 words.*target word 3"):
        measure(model, ["the old man sleeps ."], ["the_old_man"], read_phrases(["0:2-3:4"], file="f"))


def test_long_sentences_are_left_out_and_counted(tmp_path: Path) -> None:
    model = translator(tmp_path, "queryk heterogeneous 1-2", max_input_tokens=8)
    sizes = [len(model.tokenizer.source.encode(s)) for s in SOURCES]
    assert min(sizes) <= 8 < max(sizes)
    found = measure(model, SOURCES, TARGETS, read_phrases(PHRASES, file="f"), samples=5)
    assert found["left_out"]["too_long"] > 0 and found["sentences"] + found["left_out"]["too_long"] == 3
