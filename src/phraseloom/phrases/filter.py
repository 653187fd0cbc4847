"""Which candidates are phrases: the five filters of Park and Tsvetkov 2019, §2.2, and those of their released code (spec §4.7).

    length          at most `max_words` words
    count           at least `min_count` occurrences, as the words of one source word
    characters      no punctuation or symbol in any word; or letters only
    repetition      no word twice in a row
    stop-words      not of stop-words only; or without any
    part of speech  a noun at the end, a noun or an adjective at the beginning (off unless asked for)
    PMI             above `min_pmi`, over adjacent words of the target text; none if they occur less than `min_count` times

The first filter that a candidate fails is the one it is counted for, in this order.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from phraseloom.errors import UsageError
from phraseloom.phrases.extract import PhraseCandidate, Source
from phraseloom.phrases.parts_of_speech import Tags, is_noun_phrase
from phraseloom.phrases.pmi import count_phrases
from phraseloom.phrases.stop_words import STOP_WORDS
from phraseloom.phrases.table import COLUMNS

CHARACTERS = ("no-punctuation", "letters", "any")
STOP_RULES = ("only", "any")


@dataclass(frozen=True)
class Filters:
    """What is asked of a phrase; the defaults are those of the paper. `min_count` 1, `characters` "any", no `stop_words`,
    `max_words` 0 and `min_pmi` None ask nothing.

    characters: one of CHARACTERS. stop_rule: "only" rejects a phrase all of whose words are stop-words, "any" one with any of
    them; words are compared in lower case. Raises UsageError.
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

    @property
    def needs_text(self) -> bool:
        """Whether the target text is read."""
        return self.min_pmi is not None or self.parts_of_speech

    def reason(self, candidate: PhraseCandidate) -> str | None:
        """The first filter that a candidate fails, of those that need no text; None if there is none."""
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


def _without_punctuation(word: str) -> bool:
    return word.isalnum() or all(unicodedata.category(c)[0] not in "PS" for c in word)


_CLEAN: dict[str, Callable[[str], bool]] = {
    "no-punctuation": _without_punctuation,
    "letters": str.isalpha,
    "any": lambda word: True,
}


@dataclass(frozen=True, slots=True)
class FilteredPhrase:
    """A phrase that was kept; `adjacent` (occurrences as adjacent words) and `pmi` (bits) where the text was read."""

    phrase: str
    count: int
    pmi: float | None
    adjacent: int | None
    sources: tuple[Source, ...]


@dataclass
class Filtered:
    """The phrases kept, in the order of the candidates, and how many candidates each filter dropped."""

    phrases: list[FilteredPhrase] = field(default_factory=list)
    candidates: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


# What the filters are called, in the order in which they are tried. `form`: the word ||| would end the phrase in a table.
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

    text: the lines of the target text, read once where `filters.needs_text`. tags: for `parts_of_speech`, where the tags of
    the phrases are. Memory grows with the candidates that pass the filters that need no text.
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
        found = tags.of(candidate.phrase for candidate in left)
        kept = [c for c in left if is_noun_phrase(found.get(c.phrase))]
        result.dropped["part of speech"], left = len(left) - len(kept), kept
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
    """Rows of a table of phrases: phrase, count, PMI, occurrences as adjacent words, first source word; tabs between."""
    for p in phrases:
        counts = (p.count, "" if p.pmi is None else f"{p.pmi:.6f}", "" if p.adjacent is None else p.adjacent)
        yield "\t".join(map(str, (p.phrase, *counts, p.sources[0].word)))


def format_moses(phrases: Sequence[FilteredPhrase]) -> Iterator[str]:
    """Rows of a phrase table as Moses reads it, by source word, then phrase:

        source ||| phrase ||| p(source | phrase) p(phrase | source) ||| links ||| c(phrase) c(source) c(source, phrase)

    p(source | phrase) = c(source, phrase) / c(phrase); p(phrase | source) = c(source, phrase) / c(source), where c(source)
    counts the occurrences that are linked to any word.
    """
    pairs = sorted((source.word, p.phrase, p.count, source) for p in phrases for source in p.sources)
    for word, phrase, count, source in pairs:
        scores = f"{source.count / count:.6g} {source.count / source.linked:.6g}"
        links = " ".join(f"0-{index}" for index in range(phrase.count(" ") + 1))
        yield COLUMNS.join((word, phrase, scores, links, f"{count} {source.linked} {source.count}"))
