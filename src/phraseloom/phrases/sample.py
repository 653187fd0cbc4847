"""Phrases that a system wrote, drawn at random to be judged by people, and where their words stand in other translations.

    exact       the words of the phrase, one after the other
    scattered   all of its words, in other places or another order
    partly      some of its words
    absent      none of them

Words are compared without case, runs of letters and digits and single signs by themselves, so that tokenised and plain text
compare alike. Every phrase of the output has the same chance, however often it is there (Park and Tsvetkov 2019, §3, Analysis
on Generated Phrases, Table 6).
"""

from __future__ import annotations

import heapq
import html
import json
import random
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

from phraseloom.errors import DataError, plural
from phraseloom.phrases.aligned import Lines, closing
from phraseloom.phrases.segment import Phrases, word_phrases
from phraseloom.text.joined import is_phrase, join_line, split, split_line

FOUND = ("exact", "scattered", "partly", "absent")
JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.xz")


class SystemOutput(NamedTuple):
    """A line that a system wrote: as text, its words, and its tokens, phrases joined."""

    text: str
    words: list[str]
    tokens: list[str]


@dataclass(frozen=True, slots=True)
class Generated:
    """A phrase of the first system: its line and first word (both from 1), its words, and what the line is elsewhere.

    `outputs` of every system, that of the first one with its phrases joined; `found` one of FOUND for the reference, then for
    every other system.
    """

    line: int
    word: int
    phrase: str
    source: str
    reference: str
    outputs: tuple[str, ...]
    found: tuple[str, ...]


@dataclass
class SampleCounts:
    """What was met: lines, those with a phrase, phrases, the different ones, where the reference has them."""

    lines: int = 0
    with_phrase: int = 0
    phrases: int = 0
    different: set[str] = field(default_factory=set)
    in_reference: Counter[str] = field(default_factory=Counter)


def read_outputs(lines: Lines) -> Iterator[SystemOutput]:
    """The translations in a file: a `.jsonl` file of `translate --output json`, else text, the words between blanks.

    Raises DataError (file and line) for a line of JSON that is no translation.
    """
    as_json = str(lines.name).endswith(JSON_LINES)
    for number, line in enumerate(lines.lines, 1):
        if as_json:
            yield _from_json(line, lines.name, number)
        else:
            words = line.split(" ")
            yield SystemOutput(split_line(line), words, words)


def _from_json(line: str, file: Any, number: int) -> SystemOutput:
    try:
        found = json.loads(line)
        output = SystemOutput(found["text"], found["words"], found["tokens"])
        whole = isinstance(output.text, str) and all(
            isinstance(part, list) and all(isinstance(one, str) for one in part) for part in output[1:]
        )
    except (ValueError, RecursionError, LookupError, TypeError):
        whole = False
    if not whole:
        hint = "translate --output json writes an object with text, words and tokens a line"
        raise DataError("not a translation as JSON", file=file, line=number, hint=hint)
    return output


def generated(
    source: Lines, reference: Lines, systems: Sequence[Lines], phrases: Phrases | None = None
) -> Iterator[list[Generated]]:
    """The phrases of the first system, line by line: its joined tokens, or with `phrases` the longest matches in its words.

    Raises DataError (file and line) where a file ends before another.
    """
    outputs = [read_outputs(lines) for lines in systems]
    texts = (source, reference, *systems)
    with closing(*(text.lines for text in texts)):
        rows: Iterable[tuple[Any, ...]] = zip_longest(source.lines, reference.lines, *outputs)
        for number, row in enumerate(rows, 1):
            if None in row:
                longer = next(text.name for text, part in zip(texts, row, strict=True) if part is not None)
                raise DataError(
                    f"ends after {plural(number - 1, 'line')}, but {longer} goes on",
                    file=texts[row.index(None)].name,
                    hint="the files must be parallel, line by line",
                )
            yield list(_of_line(number, row[0], row[1], row[2:], phrases))


def _of_line(
    number: int, source: str, reference: str, outputs: tuple[SystemOutput, ...], phrases: Phrases | None
) -> Iterator[Generated]:
    first, *others = outputs
    tokens = first.tokens
    if phrases is not None:
        tokens = join_line(first.words, word_phrases(first.words, phrases)).split(" ")
    if not any(map(is_phrase, tokens)):
        return
    shown = (" ".join(tokens), *(other.text for other in others))
    places = [comparable(text) for text in (reference, *(other.text for other in others))]
    start = 1
    for token in tokens:
        words = split(token)
        if len(words) > 1:
            wanted = comparable(" ".join(words))
            found = tuple(find(wanted, place) for place in places)
            yield Generated(number, start, " ".join(words), source, reference, shown, found)
        start += len(words)


def draw(lines: Iterable[list[Generated]], size: int, seed: int) -> tuple[list[Generated], SampleCounts]:
    """`size` phrases (all, where there are fewer) in the order in which they are drawn, without putting back; and all counted.

    A larger size goes on where a smaller one ends. Memory is that of the phrases drawn and of the different phrases.
    """
    counts, chance = SampleCounts(), random.Random(seed)

    def counted() -> Iterator[Generated]:
        for phrases in lines:
            counts.lines += 1
            counts.with_phrase += bool(phrases)
            counts.phrases += len(phrases)
            for one in phrases:
                counts.different.add(one.phrase)
                counts.in_reference[one.found[0]] += 1
                yield one

    return heapq.nsmallest(size, counted(), key=lambda _: chance.random()), counts


def comparable(text: str) -> list[str]:
    """The words of a text in small letters, signs by themselves; entities (`&apos;`) are read as what they stand for."""
    text = unicodedata.normalize("NFC", html.unescape(text) if "&" in text else text)
    return "".join(c if unicodedata.category(c)[0] in "LMN" else f" {c} " for c in text).casefold().split()


def find(phrase: Sequence[str], text: Sequence[str]) -> str:
    """Which of FOUND holds for the words of a phrase in the words of a text."""
    size = len(phrase)
    if any(list(text[i : i + size]) == list(phrase) for i in range(len(text) - size + 1)):
        return "exact"
    missing = Counter(phrase) - Counter(text)
    if not missing:
        return "scattered"
    return "partly" if missing.total() < size else "absent"
