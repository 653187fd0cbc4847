"""The explain document: its numbers are those of the analyses they come from, for every kind of model."""

from __future__ import annotations

import json
import math
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.analysis.explain_kinds import (
    KINDS,
    TRANSFORMERS,
    everywhere,
    table_translator,
    translator_of,
    tree_translator,
)
from tests.helpers import bpe_tokenizer, tagged_tokenizer, tiny_tokenizer

from phraseloom.analysis.activation import activation_shares
from phraseloom.analysis.alignment import align_pairs
from phraseloom.analysis.attention import forced_attention, pack, unpack
from phraseloom.analysis.coverage import GoldSpan
from phraseloom.analysis.coverage import measure as measure_coverage
from phraseloom.analysis.entropy import attention_entropy
from phraseloom.analysis.explain.sentence import explain
from phraseloom.analysis.heatmap import heat_map, tokens_of
from phraseloom.analysis.phrases import source_phrases
from phraseloom.data.tensors import make_batch
from phraseloom.decoding.ensemble import Member, build_ensemble
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, ModelError, UsageError
from phraseloom.models import tasks
from phraseloom.npmt.analysis import of_pairs
from phraseloom.options.model import ModelConfig
from phraseloom.phrases.source import word_of_piece
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import EOS

SOURCE, TARGET = "the old man sleeps .", "the cow sleeps ."
USES = ("cross", "encoder-self", "decoder-self")
PHRASES = ("encoder-phrases", "decoder-phrases")
TREE = "(S (NP (DT the) (JJ old) (NN man)) (VP (VBZ sleeps)) (. .))"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny_tokenizer(tmp_path_factory.mktemp("text"))


def view_of(translator: Translator, source: str = SOURCE, target: str | None = TARGET, **more: Any) -> dict[str, Any]:
    document = explain({"m": translator}, [source], None if target is None else [target], **more)
    view: dict[str, Any] = document["sentences"][0]["views"][0]
    return view


def step(packed: dict[str, Any]) -> float:
    """How far a packed value may be from what it was."""
    return float(packed["scale"]) / 510 + 1e-6


# --- packing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 1, 1), (2, 0, 3)])
def test_packing_is_exact_to_half_a_step(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).random(shape) ** 4
    packed = json.loads(json.dumps(pack(values)))
    again = unpack(packed)
    assert again.shape == shape and packed["shape"] == list(shape)
    assert np.abs(again - values).max(initial=0.0) <= packed["scale"] / 510 + 1e-12
    if values.size:
        assert packed["scale"] == values.max() == again.max()


def test_what_is_packed() -> None:
    assert np.array_equal(unpack(pack(np.zeros((2, 3)))), np.zeros((2, 3)))
    assert unpack(pack(np.array([0.0, 1.0, 1e-9]))).tolist() == [0.0, 1.0, 0.0]
    turned = np.arange(6.0).reshape(2, 3).T
    assert np.abs(unpack(pack(turned)) - turned).max() <= 5 / 510 + 1e-12
    for bad in (math.nan, math.inf, -0.1):
        with pytest.raises(ValueError, match="finite, non-negative"):
            pack(np.array([0.5, bad]))


# --- every kind of model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [TARGET, None], ids=["given", "own"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_has_a_view(kind: str, target: str | None, tokenizer: Tokenizer) -> None:
    translator = translator_of(kind, tokenizer)
    document = explain({"m": translator}, [SOURCE, " "], None if target is None else [target, ""], lines=[4, 9])
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    view, blank = (sentence["views"][0] for sentence in document["sentences"])
    assert set(view) == set(blank)
    assert blank["notes"] == ["the source is blank: the model does not see it"] and not blank["source_tokens"]
    assert [s["line"] for s in document["sentences"]] == [4, 9]
    assert document["models"][0]["parameters"] == sum(p.numel() for p in translator.model.parameters())
    assert view["given"] == (target is not None)
    check_lengths(view)
    for entry in view["attention"]:
        check_attention(view, entry)
    sizes = {use: sum(e["use"] == use for e in view["attention"]) for use in USES}
    decoder = translator.model.decoder
    assert sizes["cross"] == len(decoder.cross_structures) and sizes["decoder-self"] == len(decoder.own_structures)
    assert sizes["encoder-self"] == len(getattr(translator.model.encoder, "structures", ()))
    for use, stack in zip(PHRASES, (translator.model.encoder, decoder), strict=True):
        reads = "phrases" in KINDS[kind] and hasattr(stack, "layers") and hasattr(stack.layers[0], "combination")
        assert sum(e["use"] == use for e in view["attention"]) == (len(stack.layers) if reads else 0)
    layers = [(e["use"], e["layer"]) for e in view["attention"]]
    assert layers == sorted(layers, key=lambda one: ((*USES, *PHRASES).index(one[0]), one[1]))
    assert (view["segments"] is None) == (not kind.startswith("segmental"))
    assert (view["phrase_vectors"] is None) == ("phrases" not in KINDS[kind])
    assert (view["gate"] is None) == (kind not in ("words or phrases", "gate", "recurrent gate"))
    silent = kind == "recurrent fixed" or kind.startswith("segmental")
    assert any("no attention" in note or "no source tokens" in note for note in view["notes"]) == silent
    if not silent:
        assert view["word_links"] and view["phrase_links"]


