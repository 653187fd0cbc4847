"""Which candidates are phrases: the five filters of Park and Tsvetkov 2019, §2.2, and those of their released code (spec §4.7).

    length          at most `max_words` words
    count           at least `min_count` occurrences, as the words of one source word
    characters      no punctuation or symbol in any word; or letters only
    repetition      no word twice in a row
    stop-words      not of stop-words only; or without any
    part of speech  a noun at the end, a noun or an adjective at the beginning (off unless asked for)
    PMI             above `min_pmi`, over adjacent words of the target text; none if they occur less than `min_count` times

The first filter that a candidate fails is the one it is counted for, in this order.

Words that make no phrase of their own: a list for English, that of the released code of PCoNMT, and lists in files.

Pointwise mutual information of the words of a phrase, over adjacent words of a text.

    PMI(w1 … wn) = log2( c(w1 … wn) N^(n-1) / (c(w1) ⋯ c(wn)) )     c: occurrences in the text of N words

Spec §4.7, as the collocation measures of nltk count: the text is one stream of words, so that an n-gram may begin in one line
and end in the next, unless that is forbidden.

The part-of-speech filter of the released code of PCoNMT (spec §4.7.3): tags of the Penn Treebank.

    2 words   adjective or noun, noun
    3 words   adjective or noun, any, adjective or noun
    others    any

There each phrase was tagged on its own; here the tags are those of the text, most often where the phrase stands in it.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from phraseloom.errors import DataError, UsageError, plural
from phraseloom.phrases.extract import PhraseCandidate, Source, closing, words_of
from phraseloom.phrases.segmenters import COLUMNS, index_phrases
from phraseloom.text.lines import read_lines

# Articles, pronouns, forms of be, have, do and modal verbs, prepositions, conjunctions, particles, and what Moses cuts off.
_ENGLISH = """
a an the this that these those
i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers herself
it its itself they them their theirs themselves one oneself
who whom whose which what whoever whatever whichever
am is are was were be been being have has had having do does did doing done
can could may might must shall should will would ought cannot
and or but nor so yet if because as until while although though unless since whether than
of at by for with without about against between among into onto through during before after above below to from up down in
out on off over under upon within along across behind beyond near toward towards
again further then once here there when where why how
all any both each few more most other another some such every either neither many much several
no not only own same too very just also even still ever never now
s t d m o ll re ve don didn doesn isn aren wasn weren hasn haven hadn won wouldn couldn shouldn mustn needn ain
's 't 'd 'm 'll 're 've n't
&apos;s &apos;t &apos;d &apos;m &apos;ll &apos;re &apos;ve n&apos;t
"""

# Any of these in a phrase rules it out there (spec §4.7.3).
_RELEASED = "the an a ve ll i s d m re t"

STOP_WORDS = {"en": frozenset(_ENGLISH.split()), "released": frozenset(_RELEASED.split()), "none": frozenset[str]()}


def read_stop_words(path: str | Path) -> frozenset[str]:
    """The words of a file (plain, .gz, .xz), one a line, in lower case; blank lines are passed over. Raises DataError."""
    words = set()
    for number, line in enumerate(read_lines(path), 1):
        word = line.strip()
        if " " in word:
            raise DataError(f"{word!r} is more than one word", file=path, line=number, hint="one stop-word a line")
        words.add(word.lower())
    return frozenset(words - {""})


def pmi(count: int, words: Sequence[int], total: int) -> float:
    """PMI in bits of an n-gram that occurs `count` times, whose n words occur `words` times each in a text of `total` words."""
    return math.log2(count * total ** (len(words) - 1)) - math.log2(math.prod(words))


@dataclass
class PhraseCounts:
    """Occurrences of phrases as adjacent words, and of the words that they have; `total`: all words of the text."""

    phrases: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    total: int = 0

    def pmi(self, phrase: str) -> float:
        """PMI of a phrase that occurs."""
        return pmi(self.phrases[phrase], [self.words[word] for word in phrase.split(" ")], self.total)


def count_phrases(lines: Iterable[str], phrases: Iterable[str], *, across_lines: bool = True) -> PhraseCounts:
    """Count `phrases` (words separated by blanks) in a text; with `across_lines` also where they run over the end of a line.

    Memory grows with the number of phrases, not with the text.
    """
    index = index_phrases(phrases)
    known = {
        word for sizes in index.values() for some in sizes.values() for phrase in some for word in phrase.split(" ")
    }
    longest = max((size for sizes in index.values() for size in sizes), default=1)
    counts, before = PhraseCounts(), list[str]()
    for line in lines:
        words = words_of(line)
        counts.total += len(words)
        counts.words.update(word for word in words if word in known)
        stream, new = [*before, *words], len(before)
        for start, first in enumerate(stream):
            for size, some in index.get(first, {}).items():
                if new < start + size <= len(stream) and (phrase := " ".join(stream[start : start + size])) in some:
                    counts.phrases[phrase] += 1
        before = stream[1 - longest :] if across_lines and longest > 1 else []
    return counts


_NOUN = ("NN",)
_NOUN_OR_ADJECTIVE = ("NN", "JJ")


def is_noun_phrase(tags: Sequence[str] | None) -> bool:
    """Whether the tags of a phrase are of a pattern; False for None: it never stands in the text as it is."""
    if tags is None:
        return False
    if len(tags) == 2:
        return tags[0].startswith(_NOUN_OR_ADJECTIVE) and tags[1].startswith(_NOUN)
    return len(tags) != 3 or (tags[0].startswith(_NOUN_OR_ADJECTIVE) and tags[2].startswith(_NOUN_OR_ADJECTIVE))


class Tags:
    """The tags of a text: a file (plain, .gz, .xz) parallel to it, with one tag a word, blanks between."""

    def __init__(self, text: str | Path, tags: str | Path) -> None:
        self._text, self._tags = text, tags

    def of(self, phrases: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The tags that each phrase has most often (the first by text, if several), for those that occur in one line.

        Raises DataError (file, line) where words and tags differ in number.
        """
        index, found = index_phrases(phrases), dict[str, Counter[tuple[str, ...]]]()
        text, tags_text = read_lines(self._text), read_lines(self._tags)
        with closing(text, tags_text):
            for number, (line, tag_line) in enumerate(zip_longest(text, tags_text), 1):
                words, tags = self._check(number, line, tag_line)
                for start, first in enumerate(words):
                    for size, some in index.get(first, {}).items():
                        if (phrase := " ".join(words[start : start + size])) in some:
                            found.setdefault(phrase, Counter())[tuple(tags[start : start + size])] += 1
        return {phrase: min(of, key=lambda tags: (-of[tags], tags)) for phrase, of in found.items()}

    def _check(self, number: int, line: str | None, tag_line: str | None) -> tuple[list[str], list[str]]:
        if line is None or tag_line is None:
            short, long = (self._text, self._tags) if line is None else (self._tags, self._text)
            raise DataError(f"ends after {plural(number - 1, 'line')}, but {long} goes on", file=short)
        words, tags = words_of(line), words_of(tag_line)
        if len(words) != len(tags):
            what = f"{len(tags)} tags, but the line of {self._text} has {plural(len(words), 'word')}"
            raise DataError(what, file=self._tags, line=number, hint="one tag a word, blanks between")
        return words, tags


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
