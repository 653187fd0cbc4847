"""Filter phrase candidates: the five filters of Park and Tsvetkov 2019, §2.2, and those of their released code.

    length          at most `max_words` words
    count           at least `min_count` occurrences as the words of one source word
    characters      no punctuation or symbol in any word; or letters only
    repetition      no word twice in a row
    stop-words      not only stop-words; or no stop-word at all
    part of speech  a noun at the end, a noun or an adjective at the beginning (off by default)
    PMI             above `min_pmi`, over adjacent words of the target text, where they occur at least `min_count` times

A candidate is counted for the first filter that it fails, in this order.

Pointwise mutual information of the words of a phrase in a text of N words, with c for occurrences:

    PMI(w1 … wn) = log2( c(w1 … wn) N^(n-1) / (c(w1) ⋯ c(wn)) )

As in the collocation measures of nltk, the text is one stream of words: an n-gram may begin in one line and end in the next,
unless `across_lines` is False.

The part-of-speech filter of the released code of PCoNMT uses tags of the Penn Treebank:

    2 words   adjective or noun, noun
    3 words   adjective or noun, any, adjective or noun
    others    any

That code tags each phrase on its own; here a phrase has the tags that it has most often in the text.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from phraseloom.errors import DataError, UsageError, plural
from phraseloom.phrases.extract import PhraseCandidate, Source, closing, too_short, words_of
from phraseloom.phrases.segmenters import COLUMNS, index_phrases
from phraseloom.phrases.stop_words import STOP_WORDS, read_stop_words
from phraseloom.text.lines import read_lines


def pmi(count: int, words: Sequence[int], total: int) -> float:
    """PMI in bits of an n-gram that occurs `count` times in a text of `total` words; `words` are the counts of its words."""
    return math.log2(count * total ** (len(words) - 1)) - math.log2(math.prod(words))


@dataclass
class PhraseCounts:
    """Occurrences of phrases as adjacent words, and of their words; `total` counts all words of the text."""

    phrases: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    total: int = 0

    def pmi(self, phrase: str) -> float:
        """PMI of a phrase that occurs in the text."""
        return pmi(self.phrases[phrase], [self.words[word] for word in phrase.split(" ")], self.total)


def count_phrases(lines: Iterable[str], phrases: Iterable[str], *, across_lines: bool = True) -> PhraseCounts:
    """Count `phrases` (words separated by spaces) in a text; with `across_lines` a phrase may run over the end of a line.

    Memory grows with the number of phrases, not with the text.
    """
    index = index_phrases(phrases)
    known = {
        word for sizes in index.values() for known in sizes.values() for phrase in known for word in phrase.split(" ")
    }
    longest = max((size for sizes in index.values() for size in sizes), default=1)
    counts, before = PhraseCounts(), list[str]()
    for line in lines:
        words = words_of(line)
        counts.total += len(words)
        counts.words.update(word for word in words if word in known)
        stream, new = [*before, *words], len(before)
        for start, first in enumerate(stream):
            for size, listed in index.get(first, {}).items():
                if new < start + size <= len(stream) and (phrase := " ".join(stream[start : start + size])) in listed:
                    counts.phrases[phrase] += 1
        before = stream[1 - longest :] if across_lines and longest > 1 else []
    return counts


_NOUN = ("NN",)
_NOUN_OR_ADJECTIVE = ("NN", "JJ")


def is_noun_phrase(tags: Sequence[str] | None) -> bool:
    """Whether the tags of a phrase match a pattern; False for None, a phrase that does not occur in the text."""
    if tags is None:
        return False
    if len(tags) == 2:
        return tags[0].startswith(_NOUN_OR_ADJECTIVE) and tags[1].startswith(_NOUN)
    return len(tags) != 3 or (tags[0].startswith(_NOUN_OR_ADJECTIVE) and tags[2].startswith(_NOUN_OR_ADJECTIVE))


class Tags:
    """The tags of a text, from a parallel file (plain, .gz, .xz) with one tag per word, separated by spaces."""

    def __init__(self, text: str | Path, tags: str | Path) -> None:
        self._text, self._tags = text, tags

    def of(self, phrases: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The most frequent tags of each phrase that occurs within a line; ties by text.

        Raises DataError (file, line) if words and tags differ in number.
        """
        index, counts = index_phrases(phrases), dict[str, Counter[tuple[str, ...]]]()
        text, tags_text = read_lines(self._text), read_lines(self._tags)
        with closing(text, tags_text):
            for number, (line, tag_line) in enumerate(zip_longest(text, tags_text), 1):
                words, tags = self._check(number, line, tag_line)
                for start, first in enumerate(words):
                    for size, listed in index.get(first, {}).items():
                        if (phrase := " ".join(words[start : start + size])) in listed:
                            counts.setdefault(phrase, Counter())[tuple(tags[start : start + size])] += 1
        return {phrase: min(tags, key=lambda t: (-tags[t], t)) for phrase, tags in counts.items()}

    def _check(self, number: int, line: str | None, tag_line: str | None) -> tuple[list[str], list[str]]:
        if line is None or tag_line is None:
            raise too_short([self._text, self._tags], [line, tag_line], number)
        words, tags = words_of(line), words_of(tag_line)
        if len(words) != len(tags):
            what = f"{plural(len(tags), 'tag')}, but the line of {self._text} has {plural(len(words), 'word')}"
            raise DataError(what, file=self._tags, line=number, hint="write one tag per word, separated by spaces")
        return words, tags


