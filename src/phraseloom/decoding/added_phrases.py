"""Add phrases to the output of a trained model, as new rows of its table of vectors (P003 §2.1).

A file of vectors (`.vec`)   its phrases, tokens joined by `_`, with their vectors, which are centred or whitened like those of
                             the model; tokens that the model knows only show that its vectors are those of the model
any other file               one phrase a line, words separated by blanks, columns after a tab or ` ||| ` ignored; the vector of
                             a phrase is the sum of the vectors of its words, normalised

Phrases already in the vocabulary are ignored. Nothing is trained: the decoder reads the vector of an added phrase like any
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from phraseloom.errors import DataError, UsageError
from phraseloom.layers.packed import can_pack
from phraseloom.layers.table import TableEmbedding
from phraseloom.outputs import ContinuousOutput
from phraseloom.phrases.segmenters import COLUMNS
from phraseloom.text.lines import read_lines
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vectors import read_vectors
from phraseloom.text.vocabulary import SPECIALS, UNK, Vocabulary
from phraseloom.text.word_vectors import unit
from phraseloom.text.words import Words, escape, is_phrase, join, split

ALIKE = 0.9  # mean cosine of the vectors of one token in the file and in the model


class Added(NamedTuple):
    """The number of phrases that a file added, and of those that were in the vocabulary already."""

    new: int
    known: int


def add_phrases(model: nn.Module, tokenizer: Tokenizer, path: str | Path) -> tuple[Tokenizer, Added]:
    """Add the phrases of a file to the output of `model`, in place; return the tokenizer with them.

    Raises FileProblem, CorruptError; DataError (file and line) for a word without a vector, a phrase of one word, vectors of
    another width, no phrase at all; UsageError if the model does not write and read fixed vectors, or its text has no joined
    phrases.
    """
    output, words = getattr(model, "output", None), tokenizer.target.subwords
    if not isinstance(output, ContinuousOutput) or not isinstance(words, Words) or words.vectors is None:
        raise UsageError(
            "phrases can be added to a model with continuous output only: others have no table of word vectors",
            hint="train one with model.output: {kind: word_or_phrase} (docs/continuous_output.md)",
        )
    if not words.joined:
        raise UsageError(
            "this model writes text without joined phrases; its dataset was prepared without data.subwords.joined: true"
        )
    if not isinstance(getattr(model, "target_embedding", None), TableEmbedding):
        raise UsageError(
            "the decoder of this model reads trained embeddings (model.tied: none), and new phrases have none"
        )
    is_vectors = Path(path).name.removesuffix(".gz").removesuffix(".xz").endswith(".vec")
    rows = _from_vectors(path, words) if is_vectors else _from_words(path, words)
    new = {phrase: row for phrase, row in rows.items() if phrase not in words.vocabulary}
    if new:
        vectors_VM = np.concatenate([words.vectors, unit(np.stack([*new.values()])).astype(np.float32)])
        names = Vocabulary([*words.vocabulary, *new])
        words = Words(names, joined=True, vectors=vectors_VM, transform=words.transform)
        output.table.rows_VM = torch.from_numpy(vectors_VM).to(output.table.rows_VM)
        if can_pack(output.table.rows_VM):
            output.pack()
    sides = (tokenizer.source.language, tokenizer.target.language, tokenizer.source.subwords, words)
    return Tokenizer(tokenizer.text, *sides, truecasers=tokenizer.truecasers, tags=tokenizer.tags), Added(
        len(new), len(rows) - len(new)
    )


def _from_vectors(path: str | Path, words: Words) -> dict[str, np.ndarray]:
    assert words.vectors is not None
    width = words.vectors.shape[1] if words.transform is None else len(words.transform.mean_M)
    tokens, matrix_VM = read_vectors(path, width=width)
    phrases = [row for row, token in enumerate(tokens) if is_phrase(token)]
    if not phrases:
        raise DataError("no token of these vectors is a phrase (words joined by _)", file=path)
    for row in phrases:
        if not matrix_VM[row].any():
            raise DataError(f"the vector of {tokens[row]!r} is 0", file=path)
    real = np.flatnonzero(matrix_VM.any(1))
    rows_NM = unit(matrix_VM[real])
    if words.transform is not None:
        rows_NM = words.transform(rows_NM)
    vectors = {tokens[row]: vector_M for row, vector_M in zip(real, rows_NM, strict=True)}
    _check_space(path, words, vectors)
    return {tokens[row]: vectors[tokens[row]] for row in phrases}


def _check_space(path: str | Path, words: Words, vectors: Mapping[str, np.ndarray]) -> None:
    """Raise DataError if the vectors of the tokens that the model knows are not those of the model."""
    assert words.vectors is not None
    shared = [token for token in vectors if token in words.vocabulary and token not in SPECIALS]
    cosines = [float(vectors[token] @ words.vectors[words.vocabulary.id(token)]) for token in shared]
    kept = 1.0 if words.transform is None else (1 - words.transform.random_share) ** 0.5
    if cosines and np.mean(cosines) < ALIKE * kept:
        what = f"these vectors are not those of the model: {len(cosines):,} tokens of both have a cosine of"
        raise DataError(
            f"{what} {np.mean(cosines):.2f} on average",
            file=path,
            hint="give the file that the vectors of the model were read from, or a file of phrases as words, one per line",
        )


def _from_words(path: str | Path, words: Words) -> dict[str, np.ndarray]:
    assert words.vectors is not None
    vectors: dict[str, np.ndarray] = {}
    for number, line in enumerate(read_lines(path), start=1):
        column = line.partition(COLUMNS)[0].partition("\t")[0].strip()
        parts = [word for token in column.split(" ") if token for word in split(token)]
        if len(parts) < 2:
            raise DataError(f"{column!r} is not a phrase of two or more words", file=path, line=number)
        if (known := join(parts)) in words.vocabulary:
            vectors[known] = words.vectors[words.vocabulary.id(known)]
            continue
        ids = [words.vocabulary.id(word) for word in map(escape, parts)]
        if UNK in ids:
            word = parts[ids.index(UNK)]
            hint = "use a .vec file with the vector of the phrase: phraseloom embeddings train --vocabulary"
            raise DataError(f"word {word!r} has no vector in this model", file=path, line=number, hint=hint)
        total = words.vectors[ids].sum(0, dtype=np.float64)
        if not total.any():
            raise DataError(f"the word vectors of {column!r} add up to 0", file=path, line=number)
        vectors[join(parts)] = total
    if not vectors:
        raise DataError("the file has no phrases", file=path)
    return vectors
