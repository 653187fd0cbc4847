"""Vectors for the words and phrases of joined text, so that both are points of one space: fastText through gensim.

    skip-gram with negative sampling:   sum over t, c in window(t), n drawn:   log σ(u_c · v_t) + log σ(-u_n · v_t)
    v_w = (z_w + sum of z_g over the character n-grams g of <w>) / (1 + number of g)        a token of the vocabulary
    v_w = mean of z_g                                                                        any other token

So a phrase that the text holds too seldom, or not at all, has a vector of its n-grams. Every n-gram is one of a fixed number
of rows, chosen by a hash. Bojanowski et al. 2017, §3; for phrases: Park and Tsvetkov 2019, §2.2, who give no settings: the
defaults are those of fastText, 300 dimensions.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phraseloom.errors import DataError, DivergedError, UsageError
from phraseloom.phrases.segmenters import read_phrases
from phraseloom.text.vectors import Vectors
from phraseloom.text.words import join

__all__ = [
    "EmbeddingProgress",
    "EmbeddingSettings",
    "TokenCounts",
    "count_tokens",
    "read_tokens",
    "require_gensim",
    "train_vectors",
]

MAX_BUCKETS = 2_000_000
LONGEST = 10_000  # words of a sentence that gensim reads; it drops the others without a word
ADDRESSED = 2**32  # gensim counts the numbers of a matrix in 32 bits, and goes on at the beginning
REPORT_LINES = 10_000

Text = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class EmbeddingSettings:
    """How vectors are learned. `ngrams`: lengths in characters; `buckets`: rows for n-grams, None: as many as they need.

    `rate`: step size at the beginning, falling to 0; `sample`: tokens of a larger share of the text are left out at random.
    fastText's own defaults are 5 epochs and a sample of 0.0001: with them, vectors of a few million words are all alike.
    """

    width: int = 300
    epochs: int = 20
    min_count: int = 5
    window: int = 5
    ngrams: tuple[int, int] = (3, 6)
    buckets: int | None = None
    negative: int = 5
    rate: float = 0.05
    sample: float = 1e-3
    seed: int = 1


class TokenCounts(NamedTuple):
    """What is in a text: its lines, its words, and the tokens that are frequent enough, most frequent first, with counts."""

    lines: int
    words: int
    tokens: dict[str, int]


class EmbeddingProgress(NamedTuple):
    """How far training is: `done` of `lines` lines in the epoch `epoch` of `epochs`, from 1."""

    epoch: int
    epochs: int
    done: int
    lines: int


def require_gensim() -> Any:
    """gensim's class FastText. Raises UsageError where the package is missing."""
    try:
        from gensim.models import FastText
    except ImportError as error:
        raise UsageError(
            "training vectors needs the package gensim", hint="pip install 'phraseloom[embeddings]'"
        ) from error
    return FastText


def count_tokens(text: Text, min_count: int, *, name: str | Path | None = None) -> TokenCounts:
    """Count the tokens of joined text; ties are in code point order. Raises DataError where none is frequent enough."""
    counts: Counter[str] = Counter()
    lines = 0
    for line in text():
        lines += 1
        counts.update(line.split(" "))
    del counts[""]
    if not counts:
        raise DataError("a text without words", file=name)
    frequent = [(token, count) for token, count in counts.items() if count >= min_count]
    if not frequent:
        ((token, most),) = counts.most_common(1)
        what = f"no token is there {min_count} times; the most frequent, {token!r}, {most} times"
        raise DataError(what, file=name, hint="a smaller --min-count takes more")
    return TokenCounts(lines, counts.total(), dict(sorted(frequent, key=lambda item: (-item[1], item[0]))))


def read_tokens(path: str | Path) -> list[str]:
    """The tokens of a file such as a phrase table (`read_phrases`), in code point order; a phrase of words is joined."""
    return sorted({phrase if " " not in phrase else join(phrase.split(" ")) for phrase in read_phrases(path)})


