"""Word alignments: links (source word, target word), counted from 0, their file formats and their symmetrisation.

    pharaoh   0-0 1-2 3-1    one sentence per line; i-j links source word i and target word j
    talp      0-0 1p2 3-1    gold links of two kinds: i-j is sure, ipj is possible
    naacl     7 1 3 S        one link per row: sentence (from 1), source word, target word, S sure (the default) or P possible

A blank line in pharaoh or talp is a sentence without links; so is a sentence without rows in naacl. Words are separated by
U+0020. Gold files differ in the number of the first word (`base`) and in the language that comes first (`reverse`). Sure and
possible links: Och and Ney 2003, §5. Rows: Mihalcea and Pedersen 2003.

`symmetrize` combines two alignments of the same sentence pair:

    F, forward    each target word chose a source word, as fast_align does without -r
    B, backward   each source word chose a target word

    intersection          F ∩ B
    union                 F ∪ B
    grow-diag             the intersection, plus neighbours in the union that reach a word without a link
    grow-diag-final       then each link of F, then of B, with at least one word without a link
    grow-diag-final-and   then each link of F, then of B, with both words without a link

Koehn, Och and Marcu 2003; Koehn et al. 2005. The result depends on the order, which is that of Moses (`symal`). Links are
scanned by target word, then source word. The neighbours of a link are tried in the order of `NEIGHBOURS`. An added link is
scanned in the same pass if it comes later in the order, else in the next pass. Passes end when one adds nothing. The last step
scans F, then B, in the same order. Other tools differ: `atools` of fast_align scans the candidate links by source word, and
alignment-scripts (Zenkel et al. 2019) add a link only if both its words have none.
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
    """Links by annotators: a system must find `sure` links and may find `possible` ones; every sure link is possible too."""

    sure: Links = frozenset()
    possible: Links = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "possible", self.possible | self.sure)


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a link, for messages, and how to read its indices; `lengths` are the numbers of source and target words."""

    file: str | Path | None = None
    line: int | None = None
    base: int = 0
    reverse: bool = False
    lengths: tuple[int, int] | None = None

    def problem(self, what: str, hint: str) -> DataError:
        return DataError(what, file=self.file, line=self.line, hint=hint)

    def link(self, first: str, second: str, field: str) -> tuple[int, int]:
        """The link of the two indices in `field`. Raises DataError for a word outside the sentence."""
        link = int(first) - self.base, int(second) - self.base
        if min(link) < 0:
            raise self.problem(f"{field}: index 0, but words count from 1", "does the file count from 0 (--base 0)?")
        link = link[::-1] if self.reverse else link
        if self.lengths is not None and not _inside(link, self.lengths):
            side = 0 if link[0] >= self.lengths[0] else 1
            words, name = self.lengths[side], ("source", "target")[side]
            span = f", {self.base} to {words - 1 + self.base}" if words else ""
            raise self.problem(f"{field}: the {name} has {plural(words, 'word')}{span}", self._hint(link, self.lengths))
        return link

    def _hint(self, link: tuple[int, int], lengths: tuple[int, int]) -> str:
        hints = []
        if self.base == 0 and min(link) > 0 and _inside((link[0] - 1, link[1] - 1), lengths):
            hints.append("does the file count from 1 (--base 1)?")
        if _inside((link[1], link[0]), lengths):
            first, use = ("source", "without") if self.reverse else ("target", "use")
            hints.append(f"does the {first} word come first ({use} --reverse)?")
        return " or ".join(hints) or "are these the links of this text?"


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
    """The links of one line of Pharaoh text, from 0; with `reverse` they are written as j-i.

    `file` and `line` are for messages; `lengths` of source and target are for checks of the indices. Raises DataError.
    """
    return _parse_line(text, _Place(file, line, 0, reverse, lengths), possible=False).sure


