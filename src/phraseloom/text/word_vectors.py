"""The vectors of a vocabulary: from those of a `.vec` file (Kumar and Tsvetkov 2019), or random ones.

    word, phrase    v / (|v| + 1e-6), divided by its length once more; then transformed, and divided by its length again; a row
                    that the transformation makes 0 stays as it is
    PAD, BOS        0
    EOS             (1, …, 1) / √m
    UNK             the mean of the vectors of all other tokens of the file, divided by its length, and then as a row

The transformation of a unit row u, with the mean μ and the covariance Σ = U diag(λ) Uᵀ of all these rows, λ falling:

    center                  u - μ                                  (Mu and Viswanath 2018, without their second step)
    whiten                  diag(λ)^(-1/2) Uᵀ (u - μ)              every principal component has variance 1
    with `dimensions`: k    the first k components of Uᵀ (u - μ), or of the whitened vector

With `random_share`: s, the row u' of a word or phrase becomes at last √(1 - s) u' + √s r, divided by its length, where r is a
random unit vector of its own: two rows have about 1 - s times their cosine.

Where the file has no other token, or their mean is 0, UNK is made of the vectors of the vocabulary instead, and where these
cancel as well it is −EOS. Random rows are drawn from N(0, I) and divided by their length, that of UNK too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from phraseloom.errors import DataError
from phraseloom.text.vectors import RunningMean, Vectors, read_vectors
from phraseloom.text.vocabulary import EOS, SPECIALS, UNK

EPSILON = 1e-6
ROWS = 4096  # normalised at a time, in float64
RANK = 1e-9  # of the largest variance: less is rounding


@dataclass(frozen=True)
class RowTransform:
    """u → (u - mean) · map, made a unit row. `map_MK` None: the identity.

    `random_share`: that of the rows of the table, which `add_random` gave them afterwards.
    """

    mean_M: np.ndarray
    map_MK: np.ndarray | None = None
    random_share: float = 0.0

    @property
    def width(self) -> int:
        """Width of the transformed rows."""
        return len(self.mean_M) if self.map_MK is None else self.map_MK.shape[1]

    def __call__(self, rows_NM: np.ndarray) -> np.ndarray:
        """Unit rows (N, K) of unit rows (N, M); a row that becomes 0 is left out of it: its first K numbers are kept."""
        moved = rows_NM.astype(np.float64) - self.mean_M
        same = np.square(moved).sum(1) < EPSILON**2
        if self.map_MK is not None:
            moved = moved @ self.map_MK
            same |= ~moved.any(1)
        moved[same] = rows_NM[same, : self.width]
        return unit(moved)


def learn_transform(
    rows_VM: np.ndarray, *, center: bool = False, whiten: bool = False, dimensions: int | None = None
) -> RowTransform | None:
    """The transformation of unit rows (see above); None where nothing is asked for. Sums in float64, `ROWS` rows at a time.

    Components whose variance is below `RANK` of the largest are left out: 0 in the whitened rows. Raises DataError where
    `dimensions` is more than the width.
    """
    if not (center or whiten):
        return None
    width = rows_VM.shape[1]
    if dimensions is not None and dimensions > width:
        raise DataError(f"dimensions: {dimensions} of vectors of width {width}", hint="keep at most their width")
    mean_M = rows_VM.mean(0, dtype=np.float64)
    if not whiten and dimensions is None:
        return RowTransform(mean_M)
    variances_M, axes_MM = principal_components(rows_VM, mean_M)
    scale_M = np.ones(width)
    if whiten:
        real = variances_M > RANK * max(variances_M[0], np.finfo(np.float64).tiny)
        scale_M = np.where(real, 1 / np.sqrt(np.where(real, variances_M, 1.0)), 0.0)
    return RowTransform(mean_M, (axes_MM * scale_M)[:, : dimensions or width])


def principal_components(rows_VM: np.ndarray, mean_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The variances of rows along their principal axes, largest first, and the axes (M, M), one a column.

    The largest number of each axis is positive, so that the same rows give the same axes.
    """
    covariance_MM = np.zeros((rows_VM.shape[1],) * 2)
    for start in range(0, len(rows_VM), ROWS):
        centred = rows_VM[start : start + ROWS] - mean_M
        covariance_MM += centred.T @ centred
    variances_M, axes_MM = np.linalg.eigh(covariance_MM / len(rows_VM))
    variances_M, axes_MM = variances_M[::-1].clip(min=0.0), axes_MM[:, ::-1]
    largest_M = np.take_along_axis(axes_MM, np.abs(axes_MM).argmax(0)[None], 0)[0]
    return variances_M, axes_MM * np.where(largest_M < 0, -1.0, 1.0)


