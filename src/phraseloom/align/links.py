"""Word alignments as data: links (source word, target word), counted from 0, and their text forms.

    pharaoh   0-0 1-2 3-1    a sentence a line, i-j links source word i and target word j
    talp      0-0 1p2 3-1    the same with two kinds of gold links: i-j is sure, ipj possible
    naacl     7 1 3 S        a link a row: sentence (from 1), source word, target word, S sure (also if left out) or P possible

A blank line of the first two is a sentence without links; a sentence without rows has none either. Words are what stands
between blanks (U+0020). Gold files differ in where they begin to count (`base`) and in which language comes first (`reverse`).
Sure and possible links: Och and Ney 2003, §5. Rows: Mihalcea and Pedersen 2003.

One alignment from two of the same sentence pair, as (source word, target word):

    F, forward    each target word chose a source word, as fast_align does without -r
    B, backward   each source word chose a target word

    intersection          F ∩ B
    union                 F ∪ B
    grow-diag             the intersection, grown through the union by neighbours that reach a word without link
    grow-diag-final       and then each link of F, of B, of which at least one word is without link
    grow-diag-final-and   and then each link of F, of B, of which both words are without link

Koehn, Och and Marcu 2003; Koehn et al. 2005. The result depends on the order, which is that of Moses (`symal`): links are
scanned by target word, then source word; the neighbours of a link are tried in the order of `NEIGHBOURS`; a link that was
added is itself scanned in the same pass if it comes later in the order, else in the next; passes end when one adds nothing.
The last step scans F, then B, in the same order. Others differ: fast_align's `atools` scans the links that may be added, by
source word, and alignment-scripts (Zenkel et al. 2019) add a link only if both its words are without.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phraseloom.errors import DataError, UsageError, plural
from phraseloom.text.lines import read_lines

Links = frozenset[tuple[int, int]]

FORMATS = ("auto", "pharaoh", "talp", "naacl")

_NUMBER = re.compile(r"[0-9]{1,7}", re.ASCII)
_LINK = re.compile(r"([0-9]{1,7})([-p])([0-9]{1,7})", re.ASCII)
_SURE, _POSSIBLE = "S", "P"


@dataclass(frozen=True, slots=True)
class Gold:
    """What people linked: `sure` links must be found, `possible` ones may be; every sure link is possible too."""

    sure: Links = frozenset()
    possible: Links = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "possible", self.possible | self.sure)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a link is read, for messages, and how its indices are meant; `lengths`: words of source and target."""

    file: str | Path | None = None
    line: int | None = None
    base: int = 0
    reverse: bool = False
    lengths: tuple[int, int] | None = None

    def problem(self, what: str, hint: str) -> DataError:
        return DataError(what, file=self.file, line=self.line, hint=hint)

    def link(self, first: str, second: str, field: str) -> tuple[int, int]:
        """The link of two indices as they are written in `field`. Raises DataError for one outside the sentence."""
        one, other = int(first) - self.base, int(second) - self.base
        if min(one, other) < 0:
            raise self.problem(f"{field}: index 0, where words count from 1", "does the file count from 0 (--base 0)?")
        link = (other, one) if self.reverse else (one, other)
        if self.lengths is not None and not _inside(link, self.lengths):
            side = 0 if link[0] >= self.lengths[0] else 1
            words, name = self.lengths[side], ("source", "target")[side]
            span = f", {self.base} to {words - 1 + self.base}" if words else ""
            raise self.problem(
                f"{field}: the {name} has {plural(words, 'word')}{span}", self._way_out(link, self.lengths)
            )
        return link

    def _way_out(self, link: tuple[int, int], lengths: tuple[int, int]) -> str:
        ways = []
        if self.base == 0 and min(link) > 0 and _inside((link[0] - 1, link[1] - 1), lengths):
            ways.append("does the file count from 1 (--base 1)?")
        if _inside((link[1], link[0]), lengths):
            first = "the source word come first, without" if self.reverse else "the target word come first,"
            ways.append(f"does {first} --reverse?")
        return " or ".join(ways) or "are these the links of this text?"


def _inside(link: tuple[int, int], lengths: tuple[int, int]) -> bool:
    return link[0] < lengths[0] and link[1] < lengths[1]


