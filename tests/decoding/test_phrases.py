"""Phrase alignments: the rule on weights made by hand, against a slow loop, and through the translator."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.decoding.conftest import lines_of_words
from tests.helpers import tiny_tokenizer

from phraseloom.decoding.alignment import CrossAttention, link_phrases, link_words, slot_weights
from phraseloom.decoding.translation import PhraseLink
from phraseloom.decoding.translator import Translator
from phraseloom.layers.attention.structure import HeadGroup, Structure
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig

TOKEN = Structure.of_orders(2, [1])
HETEROGENEOUS = Structure.of_orders(2, [1, 2])
INTERLEAVED = Structure.of_orders(2, [1, 2], query_orders=(1, 2))
HOMOGENEOUS = Structure(2, ((HeadGroup(1, 0, 1), HeadGroup(2, 1, 2)),), zero_extended=True)


def look(
    structure: Structure, num_target: int, num_source: int, cells: dict[tuple[int, int, int, int], float]
) -> CrossAttention:
    """Weights by (query order, last target row, slot order, last source token); EOS is the last of both sides."""
    shape = (len(structure.query_orders), len(structure.orders), num_target + 1, num_source + 1)
    slots = np.zeros(shape)
    for (m, t, n, s), weight in cells.items():
        slots[structure.query_orders.index(m), structure.orders.index(n), t, s] = weight
    return CrossAttention(slots[0].sum(0), slots, structure)


def test_a_bigram_slot_is_a_span_of_two_words_and_neighbours_join() -> None:
    # kicked the bucket </s> → ist gestorben </s>
    cells = {(1, 0, 2, 2): 0.6, (1, 0, 1, 0): 0.4, (1, 1, 2, 2): 0.8, (1, 1, 1, 2): 0.2}
    links = link_phrases(look(HETEROGENEOUS, 2, 3, cells), [0, 1, 2], [0, 1])
    assert links == [PhraseLink((1, 3), (0, 2), pytest.approx(0.7))]
    assert str(links[0]) == "1:3-0:2=0.7000"


def test_neighbours_on_one_source_word_stay_word_links() -> None:
    cells = {(1, 0, 1, 1): 0.6, (1, 0, 2, 1): 0.4, (1, 1, 1, 1): 0.9}
    links = link_phrases(look(HETEROGENEOUS, 2, 2, cells), [0, 1], [0, 1])
    assert links == [((1, 2), (0, 1), 0.6), ((1, 2), (1, 2), 0.9)]


def test_a_target_token_of_several_words_is_a_span() -> None:
    words = [range(1), range(1, 4), range(4, 5)]
    cells = {(1, 0, 1, 0): 0.9, (1, 1, 1, 1): 0.7, (1, 2, 1, 0): 0.6}
    links = link_phrases(look(HETEROGENEOUS, 3, 2, cells), [0, 1], words)
    assert links == [((0, 1), (0, 1), 0.9), ((1, 2), (1, 4), 0.7), ((0, 1), (4, 5), 0.6)]
    # In a mean of joined links each of its words counts.
    cells = {(1, 0, 2, 1): 0.5, (1, 1, 2, 1): 0.9, (1, 2, 1, 0): 0.6}
    links = link_phrases(look(HETEROGENEOUS, 3, 2, cells), [0, 1], words)
    assert links == [((0, 2), (0, 4), pytest.approx((0.5 + 3 * 0.9) / 4)), ((0, 1), (4, 5), 0.6)]
    # An n-gram query reaches to the last word of its last token.
    cells = {(2, 1, 1, 1): 0.9, (1, 0, 1, 0): 0.5, (1, 1, 1, 0): 0.5, (1, 2, 1, 0): 0.6}
    links = link_phrases(look(INTERLEAVED, 3, 2, cells), [0, 1], words)
    assert links == [((1, 2), (0, 4), 0.9), ((0, 1), (4, 5), 0.6)]


def test_slots_that_touch_the_same_words_add_up() -> None:
    # a word of two pieces: both unigram slots and the bigram slot inside it are the word itself
    cells = {(1, 0, 1, 0): 0.2, (1, 0, 1, 1): 0.1, (1, 0, 2, 1): 0.2, (1, 0, 2, 2): 0.45, (1, 0, 1, 2): 0.05}
    links = link_phrases(look(HETEROGENEOUS, 1, 3, cells), [0, 0, 1], [0])
    assert links == [((0, 1), (0, 1), pytest.approx(0.5))]
    cells[1, 0, 2, 2] = 0.51  # ends in the next word: two words
    assert link_phrases(look(HETEROGENEOUS, 1, 3, cells), [0, 0, 1], [0])[0].source == (0, 2)


def test_pieces_of_a_target_word_vote_together() -> None:
    cells = {(1, 0, 1, 0): 1.0, (1, 1, 2, 1): 0.9, (1, 2, 2, 1): 0.5, (1, 2, 1, 0): 0.4}
    links = link_phrases(look(HETEROGENEOUS, 3, 2, cells), [0, 1], [0, 0, 0])
    # 1.0 + 0.4 on word 0; 0.9 + 0.5 on the bigram: equal, and (0, 1) ends earlier
    assert links == [((0, 1), (0, 1), pytest.approx(1.4 / 3))]


def test_end_of_sentence_is_cut_off() -> None:
    cells = {(1, 0, 1, 2): 0.7, (1, 0, 2, 2): 0.2, (1, 0, 1, 0): 0.1}
    # the unigram slot of EOS is left out; the bigram of word 1 and EOS is word 1
    assert link_phrases(look(HETEROGENEOUS, 1, 2, cells), [0, 1], [0]) == [((1, 2), (0, 1), 0.2)]


def test_a_target_bigram_wins_only_where_it_is_heavier() -> None:
    words = {(1, 0, 1, 0): 0.5, (1, 1, 1, 1): 0.6, (1, 2, 1, 1): 0.9}
    pair = {(2, 1, 2, 1): 0.7, (2, 2, 1, 0): 0.8}
    links = link_phrases(look(INTERLEAVED, 3, 2, words | pair), [0, 1], [0, 1, 2])
    assert links == [((0, 2), (0, 2), 0.7), ((1, 2), (2, 3), 0.9)]
    pair[2, 1, 2, 1] = 0.6  # a tie goes to the words
    links = link_phrases(look(INTERLEAVED, 3, 2, words | pair), [0, 1], [0, 1, 2])
    assert links == [((0, 1), (0, 1), 0.5), ((1, 2), (1, 2), 0.6), ((1, 2), (2, 3), 0.9)]


def test_queries_that_read_the_end_are_left_out() -> None:
    cells = {(1, 0, 1, 0): 0.5, (2, 1, 2, 1): 1.0, (1, 1, 1, 1): 1.0}
    assert link_phrases(look(INTERLEAVED, 1, 2, cells), [0, 1], [0]) == [((0, 1), (0, 1), 0.5)]


def test_windows_that_begin_before_the_sentence_are_cut() -> None:
    cells = {(1, 0, 2, 0): 0.4, (1, 0, 1, 0): 0.15, (1, 0, 2, 1): 0.5}
    assert link_phrases(look(HOMOGENEOUS, 1, 2, cells), [0, 1], [0]) == [((0, 1), (0, 1), pytest.approx(0.55))]


def test_nothing_to_link() -> None:
    assert link_phrases(look(HETEROGENEOUS, 0, 2, {}), [0, 1], []) == []
    assert link_phrases(look(HETEROGENEOUS, 2, 0, {}), [], [0, 1]) == []
    trigrams = Structure.of_orders(1, [3])
    assert link_phrases(look(trigrams, 1, 1, {}), [0], [0]) == []


def words_of(rng: np.random.Generator) -> list[int]:
    steps = np.cumsum(rng.integers(0, 2, rng.integers(1, 9)))
    return (steps - steps[0]).tolist()


def test_token_attention_gives_the_word_alignment() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        source, target = words_of(rng), words_of(rng)
        weights = rng.dirichlet(np.ones(len(source) + 1), len(target) + 1)
        links = link_phrases(CrossAttention(weights, weights[None, None], TOKEN), source, target)
        assert [(p.source[0], p.target[0]) for p in links] == link_words(weights, source, target)
        assert all(p.source[1] - p.source[0] == p.target[1] - p.target[0] == 1 for p in links)


def slow(slots: np.ndarray, structure: Structure, source: list[int], target: list[int], tags: int = 0) -> list[Any]:
    """The rule of the module, word for word; `tags` tokens stand before the source."""
    choices = []
    for m, order in enumerate(structure.query_orders):
        groups: dict[tuple[int, int], list[int]] = {}
        for t in range(order - 1, len(target)):
            read = {target[i] for i in range(t - order + 1, t + 1)}
            groups.setdefault((min(read), max(read) + 1), []).append(t)
        for words, rows in groups.items():
            total: dict[tuple[int, int], float] = {}
            for n, size in enumerate(structure.orders):
                for end in range(len(source) + 1):
                    tokens = range(end - size + 1, end + 1)
                    touched = {source[i] for i in tokens if 0 <= i < len(source)}
                    if touched and (structure.zero_extended or tokens[0] >= -tags):
                        span = (min(touched), max(touched) + 1)
                        total[span] = total.get(span, 0) + sum(slots[m, n, t, end] for t in rows) / len(rows)
            best = max(sorted(total), key=lambda s: total[s])
            choices.append((total[best], words, best))
    taken: set[int] = set()
    kept = []
    for weight, words, best in sorted(choices, key=lambda c: (-c[0], c[1][1] - c[1][0], c[1])):
        if not taken & set(range(*words)):
            taken |= set(range(*words))
            kept.append((best, words, weight))
    return sorted(kept, key=lambda k: k[1])


@pytest.mark.parametrize("tags", [0, 1, 2])
@pytest.mark.parametrize("structure", [HETEROGENEOUS, INTERLEAVED, HOMOGENEOUS, Structure.of_orders(2, [1, 2, 3])])
def test_slow_reference(structure: Structure, tags: int) -> None:
    """An n-gram of tags and the first words is a slot of these words."""
    rng = np.random.default_rng(2)
    joined = 0
    for _ in range(200):
        source, target = words_of(rng), words_of(rng)
        shape = (len(structure.query_orders), len(structure.orders), len(target) + 1, tags + len(source) + 1)
        slots = rng.dirichlet(np.full(shape[1] * shape[3], 0.3), shape[::2]).reshape(shape[0], shape[2], shape[1], -1)
        slots = slots.transpose(0, 2, 1, 3)
        found = link_phrases(CrossAttention(slots[0].sum(0), slots, structure).after(tags), source, target)
        expected = slow(slots[..., tags:], structure, source, target, tags)
        assert [w for p in found for w in range(*p.target)] == list(range(max(target) + 1))
        # every link found is a run of expected links with the same source span
        for link in found:
            inside = [e for e in expected if link.target[0] <= e[1][0] and e[1][1] <= link.target[1]]
            sizes = [t2 - t1 for _, (t1, t2), _ in inside]
            assert {e[0] for e in inside} == {link.source}
            assert sum(sizes) == link.target[1] - link.target[0]
            weight = sum(e[2] * n for e, n in zip(inside, sizes, strict=True)) / sum(sizes)
            assert link.weight == pytest.approx(weight)
            joined += len(inside) > 1
        for first, second in pairwise(found):
            assert first.source != second.source or first.source[1] - first.source[0] == 1
    assert joined or structure is INTERLEAVED or tags


def test_the_largest_slot_weight_of_any_head() -> None:
    for structure in (HOMOGENEOUS, INTERLEAVED):
        weights = torch.rand(2, structure.heads, 3 * len(structure.query_orders), 4 * len(structure.blocks))
        found, split = slot_weights(weights, structure, largest=True), structure.split(weights)
        for g, block in enumerate(structure.blocks):
            for part in block:
                n = structure.orders.index(part.order)
                for place in np.ndindex(2, len(structure.query_orders), 3, 4):
                    b, j, q, k = place
                    values = [split[b, h, j, q, g, k] for h in range(part.first, part.last)]
                    assert found[b, j, n, q, k] == max(values)


def test_slot_weights_average_over_all_heads() -> None:
    weights = torch.rand(2, 2, 3, 4, dtype=torch.float64)
    slots = slot_weights(weights, HOMOGENEOUS)
    assert slots.shape == (2, 1, 2, 3, 4)
    torch.testing.assert_close(slots[:, 0, 0], weights[:, 0] / 2)
    torch.testing.assert_close(slots[:, 0, 1], weights[:, 1] / 2)
    weights = torch.rand(2, 2, 6, 8, dtype=torch.float64)
    slots = slot_weights(weights, INTERLEAVED)
    torch.testing.assert_close(slots[:, 1, 0], weights.mean(1)[:, 3:, :4])
    torch.testing.assert_close(slots[:, 0, 1], weights.mean(1)[:, :3, 4:])


ATTENTIONS = ["token", "convkv homogeneous 22", "queryk heterogeneous 1-2-3", "queryk interleaved 1-2"]


@pytest.fixture(scope="module", params=ATTENTIONS)
def phrasal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    tokenizer = tiny_tokenizer(tmp_path_factory.mktemp("text"))
    torch.manual_seed(4)
    config = {"width": 32, "heads": 4, "ffn_width": 64, "encoder": {"layers": 1}, "decoder": {"layers": 2}}
    config = ModelConfig.model_validate(config | {"tied": "none", "attention": request.param})
    size = len(tokenizer.source.vocabulary)
    model = build_model(config, size, size)
    with torch.no_grad():  # sharper than a fresh model, so that links differ
        for layer in model.decoder.layers:
            for parameter in layer.cross_attention.parameters():
                parameter.mul_(4)
    return Translator(model, tokenizer).with_options(max_length={"factor": 1.0, "constant": 3})


def test_translations_carry_phrases(phrasal: Translator) -> None:
    lines = ["", *lines_of_words(12, seed=1), " "]
    found = phrasal.translate(lines, alignments=True, beam=3, n_best=3)
    structure = phrasal.model.decoder.layers[0].cross_attention.structure
    for line, best in zip(lines, found, strict=True):
        num_source = len(phrasal.tokenizer.source.words(line))
        for one in best.n_best:
            assert one.phrases is not None
            covered = [w for p in one.phrases for w in range(*p.target)]
            assert covered == list(range(len(one.words)))
            for (s1, s2), _, weight in one.phrases:
                assert 0 <= s1 < s2 <= num_source
                assert 0 <= weight <= 1 + 1e-6
            if structure.is_token:
                assert [(p.source[0], p.target[0]) for p in one.phrases] == one.alignment
            assert one.pharaoh_phrases().count("=") == len(one.phrases)
    assert found[0].phrases == found[-1].phrases == []
    if not structure.is_token:
        assert any(p.source[1] - p.source[0] > 1 for t in found for p in t.phrases or [])
    assert phrasal.translate(["a cow"])[0].phrases is None
    assert "phrases" not in phrasal.translate(["a cow"])[0].as_dict()
    first = found[1].as_dict()["phrases"][0]
    assert set(first) == {"source", "target", "weight"}


def test_neighbours_in_the_batch_do_not_matter(phrasal: Translator) -> None:
    lines = lines_of_words(12, seed=2)
    alone = [phrasal.translate([line], alignments=True)[0] for line in lines]
    together = phrasal.translate(lines, alignments=True, batch_sentences=5)
    for one, other in zip(alone, together, strict=True):
        assert one.phrases is not None
        assert other.phrases is not None
        assert [p[:2] for p in one.phrases] == [p[:2] for p in other.phrases]
        assert [p.weight for p in one.phrases] == pytest.approx([p.weight for p in other.phrases], abs=1e-5)


def test_pieces_of_a_long_line_get_offsets(phrasal: Translator) -> None:
    words = ["cow", "garden", "dark", "tonight"] * 3
    limit = 8
    whole = phrasal.translate([" ".join(words)], alignments=True, long_lines="split", max_input_tokens=limit)[0]
    assert whole.parts > 1
    assert whole.phrases is not None
    assert [w for p in whole.phrases for w in range(*p.target)] == list(range(len(whole.words)))
    assert max(p.source[1] for p in whole.phrases) <= len(words)
    # each part alone gives the same links, counted from its own first words
    side = phrasal.tokenizer.source
    ids = side.encode(" ".join(words))
    from phraseloom.decoding.batching import cut_line

    moved, before = [], 0
    for piece in cut_line(0, ids, side.word_of_piece, limit=limit, how="split"):
        part = phrasal.translate([side.decode(piece.ids)], alignments=True)[0]
        moved += [p.shifted(source=piece.first_word, target=before) for p in part.phrases or []]
        before += len(part.words)
    assert [p[:2] for p in moved] == [p[:2] for p in whole.phrases]


def test_words_of_a_phrasal_model_are_linked_by_token_weights(phrasal: Translator, tmp_path: Path) -> None:
    model, tokenizer = phrasal.model, phrasal.tokenizer
    line = "the old man sleeps ."
    best = phrasal.translate([line], alignments=True, alignment_layer=1)[0]
    from phraseloom.data.tensors import make_batch

    source = tokenizer.source.encode(line)
    target = [tokenizer.target.vocabulary.id(t) for t in best.tokens]
    batch = make_batch([source], [target])
    with torch.inference_mode():
        weights, structure = model.attention_maps(batch.source_BS, batch.source_lengths_B, batch.target_in_BT).cross[0]
    tokens = structure.token_weights(weights).mean(1)[0].double().numpy()
    expected = link_words(tokens, tokenizer.source.word_of_piece(source), tokenizer.target.word_of_piece(target))
    assert best.alignment == expected