@pytest.mark.parametrize("kind", ["token", "segmental"])
@pytest.mark.parametrize("target", ["the c★w sleeps .", None])
def test_unknown_pieces_stay_in_their_words(kind: str, target: str | None) -> None:
    tokenizer = bpe_tokenizer()
    view = view_of(translator_of(kind, tokenizer), "the ★ld m★n sleeps .", target)
    assert view["source_words"] == ["the", "★ld", "m★n", "sleeps", "."]
    line, ids = "the ★ld m★n sleeps .", tokenizer.source.encode("the ★ld m★n sleeps .")
    assert [word for word in view["source_word"] if word is not None] == word_of_piece(tokenizer.source, line, ids)
    assert target is None or view["target_words"] == target.split()
    assert {source for source, _, _ in view["word_links"]} <= set(range(5))
    assert view["word_links"]


def check_lengths(view: dict[str, Any]) -> None:
    tokens = view["target_tokens"]
    assert tokens[-1] == "</s>" and view["target_word"][-1] is None and view["target_span"][-1] is None
    assert len(tokens) == len(view["target_word"]) == len(view["target_span"]) == len(view["token_log_probs"])
    assert len(view["source_tokens"]) == len(view["source_word"])
    assert [w for w in view["target_word"] if w is not None] == [s[0] for s in view["target_span"] if s]
    assert {w for s in view["target_span"] if s for w in range(*s)} == set(range(len(view["target_words"])))
    assert {w for w in view["source_word"] if w is not None} == set(range(len(view["source_words"])))
    assert view["source_words"] == SOURCE.split()
    for source, target, weight in view["word_links"]:
        assert 0 <= source < len(view["source_words"]) and 0 <= target < len(view["target_words"])
        assert 0 <= weight <= 1 + 1e-6
    linked = [w for _, (first, last), _ in view["phrase_links"] for w in range(first, last)]
    assert linked in ([], list(range(len(view["target_words"]))))


def check_attention(view: dict[str, Any], entry: dict[str, Any]) -> None:
    weights, rows, columns = unpack(entry["weights"]), entry["rows"], entry["columns"]
    assert weights.shape == (entry["heads"], len(rows["labels"]), len(columns["labels"]))
    visible = weights.sum(-1) > 0
    coarse = weights.shape[-1] * step(entry["weights"])
    assert weights.sum(-1)[visible] == pytest.approx(1, abs=coarse)
    for axis in (rows, columns):
        assert len(axis["orders"]) == len(axis["ends"]) == len(axis["labels"])
        if entry["use"] in PHRASES and axis is columns:
            assert list(accumulate(axis["orders"], initial=-1))[1:] == axis["ends"]
            assert axis["ends"][-1] == len(view["source_tokens"]) - 1
        else:
            assert axis["orders"] == sorted(axis["orders"])
        names = view[f"{axis['side']}_tokens"]
        for label, order, end in zip(axis["labels"], axis["orders"], axis["ends"], strict=True):
            if order == 1:
                assert label == ("<s>" if end == -1 else names[end])
    if entry["use"] == "decoder-self":
        assert rows["ends"][0] == -1
        hidden = np.array(columns["ends"])[None] > np.array(rows["ends"])[:, None]
        assert not weights[:, hidden].any()
    tokens = entry["tokens"]
    of_tokens = entry["kind"] in ("token", "relative", "mlp", "general")
    assert (tokens is None) == (of_tokens or entry["use"] in PHRASES)
    if tokens is not None:
        assert tokens["shape"][1] == rows["orders"].count(1)
        assert tokens["shape"][2] in (len(view["source_tokens"]), len(view["target_tokens"]))


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*TRANSFORMERS, "mixed"])
def test_attention_is_that_of_heat_maps(kind: str, tokenizer: Tokenizer) -> None:
    translator = translator_of(kind, tokenizer)
    for entry in view_of(translator)["attention"]:
        use, layer, weights = entry["use"], entry["layer"], unpack(entry["weights"])
        mean = heat_map(translator, SOURCE, TARGET, use=use, layer=layer)
        assert np.abs(weights.mean(0) - mean.weights).max() <= step(entry["weights"])
        for axis, of_map in ((entry["rows"], mean.rows), (entry["columns"], mean.columns)):
            assert (axis["labels"], axis["orders"]) == (of_map.labels, of_map.orders)
        for head in range(entry["heads"]):
            one = heat_map(translator, SOURCE, TARGET, use=use, layer=layer, head=head + 1)
            kept = np.isin(entry["columns"]["orders"], one.columns.orders)
            assert np.abs(weights[head][:, kept] - one.weights).max() <= step(entry["weights"])
            assert not weights[head][:, ~kept].any()


