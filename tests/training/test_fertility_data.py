"""What the fertility module learns from: labels of tokens, which are kept, and what the frozen model knows of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training import fertility_net as net

from phraseloom.data.tensors import make_batch
from phraseloom.errors import DataError, FileProblem
from phraseloom.layers.fertility import Fertility
from phraseloom.models.store import load_model
from phraseloom.phrases.segmenters import FixedSegmenter
from phraseloom.training import fertility_data
from phraseloom.training.fertility_data import Room, choose_items, held_out, read_items, read_sentences

CPU = torch.device("cpu")


def read(folder: Path, sources: list[str], labels: list[str], **options: Any) -> fertility_data.LabelledText:
    net.written(folder, s=sources, l=labels)
    side = net.tokenizer(options.pop("text", None)).source
    return read_sentences(side, folder / "s", folder / "l", **{"classes": 4, "max_tokens": 5, **options})


def test_tokens_and_their_classes(tmp_path: Path) -> None:
    text = read(tmp_path, ["an Haus .", "", "neu Hochschule", "\u3000"], ["0 1 7", "", "2 3", "1"])
    assert text.bounds.tolist() == [0, 3, 5]
    assert text.labels.tolist() == [0, 1, 3, 2, 3]
    assert text.ids.tolist() == [
        *net.tokenizer().source.encode("an Haus ."),
        *net.tokenizer().source.encode("neu Hochschule"),
    ]
    assert text.left_out == {"blank": 2, "long": 0, "unclear": 0}
    assert read(tmp_path, ["an Haus ."], ["0 1 7"], classes=2).labels.tolist() == [0, 0, 1]
    taken = text.take(np.array([1, 0, 1]))
    assert taken.labels.tolist() == [2, 3, 0, 1, 3, 2, 3]
    assert taken.bounds.tolist() == [0, 2, 5, 7]
    assert taken.ids[2:5].tolist() == text.ids[:3].tolist()


def test_lines_that_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(side: Any, line: str, ids: list[int], counts: list[int]) -> list[int]:
        if line.startswith("zu"):
            raise DataError("it cannot be told")
        return counts

    monkeypatch.setattr(fertility_data, "spread", told)
    monkeypatch.setattr(fertility_data, "WINDOW", 2)
    lines = ["an an an an an an", "an .", "zu .", "an an an an an", "zu"]
    text = read(tmp_path, lines, [" ".join("1" * len(line.split())) for line in lines])
    assert text.num_sentences == 2
    assert text.left_out == {"blank": 0, "long": 1, "unclear": 2}
    assert text.unclear == 3


def test_phrases_of_a_model_that_reads_them(tmp_path: Path) -> None:
    segmenter = FixedSegmenter(max_tokens=2, min_chunks=1)
    text = read(tmp_path, ["an Haus . .", "", "zu"], ["0 1 7 1", "", "1"], segmenter=segmenter)
    assert text.phrases is not None
    assert [sum(sizes) for sizes in text.phrases] == [5, 2]
    assert text.take(np.array([1])).phrases == [text.phrases[1]]


@pytest.mark.parametrize(("classes", "first"), [(4, 2), (2, 1)])
def test_all_phrases_and_as_many_words(classes: int, first: int) -> None:
    labels = np.random.default_rng(1).choice(classes, 400, p=[0.7, 0.2, 0.06, 0.04] if classes == 4 else [0.9, 0.1])
    kept = choose_items(labels.astype(np.int8), classes, seed=5)
    assert (np.diff(kept) > 0).all()
    assert set(np.flatnonzero(labels >= first)) <= set(kept)
    assert (labels[kept] < first).sum() == (labels >= first).sum()
    np.testing.assert_array_equal(kept, choose_items(labels, classes, seed=5))
    assert kept.tolist() != choose_items(labels, classes, seed=6).tolist()
    draws = [choose_items(labels, classes, seed=seed).tolist() for seed in range(60)]
    assert all(len(set(draw)) == len(draw) == 2 * (labels >= first).sum() for draw in draws)
    assert {n for draw in draws for n in draw} == set(range(400))


def test_fewer_words_than_phrases() -> None:
    assert choose_items(np.array([1, 1, 0, 1]), 2, seed=1).tolist() == [0, 1, 2, 3]
    assert choose_items(np.array([0, 0, 0]), 2, seed=1).tolist() == []


def test_what_lies_in_memory_and_what_in_a_file(tmp_path: Path) -> None:
    room = Room(100, tmp_path)
    first, second, third = room.array(4, 5), room.array(3, 2), room.array(2, 2)
    assert room.left == 100 - 80 - 16
    for array, shape in ((first, (4, 5)), (second, (3, 2)), (third, (2, 2))):
        assert (array.shape, array.dtype) == (shape, np.float32)
        array[:] = 7
        assert array.sum() == 7 * array.size
    assert torch.from_numpy(second)[torch.tensor([2, 0])].sum() == 28
    assert not list(tmp_path.iterdir())


def test_a_disk_without_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FileProblem, match="the disk is full"):
        Room(10, tmp_path).array(4, 5)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit", [0, 10**6])
def test_inputs_are_those_of_each_sentence_alone(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fertility_data, "BATCH_SENTENCES", 7)
    net.saved(tmp_path / "net")
    model, tokenizer, _ = load_model(tmp_path / "net")
    sources, labels = net.lines(30)
    text = read(tmp_path, sources, labels, max_tokens=100)
    fertility = Fertility(6, 8, 4, "both", (3,))
    alone = []
    for line in sources:
        batch = make_batch([tokenizer.source.encode(line)], [[]])
        with torch.no_grad():
            x, h = model.source_states(batch.source_BS, batch.source_lengths_B)
        alone.append(torch.cat([x, h], -1)[0, :-1])  # without the end of the sentence
    whole = torch.cat(alone)
    kept = choose_items(text.labels, 4, seed=2)
    assert 0 < len(kept) < len(whole)
    items = read_items(model, fertility, text, kept, Room(limit, tmp_path), device=CPU)
    torch.testing.assert_close(items.inputs_NI, whole[kept], rtol=1e-5, atol=1e-6)
    assert items.inputs_NI.dtype == torch.float32
    assert not items.inputs_NI.requires_grad
    assert items.labels_N.tolist() == text.labels[kept].tolist()
    every = read_items(model, fertility, text, np.arange(len(whole)), Room(limit, tmp_path), device=CPU)
    torch.testing.assert_close(every.inputs_NI, whole, rtol=1e-5, atol=1e-6)


def test_batches_are_bounded_and_hold_every_sentence_once(tmp_path: Path) -> None:
    text = read(tmp_path, *net.lines(40), max_tokens=100)
    seen: list[int] = []
    for chosen, batch in fertility_data.batches(text, np.arange(3, 40), tokens=30):
        seen += chosen
        assert batch.source_BS.numel() <= 30
        assert batch.source_lengths_B.tolist() == [int(text.bounds[i + 1] - text.bounds[i]) + 1 for i in chosen]
    assert sorted(seen) == list(range(3, 40))


def test_held_out_sentences_are_not_learned_from(tmp_path: Path) -> None:
    text = read(tmp_path, *net.lines(50), max_tokens=100)
    for share, most, count in ((0.1, 100, 5), (0.5, 7, 7), (0.001, 9, 1)):
        train, valid = held_out(text, share=share, most=most, seed=3)
        assert (train.num_sentences, valid.num_sentences) == (50 - count, count)
        rows = [bytes(t.ids[a:b]) for t in (train, valid) for a, b in zip(t.bounds, t.bounds[1:], strict=False)]
        all_rows = [bytes(text.ids[a:b]) for a, b in zip(text.bounds, text.bounds[1:], strict=False)]
        assert sorted(rows) == sorted(all_rows)
        assert held_out(text, share=share, most=most, seed=3)[1].ids.tolist() == valid.ids.tolist()
    draws = {tuple(held_out(text, share=0.1, most=9, seed=seed)[1].ids.tolist()) for seed in range(4)}
    assert len(draws) == 4