def parse_links(
    text: str,
    *,
    file: str | Path | None = None,
    line: int | None = None,
    reverse: bool = False,
    lengths: tuple[int, int] | None = None,
) -> Links:
    """The links of one line of Pharaoh text, from 0; with `reverse` written as j-i.

    `file` and `line` are for messages; `lengths`: words of source and target, to check the indices. Raises DataError.
    """
    return _parse_line(text, _Place(file, line, 0, reverse, lengths), possible=False).sure


def format_links(links: Links) -> str:
    """Pharaoh text of links, ordered by source word, then target word."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_lines(
    rows: Iterable[str], *, file: str | Path, lines: Sequence[tuple[str, str]] | None = None
) -> list[Links]:
    """The links of each line of Pharaoh text. `file` is for messages.

    `lines`: the (source, target) lines that they are of; number and indices are then checked. Raises DataError.
    """
    rows, lengths = list(rows), _lengths(lines)
    _check_count(len(rows), lengths, file)
    return [
        parse_links(row, file=file, line=n + 1, lengths=lengths[n] if lengths is not None else None)
        for n, row in enumerate(rows)
    ]


def read_links(path: str | Path, *, lines: Sequence[tuple[str, str]] | None = None) -> list[Links]:
    """The links of each line of a Pharaoh file (plain, .gz, .xz); see `parse_lines`."""
    return parse_lines(read_lines(path), file=path, lines=lines)


def read_gold(
    path: str | Path,
    *,
    format: str = "auto",
    base: int = 0,
    reverse: bool = False,
    lines: Sequence[tuple[str, str]] | None = None,
) -> list[Gold]:
    """The gold links of each sentence of a file (plain, .gz, .xz).

    `format`: one of FORMATS; `auto` goes by the first line that is not blank. In `pharaoh` every link is sure. `base`: 0 or 1,
    the number of the first word. `reverse`: the first index of a link is of the target. `lines`: the (source, target) lines
    that the links are of; number and indices are then checked. Without them, a file of rows ends at the last sentence that
    has a link. Raises DataError (file, line, field) and UsageError.
    """
    if format not in FORMATS:
        raise UsageError(f"no alignment format {format!r}", hint=f"choose from {', '.join(FORMATS)}")
    if base not in (0, 1):
        raise UsageError(f"base {base}: words are counted from 0 or from 1")
    rows, lengths = list(read_lines(path)), _lengths(lines)
    kind = _tell_format(rows, path) if format == "auto" else format

    def place(sentence: int, line: int) -> _Place:
        return _Place(path, line, base, reverse, lengths[sentence] if lengths is not None else None)

    if kind == "naacl":
        return _read_rows(rows, path, place, None if lengths is None else len(lengths))
    _check_count(len(rows), lengths, path)
    return [_parse_line(row, place(n, n + 1), possible=kind == "talp") for n, row in enumerate(rows)]


def _parse_line(text: str, place: _Place, *, possible: bool) -> Gold:
    """The links of one line; with `possible` also those with a p."""
    found: dict[str, list[tuple[int, int]]] = {"-": [], "p": []}
    for number, field in enumerate(text.split(), 1):
        match = _LINK.fullmatch(field)
        if match is None or (match[2] == "p" and not possible):
            allowed = "i-j (sure) or ipj (possible)" if possible else "i-j"
            hint = "possible links are of the format talp" if match else "such as 0-2; i, j: numbers of words"
            raise place.problem(f"field {number}, {field!r}, is not a link {allowed}", hint)
        found[match[2]].append(place.link(match[1], match[3], field))
    return Gold(frozenset(found["-"]), frozenset(found["p"]))


def _read_rows(
    rows: list[str], path: str | Path, place: Callable[[int, int], _Place], sentences: int | None
) -> list[Gold]:
    """The gold links of rows in any order, of `sentences` sentences or as many as the rows tell."""
    found: dict[int, dict[str, set[tuple[int, int]]]] = defaultdict(lambda: {_SURE: set(), _POSSIBLE: set()})
    for line, row in enumerate(rows, 1):
        fields = row.split()
        if not fields:
            continue
        if not 3 <= len(fields) <= 4:
            raise _bad_row(f"a row of {len(fields)} fields", path, line)
        (number, first, second), kind = fields[:3], fields[3] if len(fields) == 4 else _SURE
        for field in (number, first, second):
            if not _NUMBER.fullmatch(field):
                raise _bad_row(f"{field!r} is not a number", path, line)
        if kind not in (_SURE, _POSSIBLE):
            raise _bad_row(f"{kind!r} is neither S (sure) nor P (possible)", path, line)
        sentence = int(number)
        if sentence < 1:
            raise DataError(f"sentence {sentence}: sentences count from 1", file=path, line=line)
        if sentences is not None and sentence > sentences:
            what = f"sentence {sentence}: the text has {plural(sentences, 'sentence')}"
            raise DataError(what, file=path, line=line)
        found[sentence][kind].add(place(sentence - 1, line).link(first, second, f"{first} {second}"))
    empty, count = Gold(), max(found, default=0) if sentences is None else sentences
    links = {n: Gold(frozenset(of[_SURE]), frozenset(of[_POSSIBLE])) for n, of in found.items()}
    return [links.get(n, empty) for n in range(1, count + 1)]


def _bad_row(what: str, path: str | Path, line: int) -> DataError:
    return DataError(what, file=path, line=line, hint="rows are SENTENCE SOURCE TARGET [S|P], such as 1 0 2 S")


def _tell_format(rows: list[str], path: str | Path) -> str:
    """The format of a file by its first field; talp if any link is possible."""
    for line, row in enumerate(rows, 1):
        if not (fields := row.split()):
            continue
        if _NUMBER.fullmatch(fields[0]):
            return "naacl"
        if _LINK.fullmatch(fields[0]):
            return "talp" if any("p" in row for row in rows) else "pharaoh"
        raise DataError(
            f"the format cannot be told: {fields[0]!r} begins neither links (0-0 1p2) nor a row (1 0 0 S)",
            file=path,
            line=line,
        )
    raise DataError("the format cannot be told: the file holds no link", file=path, hint="name it with --format")


def _lengths(lines: Sequence[tuple[str, str]] | None) -> list[tuple[int, int]] | None:
    return None if lines is None else [(_count_words(source), _count_words(target)) for source, target in lines]


def _count_words(line: str) -> int:
    return sum(map(bool, line.split(" ")))


def _check_count(found: int, lengths: Sequence[tuple[int, int]] | None, path: str | Path) -> None:
    if lengths is not None and found != len(lengths):
        raise DataError(f"{plural(found, 'line')} of links, but the text has {len(lengths)}", file=path)


METHODS = ("intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and")
# Steps (target word, source word).
NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrize(forward: Links, backward: Links, method: str) -> Links:
    """The alignment that `method`, one of METHODS, makes of two, all as (source word, target word). Raises UsageError."""
    if method not in METHODS:
        raise UsageError(f"no symmetrisation {method!r}", hint=f"choose from {', '.join(METHODS)}")
    if method == "intersection":
        return forward & backward
    if method == "union":
        return forward | backward
    growth = _Growth(forward & backward)
    growth.grow(forward | backward)
    if method != "grow-diag":
        for links in (forward, backward):
            growth.finish(links, both=method == "grow-diag-final-and")
    return frozenset((s, t) for t, s in growth.links)


class _Growth:
    """Links (target word, source word) in order, and the words that they reach."""

    def __init__(self, links: Links) -> None:
        self.links = _scanned(links)
        self._targets, self._sources = {t for t, _ in self.links}, {s for _, s in self.links}

    def grow(self, allowed: Links) -> None:
        """Add allowed neighbours that reach at least one free word, until there is none."""
        grew = True
        while grew:
            grew, at = False, 0
            while at < len(self.links):
                target, source = self.links[at]
                for down, right in NEIGHBOURS:
                    t, s = target + down, source + right
                    if (s, t) in allowed and (t not in self._targets or s not in self._sources):
                        at += self._add(t, s) <= at
                        grew = True
                at += 1

    def finish(self, links: Links, *, both: bool) -> None:
        """Add those of `links` of which one word, or with `both` each word, is free."""
        for t, s in _scanned(links):
            free = (t not in self._targets) + (s not in self._sources)
            if free == 2 or (free and not both):
                self._add(t, s)

    def _add(self, target: int, source: int) -> int:
        """Put a link in its place, and return that."""
        place = bisect(self.links, (target, source))
        self.links.insert(place, (target, source))
        self._targets.add(target)
        self._sources.add(source)
        return place


def _scanned(links: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted((t, s) for s, t in links)
