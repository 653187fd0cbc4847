"""Can a continuous output tell the tokens of a table apart? Figures of unit rows u_1 … u_V, width m.

    mean cosine          of two different rows
    nearest cosine       median over rows of the largest cosine with another row
    effective rank       exp(-Σ p log p), p_i = λ_i / Σ λ, λ the variances along the principal axes   (Roy and Vetterli 2007)
    share of 64          Σ of the 64 largest λ / Σ λ
    likeliest            the posterior-mean test: for contexts h of held-out text, how often the row nearest to
                         Σ_w p(w | h) u_w is the likeliest token (`TrigramModel`); the random rows are the reference

The last one is what such an output needs: trained to the optimum of a cosine or von Mises-Fisher loss, it points to the mean
vector of what may come next, and writes the nearest row (Kumar and Tsvetkov 2019). It finds bad tables, and does not order good
ones: random rows pass it best. Sums in float64, rows and contexts by chunks, and
samples evenly spaced: the same input gives the same figures.

None of these figures tells that the vectors are of another text; `VectorCoverage` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from phraseloom.errors import DataError
from phraseloom.text.lines import open_binary, read_blocks
from phraseloom.text.vectors import mean_cosine, read_tokens, read_vectors
from phraseloom.text.vocabulary import SPECIALS
from phraseloom.text.word_vectors import ROWS, learn_transform, principal_components, random_table, unit

LINE_TOKENS = 100  # of each line that the posterior-mean test reads
LINES = 50_000  # of a text that are read for the test
HELD_OUT = 10  # each tenth line gives contexts, the others give counts
CONTEXTS, QUERIES = 2000, 2000
CHUNK = 64  # contexts at a time
LEADING = 64

MEAN_COSINE, NEAREST_COSINE, LIKELIEST = 0.4, 0.85, 0.9
"""Above, above and (as a share of what random rows reach) below which a table is bad.

Measured on 1.3 million words of Tatoeba, 11,241 types, width 300. The defaults of fastText give a mean cosine of 0.50, a
nearest cosine of 0.92, and the likeliest token in 35 %; centred 74 %, whitened 91 %, random rows 95 %. With --sample 0.001:
0.27, 0.80, 58 % and centred 84 %.
"""
REFUSED_COVERAGE, LOW_COVERAGE = 0.4, 0.75
"""Shares of the tokens of a text that have a vector: below them a table is refused, or there is a warning.