def table_of(
    path: str,
    words: Sequence[str],
    phrases: Sequence[str],
    *,
    center: bool = False,
    whiten: bool = False,
    dimensions: int | None = None,
    random_share: float = 0.0,
    random_seed: int = 1,
) -> tuple[list[str], list[str], np.ndarray, RowTransform | None]:
    """Words and phrases whose vector is not 0, the table, float32 (4 + words + phrases, m), in their order, and what
    transformed the vectors.

    `center`: vectors learned from little text have a direction in common, and rare tokens little else, so that they are the
    nearest to any prediction that hesitates; without that direction they are not. `whiten` spreads them over all directions.
    `random_share` keeps near rows apart, drawn with `random_seed`.

    Raises FileProblem, CorruptError, DataError: a row that is not of the file's width, a repeated token.
    """
    others = RunningMean()
    tokens, matrix_VM = read_vectors(path, wanted={*words, *phrases}, others=others)
    row = {token: number for number, token in enumerate(tokens) if matrix_VM[number].any()}
    words, phrases = [w for w in words if w in row], [p for p in phrases if p in row]
    if not words and not phrases:
        raise DataError("the vectors of all words of the text are 0", file=path)
    rows_VM = np.take(matrix_VM, [row[token] for token in (*words, *phrases)], axis=0)
    del matrix_VM
    for start in range(0, len(rows_VM), ROWS):
        rows_VM[start : start + ROWS] = unit(rows_VM[start : start + ROWS])
    transform = learn_transform(rows_VM, center=center, whiten=whiten, dimensions=dimensions)
    unknown_M = _unknown(others, rows_VM)
    table_VM = _empty_table(len(rows_VM), rows_VM.shape[1] if transform is None else transform.width)
    kept = table_VM[len(SPECIALS) :]
    for start in range(0, len(kept), ROWS):
        part = rows_VM[start : start + ROWS]
        kept[start : start + ROWS] = part if transform is None else transform(part)
    if unknown_M is None:
        table_VM[UNK] = -table_VM[EOS]
    else:
        table_VM[UNK] = (unknown_M if transform is None else transform(unknown_M))[0]
    if random_share:
        add_random(kept, random_share, random_seed)
        transform = replace(transform or RowTransform(np.zeros(rows_VM.shape[1])), random_share=random_share)
    return words, phrases, table_VM, transform


def add_random(rows_VM: np.ndarray, share: float, seed: int) -> None:
    """Mix unit rows (see above) with random directions, in place."""
    draw = np.random.default_rng(seed)
    for start in range(0, len(rows_VM), ROWS):
        part = rows_VM[start : start + ROWS]
        part[:] = unit(
            (1 - share) ** 0.5 * part.astype(np.float64) + share**0.5 * unit(draw.standard_normal(part.shape))
        )


def random_table(size: int, width: int, seed: int) -> np.ndarray:
    """A table of random unit rows for `size` words and phrases, float32 (4 + size, width)."""
    table_VM = _empty_table(size, width)
    draw = np.random.default_rng(seed)
    table_VM[UNK] = unit(draw.standard_normal((1, width)))[0]
    for start in range(len(SPECIALS), len(table_VM), ROWS):
        part = table_VM[start : start + ROWS]
        part[:] = unit(draw.standard_normal(part.shape))
    return table_VM


def whitened(vectors: Vectors, dimensions: int | None = None) -> Vectors:
    """The unit rows of vectors, whitened (see above); rows of zeros stay zeros and are not counted."""
    rows_VM, real_V = vectors.matrix_VM, vectors.matrix_VM.any(1)
    units_NM = unit(rows_VM[real_V]).astype(np.float32)
    transform = learn_transform(units_NM, whiten=True, dimensions=dimensions)
    assert transform is not None
    table_VK = np.zeros((len(rows_VM), transform.width), np.float32)
    table_VK[real_V] = transform(units_NM)
    return Vectors(vectors.tokens, table_VK)


def _empty_table(size: int, width: int) -> np.ndarray:
    table_VM = np.zeros((len(SPECIALS) + size, width), np.float32)
    table_VM[EOS] = unit(np.ones((1, width)))[0]
    return table_VM


def unit(rows_NM: np.ndarray) -> np.ndarray:
    """Rows of length 1, float64; none of the rows is 0."""
    rows = rows_NM.astype(np.float64)
    rows /= np.sqrt(np.square(rows).sum(1, keepdims=True)) + EPSILON
    return rows / np.sqrt(np.square(rows).sum(1, keepdims=True))


def _unknown(others: RunningMean, rows_VM: np.ndarray) -> np.ndarray | None:
    """The unit row (1, M) of UNK before the transformation; None where all means are 0."""
    for mean in (others.value, rows_VM.mean(0, dtype=np.float64)):
        if mean is not None and mean.any():
            return unit(mean[None])
    return None
