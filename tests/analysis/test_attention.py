"""Forced attention: the numbers of one sentence alone in slow loops, of the steps of search, in windows of any size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import LINES, bpe_tokenizer, tiny_tokenizer

from phraseloom.analysis import attention
from phraseloom.analysis.attention import Attended, cross_structures, forced_attention
from phraseloom.data.tensors import make_batch
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, ModelError, UsageError
from phraseloom.layers.attention.structure import Structure
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig
from phraseloom.phrases.segmenters import TreeSegmenter
from phraseloom.phrases.source import word_of_piece
from phraseloom.text.vocabulary import BOS, UNK

SIZES = {"width": 16, "heads": 4, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 2}}
RECURRENT = {"kind": "recurrent", "layers": 2, "cell": "lstm"}
VARIANTS: dict[str, dict[str, Any]] = {
    "token": {},
    "homogeneous": {"attention": "queryk homogeneous 22"},
    "heterogeneous": {"attention": "convkv heterogeneous 1-2-3"},
    "interleaved": {"attention": "queryk interleaved 1-2"},
    "without encoder": {"encoder": {"kind": "none"}},
    "phrases": {"phrases": {}},
    "recurrent": {"encoder": {"kind": "recurrent", "layers": 1}, "decoder": {**RECURRENT, "attention": "mlp"}},
    "recurrent multihead": {
        "decoder": {**RECURRENT, "attention": "multihead"},
        "attention": {"cross": "queryk heterogeneous 1-2"},
    },
}
SOURCES = [*LINES, "", "a ."]
TARGETS = ["zwei Büros .", *LINES[:3], "a", ""]


def made(folder: Any, variant: dict[str, Any], segmenter: Any = None) -> Translator:
    tokenizer = tiny_tokenizer(folder)
    torch.manual_seed(4)
    size = len(tokenizer.source.vocabulary)
    model = build_model(ModelConfig.model_validate({**SIZES, **variant}), size, size)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return Translator(model, tokenizer, segmenter=segmenter)


@pytest.fixture(scope="module", params=VARIANTS)
def translator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return made(tmp_path_factory.mktemp("text"), VARIANTS[request.param])


def ids_of(translator: Translator, source: str, target: str) -> tuple[list[int], list[int]]:
    return translator.tokenizer.source.encode(source), translator.tokenizer.target.encode(target)


def slow_tokens(weights: np.ndarray, structure: Structure) -> np.ndarray:
    """One sentence (H, J·T, G·S) → (H, T, S), each slot's weight shared among its tokens one by one."""
    heads, rows, columns = weights.shape
    num_t, num_s = rows // len(structure.query_orders), columns // len(structure.blocks)
    result = np.zeros((heads, num_t, num_s))
    first_row = structure.query_orders.index(1) * num_t
    for h in range(heads):
        for g, block in enumerate(structure.blocks):
            order = next(part.order for part in block if part.first <= h < part.last)
            for j in range(num_s):
                window = [s for s in range(j - order + 1, j + 1) if s >= 0]
                for t in range(num_t):
                    for s in window:
                        result[h, t, s] += weights[h, first_row + t, g * num_s + j] / len(window)
    return result


def test_every_pair_is_what_it_is_alone(translator: Translator) -> None:
    found = list(forced_attention(translator, SOURCES, TARGETS))
    structures = cross_structures(translator.model)
    assert len(found) == len(SOURCES)
    for attended, source, target in zip(found, SOURCES, TARGETS, strict=True):
        source_ids, target_ids = ids_of(translator, source, target)
        batch = make_batch([source_ids], [target_ids])
        with torch.inference_mode():
            looks = translator.model.attention_maps(batch.source_BS, None, batch.target_in_BT)
        assert len(attended.layers) == len(attended.slots) == len(looks.cross) == len(structures)
        assert attended.source_word == translator.tokenizer.source.word_of_piece(source_ids)
        assert attended.target_word == translator.tokenizer.target.word_of_piece(target_ids)
        num_t, num_s = len(target_ids) + 1, len(source_ids) + 1
        for layer, slots, (weights, structure) in zip(attended.layers, attended.slots, looks.cross, strict=True):
            assert (layer.dtype, slots.dtype) == (np.float32, np.float32)
            first = structure.query_orders.index(1) * num_t
            whole = weights[0].double().numpy()
            assert slots.shape == (structure.heads, num_t, num_s * len(structure.blocks))
            np.testing.assert_allclose(slots, whole[:, first : first + num_t], rtol=0, atol=2e-6)
            assert layer.shape == (structure.heads, num_t, num_s)
            np.testing.assert_allclose(layer, slow_tokens(whole, structure), rtol=0, atol=2e-6)
            np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-5)
            assert (slots is layer) == structure.is_token


