"""What the fertility module learns from: source tokens with their classes, and what a frozen model knows of each of them.

A line counts if it has text, is no longer than `max_tokens`, and if it can be told which of its subwords are of which word.
The end of the sentence and padding are no items.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phraseloom.data.tensors import make_batch
from phraseloom.decoding.batching import plan_batches
from phraseloom.errors import DataError
from phraseloom.files import disk_problem
from phraseloom.layers.fertility import WORD_CLASSES, Fertility
from phraseloom.phrases.fertility import fertility_class, read_labelled, spread
from phraseloom.phrases.source import Segmenter, segment_lines
from phraseloom.text.tokenizer import Side

WINDOW = 1024
BATCH_TOKENS, BATCH_SENTENCES = 8192, 256


@dataclass
class LabelledText:
    """Source sentences: `ids` and `labels` of all their tokens in a row, sentence i from `bounds[i]` to `bounds[i + 1]`.

    `phrases`: sizes of the source phrases of each sentence, for a model that reads them. `left_out`: how many lines for which
    reason; `unclear`: the first line (from 1) of which the subwords of the words are not known. `tags`: ids that the model
    reads before each sentence; they are no items.
    """

    ids: np.ndarray
    labels: np.ndarray
    bounds: np.ndarray
    phrases: list[list[int]] | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    unclear: int | None = None
    tags: tuple[int, ...] = ()

    @property
    def num_sentences(self) -> int:
        """Sentences that count."""
        return len(self.bounds) - 1

    def take(self, sentences: np.ndarray) -> LabelledText:
        """Some of the sentences, in the order given."""
        rows = [np.arange(self.bounds[i], self.bounds[i + 1]) for i in sentences]
        places = np.concatenate([np.zeros(0, np.int64), *rows])
        bounds = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        phrases = None if self.phrases is None else [self.phrases[i] for i in sentences]
        return LabelledText(self.ids[places], self.labels[places], bounds, phrases, tags=self.tags)


def read_sentences(
    side: Side,
    source: str | Path,
    labels: str | Path,
    *,
    classes: int,
    max_tokens: int,
    segmenter: Segmenter | None = None,
    tags: Sequence[int] = (),
) -> LabelledText:
    """The sentences of a file, one fertility a word in the file of labels; about six bytes a token are held.

    Raises DataError where the files do not fit, FileProblem where they cannot be read.
    """
    ids, found, bounds = array("i"), array("b"), array("q", [0])
    phrases: list[list[int]] = []
    left_out = dict.fromkeys(("blank", "long", "unclear"), 0)
    unclear, number = None, 0
    rows = read_labelled(source, labels)
    while window := list(islice(rows, WINDOW)):
        encoded = side.encode_batch([line for line, _ in window])
        for (line, counts), of_line in zip(window, encoded, strict=True):
            number += 1
            if not of_line or len(of_line) > max_tokens:
                left_out["long" if of_line else "blank"] += 1
                continue
            try:
                numbers = spread(side, line, of_line, counts)
            except DataError:
                left_out["unclear"] += 1
                unclear = unclear or number
                continue
            ids.extend(of_line)
            found.extend(fertility_class(count, classes) for count in numbers)
            bounds.append(len(ids))
            if segmenter is not None:
                tagged = [*tags, *of_line]
                phrases += segment_lines(segmenter, side, [line], [tagged], file=source, first_line=number)
    return LabelledText(
        np.array(ids, np.int32),
        np.array(found, np.int8),
        np.array(bounds, np.int64),
        None if segmenter is None else phrases,
        left_out,
        unclear,
        tuple(tags),
    )


def choose_items(labels_N: np.ndarray, classes: int, *, seed: int) -> np.ndarray:
    """The numbers, ascending, of all items of the classes that mean a phrase, and of as many others, drawn with `seed`."""
    is_phrase = labels_N >= WORD_CLASSES[classes]
    phrases, words = np.flatnonzero(is_phrase), np.flatnonzero(~is_phrase)
    drawn = np.random.default_rng(seed).choice(len(words), min(len(words), len(phrases)), replace=False)
    return np.sort(np.concatenate([phrases, words[drawn]]))


class Room:
    """Memory for arrays, up to `limit` bytes in all; larger ones are laid in a file without a name in `folder`."""

    def __init__(self, limit: int, folder: Path) -> None:
        self.left, self.folder = limit, folder

    def array(self, rows: int, width: int) -> np.ndarray:
        """A float32 array (rows, width). Raises FileProblem where the disk has no room for it."""
        size = 4 * rows * width
        if size <= self.left:
            self.left -= size
            return np.empty((rows, width), np.float32)
        try:
            with tempfile.TemporaryFile(dir=self.folder) as handle:
                os.posix_fallocate(handle.fileno(), 0, size)
                block = mmap.mmap(handle.fileno(), size)
        except OSError as error:
            raise disk_problem(error, self.folder) from error
        return np.frombuffer(block, np.float32).reshape(rows, width)


class Items(NamedTuple):
    """What the module reads of each item, (N, I) float32, and the classes, (N,) int64."""

    inputs_NI: Tensor
    labels_N: Tensor


def batches(
    text: LabelledText, sentences: np.ndarray, *, tokens: int = BATCH_TOKENS
) -> Iterator[tuple[list[int], Any]]:
    """The sentences in batches of similar length, longest first: their numbers, and a batch without targets."""
    lengths = np.diff(text.bounds)[sentences] + len(text.tags) + 1
    for rows in plan_batches(lengths.tolist(), sentences=BATCH_SENTENCES, tokens=tokens):
        chosen = [int(sentences[row]) for row in rows]
        sources = [[*text.tags, *text.ids[text.bounds[i] : text.bounds[i + 1]]] for i in chosen]
        phrases = None if text.phrases is None else [text.phrases[i] for i in chosen]
        yield chosen, make_batch(sources, [[] for _ in chosen], phrases)


@torch.no_grad()
def read_items(
    model: Any, fertility: Fertility, text: LabelledText, kept: np.ndarray, room: Room, *, device: torch.device
) -> Items:
    """What the frozen model knows of the items `kept` (ascending numbers of tokens of the text), in their order."""
    sentence_of = np.searchsorted(text.bounds, kept, side="right") - 1
    inputs = room.array(len(kept), fertility.width)
    for chosen, batch in batches(text, np.unique(sentence_of)):
        joined_BSI = join_states(model, fertility, batch, device)
        for row, i in enumerate(chosen):
            first, last = np.searchsorted(sentence_of, [i, i + 1])
            places = torch.from_numpy(kept[first:last] - text.bounds[i] + len(text.tags))
            inputs[first:last] = joined_BSI[row, places.to(device)].float().cpu().numpy()
    return Items(torch.from_numpy(inputs), torch.from_numpy(text.labels[kept].astype(np.int64)))


def join_states(model: Any, fertility: Fertility, batch: Any, device: torch.device) -> Tensor:
    """What the fertility module reads of each source token of a batch, (B, S, I)."""
    moved = batch.to(device)
    return fertility.join(*model.source_states(moved.source_BS, moved.source_lengths_B, moved.phrase_sizes_BP))


def held_out(text: LabelledText, *, share: float, most: int, seed: int) -> tuple[LabelledText, LabelledText]:
    """A text of at least two sentences without some of them, drawn with `seed`, and these: a share of all, at least one."""
    count = max(1, min(most, int(share * text.num_sentences)))
    drawn = np.random.default_rng(seed).choice(text.num_sentences, count, replace=False)
    rest = np.setdiff1d(np.arange(text.num_sentences), drawn)
    return text.take(rest), text.take(np.sort(drawn))
