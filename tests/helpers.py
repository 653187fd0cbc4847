"""Small things that many tests need: a tokenizer learned on a few lines, and how long to wait for a process."""

from __future__ import annotations

from pathlib import Path

from phraseloom.text.tokenizer import Tokenizer

# Seconds after which a process that a test waits for is taken to hang. It ends a broken test; it says nothing about speed.
HANGS = 1200

LINES = [
    "the old man sleeps .",
    "a cow is small , but a winter garden is dark .",
    "we invite them tonight .",
    "zwei Büros .",
]


def tiny_tokenizer(folder: Path) -> Tokenizer:
    """A joint tokenizer of some 60 pieces, saved in `folder` and loaded from there."""
    from phraseloom.options.text import SentencepieceConfig, TextConfig
    from phraseloom.text.tokenizer import learn_subwords

    subwords = learn_subwords(LINES, SentencepieceConfig(size=60, byte_fallback=False))
    Tokenizer(TextConfig(), "en", "de", subwords, subwords).save(folder)
    return Tokenizer.load(folder)
