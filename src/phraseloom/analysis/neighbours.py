"""Nearest neighbours of embeddings, and the agreement of two models on them (paper 004, Table 2).

    cos(a, b) = E_a · E_b / (|E_a| |E_b|)          N_k(a): the k pieces b ≠ a with the largest cos(a, b)
    overlap   = mean over tokens a of |N_k(a) ∩ N'_k(a)| / k;   by chance k / (V - 1), with V pieces to choose from

The pieces are those that all models have with non-zero vectors, without special symbols. Cosines have double precision. Two
cosines are equal if 9 digits agree; then the lower id comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phraseloom.errors import DataError, ModelError, UsageError
from phraseloom.models.store import load_model
from phraseloom.outputs.topk import best_columns
from phraseloom.text.tokenizer import Side
from phraseloom.text.vocabulary import SPECIALS

SideName = Literal["source", "target"]
DIGITS = 9
CELLS = 2**24  # cosines in memory at a time
PAIRED_TOKENS = 2000  # at most this number of tokens is compared pairwise
LINES = 4096


class Embeddings(NamedTuple):
    """The embedding matrix of one side of a model, and the tokenizer of this side."""

    name: str
    side: Side
    vectors_VD: Tensor


class PieceNeighbour(NamedTuple):
    """A piece and its cosine with the token."""

    piece: str
    cosine: float


@dataclass(frozen=True)
class Token:
    """A piece, its count in the text (None without a text), and its neighbours in each model, nearest first."""

    piece: str
    count: int | None
    neighbours: list[list[PieceNeighbour]]

    @property
    def shared(self) -> int:
        """The number of neighbours that all models share."""
        return len(set.intersection(*({n.piece for n in model} for model in self.neighbours)))


@dataclass(frozen=True)
class Neighbours:
    """The result of `compare`. `candidates` counts the possible neighbours, `zero` the pieces left out for a zero vector.

    `overlap`, `pearson` and `spearman` (of the cosines of all pairs of tokens) compare two models; None if they are undefined.
    `pairs` has these cosines for each model.
    """

    models: list[str]
    count: int
    candidates: int
    zero: int
    tokens: list[Token]
    overlap: float | None
    pearson: float | None
    spearman: float | None
    pairs: list[np.ndarray] = field(repr=False)

    @property
    def chance(self) -> float:
        """The overlap of random neighbours."""
        return self.count / (self.candidates - 1)


def load_embeddings(path: str | Path, side: SideName) -> Embeddings:
    """The embeddings of a model or run folder. Raises CorruptError, FileProblem, ModelError."""
    model, tokenizer, _ = load_model(path)
    embedding = model.source_embedding if side == "source" else model.target_embedding
    return Embeddings(str(path), getattr(tokenizer, side), embedding.weight.detach().clone())


TEXT = "text"  # the name of the text in messages


def frequencies(side: Side, lines: Iterable[str]) -> np.ndarray:
    """The count of each id in raw lines."""
    total, remaining = np.zeros(len(side.vocabulary), np.int64), iter(lines)
    while block := list(islice(remaining, LINES)):
        ids = [number for sentence in side.encode_batch(block) for number in sentence]
        total += np.bincount(np.asarray(ids, np.int64), minlength=len(total))
    return total


def compare(
    models: Sequence[Embeddings], *, tokens: int = 150, count: int = 5, lines: Iterable[str] | None = None
) -> Neighbours:
    """The `count` neighbours of the `tokens` most frequent pieces of a text, in one model or two.

    The tokenizer of the first model cuts the text; without a text the first pieces of its vocabulary are used. Raises
    UsageError for too few pieces, DataError for a text that has none of them, ModelError for a matrix that is not finite.
    """
    ids_VM, zero = _common(models)
    candidates = len(ids_VM)
    if count >= candidates:
        what = f"{candidates} pieces" + " are in both vocabularies" * (len(models) > 1)
        raise UsageError(f"{what}; {count} neighbours need {count + 1}")
    counts = None if lines is None else frequencies(models[0].side, lines)[ids_VM[:, 0]]
    order = np.arange(candidates) if counts is None else np.argsort(-counts, kind="stable")
    rows = order if counts is None else order[counts[order] > 0]
    if not len(rows):
        raise DataError("the text has none of the pieces", file=TEXT, hint="give raw text of the language of this side")
    chosen = torch.from_numpy(rows[:tokens])
    vectors = [model.vectors_VD[torch.from_numpy(ids)] for model, ids in zip(models, ids_VM.T, strict=True)]
    neighbours = [nearest(vectors_VD, chosen, count) for vectors_VD in vectors]
    piece = [models[0].side.vocabulary.piece(int(number)) for number in ids_VM[:, 0]]
    entries = [
        Token(
            piece[row],
            None if counts is None else int(counts[row]),
            [
                [PieceNeighbour(piece[n], c) for n, c in zip(ids[i].tolist(), cosines[i].tolist(), strict=True)]
                for ids, cosines in neighbours
            ],
        )
        for i, row in enumerate(chosen.tolist())
    ]
    pairs = [pair_cosines(vectors_VD[chosen[:PAIRED_TOKENS]]) for vectors_VD in vectors]
    two = len(models) == 2
    return Neighbours(
        models=[model.name for model in models],
        count=count,
        candidates=candidates,
        zero=zero,
        tokens=entries,
        overlap=float(np.mean([entry.shared / count for entry in entries])) if two else None,
        pearson=correlation(*pairs) if two else None,
        spearman=correlation(*map(ranks, pairs)) if two else None,
        pairs=pairs,
    )


def _common(models: Sequence[Embeddings]) -> tuple[np.ndarray, int]:
    """The rows (V, models) of the common pieces in the order of the first model, and the number of zero vectors."""
    for model in models:
        if not torch.isfinite(model.vectors_VD).all():
            raise ModelError("the embeddings are not finite", file=model.name)
    vocabularies = [model.side.vocabulary for model in models]
    pieces = [p for p in list(vocabularies[0])[len(SPECIALS) :] if all(p in v for v in vocabularies[1:])]
    ids = np.array([v.ids(pieces) for v in vocabularies], np.int64).reshape(len(models), -1).T
    filled = np.ones(len(ids), bool)
    for model, own in zip(models, ids.T, strict=True):
        filled &= model.vectors_VD.any(1).numpy()[own]
    return ids[filled], int((~filled).sum())


def nearest(vectors_VD: Tensor, rows_R: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and cosines (R, count) of the nearest other rows of `vectors_VD` (without zero vectors) for each of `rows_R`.

    `count` is below V. At most `CELLS` cosines, or those of one row, are in memory at a time.
    """
    size = len(vectors_VD)
    block = max(1, CELLS // vectors_VD.shape[1])
    ids, cosines = [], []
    for rows in rows_R.split(max(1, CELLS // size)):
        queries_RD = unit(vectors_VD[rows])
        scores_RV = torch.empty(len(rows), size, dtype=torch.float64)
        for start in range(0, size, block):
            scores_RV[:, start : start + block] = queries_RD @ unit(vectors_VD[start : start + block]).T
        scores_RV.clamp_(-1, 1).round_(decimals=DIGITS)
        scores_RV[torch.arange(len(rows)), rows] = -math.inf
        best, columns = best_columns(scores_RV, count)
        ids.append(columns)
        cosines.append(best)
    return torch.cat(ids), torch.cat(cosines)


def unit(vectors_VD: Tensor) -> Tensor:
    """Rows of length 1, in double precision."""
    exact = vectors_VD.double()
    return exact / exact.norm(dim=1, keepdim=True)


def pair_cosines(vectors_RD: Tensor) -> np.ndarray:
    """The cosines of all R (R - 1) / 2 pairs of rows: the first row with each later one, then the second."""
    rows = unit(vectors_RD)
    above = torch.triu_indices(len(rows), len(rows), 1)
    return (rows @ rows.T)[above[0], above[1]].numpy()


def ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value, from 0; equal values have the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray(((ends - counts) + (ends - 1))[place] / 2)


def correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Pearson's correlation; None for fewer than two values or a constant."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])