def format_links(links: Links) -> str:
    """Pharaoh text of links, ordered by source word, then target word."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_lines(
    rows: Iterable[str], *, file: str | Path, lines: Sequence[tuple[str, str]] | None = None
) -> list[Links]:
    """The links of each line of Pharaoh text. `file` is for messages.

    With the (source, target) `lines` of the text, the number of rows and the indices are checked. Raises DataError.
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

    `format` is one of FORMATS; `auto` decides by the first non-blank line. In `pharaoh` every link is sure. `base` is the
    number of the first word, 0 or 1. With `reverse`, the first index of a link is the target word. With the (source, target)
    `lines` of the text, the number of sentences and the indices are checked; without them, a naacl file ends at the last
    sentence with a link. Raises DataError (file, line, field) and UsageError.
    """
    if format not in FORMATS:
        raise UsageError(f"no alignment format {format!r}", hint=f"choose from {', '.join(FORMATS)}")
    if base not in (0, 1):
        raise UsageError(f"base {base}: words count from 0 or from 1")
    rows, lengths = list(read_lines(path)), _lengths(lines)
    kind = _detect_format(rows, path) if format == "auto" else format

    def place(sentence: int, line: int) -> _Place:
        return _Place(path, line, base, reverse, lengths[sentence] if lengths is not None else None)

    if kind == "naacl":
        return _read_rows(rows, path, place, None if lengths is None else len(lengths))
    _check_count(len(rows), lengths, path)
    return [_parse_line(row, place(n, n + 1), possible=kind == "talp") for n, row in enumerate(rows)]


def _parse_line(text: str, place: _Place, *, possible: bool) -> Gold:
    """The links of one line; `possible` allows links with a p."""
    links: dict[str, list[tuple[int, int]]] = {"-": [], "p": []}
    for number, field in enumerate(text.split(), 1):
        match = _LINK.fullmatch(field)
        if match is None or (match[2] == "p" and not possible):
            allowed = "i-j (sure) or ipj (possible)" if possible else "i-j"
            hint = "only the format talp has possible links" if match else "write word numbers, such as 0-2"
            raise place.problem(f"field {number}, {field!r}, is not a link {allowed}", hint)
        links[match[2]].append(place.link(match[1], match[3], field))
    return Gold(frozenset(links["-"]), frozenset(links["p"]))


def _read_rows(
    rows: list[str], path: str | Path, place: Callable[[int, int], _Place], sentences: int | None
) -> list[Gold]:
    """The gold links of naacl rows in any order, for `sentences` sentences, or up to the last one with a row."""
    links: dict[int, dict[str, set[tuple[int, int]]]] = defaultdict(lambda: {_SURE: set(), _POSSIBLE: set()})
    for line, row in enumerate(rows, 1):
        fields = row.split()
        if not fields:
            continue
        if not 3 <= len(fields) <= 4:
            raise _bad_row(f"the row has {plural(len(fields), 'field')}", path, line)
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
        links[sentence][kind].add(place(sentence - 1, line).link(first, second, f"{first} {second}"))
    count = max(links, default=0) if sentences is None else sentences
    gold = {n: Gold(frozenset(kinds[_SURE]), frozenset(kinds[_POSSIBLE])) for n, kinds in links.items()}
    return [gold.get(n, Gold()) for n in range(1, count + 1)]


def _bad_row(what: str, path: str | Path, line: int) -> DataError:
    return DataError(what, file=path, line=line, hint="write SENTENCE SOURCE TARGET [S|P], such as 1 0 2 S")


def _detect_format(rows: list[str], path: str | Path) -> str:
    """The format of a file, from its first field; talp if any link is possible."""
    for line, row in enumerate(rows, 1):
        if not (fields := row.split()):
            continue
        if _NUMBER.fullmatch(fields[0]):
            return "naacl"
        if _LINK.fullmatch(fields[0]):
            return "talp" if any("p" in row for row in rows) else "pharaoh"
        what = f"unknown format: {fields[0]!r} begins neither links (0-0 1p2) nor a row (1 0 0 S)"
        raise DataError(what, file=path, line=line)
    raise DataError("unknown format: the file has no link", file=path, hint="name it with --format")


def _lengths(lines: Sequence[tuple[str, str]] | None) -> list[tuple[int, int]] | None:
    return None if lines is None else [(_count_words(source), _count_words(target)) for source, target in lines]


def _count_words(line: str) -> int:
    return sum(map(bool, line.split(" ")))


def _check_count(count: int, lengths: Sequence[tuple[int, int]] | None, path: str | Path) -> None:
    if lengths is not None and count != len(lengths):
        raise DataError(f"{plural(count, 'line')} of links, but the text has {len(lengths)}", file=path)


METHODS = ("intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and")
# Steps (target word, source word).
NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrize(forward: Links, backward: Links, method: str) -> Links:
    """Combine two alignments by `method`, one of METHODS; all links are (source word, target word). Raises UsageError."""
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
    """Ordered links (target word, source word), and the words that they reach."""

    def __init__(self, links: Links) -> None:
        self.links = _scanned(links)
        self._targets, self._sources = {t for t, _ in self.links}, {s for _, s in self.links}

    def grow(self, allowed: Links) -> None:
        """Add allowed neighbours that reach at least one free word, until none is left."""
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
        """Add those of `links` with a free word, or with `both` words free."""
        for t, s in _scanned(links):
            free = (t not in self._targets) + (s not in self._sources)
            if free == 2 or (free and not both):
                self._add(t, s)

    def _add(self, target: int, source: int) -> int:
        """Insert a link at its place; return the place."""
        place = bisect(self.links, (target, source))
        self.links.insert(place, (target, source))
        self._targets.add(target)
        self._sources.add(source)
        return place


def _scanned(links: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted((t, s) for s, t in links)
