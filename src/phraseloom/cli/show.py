"""Draw a translation with its phrase alignment in the terminal, for `translate --show`.

    en               This brave man kicks the bucket .
    de               Dieser mutige Mann gibt den Löffel ab .

    Dieser           This                                75 % ███████▌
    mutige                brave                          34 % ███▍
    gibt den Löffel                 kicks the bucket     41 % ████▏

One row per link: the target words, the source words that they come from, each below its place in the source, and the weight.
A source that is wider than the terminal is drawn in several blocks. Colours only on a terminal; `NO_COLOR` turns them off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from phraseloom.decoding.translation import PhraseLink, Translation
from phraseloom.errors import escape_controls

BAR = 8  # columns of a weight of 100 %
RIGHT = len("  100 % ") + BAR
NARROWEST = 16  # columns of source text, however narrow the terminal is
EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class ShownPair:
    """What `draw` needs of one line: the languages, the words of both sides, and the links between them."""

    languages: tuple[str, str]
    source: Sequence[str]
    target: Sequence[str]
    text: str
    links: Sequence[PhraseLink]

    @classmethod
    def of(cls, translation: Translation, source_words: Sequence[str], languages: tuple[str, str]) -> ShownPair:
        """A translation with `phrases`, and the words of its source."""
        words = [[escape_controls(word) for word in side] for side in (source_words, translation.words)]
        return cls(languages, words[0], words[1], escape_controls(translation.text), translation.phrases or [])


def show(pair: ShownPair, console: Console) -> str:
    """The picture of one pair, lines ending in a line feed, with the colours and the width of `console`."""
    with console.capture() as capture:
        for line in draw(pair, console.width):
            line.rstrip()
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    return capture.get()


def draw(pair: ShownPair, width: int) -> Iterator[Text]:
    """The lines of the picture, at most `width` columns wide if the terminal has at least 48; an empty line ends it."""
    if not pair.source:
        yield Text("(blank line)", style="dim")
        yield Text()
        return
    rows = list(_rows(pair))
    margin = max(map(cell_len, [*pair.languages, *(label for label, _ in rows)]))
    margin = min(margin, max(8, width // 3)) + 2
    room = max(NARROWEST, width - margin - RIGHT)
    blocks = list(_blocks(pair.source, room))
    yield from _wrapped(pair.languages[1], pair.text.split(), margin, max(NARROWEST, width - margin))
    for first, last in blocks:
        words = [_cut(word, room) for word in pair.source[first:last]]
        starts = _columns(words)
        yield _labelled(pair.languages[0], margin).append(" ".join(words), style="bold")
        block = [(label, link) for label, link in rows if link is None or link.source[0] < last]
        for label, link in block:
            if link is None:
                if first == 0:
                    yield _labelled(label, margin).append("–", style="dim")
            elif link.source[1] > first:
                begin, end = max(link.source[0], first) - first, min(link.source[1], last) - first
                linked = " " * starts[begin], " ".join(words[begin:end]), " " * (starts[-1] - starts[end])
                yield _row(label, link.weight, linked, margin)
        yield Text()


def _rows(pair: ShownPair) -> Iterator[tuple[str, PhraseLink | None]]:
    """The target words of each row with their link, in target order; None for a word without one."""
    links = {link.target[0]: link for link in pair.links}
    position = 0
    while position < len(pair.target):
        link = links.get(position)
        end = position + 1 if link is None else link.target[1]
        yield " ".join(pair.target[position:end]), link
        position = end


def _blocks(words: Sequence[str], room: int) -> Iterator[tuple[int, int]]:
    """Ranges of words that fit into `room` columns, in order; a word that is too wide is alone."""
    first, used = 0, 0
    for number, word in enumerate(words):
        size = cell_len(word) + 1
        if used and used + size - 1 > room:
            yield first, number
            first, used = number, 0
        used += size
    yield first, len(words)


def _columns(words: Sequence[str]) -> list[int]:
    """The column of each word, and of the end, in the line of the words."""
    return [0, *accumulate(cell_len(word) + 1 for word in words)]


def _row(label: str, weight: float, linked: tuple[str, str, str], margin: int) -> Text:
    """`linked`: the words of a link, and the space before and after them."""
    shade = "bold white on blue" if weight >= 0.5 else "white on dark_blue" if weight >= 0.2 else "blue"
    before, words, after = linked
    row = _labelled(label, margin).append(before).append(words, style=shade).append(after)
    row.append(f"  {100 * weight:3.0f} % ", style="dim")
    eighths = round(8 * BAR * min(1.0, weight))
    return row.append("█" * (eighths // 8) + EIGHTHS[eighths % 8].strip(), style="blue")


def _wrapped(label: str, words: Sequence[str], margin: int, room: int) -> Iterator[Text]:
    for number, (first, last) in enumerate(_blocks(words, room)):
        text = " ".join(_cut(word, room) for word in words[first:last])
        yield _labelled("" if number else label, margin).append(text, style="bold")


def _labelled(label: str, margin: int) -> Text:
    return Text(set_cell_size(_cut(label, margin - 2), margin))


def _cut(text: str, room: int) -> str:
    return text if cell_len(text) <= room else set_cell_size(text, room - 1) + "…"
