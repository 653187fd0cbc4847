"""The vectors of a vocabulary from those of a `.vec` file (Kumar and Tsvetkov 2019; spec §4.4).

    word, phrase    v / (|v| + 1e-6), divided by its length once more; with `center`, less the mean of all of these rows, and
                    divided by its length again (Mu and Viswanath 2018, without their second step); a row that is that mean
                    stays as it is
    PAD, BOS        0
    EOS             (1, …, 1) / √m
    UNK             the mean of the vectors of all other tokens of the file, divided by its length; with `center` as a row

Where the file has no other token, or their mean is 0, UNK is made of the vectors of the vocabulary instead, and where these
cancel as well it is −EOS.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phraseloom.errors import DataError
from phraseloom.text.vectors import RunningMean, read_vectors
from phraseloom.text.vocabulary import EOS, SPECIALS, UNK

EPSILON = 1e-6
ROWS = 4096  # normalised at a time, in float64


def table_of(
    path: str, words: Sequence[str], phrases: Sequence[str], *, center: bool = False
) -> tuple[list[str], list[str], np.ndarray]:
    """Words and phrases whose vector is not 0, and the table, float32 (4 + words + phrases, m), in their order.

    `center`: vectors learned from little text have a direction in common, and rare tokens little else, so that they are the
    nearest to any prediction that hesitates; without that direction they are not.

    Raises FileProblem, CorruptError, DataError: a row that is not of the file's width, a token that is there twice.
    """
    others = RunningMean()
    tokens, matrix_VM = read_vectors(path, wanted={*words, *phrases}, others=others)
    row = {token: number for number, token in enumerate(tokens) if matrix_VM[number].any()}
    words, phrases = [w for w in words if w in row], [p for p in phrases if p in row]
    if not words and not phrases:
        raise DataError("the vectors of all words of the text are 0", file=path)
    table_VM = np.zeros((len(SPECIALS) + len(words) + len(phrases), matrix_VM.shape[1]), np.float32)
    kept = table_VM[len(SPECIALS) :]
    np.take(matrix_VM, [row[token] for token in (*words, *phrases)], axis=0, out=kept)
    for start in range(0, len(kept), ROWS):
        kept[start : start + ROWS] = unit(kept[start : start + ROWS])
    mean_M = kept.mean(0, dtype=np.float64) if center else np.zeros(kept.shape[1])
    if center:
        for start in range(0, len(kept), ROWS):
            kept[start : start + ROWS] = _less(kept[start : start + ROWS], mean_M)
    table_VM[EOS] = unit(np.ones((1, table_VM.shape[1])))[0]
    table_VM[UNK] = _unknown(others, kept, table_VM[EOS], mean_M)
    return words, phrases, table_VM


def unit(rows_NM: np.ndarray) -> np.ndarray:
    """Rows of length 1, float64; none of the rows is 0."""
    rows = rows_NM.astype(np.float64)
    rows /= np.sqrt(np.square(rows).sum(1, keepdims=True)) + EPSILON
    return rows / np.sqrt(np.square(rows).sum(1, keepdims=True))


def _less(rows_NM: np.ndarray, mean_M: np.ndarray) -> np.ndarray:
    """Unit rows less their mean, made unit rows again; those that are the mean itself as they were."""
    centred = rows_NM - mean_M
    same = np.square(centred).sum(1) < EPSILON**2
    centred[same] = rows_NM[same]
    return unit(centred)


def _unknown(others: RunningMean, kept_VM: np.ndarray, end_M: np.ndarray, mean_M: np.ndarray) -> np.ndarray:
    for mean in (others.value, kept_VM.mean(0, dtype=np.float64)):
        if mean is not None and mean.any():
            return _less(unit(mean[None]), mean_M)[0]
    return -end_M