@pytest.mark.parametrize("kind", [*TRANSFORMERS, "recurrent multihead"])
def test_tokens_are_those_of_forced_attention(kind: str, tokenizer: Tokenizer) -> None:
    translator = translator_of(kind, tokenizer)
    (attended,) = forced_attention(translator, [SOURCE], [TARGET])
    entries = [e for e in view_of(translator)["attention"] if e["use"] == "cross"]
    for entry, expected_HTS in zip(entries, attended.layers, strict=True):
        packed = entry["weights"] if entry["tokens"] is None else entry["tokens"]
        assert np.abs(unpack(packed) - expected_HTS).max() <= step(packed)


@pytest.mark.parametrize("kind", [*TRANSFORMERS, "mixed", "heterogeneous without tokens"])
def test_shares_are_those_of_activation(kind: str, tokenizer: Tokenizer) -> None:
    translator = translator_of(kind, tokenizer)
    found = activation_shares(translator, [SOURCE], [TARGET])
    shares = view_of(translator)["shares"]
    for use in USES:
        for layer, expected in enumerate(found.uses[use], 1):
            own = [s for s in shares if (s["use"], s["layer"]) == (use, layer)]
            assert {f"{s['query']}-{n}" for s in own for n in s["heads"][0]} == set(expected.orders)
            for share in own:
                for order in share["heads"][0]:
                    mean = 100 * np.mean([head[order] for head in share["heads"]])
                    assert mean == pytest.approx(expected.orders[f"{share['query']}-{order}"], abs=1e-4)


def test_shares_of_heads_of_one_order(tokenizer: Tokenizer) -> None:
    shares = view_of(translator_of("queryk homogeneous 22", tokenizer))["shares"]
    assert shares[0]["heads"] == [{"1": 1.0, "2": 0.0}] * 2 + [{"1": 0.0, "2": 1.0}] * 2


def test_a_sentence_without_slots_has_empty_attention(tokenizer: Tokenizer) -> None:
    """Three tokens and more are needed for a slot of order 3, and `a` has two with EOS."""
    torch.manual_seed(0)
    config = ModelConfig.model_validate({**everywhere("token"), "attention": {"cross": "queryk heterogeneous 3-4"}})
    view = view_of(Translator(tasks.build(config, tokenizer), tokenizer), "a")
    assert len(view["source_tokens"]) == 2
    cross = view["attention"][0]
    assert unpack(cross["weights"]).shape == (4, len(view["target_tokens"]), 0) and cross["columns"]["labels"] == []
    assert view["shares"][0]["heads"] == [{"3": None, "4": None}] * 4
    assert not unpack(cross["tokens"]).any() and view["phrase_links"] == []
    assert json.dumps(view, allow_nan=False)


@pytest.mark.parametrize("options", [{}, {"alignment_layer": 1, "alignment_head": 2}, {"alignment_method": "union"}])
@pytest.mark.parametrize("kind", ["token", "queryk interleaved 1-2", "queryk homogeneous 22"])
def test_links_are_those_of_align_and_translate(kind: str, options: dict[str, Any], tokenizer: Tokenizer) -> None:
    translator = translator_of(kind, tokenizer).with_options(**options)
    (expected,) = align_pairs(translator, [SOURCE], [TARGET])
    links = view_of(translator)["word_links"]
    assert {(s, t) for s, t, _ in links} == expected.links
    assert {(s, t): w for s, t, w in links} == pytest.approx(expected.weights, abs=1e-6)
    (own,) = translator.translate([SOURCE], alignments=True)
    view = view_of(translator, target=None)
    assert [(s, t) for s, t, _ in view["word_links"]] == own.alignment
    spans = [(tuple(s), tuple(t)) for s, t, _ in view["phrase_links"]]
    assert spans == [(p.source, p.target) for p in own.phrases or []]
    assert [w for *_, w in view["phrase_links"]] == pytest.approx([p.weight for p in own.phrases or []], abs=1e-5)


