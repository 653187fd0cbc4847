"""Split lines into sentences before translation, and join the translations with the original separators.

A line is leading white space, sentences with white space between them, and trailing white space. Each sentence is translated
on its own, and the white space is written back as it was, so a line in is a line out. Where the source has none between two
sentences, as in Chinese, the translations are joined with a space, unless the target language writes none there.

The sentences are found by pySBD (extra `sentences`): rules for 23 languages (Sadvilkar and Neumann 2020), without a model.
Other languages are refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from phraseloom.decoding.limits import Segment
from phraseloom.decoding.translation import BLANK, Translation
from phraseloom.errors import UsageError
from phraseloom.options.languages import base_language, is_spaced

__all__ = ["SentenceSplitter", "join_sentences", "space_of"]

BLOCK = 5000  # characters; 0.1 s


def space_of(language: str) -> str:
    """What joins two parts of a text of a language: a space, or nothing."""
    return " " if is_spaced(language) else ""


class SentenceSplitter:
    """Splits lines of one language. Raises UsageError if the package is missing or does not know the language."""

    def __init__(self, language: str) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import pysbd
                from pysbd.languages import LANGUAGE_CODES
        except ImportError as error:
            hint = "pip install 'phraseloom[sentences]'"
            raise UsageError("splitting into sentences needs the package pysbd", hint=hint) from error
        code = base_language(language)
        if code not in LANGUAGE_CODES:
            hint = f"it knows {', '.join(sorted(LANGUAGE_CODES))}; split the text yourself, one sentence per line"
            raise UsageError(f"pysbd cannot split {language} into sentences", hint=hint)
        self._segmenter = pysbd.Segmenter(language=code, clean=False, char_span=True)

    def __call__(self, line: str, before_each: Callable[[], None] | None = None) -> tuple[list[str], list[str]]:
        """The n sentences of a line and the n + 1 runs of white space around them; none for a blank line.

        The library takes time in the square of its text, so it gets `BLOCK` characters at a time; the last sentence of a block
        begins the next one, and a sentence that is longer than a block ends at white space. `before_each` is called before
        each block. If the library loses a character, the block counts as one sentence.
        """
        sentences: list[str] = []
        gaps, place = [""], 0
        while place < len(line):
            if before_each is not None:
                before_each()
            block = line[place : place + BLOCK]
            own, around = self._of_block(block)
            if place + BLOCK < len(line) and own:
                if len(own) > 1:
                    own, around = own[:-1], around[:-1]
                else:
                    block = block[: 1 + max(map(block.rfind, " \t\u3000"))] or block
                    own, around = _one_sentence(block)
            gaps = [*gaps[:-1], gaps[-1] + around[0], *around[1:]]
            sentences += own
            place += sum(map(len, own)) + sum(map(len, around))
        return sentences, gaps

    def _of_block(self, line: str) -> tuple[list[str], list[str]]:
        if not line.strip():
            return [], [line]
        spans = [(span.start, span.end) for span in self._segmenter.segment(line)]
        parts = [line[start:end] for start, end in spans]
        sentences = [part.strip() for part in parts if part.strip()]
        gaps, place = [], 0
        for sentence in sentences:
            start = line.find(sentence, place)
            if start < 0 or line[place:start].strip():
                return _one_sentence(line)
            gaps.append(line[place:start])
            place = start + len(sentence)
        if not sentences or line[place:].strip():
            return _one_sentence(line)
        return sentences, [*gaps, line[place:]]


def _one_sentence(line: str) -> tuple[list[str], list[str]]:
    """A line as one sentence, and the white space around it; no sentence for a blank line."""
    if not line.strip():
        return [], [line]
    return [line.strip()], [line[: len(line) - len(line.lstrip())], line[len(line.rstrip()) :]]


def join_sentences(
    side: Any,
    sentences: Sequence[str],
    gaps: Sequence[str],
    translations: Sequence[Translation],
    blank: Translation = BLANK,
    *,
    language: str,
) -> Translation:
    """The translation of a line from those of its sentences; `side` is the source side of the tokenizer, `language` the target.

    Words, subwords and links are numbered in the line. The score is the mean over the sentences, weighted by their tokens.
    `blank`: the translation of a blank line.
    """
    if not sentences:
        return replace(blank, text=gaps[0])
    before_s = [0, *accumulate(len(side.words(sentence)) for sentence in sentences)]
    before_t = [0, *accumulate(len(t.words) for t in translations)]
    sizes = [len(t.tokens) + 1 for t in translations]
    placed = list(zip(translations, before_s, before_t, strict=False))
    has_links = any(t.alignment is not None for t in translations)
    has_replaced = any(t.replaced is not None for t in translations)
    gaps = [gaps[0], *(gap or space_of(language) for gap in gaps[1:-1]), gaps[-1]]
    text = "".join(gap + t.text for gap, t in zip(gaps, translations, strict=False)) + gaps[-1]
    return Translation(
        text=text,
        score=sum(t.score * n for t, n in zip(translations, sizes, strict=True)) / sum(sizes),
        log_prob=sum(t.log_prob for t in translations),
        tokens=[token for t in translations for token in t.tokens],
        words=[word for t in translations for word in t.words],
        alignment=[(s + a, w + b) for t, a, b in placed for s, w in t.alignment or ()] if has_links else None,
        phrases=[p.shifted(source=a, target=b) for t, a, b in placed for p in t.phrases or ()] if has_links else None,
        segments=_segments(side, sentences, translations),
        replaced=[r.shifted(source=a, target=b) for t, a, b in placed for r in t.replaced or ()]
        if has_replaced
        else None,
        cropped=any(t.cropped for t in translations),
        parts=max(t.parts for t in translations),
        hit_max_length=any(t.hit_max_length for t in translations),
    )


def _segments(side: Any, sentences: Sequence[str], translations: Sequence[Translation]) -> list[Segment] | None:
    """The segments of all sentences, numbered in the line; None unless the model is segmental."""
    if all(t.segments is None for t in translations):
        return None
    before_s = accumulate((len(side.encode(sentence)) for sentence in sentences), initial=0)
    before_t = accumulate((len(t.tokens) for t in translations), initial=0)
    placed = zip(translations, before_s, before_t, strict=False)
    return [segment.shifted(source=a, target=b) for t, a, b in placed for segment in t.segments or ()]