def test_rows_are_those_of_the_steps_of_search(translator: Translator) -> None:
    found = list(forced_attention(translator, SOURCES[:3], TARGETS[:3]))
    structures = cross_structures(translator.model)
    for attended, source, target in zip(found, SOURCES, TARGETS, strict=False):
        source_ids, target_ids = ids_of(translator, source, target)
        batch = make_batch([source_ids], [target_ids])
        with torch.inference_mode():
            state = translator.model.start(translator.model.encode(batch.source_BS, None), max_length=4)
            for t, token in enumerate([BOS, *target_ids]):
                _, steps, _ = translator.model.step(torch.tensor([token]), state)
                for slots, weights, structure in zip(attended.slots, steps, structures, strict=True):
                    unigram = weights[0, :, structure.query_orders.index(1)].numpy()
                    np.testing.assert_allclose(slots[:, t], unigram, rtol=0, atol=1e-5)
        assert all(slots.shape[1] == len(target_ids) + 1 for slots in attended.slots)


def test_unknown_pieces_stay_in_their_words() -> None:
    tokenizer = bpe_tokenizer()
    torch.manual_seed(4)
    model = build_model(ModelConfig.model_validate(SIZES), *[len(tokenizer.source.vocabulary)] * 2)
    source, target = "th★e cow ", " a c★w"
    (attended,) = forced_attention(Translator(model, tokenizer), [source], [target])
    for side, line, words in (
        (tokenizer.source, source, attended.source_word),
        (tokenizer.target, target, attended.target_word),
    ):
        assert UNK in side.encode(line) and words == word_of_piece(side, line, side.encode(line))


def same(found: Iterator[Attended], expected: list[Attended]) -> None:
    some = list(found)
    assert len(some) == len(expected)
    for a, b in zip(some, expected, strict=True):
        assert a[2:] == b[2:]
        for x, y in zip([*a.layers, *a.slots], [*b.layers, *b.slots], strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=2e-6)


def test_targets_as_ids(translator: Translator) -> None:
    ids = translator.tokenizer.target.encode_batch(TARGETS)
    same(forced_attention(translator, SOURCES, ids), list(forced_attention(translator, SOURCES, TARGETS)))
    assert list(forced_attention(translator, [], [])) == []