def test_a_given_target_without_phrases_is_noted(tokenizer: Tokenizer) -> None:
    for kind, target, noted in (
        ("words or phrases", "the old man", True),
        ("words or phrases", None, False),  # the model's own translation
        ("words or phrases", "the_old_man", False),
        ("token", "the old man", False),
    ):
        found = view_of(translator_of(kind, tokenizer), "the cow", target)["notes"]
        assert any("read word by word" in note for note in found) == noted


@pytest.mark.parametrize("kind", ["token", "queryk interleaved 1-2", "queryk homogeneous 22"])
def test_links_and_notes_do_not_count_tags(kind: str) -> None:
    tokenizer = tagged_tokenizer("<2de>", "<news>")
    size = len(tokenizer.source.encode(SOURCE))
    for seed in range(8):
        translator = translator_of(kind, tokenizer, seed=seed).with_options(tags=["<2de>", "<news>"])
        (own,) = translator.translate([SOURCE], alignments=True)
        view = view_of(translator, target=None, max_tokens=99)
        assert [(s, t) for s, t, _ in view["word_links"]] == own.alignment
        spans = [(tuple(s), tuple(t)) for s, t, _ in view["phrase_links"]]
        assert spans == [(p.source, p.target) for p in own.phrases or []]
    assert view["source_tokens"][:2] == ["<2de>", "<news>"] and len(view["source_tokens"]) == size + 3
    assert not any("source" in note for note in view["notes"])
    for limit in (size - 1, size - 2, 1):
        notes = view_of(translator, max_tokens=limit)["notes"]
        assert notes[0] == f"the source was cropped to {limit} subwords of {size}"


@pytest.mark.parametrize("kind", ["token", "recurrent mlp", "segmental", "gate"])
def test_probabilities_are_those_of_score(kind: str, tokenizer: Tokenizer) -> None:
    translator = translator_of(kind, tokenizer)
    (score,) = translator.score([SOURCE], [TARGET])
    view = view_of(translator)
    assert view["log_prob"] == score.log_prob and view["score"] == score.score
    assert view["token_log_probs"] == score.token_log_probs
    own = translator.translate([SOURCE])[0]
    view = view_of(translator, target=None)
    assert (view["target"], view["target_words"]) == (own.text, own.words)
    if kind != "segmental":
        assert view["log_prob"] == pytest.approx(own.log_prob, abs=1e-3)


# --- segments, phrases, gates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["segmental", "segmental connected"])
def test_segments(kind: str, tokenizer: Tokenizer) -> None:
    translator = translator_of(kind, tokenizer)
    own = translator.translate([SOURCE], alignments=True)[0]
    view = view_of(translator, target=None)
    assert [(s["source_token"], *s["target_tokens"]) for s in view["segments"]] == [s[:3] for s in own.segments or []]
    assert [s["log_prob"] for s in view["segments"]] == [s.log_prob for s in own.segments or []]
    assert [(s, t) for s, t, _ in view["word_links"]] == own.alignment
    assert view["source_tokens"][-1] != "</s>" and view["target_tokens"][-1] == "</s>"
    forced, view = of_pairs(translator, [SOURCE], [TARGET]).sentences[0], view_of(translator)
    assert forced is not None
    found = [(s["source_token"], *s["target_tokens"], math.exp(s["log_prob"])) for s in view["segments"]]
    assert found == [pytest.approx(tuple(one)) for one in forced.segments]
    for segment in view["segments"]:
        touched = [view["target_span"][i] for i in range(*segment["target_tokens"])]
        assert segment["target"] == [touched[0][0], touched[-1][1]]
        assert segment["source"] == view["source_word"][segment["source_token"]]
    impossible = view_of(translator, "a", " ".join([TARGET] * 9))
    assert impossible["segments"] == [] and any("no segmentation" in note for note in impossible["notes"])
    assert impossible["log_prob"] is None and None in impossible["token_log_probs"]