CHARACTERS = ("no-punctuation", "letters", "any")
STOP_RULES = ("only", "any")


@dataclass(frozen=True)
class Filters:
    """The conditions that a phrase must meet; the defaults are those of the paper.

    `max_words` 0, `min_count` 1, `characters` "any", empty `stop_words` and `min_pmi` None switch a filter off. `characters` is
    one of CHARACTERS. `stop_rule` "only" rejects phrases of stop-words only, "any" phrases with any stop-word; the comparison
    ignores case. Raises UsageError.
    """

    max_words: int = 4
    min_count: int = 2
    characters: str = "no-punctuation"
    repetition: bool = False
    stop_words: frozenset[str] = STOP_WORDS["en"]
    stop_rule: str = "only"
    parts_of_speech: bool = False
    min_pmi: float | None = 0.0

    def __post_init__(self) -> None:
        for value, allowed in ((self.characters, CHARACTERS), (self.stop_rule, STOP_RULES)):
            if value not in allowed:
                raise UsageError(f"no filter {value!r}", hint=f"choose from {', '.join(allowed)}")

    def reason(self, candidate: PhraseCandidate) -> str | None:
        """The first filter that a candidate fails, among those that need no text, else None."""
        words = candidate.words
        if COLUMNS.strip() in words:
            return "form"
        if 0 < self.max_words < len(words):
            return "length"
        if candidate.count < self.min_count:
            return "count"
        if not all(_CLEAN[self.characters](word) for word in words):
            return "characters"
        if not self.repetition and any(word == words[i] for i, word in enumerate(words[1:])):
            return "repetition"
        stops = [word.lower() in self.stop_words for word in words]
        if all(stops) or (self.stop_rule == "any" and any(stops)):
            return "stop-words"
        return None


PRESETS = {
    "paper": Filters(),
    "released": Filters(characters="letters", stop_words=STOP_WORDS["released"], stop_rule="any", parts_of_speech=True),
}


def filters_of(preset: str, options: Mapping[str, Any], *, parts_of_speech: bool | None = None) -> Filters:
    """The filters of a preset with other `options` (`PhraseFilterConfig`); None is what the preset says.

    Raises UsageError; FileProblem, DataError for a file of stop-words.
    """
    changes = {**options, "parts_of_speech": parts_of_speech}
    if (name := changes.get("stop_words")) is not None:
        changes["stop_words"] = STOP_WORDS[name] if name in STOP_WORDS else read_stop_words(name)
    return replace(PRESETS[preset], **{key: value for key, value in changes.items() if value is not None})


def _without_punctuation(word: str) -> bool:
    return word.isalnum() or all(unicodedata.category(c)[0] not in "PS" for c in word)


