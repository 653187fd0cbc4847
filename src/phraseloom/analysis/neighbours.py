"""Nearest neighbours of embeddings, and how far two models agree on them (paper 004, Table 2; spec §6.4).

    cos(a, b) = E_a · E_b / (|E_a| |E_b|)          N_k(a): the k pieces b ≠ a with the largest cos(a, b)
    overlap   = mean over tokens a of |N_k(a) ∩ N'_k(a)| / k;   by chance k / (V - 1), with V pieces to choose from

The pieces are those that all models have and of which none has a zero vector; special symbols are no pieces. Cosines are
of double precision, and equal if 9 digits are: then the lower id comes first.
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

from phraseloom.errors import ModelError, UsageError
from phraseloom.models.store import load_model
from phraseloom.outputs.topk import best_columns
from phraseloom.text.tokenizer import Side
from phraseloom.text.vocabulary import SPECIALS

SideName = Literal["source", "target"]
DIGITS = 9
CELLS = 2**24  # cosines held at a time
PAIRED_TOKENS = 2000  # most tokens of which all pairs are compared
LINES = 4096


class Embeddings(NamedTuple):
    """The matrix of one side of a model, and what turns text into its rows."""

    name: str
    side: Side
    vectors_VD: Tensor


class PieceNeighbour(NamedTuple):
    """A piece and its cosine with the token."""

    piece: str
    cosine: float


@dataclass(frozen=True)
class Token:
    """A piece, how often it is in the text (None: there is no text), and its neighbours in each model, nearest first."""

    piece: str
    count: int | None
    neighbours: list[list[PieceNeighbour]]

    @property
    def shared(self) -> int:
        """How many neighbours are the same in all models."""
        return len(set.intersection(*({n.piece for n in some} for some in self.neighbours)))


@dataclass(frozen=True)
class Neighbours:
    """What `compare` finds. `candidates`: pieces to choose from; `zero`: pieces left out for a vector of zeros.

    `overlap`, `pearson` and `spearman` (of the cosines of all pairs of tokens) are of two models; None where they are not
    defined. `pairs`: these cosines, for each model.
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
        """The overlap of neighbours that are drawn."""
        return self.count / (self.candidates - 1)


def load_embeddings(path: str | Path, side: SideName) -> Embeddings:
    """The embeddings of a model or run folder. Raises CorruptError, FileProblem, ModelError."""
    model, tokenizer, _ = load_model(path)
    embedding = model.source_embedding if side == "source" else model.target_embedding
    return Embeddings(str(path), getattr(tokenizer, side), embedding.weight.detach().clone())


def frequencies(side: Side, lines: Iterable[str]) -> np.ndarray:
    """How often each id is in raw lines."""
    total, rest = np.zeros(len(side.vocabulary), np.int64), iter(lines)
    while some := list(islice(rest, LINES)):
        ids = [number for sentence in side.encode_batch(some) for number in sentence]
        total += np.bincount(np.asarray(ids, np.int64), minlength=len(total))
    return total


def compare(
    models: Sequence[Embeddings], *, tokens: int = 150, count: int = 5, lines: Iterable[str] | None = None
) -> Neighbours:
    """The `count` neighbours of the `tokens` most frequent pieces of a text, in one model or two.

    The text is cut by the tokenizer of the first model; without one the first pieces of its vocabulary are taken. Raises
    UsageError where there are too few pieces, ModelError for a matrix that is not finite.
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
        raise UsageError("no piece that could be looked at is in the text")
    chosen = torch.from_numpy(rows[:tokens])
    vectors = [model.vectors_VD[torch.from_numpy(ids)] for model, ids in zip(models, ids_VM.T, strict=True)]
    found = [nearest(some, chosen, count) for some in vectors]
    piece = [models[0].side.vocabulary.piece(int(number)) for number in ids_VM[:, 0]]
    entries = [
        Token(
            piece[row],
            None if counts is None else int(counts[row]),
            [
                [PieceNeighbour(piece[n], c) for n, c in zip(ids[i].tolist(), cosines[i].tolist(), strict=True)]
                for ids, cosines in found
            ],
        )
        for i, row in enumerate(chosen.tolist())
    ]
    pairs = [pair_cosines(some[chosen[:PAIRED_TOKENS]]) for some in vectors]
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
    """Rows (V, models) of the pieces that all models have, in the order of the first; and how many have a zero vector."""
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
    """Ids and cosines (R, count) of the nearest other rows of `vectors_VD`, none of which is zero, to those of `rows_R`.

    `count` is below V. Holds at most `CELLS` cosines at a time, or those of one row.
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
    """The cosines of all pairs of rows, R (R - 1) / 2 of them: of the first row with each later one, then the second."""
    rows = unit(vectors_RD)
    above = torch.triu_indices(len(rows), len(rows), 1)
    return (rows @ rows.T)[above[0], above[1]].numpy()


def ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value, from 0; equal values have the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray(((ends - counts) + (ends - 1))[place] / 2)


def correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Pearson's correlation; None for fewer than two values, or where all are the same."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])