def test_memory_is_bounded_and_the_order_stays(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(forced_attention(translator, SOURCES * 3, TARGETS * 3))
    per_cell = sum(s.heads * len(s.query_orders) * len(s.blocks) for s in cross_structures(translator.model))
    kept: list[tuple[int, int]] = []
    decode = translator.model.decode

    def counted(*arguments: Any, **options: Any) -> Any:
        result = decode(*arguments, **options)
        kept.append((len(arguments[0]), sum(weights.numel() for weights in result[1])))
        return result

    monkeypatch.setattr(translator.model, "decode", counted)
    longest = max(a.layers[0][0].size for a in expected) * per_cell
    monkeypatch.setattr(attention, "BATCH_WEIGHTS", 3 * longest)
    monkeypatch.setattr(attention, "WINDOW_WEIGHTS", 7 * longest)
    pairs = forced_attention(translator, SOURCES * 3, TARGETS * 3)
    next(pairs)
    ahead = sum(pairs for pairs, _ in kept)
    assert 1 < ahead < len(expected)
    first = sum(a.layers[0][0].size * per_cell for a in expected[:ahead])
    assert first <= 7 * longest < first + expected[ahead].layers[0][0].size * per_cell
    same(iter([expected[0], *pairs]), expected)
    assert all(weights <= 3 * longest for _, weights in kept)
    assert max(pairs for pairs, _ in kept) > 1
    assert sum(pairs for pairs, _ in kept) == len(expected)

    kept.clear()
    monkeypatch.setattr(attention, "BATCH_WEIGHTS", 1)
    monkeypatch.setattr(attention, "WINDOW_WEIGHTS", 1)
    same(forced_attention(translator, SOURCES * 3, TARGETS * 3), expected)
    assert [pairs for pairs, _ in kept] == [1] * len(expected)


def test_batches_of_few_tokens(translator: Translator) -> None:
    expected = list(forced_attention(translator, SOURCES, TARGETS))
    same(forced_attention(translator, SOURCES, TARGETS, batch_tokens=1), expected)
    same(forced_attention(translator.with_options(workers=3), SOURCES, TARGETS), expected)


def test_a_pair_does_not_hold_the_memory_of_its_batch(translator: Translator) -> None:
    for attended in forced_attention(translator, SOURCES, TARGETS):
        for array in [*attended.layers, *attended.slots]:
            owner = array if array.base is None else array.base
            assert owner.nbytes == array.nbytes


def test_long_sources_are_cropped(translator: Translator) -> None:
    for attended in forced_attention(translator.with_options(max_input_tokens=3), SOURCES[:2], TARGETS[:2]):
        assert len(attended.source_word) == 3
        assert attended.layers[0].shape[-1] == 4


def test_phrases_of_trees(tmp_path: Any) -> None:
    segmenter = TreeSegmenter(max_tokens=4, min_chunks=1, floor=1)
    translator = made(tmp_path, {"phrases": {"segments": {"kind": "dataset"}}}, segmenter)
    trees = ["(S (DT the) (X (JJ old) (NN man)) (VP (VBZ sleeps) (. .)))", *[""] * (len(SOURCES) - 1)]
    for limit in (1024, 4):
        cropping = translator.with_options(max_input_tokens=limit)
        together = list(forced_attention(cropping, SOURCES, TARGETS, trees=trees))
        for attended, source, target, tree in zip(together, SOURCES, TARGETS, trees, strict=True):
            same(iter([attended]), list(forced_attention(cropping, [source], [target], trees=[tree])))
    (of_tree,), (flat,) = (forced_attention(translator, SOURCES[:1], TARGETS[:1], trees=[tree]) for tree in trees[:2])
    assert not np.allclose(of_tree.layers[1], flat.layers[1], atol=1e-3)
    with pytest.raises(UsageError, match="trees"):
        forced_attention(translator, SOURCES, TARGETS)
    with pytest.raises(DataError):
        forced_attention(translator, SOURCES[:1], TARGETS[:1], trees=["(S (DT a))"])


def test_what_is_refused_at_once(translator: Translator, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="2 sources, but 1 targets"):
        forced_attention(translator, ["a", "b"], ["c"])
    with pytest.raises(UsageError, match="trees"):
        forced_attention(translator, ["a"], ["b"], trees=[""])
    fixed = made(tmp_path, {"decoder": {**RECURRENT, "attention": "fixed"}})
    with pytest.raises(ModelError, match="attends to no source tokens"):
        forced_attention(fixed, ["a"], ["b"])
    segmental = {"encoder": {"kind": "columns", "layers": 1}, "decoder": {"kind": "segmental", "layers": 1}}
    with pytest.raises(ModelError, match="a segmental model has no attention; phraseloom analyse segments"):
        forced_attention(made(tmp_path, segmental), ["a"], ["b"])


def test_a_broken_model_is_refused(tmp_path: Any) -> None:
    translator = made(tmp_path, {})
    last = translator.model.decoder.layers[-1].cross_attention
    with torch.no_grad():
        next(last.parameters()).fill_(math.nan)
    with pytest.raises(ModelError, match="NaN"):
        list(forced_attention(translator, ["a"], ["b"]))
