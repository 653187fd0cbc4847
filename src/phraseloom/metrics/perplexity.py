"""Perplexity of text under a language model, per subword and per word.

    perplexity per subword = exp(NLL / (subwords + lines))        NLL = - Σ log p, over all subwords and the end of each line
    perplexity per word    = exp(NLL / (words + lines))           words: runs without white space in the raw text

The model predicts the end of a line too, so it counts once per line in both. The perplexity per word does not depend on the
subwords, so it compares models with different vocabularies if they know all words (`unknown` is 0). It is an upper bound,
because the model scores only one segmentation of each line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from phraseloom.errors import plural


def exp_mean(total: float, count: float) -> float:
    """exp(total / count); infinity if it overflows, NaN if `total` is NaN."""
    mean = total / max(1, count)
    return math.exp(mean) if mean < 700 else math.inf if mean > 0 else math.nan


def count_words(lines: Iterable[str]) -> int:
    """The number of words of raw lines, separated by white space."""
    return sum(len(line.split()) for line in lines)


@dataclass(frozen=True)
class Perplexity:
    """Sums over lines: `nll` in nats, including line ends; `subwords`, `unknown` ones and `words`, without line ends."""

    lines: int = 0
    words: int = 0
    subwords: int = 0
    unknown: int = 0
    nll: float = 0.0

    def __add__(self, other: Perplexity) -> Perplexity:
        """The sums over both texts."""
        return Perplexity(
            self.lines + other.lines,
            self.words + other.words,
            self.subwords + other.subwords,
            self.unknown + other.unknown,
            self.nll + other.nll,
        )

    @property
    def per_subword(self) -> float:
        """exp(NLL / (subwords + lines)); NaN of no line."""
        return exp_mean(self.nll, self.subwords + self.lines) if self.lines else math.nan

    @property
    def per_word(self) -> float:
        """exp(NLL / (words + lines)); NaN of no line."""
        return exp_mean(self.nll, self.words + self.lines) if self.lines else math.nan

    def as_dict(self) -> dict[str, Any]:
        """Plain data; a perplexity that is not finite becomes None."""
        named = {"perplexity": self.per_subword, "word_perplexity": self.per_word}
        return {
            "lines": self.lines,
            "words": self.words,
            "subwords": self.subwords,
            "unknown": self.unknown,
            "log_prob": -self.nll,
            **{name: value if math.isfinite(value) else None for name, value in named.items()},
        }

    def __str__(self) -> str:
        if not self.lines:
            return "no line was scored: no perplexity"
        unknown = f" ({self.unknown:,} unknown)" if self.unknown else ""
        return (
            f"{plural(self.lines, 'line')}, {plural(self.words, 'word')}, {self.subwords:,} subwords{unknown}: "
            f"perplexity {self.per_subword:.3f} per subword, {self.per_word:.3f} per word"
        )