Measured with the words of de, en, fi, fr and tr texts, tokenised, as tables. With those of one text, at least 2 times in it,
the same text is covered to 0.73 (3,000 lines of Finnish news) … 0.97, a text of the same language and another domain to
0.57 … 0.81 (Turkish 0.41), and a text of another language to at most 0.36. With 28,066 English words, French, Turkish and
German text still reach 0.42, 0.41 and 0.31: they share punctuation, numbers, names and short words. Lower-cased German words
cover cased German text to 0.65 … 0.73.
"""
OTHER_VECTORS = (
    "are they of this language, tokenised and cased like the text? If so, a smaller --min-count of embeddings train, or "
    "vectors of more text, cover more"
)


@dataclass(frozen=True)
class VectorFigures:
    """Figures of a table, as above. `likeliest`, `expected` and `best` are None without text.

    `expected`: mean probability of the nearest row; `best`: of the likeliest token.
    """

    rows: int
    width: int
    mean_cosine: float | None
    nearest_cosine: float | None
    effective_rank: float | None
    share_of_64: float | None
    likeliest: float | None = None
    expected: float | None = None
    best: float | None = None

    def as_dict(self) -> dict[str, float | int | None]:
        """Plain data."""
        return asdict(self)


def check_tables(
    tables: Mapping[str, np.ndarray], lines: Sequence[Sequence[int]] | None = None
) -> dict[str, VectorFigures]:
    """The figures of tables (V, m) of the same tokens, by their names; rows of zeros are no vectors and are refused.

    `lines`: text as rows of the tables, -1 for other tokens; the callers give at most `LINES`. Raises DataError where they
    are too few (`has_contexts`).
    """
    agreement = {} if lines is None else _posterior_mean_test(tables, lines)
    figures = {}
    for name, rows_VM in tables.items():
        variances_M, _ = principal_components(rows_VM, rows_VM.mean(0, dtype=np.float64))
        total = float(variances_M.sum())
        shares_M = variances_M / total if total > 0 else variances_M
        positive = shares_M[shares_M > 0]
        figures[name] = VectorFigures(
            len(rows_VM),
            rows_VM.shape[1],
            mean_cosine(rows_VM),
            median_nearest_cosine(rows_VM),
            float(np.exp(-(positive * np.log(positive)).sum())) if total > 0 else None,  # all vectors are the same
            float(shares_M[:LEADING].sum()) if total > 0 else None,
            *agreement.get(name, ()),
        )
    return figures


def median_nearest_cosine(rows_VM: np.ndarray) -> float | None:
    """The median, over at most `QUERIES` unit rows, of the largest cosine with another row; None: no two rows."""
    size = len(rows_VM)
    if size < 2:
        return None
    queries = _evenly(size, QUERIES)
    largest = []
    for start in range(0, len(queries), CHUNK):
        chosen = queries[start : start + CHUNK]
        cosines = rows_VM[chosen] @ rows_VM.T
        cosines[np.arange(len(chosen)), chosen] = -np.inf
        largest.append(cosines.max(1))
    return float(np.median(np.concatenate(largest).astype(np.float64)))


def has_contexts(lines: Sequence[Sequence[int]]) -> bool:
    """Whether lines are enough for the posterior-mean test: a known token in those held out, and one in the others."""
    parts = lines[HELD_OUT - 1 :: HELD_OUT], [line for n, line in enumerate(lines, start=1) if n % HELD_OUT]
    return all(any(number >= 0 for line in part for number in line) for part in parts)


def _posterior_mean_test(
    tables: Mapping[str, np.ndarray], lines: Sequence[Sequence[int]]
) -> dict[str, tuple[float, float, float]]:
    if not has_contexts(lines):
        raise DataError("the text is too short for the posterior-mean test", hint="give at least some hundred lines")
    size = len(next(iter(tables.values())))
    contexts_N2, _ = predictions(lines[HELD_OUT - 1 :: HELD_OUT])
    model = TrigramModel((line for n, line in enumerate(lines, start=1) if n % HELD_OUT), size)
    contexts_N2 = contexts_N2[_evenly(len(contexts_N2), CONTEXTS)]
    right, expected, best = dict.fromkeys(tables, 0), dict.fromkeys(tables, 0.0), 0.0
    for start in range(0, len(contexts_N2), CHUNK):
        posterior_NV = model.posterior(contexts_N2[start : start + CHUNK])
        highest_N = posterior_NV.max(1)
        best += float(highest_N.sum())
        for name, rows_VM in tables.items():
            mean_NM = np.zeros((len(posterior_NV), rows_VM.shape[1]))
            for row in range(0, size, ROWS):
                mean_NM += posterior_NV[:, row : row + ROWS] @ rows_VM[row : row + ROWS].astype(np.float64)
            chosen_N = (mean_NM.astype(np.float32) @ rows_VM.T).argmax(1)
            of_chosen_N = np.take_along_axis(posterior_NV, chosen_N[:, None], 1)[:, 0]
            right[name] += int((of_chosen_N >= highest_N).sum())  # of equally likely tokens, each is right
            expected[name] += float(of_chosen_N.sum())
    count = len(contexts_N2)
    return {name: (right[name] / count, expected[name] / count, best / count) for name in tables}


def _evenly(size: int, most: int) -> np.ndarray:
    """At most `most` of the numbers below `size`, evenly spaced."""
    wanted = min(size, most)
    return np.arange(wanted, dtype=np.int64) * size // wanted


def variants(rows_VM: np.ndarray) -> dict[str, np.ndarray]:
    """Unit rows as they are, centred, whitened, and random ones of the same shape."""
    tables = {"as they are": rows_VM}
    for name in ("center", "whiten"):
        transform = learn_transform(rows_VM, **{name: True})
        assert transform is not None
        table_VM = np.empty((len(rows_VM), transform.width), np.float32)
        for start in range(0, len(rows_VM), ROWS):
            table_VM[start : start + ROWS] = transform(rows_VM[start : start + ROWS])
        tables[{"center": "centred", "whiten": "whitened"}[name]] = table_VM
    return {**tables, "random": random_rows(rows_VM)}


def random_rows(rows_VM: np.ndarray) -> np.ndarray:
    """Random unit rows in the shape of others: the reference."""
    return random_table(len(rows_VM), rows_VM.shape[1], seed=1)[len(SPECIALS) :]


class VectorCoverage(NamedTuple):
    """How many different tokens of a text have a vector, of how many; and the same of all its tokens."""

    types_with: int
    types: int
    tokens_with: int
    tokens: int

    @classmethod
    def of(cls, counts: Mapping[str, int], present: Collection[str]) -> VectorCoverage:
        """Of counted tokens, those that are `present` in a file of vectors."""
        found = [count for token, count in counts.items() if token in present]
        return cls(len(found), len(counts), sum(found), sum(counts.values()))

    @property
    def share(self) -> float:
        """Of all tokens of the text, those with a vector."""
        return self.tokens_with / max(1, self.tokens)

    def require(self, file: str | Path) -> None:
        """Raise DataError if the file cannot be of this text (`REFUSED_COVERAGE`)."""
        if self.share < REFUSED_COVERAGE:
            raise DataError(f"{self} (at least {REFUSED_COVERAGE:.0%} are needed)", file=file, hint=OTHER_VECTORS)

    def warning(self) -> str | None:
        """What to say of vectors that lack many tokens (`LOW_COVERAGE`)."""
        if self.share >= LOW_COVERAGE:
            return None
        return f"{self} (below {LOW_COVERAGE:.0%}); the others are unknown to a model: {OTHER_VECTORS}"

    def __str__(self) -> str:
        return (
            f"vectors for {self.share:.1%} of the {self.tokens:,} tokens of the text, {self.types_with:,} of "
            f"{self.types:,} different ones"
        )


def read_rows(
    path: str | Path, tokens: Sequence[str], most: int, known: Collection[str] | None = None
) -> tuple[list[str], np.ndarray]:
    """The first `most` of the tokens that have a row in a file, without zero rows, and their unit rows (float32).

    `known`: the tokens that have a row, if they were read before. Raises FileProblem, CorruptError, DataError: as
    `read_vectors`, and where no token has one.
    """
    known = read_tokens(path, set(tokens)) if known is None else known
    tokens = [token for token in tokens if token in known][:most]
    vectors = read_vectors(path, wanted=set(tokens))
    row = {token: number for number, token in enumerate(vectors.tokens) if vectors.matrix_VM[number].any()}
    present = [token for token in tokens if token in row]
    if not present:
        raise DataError(
            "none of the tokens has a vector other than 0 here", file=path, hint="is this the text of these vectors?"
        )
    rows_VM = np.take(vectors.matrix_VM, [row[token] for token in present], axis=0)
    for start in range(0, len(rows_VM), ROWS):
        rows_VM[start : start + ROWS] = unit(rows_VM[start : start + ROWS])
    return present, rows_VM


def first_tokens(path: str | Path, count: int) -> list[str]:
    """The tokens of the first `count` rows of a file of vectors. Raises FileProblem, CorruptError, DataError."""
    with open_binary(path, "file of vectors") as handle:
        lines = (line for block in read_blocks(handle, name=path) for line in block)
        tokens = list(dict.fromkeys(line.partition(" ")[0] for line in islice(lines, 1, count + 1)))
    if not tokens:
        raise DataError("the file has no vectors", file=path)
    return tokens


def problems(figures: VectorFigures, reference: VectorFigures | None) -> list[str]:
    """What is wrong with a table, against random rows; empty for a good one."""
    found = []
    if figures.effective_rank is None:
        return ["all vectors are the same"] if figures.rows > 1 else ["there is only one vector"]
    if figures.mean_cosine is not None and figures.mean_cosine > MEAN_COSINE:
        found.append(f"two vectors have a cosine of {figures.mean_cosine:.2f} on average (at most {MEAN_COSINE})")
    # Rows of a few dimensions have near neighbours whatever they are.
    crowded = reference is not None and (reference.nearest_cosine or 0) > NEAREST_COSINE
    if figures.nearest_cosine is not None and figures.nearest_cosine > NEAREST_COSINE and not crowded:
        what = f"a vector and the one nearest to it have a cosine of {figures.nearest_cosine:.2f}"
        found.append(f"{what} (median; at most {NEAREST_COSINE})")
    reached, possible = figures.likeliest, None if reference is None else reference.likeliest
    if reached is not None and possible is not None and reached < LIKELIEST * possible:
        what = f"the vector nearest to the posterior mean is the likeliest in {reached:.0%}"
        found.append(f"{what}, with random vectors in {possible:.0%} (at least {LIKELIEST:.0%} of that)")
    return found


def remedy(*, center: bool = False, whiten: bool = False, learned: bool = False) -> str:
    """What to do about `problems`. `center`, `whiten`: done already; `learned`: by `prepare`, not by `embeddings train`."""
    ways = [] if center or whiten else ["subtract their mean (data.subwords.center: true)"]
    where = "data.subwords.vectors.train" if learned else "embeddings train --epochs"
    ways.append(f"learn them from more text or in more epochs ({where})")
    ways += [] if whiten else ["for a density as loss, whiten them (data.subwords.whiten: true)"]
    return ", or ".join(ways)


class TrigramModel:
    """The next-token distribution of an interpolated trigram model (Witten and Bell 1991).

        p(w | h) = (c(h w) + n(h) · p(w | h')) / (c(h) + n(h))        h = two tokens, h' = the last one, then none

    c counts in the text, n(h) is the number of different tokens after h. Without a token, p(w) = c(w) / c.

    It counts lines of ids 0 … size - 1; -1 is any other token, which is a context but never predicted.

    Memory: 16 bytes for each different pair and triple of tokens.
    """

    def __init__(self, lines: Iterable[Sequence[int]], size: int) -> None:
        self.size, self._symbols = size, size + 2
        contexts_N2, next_N = predictions(lines)
        self.tokens = len(next_N)
        self._unigrams_V = np.bincount(next_N, minlength=size) / max(1, self.tokens)
        last_N = contexts_N2[:, 1] + 2
        keys = (last_N, last_N + (contexts_N2[:, 0] + 2) * self._symbols)
        self._counts = [np.unique(key_N * size + next_N, return_counts=True) for key_N in keys]

    def posterior(self, contexts_N2: np.ndarray) -> np.ndarray:
        """p of every token after each pair of tokens (the last one second), (N, size), float64."""
        posterior_NV = np.tile(self._unigrams_V, (len(contexts_N2), 1))
        for row_V, (before, last) in zip(posterior_NV, contexts_N2.tolist(), strict=True):
            for order, key in enumerate((last + 2, last + 2 + (before + 2) * self._symbols)):
                ngrams, counts = self._counts[order]
                start, end = np.searchsorted(ngrams, (key * self.size, (key + 1) * self.size))
                if end > start:
                    row_V *= end - start
                    row_V[ngrams[start:end] - key * self.size] += counts[start:end]
                    row_V /= counts[start:end].sum() + end - start
        return posterior_NV


def predictions(lines: Iterable[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Every known token of lines with the two before it: contexts (N, 2), tokens (N,); -2 is the context before a line."""
    contexts, following = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.int64)]
    for line in lines:
        padded = np.array([-2, -2, *line[:LINE_TOKENS]], np.int64)
        known = padded[2:] >= 0
        contexts.append(np.stack((padded[:-2], padded[1:-1]), 1)[known])
        following.append(padded[2:][known])
    return np.concatenate(contexts), np.concatenate(following)
