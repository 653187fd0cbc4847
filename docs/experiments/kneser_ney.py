"""Perplexities of models that only count: interpolated Kneser-Ney, on the subwords of a dataset, with bigrams and trigrams.

    p_n(w | h) = max(c(h w) − D, 0) / c(h) + D · t(h) / c(h) · p_{n−1}(w | h without its first token),   p_0 = 1 / V

c(h w): how often an n-gram of full length occurs; for shorter ones, how many different tokens come before it. c(h): the sum of
c(h w) over w; t(h): the number of different w. If c(h) is 0, p_n is p_{n−1}. D = 0.8, tuned for nothing. A line begins with
n − 1 begin symbols and ends with an end symbol. Per word: words and ends of lines, as `phraseloom score` counts them.

Usage: python docs/experiments/kneser_ney.py DATASET TEXT
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from phraseloom.data.corpus import Dataset
from phraseloom.text.lines import read_lines
from phraseloom.text.vocabulary import EOS

BEGIN = -1
Gram = tuple[int, ...]


def ngrams(line: Sequence[int], order: int) -> Iterable[Gram]:
    """The n-grams that end with each token of a line, and with its end."""
    tokens = [*[BEGIN] * (order - 1), *line, EOS]
    return (tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))


class KneserNey:
    """A model of n-grams of `order` tokens, counted in `lines`, over a vocabulary of `size`."""

    def __init__(self, lines: Iterable[Sequence[int]], order: int, size: int, discount: float = 0.8) -> None:
        self.order, self.size, self.discount = order, size, discount
        self.counts = [Counter(gram for line in lines for gram in ngrams(line, order))]
        for _ in range(order - 1):
            self.counts.insert(0, Counter(gram[1:] for gram in self.counts[0]))
        self.sums: list[Counter[Gram]] = [Counter() for _ in self.counts]
        self.types = [Counter(gram[:-1] for gram in counts) for counts in self.counts]
        for sums, counts in zip(self.sums, self.counts, strict=True):
            for gram, count in counts.items():
                sums[gram[:-1]] += count

    def probability(self, gram: Gram) -> float:
        """p(last token | tokens before it)."""
        if not gram:
            return 1 / self.size
        level, history, shorter = len(gram) - 1, gram[:-1], self.probability(gram[1:])
        total = self.sums[level][history]
        if not total:
            return shorter
        own = max(self.counts[level][gram] - self.discount, 0.0)
        return (own + self.discount * self.types[level][history] * shorter) / total

    def nll(self, lines: Iterable[Sequence[int]]) -> float:
        """The negative log-likelihood of some lines, in nats."""
        return -sum(math.log(self.probability(gram)) for line in lines for gram in ngrams(line, self.order))


def main(dataset: str, text: str) -> None:
    """Print the perplexities of a text."""
    data = Dataset.open(dataset)
    train, tokenizer = data.split("train"), data.tokenizer.target
    lines = [train.target(number).tolist() for number in range(len(train))]
    raw = list(read_lines(text))
    test = [tokenizer.encode(line) for line in raw]
    words = sum(len(line.split()) + 1 for line in raw)
    subwords = sum(len(line) + 1 for line in test)
    for order, name in ((2, "bigrams"), (3, "trigrams")):
        nll = KneserNey(lines, order, len(tokenizer.vocabulary)).nll(test)
        print(f"{name}: {math.exp(nll / words):,.2f} per word, {math.exp(nll / subwords):,.2f} per subword")


if __name__ == "__main__":
    main(*sys.argv[1:])