_CLEAN: dict[str, Callable[[str], bool]] = {
    "no-punctuation": _without_punctuation,
    "letters": str.isalpha,
    "any": lambda word: True,
}


@dataclass(frozen=True, slots=True)
class FilteredPhrase:
    """A phrase that passed; `adjacent` (occurrences as adjacent words) and `pmi` (bits) are None unless the text was read."""

    phrase: str
    count: int
    pmi: float | None
    adjacent: int | None
    sources: tuple[Source, ...]


@dataclass
class Filtered:
    """The phrases that passed, in the order of the candidates, and how many candidates each filter dropped."""

    phrases: list[FilteredPhrase] = field(default_factory=list)
    candidates: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


# The names of the filters, in order. `form`: the word ||| would end the phrase in a table.
REASONS = ("form", "length", "count", "characters", "repetition", "stop-words", "part of speech", "pmi")


def filter_candidates(
    candidates: Iterable[PhraseCandidate],
    filters: Filters,
    *,
    text: Iterable[str] = (),
    across_lines: bool = True,
    tags: Tags | None = None,
) -> Filtered:
    """The candidates that pass all filters.

    `text` has the lines of the target text, read once if `filters.min_pmi` is set. `tags` is needed for `parts_of_speech`.
    Memory grows with the candidates that pass the filters without text.
    """
    result, left = Filtered(), list[PhraseCandidate]()
    for candidate in candidates:
        result.candidates += 1
        reason = filters.reason(candidate)
        if reason is None:
            left.append(candidate)
        else:
            result.dropped[reason] += 1
    if filters.parts_of_speech:
        if tags is None:
            raise UsageError("the filter by part of speech needs the tags of the target text")
        phrase_tags = tags.of(candidate.phrase for candidate in left)
        passed = [c for c in left if is_noun_phrase(phrase_tags.get(c.phrase))]
        result.dropped["part of speech"], left = len(left) - len(passed), passed
    if filters.min_pmi is None:
        result.phrases = [FilteredPhrase(c.phrase, c.count, None, None, c.sources) for c in left]
        return result
    counts = count_phrases(text, (c.phrase for c in left), across_lines=across_lines)
    for candidate in left:
        adjacent = counts.phrases[candidate.phrase]
        value = counts.pmi(candidate.phrase) if adjacent >= max(1, filters.min_count) else None
        if value is not None and value > filters.min_pmi:
            result.phrases.append(FilteredPhrase(candidate.phrase, candidate.count, value, adjacent, candidate.sources))
    result.dropped["pmi"] = len(left) - len(result.phrases)
    return result


def format_phrases(phrases: Iterable[FilteredPhrase]) -> Iterator[str]:
    """Rows of a phrase table, separated by tabs: phrase, count, PMI, occurrences as adjacent words, first source word."""
    for p in phrases:
        counts = (p.count, "" if p.pmi is None else f"{p.pmi:.6f}", "" if p.adjacent is None else p.adjacent)
        yield "\t".join(map(str, (p.phrase, *counts, p.sources[0].word)))


def format_moses(phrases: Sequence[FilteredPhrase]) -> Iterator[str]:
    """Rows of a Moses phrase table, by source word, then phrase:

        source ||| phrase ||| p(source | phrase) p(phrase | source) ||| links ||| c(phrase) c(source) c(source, phrase)

    p(source | phrase) = c(source, phrase) / c(phrase); p(phrase | source) = c(source, phrase) / c(source), where c(source)
    counts the occurrences that are linked to any word. The source word |||, which the format cannot have, gets no row.
    """
    own = COLUMNS.strip()
    pairs = sorted((s.word, p.phrase, p.count, s) for p in phrases for s in p.sources if s.word != own)
    for word, phrase, count, source in pairs:
        scores = f"{source.count / count:.6g} {source.count / source.linked:.6g}"
        links = " ".join(f"0-{index}" for index in range(phrase.count(" ") + 1))
        yield COLUMNS.join((word, phrase, scores, links, f"{count} {source.linked} {source.count}"))