def train_vectors(
    text: Text,
    counted: TokenCounts,
    settings: EmbeddingSettings,
    *,
    extra: Iterable[str] = (),
    jobs: int = 1,
    report: Callable[[EmbeddingProgress], None] = lambda now: None,
) -> Vectors:
    """Vectors of the counted tokens, then of the `extra` ones that are not among them, in the order given.

    An extra token shorter than the shortest n-gram has no vector and is left out. The same text, settings and jobs=1 give
    the same vectors; with more jobs the threads race for the same rows. Raises UsageError without gensim and for matrices that
    it cannot address, DivergedError, and what `text` raises.
    """
    fast_text = require_gensim()
    others = [token for token in dict.fromkeys(extra) if token not in counted.tokens]
    shortest, longest = settings.ngrams
    buckets = settings.buckets or _needed_buckets([*counted.tokens, *others], settings.ngrams)
    rows = max(buckets, len(counted.tokens))
    if rows * settings.width >= ADDRESSED:
        what = f"{rows:,} rows of {settings.width:,} numbers; gensim keeps fewer than {ADDRESSED:,} numbers apart"
        raise UsageError(what, hint="fewer buckets, a smaller width or a larger min_count")
    model = fast_text(
        sg=1,
        vector_size=settings.width,
        epochs=settings.epochs,
        min_count=1,
        window=settings.window,
        min_n=shortest,
        max_n=longest,
        bucket=buckets,
        negative=settings.negative,
        alpha=settings.rate,
        min_alpha=0.0,
        sample=settings.sample if settings.sample < 1 else 0.0,  # gensim takes 1 for a number of tokens
        seed=settings.seed,
        workers=jobs,
        sorted_vocab=0,
        hashfxn=lambda token: zlib.crc32(token.encode()),
    )
    model.build_vocab_from_freq(counted.tokens, corpus_count=counted.lines)
    sentences = _Sentences(text, counted, settings.epochs, report)
    model.train(sentences, total_words=sum(counted.tokens.values()), epochs=settings.epochs)
    sentences.reraise()
    tokens = [*counted.tokens, *(token for token in others if len(token) + 2 >= shortest)]
    matrix = np.empty((len(tokens), settings.width), np.float32)
    for row, token in enumerate(tokens):
        matrix[row] = model.wv.get_vector(token)
    if not np.isfinite(matrix).all():
        raise DivergedError("the vectors are not finite", hint="a smaller rate may help")
    return Vectors(tokens, matrix)


def _needed_buckets(tokens: Iterable[str], ngrams: tuple[int, int]) -> int:
    """Twice the number of n-grams of the tokens, rounded up to a power of two; at most what fastText takes."""
    from gensim.models.fasttext import ft_ngram_hashes

    seen = np.zeros(MAX_BUCKETS, np.bool_)
    for token in tokens:
        seen[ft_ngram_hashes(token, *ngrams, MAX_BUCKETS)] = True
    return min(MAX_BUCKETS, 1 << (2 * int(seen.sum()) - 1).bit_length())


class _Sentences:
    """The counted tokens of a text as gensim reads them, once an epoch, in a thread of its own.

    gensim waits for ever where that thread dies, so an error ends the text and is kept for `reraise`.
    """

    def __init__(
        self, text: Text, counted: TokenCounts, epochs: int, report: Callable[[EmbeddingProgress], None]
    ) -> None:
        self._text, self._counted, self._epochs, self._report = text, counted, epochs, report
        self._epoch = 0
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[list[str]]:
        if self._error is not None:
            return
        self._epoch += 1
        try:
            yield from self._sentences()
        except Exception as error:
            self._error = error

    def _sentences(self) -> Iterator[list[str]]:
        known, lines, number = self._counted.tokens, self._counted.lines, 0
        for number, line in enumerate(self._text(), start=1):
            if number % REPORT_LINES == 0 and number < lines:
                self._report(EmbeddingProgress(self._epoch, self._epochs, number, lines))
            tokens = [token for token in line.split(" ") if token in known]
            for start in range(0, len(tokens), LONGEST):
                yield tokens[start : start + LONGEST]
        self._report(EmbeddingProgress(self._epoch, self._epochs, lines, lines))

    def reraise(self) -> None:
        """Raise the error that ended the text, if one did."""
        if self._error is not None:
            raise self._error