@pytest.mark.parametrize("kind", ["source phrases", "gated source phrases", "glances"])
def test_source_phrases(kind: str, tokenizer: Tokenizer) -> None:
    translator = translator_of(kind, tokenizer)
    found, levels = source_phrases(translator, [SOURCE]), view_of(translator)["phrase_vectors"]
    assert [(level["stage"], level["layer"]) for level in levels] == [
        ("embeddings", None),
        ("encoder", 1),
        ("encoder", 2),
    ]
    for number, level in enumerate(levels):
        ends = [p["end"] for p in level["phrases"]]
        assert [p["begin"] for p in level["phrases"]] == [0, *ends[:-1]]
        for phrase, expected in zip(level["phrases"], found.sentences[0], strict=True):
            assert phrase["end"] - phrase["begin"] == len(expected.pieces)
            assert phrase["weights"] == pytest.approx(expected.weights[number] or [], abs=1e-6)
            if kind == "glances":
                assert phrase["share"] is None
            else:
                assert phrase["share"] == pytest.approx(1 - sum(phrase["weights"]), abs=1e-6)
    model = explain({"m": translator}, [SOURCE])["models"][0]
    assert model["level_shares"] == found.shares


def phrase_entries(view: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in view["attention"] if entry["use"] in PHRASES]


def check_phrase_entries(translator: Translator, view: dict[str, Any], spans: list[list[str]], *options: Any) -> None:
    """The weights are those of the model for this sentence alone, the columns its phrases (as lists of pieces)."""
    side, other = translator.tokenizer.source, translator.tokenizer.target
    batch = make_batch([side.encode(SOURCE)], [other.encode(TARGET)], *options)
    labels = tokens_of(side, [*side.encode(SOURCE), EOS])
    with torch.no_grad():
        looks = translator.model.attention_maps(
            batch.source_BS, batch.source_lengths_B, batch.target_in_BT, batch.phrase_sizes_BP
        )
    expected = [*looks.encoder_phrases, *looks.decoder_phrases]
    for entry, weights_BHQP in zip(phrase_entries(view), expected, strict=True):
        assert np.abs(unpack(entry["weights"]) - weights_BHQP[0].numpy()).max() <= step(entry["weights"])
        rows = "source_tokens" if entry["use"] == "encoder-phrases" else "target_tokens"
        assert entry["rows"]["labels"] == view[rows] and set(entry["rows"]["orders"]) == {1}
        columns = entry["columns"]
        assert columns["orders"] == [len(pieces) for pieces in spans] and columns["side"] == "source"
        for label, order, end in zip(columns["labels"], columns["orders"], columns["ends"], strict=True):
            assert label == labels.label(order, end)


@pytest.mark.parametrize("kind", ["source phrases", "gated source phrases", "glances", "phrasal with source phrases"])
def test_attention_to_phrases(kind: str, tokenizer: Tokenizer) -> None:
    translator = translator_of(kind, tokenizer)
    view, (phrases,) = view_of(translator), source_phrases(translator, [SOURCE]).sentences
    check_phrase_entries(translator, view, [phrase.pieces for phrase in phrases])
    levels = "encoder 2" if kind == "gated source phrases" else "all levels"
    assert [entry["kind"] for entry in phrase_entries(view)] == [
        *("phrases of embeddings", "phrases of encoder 1"),
        *[f"phrases of {levels}"] * 3,
    ]
    assert phrase_entries(view_of(translator, uses=["cross"])) == []
    assert {e["use"] for e in view_of(translator, uses=["decoder-phrases"])["attention"]} == {"decoder-phrases"}
    assert {share["use"] for share in view["shares"]} == set(USES)


def test_attention_to_phrases_of_trees_and_tables(tokenizer: Tokenizer) -> None:
    """Phrases of unequal lengths, in the order of the sentence."""
    table = table_translator(tokenizer, ["old man sleeps"])
    for translator, trees in ((tree_translator(tokenizer), [TREE]), (table, None)):
        (phrases,) = source_phrases(translator, [SOURCE], trees).sentences
        sizes = [len(phrase.pieces) for phrase in phrases]
        assert sizes != sorted(sizes)
        view = view_of(translator, trees=trees)
        check_phrase_entries(translator, view, [phrase.pieces for phrase in phrases], [sizes])
    assert phrase_entries(view)[0]["columns"]["labels"] == ["the", "old·man·sleeps", ".", "</s>"]


def test_attention_to_phrases_of_a_cropped_pair(tokenizer: Tokenizer) -> None:
    translator = translator_of("source phrases", tokenizer)
    view = view_of(translator, max_tokens=4)
    shapes = {e["use"]: e["weights"]["shape"] for e in phrase_entries(view)}
    assert shapes == {"encoder-phrases": [4, 5, 2], "decoder-phrases": [4, 4, 2]}
    assert phrase_entries(view)[-1]["rows"]["labels"] == view["target_tokens"]
    with torch.no_grad():
        translator.model.decoder.layers[2].combination.query.weight.fill_(math.nan)
    with pytest.raises(ModelError, match="NaN"):
        view_of(translator, uses=["decoder-phrases"])


