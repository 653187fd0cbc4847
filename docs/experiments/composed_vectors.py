"""Vectors for experiment 36: words as random unit vectors, a phrase as half of its words and half a direction of its own.

    v(phrase) = unit( √½ · unit( Σ a(w) · v(w) ) + √½ · r ),   a(w) = 0.001 / (0.001 + share of w among the words of the text)

v(w) and r are random unit vectors. Words inside phrases count too. Nothing in these vectors is learned.

Usage: python docs/experiments/composed_vectors.py JOINED_TEXT SEED OUTPUT.vec
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable

import numpy as np

from phraseloom.text.lines import read_lines
from phraseloom.text.vectors import write_vectors
from phraseloom.text.words import count_words

WIDTH = 256


def parts(token: str) -> list[str]:
    """The words of a phrase such as `is_running`; of a word, itself."""
    return [word for word in token.split("_") if word]


def unit(rows: np.ndarray) -> np.ndarray:
    """The rows divided by their lengths."""
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


def composed(lines: Iterable[str], seed: int, width: int = WIDTH) -> tuple[list[str], np.ndarray]:
    """The words of joined text, most frequent first, then its phrases, and their vectors."""
    counts = count_words(lines)
    phrases = [token for token in counts if "_" in token.strip("_") and len(parts(token)) > 1]
    single = counts - Counter({phrase: counts[phrase] for phrase in phrases})
    for phrase in phrases:
        for word in parts(phrase):
            single[word] += counts[phrase]
    words, total = sorted(single, key=lambda word: (-single[word], word)), single.total()
    draw = np.random.default_rng(seed)
    word_rows, own_rows = (unit(draw.standard_normal((len(tokens), width))) for tokens in (words, phrases))
    row = dict(zip(words, word_rows, strict=True))
    sums = [sum(row[w] * (1e-3 / (1e-3 + single[w] / total)) for w in parts(phrase)) for phrase in phrases]
    phrase_rows = unit(0.5**0.5 * unit(np.array(sums).reshape(-1, width)) + 0.5**0.5 * own_rows)
    return [*words, *phrases], np.concatenate((word_rows, phrase_rows))


if __name__ == "__main__":
    text, chosen, output = sys.argv[1:]
    write_vectors(output, *composed(read_lines(text), int(chosen)))