@pytest.mark.parametrize("kind", ["gate", "recurrent gate"])
def test_the_gate_is_attention_times_fertility(kind: str, tokenizer: Tokenizer) -> None:
    translator = translator_of(kind, tokenizer)
    view = view_of(translator, target="the_old_man sleeps .")
    gate, classes = view["gate"], {"gate": 4, "recurrent gate": 2}[kind]
    assert gate["is_phrase"] == [True, False, False, False]
    assert view["target"] == "the old man sleeps ." and view["target_words"] == ["the", "old", "man", "sleeps", "."]
    assert view["target_span"] == [[0, 3], [3, 4], [4, 5], None]
    assert len(gate["classes"]) == classes and gate["fertility"][-1] is None
    assert [sum(p) for p in gate["fertility"][:-1]] == pytest.approx([1.0] * 5)
    word = [*(sum(p[: classes // 2]) for p in gate["fertility"][:-1]), 1.0]
    (attended,) = forced_attention(translator, [SOURCE], ["the_old_man sleeps ."])
    assert gate["word_share"] == pytest.approx((attended.layers[-1].mean(0) @ np.array(word)).tolist(), abs=1e-5)


def test_without_fertility_there_is_no_gate_to_show(tokenizer: Tokenizer) -> None:
    gate = view_of(translator_of("words or phrases", tokenizer), target="old_man .")["gate"]
    assert gate == {"fertility": None, "classes": [], "word_share": None, "is_phrase": [True, False, False]}


def test_words_of_joined_text_are_those_of_the_line(tokenizer: Tokenizer) -> None:
    """Also a word that the model does not know, and one that holds what joins phrases."""
    view = view_of(translator_of("gate", tokenizer), target="a&#95;b old_man")
    assert view["target"] == "a_b old man" and view["target_words"] == ["a_b", "old", "man"]
    assert view["target_span"] == [[0, 1], [1, 3], None] and view["target_tokens"][1:] == ["old_man", "</s>"]


# --- sentences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queryk heterogeneous 1-2", "recurrent mlp", "segmental", "source phrases"])
def test_a_sentence_does_not_depend_on_those_around_it(kind: str, tokenizer: Tokenizer) -> None:
    translator = translator_of(kind, tokenizer)
    lines = [SOURCE, "we invite them tonight . " * 4, "", "a cow"]
    together = explain({"m": translator}, lines, lines=[1, 2, 3, 4])["sentences"]
    alone = [explain({"m": translator}, [line], lines=[n])["sentences"][0] for n, line in enumerate(lines, 1)]
    assert together == alone


def test_analyses_of_an_ensemble_are_those_of_its_first_model(tokenizer: Tokenizer) -> None:
    first, second = (translator_of("phrasal with source phrases", tokenizer, seed=seed) for seed in (0, 1))
    members = [Member(str(n), t.model, tokenizer, t.segmenter) for n, t in enumerate((first, second))]
    model, segmenter = build_ensemble(members)
    both = Translator(model, tokenizer, first.config, segmenter=segmenter)
    pair = ([SOURCE], [TARGET])
    assert activation_shares(both, *pair) == activation_shares(first, *pair)
    assert list(align_pairs(both, *pair)) == list(align_pairs(first, *pair))
    assert source_phrases(both, [SOURCE]) == source_phrases(first, [SOURCE])
    assert np.array_equal(heat_map(both, *(side[0] for side in pair)).weights, heat_map(first, SOURCE, TARGET).weights)
    gold = [[GoldSpan((0, 2), (0,))]]
    assert measure_coverage(both, *pair, gold, samples=5) == measure_coverage(first, *pair, gold, samples=5)
    assert attention_entropy(both, *pair) == attention_entropy(first, *pair)


def test_drawn_translations_are_those_of_the_line(tokenizer: Tokenizer) -> None:
    """A draw depends on the number of the line."""
    translator = translator_of("token", tokenizer).with_options(sample=True, beam=1)
    lines = [SOURCE] * 4
    texts = [t.text for t in translator.translate(lines)]
    assert len(set(texts)) > 1
    views = [sentence["views"][0] for sentence in explain({"m": translator}, lines)["sentences"]]
    assert [view["target"] for view in views] == texts
    one = explain({"m": translator}, [SOURCE], lines=[3])["sentences"][0]["views"][0]
    assert one["target"] == texts[2]
    drawn = heat_map(translator, SOURCE, number=2)
    target_ids = [tokenizer.target.vocabulary.id(token) for token in translator.translate(lines)[2].tokens]
    assert drawn.weights.shape[0] == len(target_ids) + 1


def test_two_models_side_by_side(tokenizer: Tokenizer) -> None:
    translators = {"one": translator_of("token", tokenizer), "other": translator_of("recurrent fixed", tokenizer)}
    document = explain(translators, [SOURCE], references=["the man ."])
    assert [m["name"] for m in document["models"]] == ["one", "other"]
    assert document["sentences"][0]["reference"] == "the man ." and document["sentences"][0]["line"] is None
    for (name, translator), view in zip(translators.items(), document["sentences"][0]["views"], strict=True):
        assert view == explain({name: translator}, [SOURCE])["sentences"][0]["views"][0]
    assert document["models"][0]["description"] == (
        "transformer encoder of 2 layers; transformer decoder of 3 layers; attention token (encoder, decoder, cross)"
    )
    assert document["models"][1]["description"].endswith("no attention to the source")
    assert document["models"][0]["languages"] == ["en", "de"]


def test_what_is_too_long_is_cropped_and_said(tokenizer: Tokenizer) -> None:
    translator = translator_of("queryk interleaved 1-2", tokenizer)
    whole, cut = (view_of(translator, max_tokens=n) for n in (99, 4))
    assert whole["notes"] == [] and len(whole["source_tokens"]) > 6
    assert cut["notes"] == [
        f"the source was cropped to 4 subwords of {len(whole['source_tokens']) - 1}",
        f"the target is shown up to its subword 4 of {len(whole['target_tokens']) - 1}",
    ]
    assert len(cut["source_tokens"]) == 5 and cut["source_tokens"][-1] == "</s>"
    assert cut["target_tokens"] == whole["target_tokens"][:4] and len(cut["token_log_probs"]) == 4
    assert (cut["log_prob"], cut["score"]) == (None, None)
    (cross, *_), own = cut["attention"], cut["attention"][-1]
    assert cross["rows"]["ends"] == [0, 1, 2, 3, 1, 2, 3] and own["rows"]["ends"][:4] == [-1, 0, 1, 2]
    assert max(own["columns"]["ends"]) == 2
    assert cross["tokens"]["shape"] == [4, 4, 5] and own["tokens"]["shape"] == [4, 4, 4]
    short = translator.with_options(max_input_tokens=3)
    assert view_of(short)["notes"][0].startswith("the source was cropped to 3 subwords")


def test_a_line_is_explained_as_a_whole_if_the_model_would_split_it(tokenizer: Tokenizer) -> None:
    pytest.importorskip("pysbd")
    translator, line = translator_of("queryk interleaved 1-2", tokenizer), "The cow sleeps. The old man sleeps."
    split = translator.with_options(split_sentences=True)
    whole, own = view_of(translator, line, None), view_of(split, line, None)
    (note,) = [note for note in own["notes"] if note not in whole["notes"]]
    assert note.startswith("the model translates sentence by sentence (split_sentences); here")
    assert {**own, "notes": whole["notes"]} == whole
    assert translator.translate([line])[0].log_prob == pytest.approx(own["log_prob"], abs=1e-4)
    assert not any("split_sentences" in note for note in view_of(split, line)["notes"]), "a given target is never split"


def test_the_rows_of_a_cropped_target_are_those_of_the_whole_one(tokenizer: Tokenizer) -> None:
    translator = translator_of("queryk heterogeneous 1-2", tokenizer)
    whole = view_of(translator, "a cow", TARGET)
    cut = view_of(translator, "a cow", TARGET, max_tokens=len(whole["source_tokens"]) - 1)
    rows = len(cut["target_tokens"])
    assert rows < len(whole["target_tokens"])
    assert cut["token_log_probs"] == pytest.approx(whole["token_log_probs"][:rows], abs=1e-5)
    for some, all_ in zip(cut["attention"], whole["attention"], strict=True):
        if some["use"] == "cross":
            apart = step(some["weights"]) + step(all_["weights"])
            assert np.abs(unpack(some["weights"]) - unpack(all_["weights"])[:, :rows]).max() <= apart


def test_prefixes_uses_and_options(tokenizer: Tokenizer) -> None:
    translator = translator_of("token", tokenizer)
    view = view_of(translator, target=None, prefixes=["the cow"], uses=["decoder-self", "cross"])
    assert view["target"].startswith("the cow") and not view["given"]
    assert list(dict.fromkeys(e["use"] for e in view["attention"])) == ["cross", "decoder-self"]
    assert list(dict.fromkeys(s["use"] for s in view["shares"])) == ["cross", "decoder-self"]


def test_unknown_and_unfinished_are_noted(tokenizer: Tokenizer) -> None:
    translator = translator_of("token", tokenizer).with_options(max_length={"factor": 0.0, "constant": 1})
    notes = view_of(translator, "the Ω cow", None)["notes"]
    assert notes[0] == "the translation reached its maximal length and may be incomplete"
    assert notes[1].startswith("unknown to the model: 1 of ") and notes[1].endswith(" source subwords")
    assert "the target is blank" in view_of(translator, target=" ")["notes"]


def test_trees_go_to_the_model_that_reads_them(tokenizer: Tokenizer) -> None:
    trees = [TREE]
    reads, other = tree_translator(tokenizer), translator_of("token", tokenizer)
    document = explain({"trees": reads, "other": other}, [SOURCE], trees=trees)
    found = source_phrases(reads, [SOURCE], trees).sentences[0]
    level = document["sentences"][0]["views"][0]["phrase_vectors"][0]
    assert [p["end"] - p["begin"] for p in level["phrases"]] == [len(p.pieces) for p in found]
    members = [Member("m", one.model, tokenizer, one.segmenter) for one in (other, reads)]
    together = Translator(build_ensemble(members)[0], tokenizer, other.config, segmenter=reads.segmenter)
    document = explain({"both": together}, [SOURCE], trees=trees)  # shows the first, which reads none
    assert document["sentences"] == explain({"both": other}, [SOURCE])["sentences"]
    with pytest.raises(UsageError, match="needs parse trees to find source phrases"):
        explain({"trees": reads}, [SOURCE])
    with pytest.raises(UsageError, match="reads no phrases of parse trees"):
        explain({"other": other}, [SOURCE], trees=trees)
    with pytest.raises(DataError):
        explain({"trees": reads}, [SOURCE], trees=["(S (NN cow))"])


def test_refusals(tokenizer: Tokenizer) -> None:
    translator = translator_of("token", tokenizer)
    with pytest.raises(UsageError, match="0 models"):
        explain({}, [SOURCE])
    with pytest.raises(UsageError, match="3 models: explain one model, or two side by side"):
        explain(dict.fromkeys("abc", translator), [SOURCE])
    for name in ("targets", "references", "trees", "prefixes", "lines"):
        with pytest.raises(UsageError, match=f"1 sources, but 2 {name}"):
            explain({"m": translator}, [SOURCE], **{name: [1, 2] if name == "lines" else ["a", "b"]})
    with pytest.raises(UsageError, match="no use 'sideways'; one of cross, encoder-self, decoder-self"):
        view_of(translator, uses=["sideways"])
    with pytest.raises(UsageError, match="max_tokens 0"):
        view_of(translator, max_tokens=0)
    with pytest.raises(UsageError, match="targets are forced"):
        view_of(translator, prefixes=["a"])
    with pytest.raises(UsageError, match="alignment_layer 9"):
        view_of(translator.with_options(alignment_layer=9))


def test_a_broken_model_is_refused(tokenizer: Tokenizer) -> None:
    translator = translator_of("token", tokenizer)
    with torch.no_grad():
        translator.model.encoder.layers[0].attention.score.weight.fill_(math.nan)
    with pytest.raises(ModelError, match="NaN"):
        view_of(translator)


@pytest.mark.parametrize("kind", ["queryk heterogeneous 1-2", "queryk interleaved 1-2"])
def test_a_hundred_tokens_stay_small(kind: str, tokenizer: Tokenizer) -> None:
    """Six layers of eight heads with random weights, the worst that there is to deflate, on 100 tokens a side: below 10 MB."""
    torch.manual_seed(0)
    sizes = {**everywhere(kind), "heads": 8, "encoder": {"layers": 6}, "decoder": {"layers": 6}}
    translator = Translator(tasks.build(ModelConfig.model_validate(sizes), tokenizer), tokenizer)
    line = "the cow " * 60
    document = explain({"m": translator}, [line], [line], max_tokens=100)
    assert len(document["sentences"][0]["views"][0]["target_tokens"]) == 100
    assert len(json.dumps(document)) < 10_000_000


def test_the_model_is_left_as_it_was(tokenizer: Tokenizer) -> None:
    translator = translator_of("queryk heterogeneous 1-2", tokenizer)
    before = translator.config
    view_of(translator, max_tokens=3)
    assert translator.config == before
    batch = make_batch([[4, 5]], [[6]])
    assert translator.model.score(batch).requires_grad


def test_words_of_a_changed_line(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Words are those of the normalised line, in the number that the links count."""
    view = view_of(translator_of("token", tokenizer), "  the   old\tman ", TARGET)
    words = tokenizer.source.words("  the   old\tman ")
    assert view["source_words"] == words
    assert {w for w in view["source_word"] if w is not None} == set(range(len(words)))
