"""`phraseloom phrases segment`: join the words of phrases to one token, and split joined text again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.options import Rule, TextOrStdin
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.phrases.files import InputFiles, single_stdin
from phraseloom.cli.streams import note
from phraseloom.errors import UsageError, plural
from phraseloom.files import require_regular_file
from phraseloom.replace import STDIN
from phraseloom.text.lines import count_lines, encode_lines, write_lines

if TYPE_CHECKING:
    from phraseloom.phrases.segmenters import Phrases

BLOCK = 1000


def command(
    text: TextOrStdin = STDIN,
    table: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Phrases, one per line; further columns after a tab are ignored."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("-s", "--source", metavar="FILE", help="The source text that TEXT translates."),
    ] = None,
    links: Annotated[
        str | None,
        typer.Option("-a", "--links", metavar="FILE", help="Word links i-j (source word i, word j of TEXT)."),
    ] = None,
    rule: Annotated[
        Rule | None, typer.Option(help="With links: which phrases to join (docs/phrases.md). Default: released.")
    ] = None,
    fertility: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="With links: also write the fertility of each source word, one line per sentence."
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Split joined text again, back to the original line.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Join the words of phrases to one token, quality of life to quality_of_life: one line out per line in, on
    standard output.

    Without links, it joins the longest phrases of the table from left to right. With links (--source and --links),
    it joins words only if they share a source word. A _ in the text itself is written &#95;, so that --undo
    restores the text.

    Example: phraseloom phrases segment news.en --table phrases.tsv > news.joined.en

    Example: phraseloom phrases segment train.en --table phrases.tsv -s train.de -a train.links > train.joined.en
    """

    if (source is None) != (links is None):
        raise UsageError("the source text and the links go together", hint="give -s and -a")
    if links is None and (rule is not None or fertility is not None):
        raise UsageError("--rule and --fertility need the source text and links", hint="give -s and -a")
    if undo and (table is not None or links is not None):
        raise UsageError("--undo takes nothing but joined text")
    if not undo and table is None:
        raise UsageError("no phrases to join", hint="give --table FILE")
    single_stdin(text, source, links, table, fertility)
    check_outputs({"--fertility": fertility}, inputs=[text, source, links, table], overwrite=overwrite)
    inputs = InputFiles()
    if undo:
        _undo(text, inputs)
    else:
        assert table is not None
        joiner = Joiner(table, inputs)
        if source is None or links is None:
            joiner.monolingual(text)
        else:
            joiner.parallel(text, source, links, rule or "released", fertility)
        note("phrases", joiner.summary())
    inputs.note_changes()


def _undo(text: str, inputs: InputFiles) -> None:
    from phraseloom.text.words import split_line

    _print(split_line(line) for line in inputs.lines(text).lines)


def _print(lines: Iterable[str]) -> None:
    lines = iter(lines)
    while block := list(islice(lines, BLOCK)):
        sys.stdout.buffer.write(encode_lines(block))
        sys.stdout.buffer.flush()


class Joiner:
    """Joins the words of texts by a table, and counts what it does."""

    def __init__(self, table: str, inputs: InputFiles) -> None:
        from phraseloom.phrases.segmenters import index_phrases, read_phrases

        phrases = read_phrases(table)
        self._sizes = Counter(phrase.count(" ") + 1 for phrase in phrases)
        self._phrases: Phrases = index_phrases(phrases)
        self._inputs = inputs
        self.lines = self.changed = self.joined = 0
        self.found: set[str] = set()

    def monolingual(self, text: str) -> None:
        """Print a text with the longest matches joined."""
        from phraseloom.phrases.segmenters import word_phrases

        def joined() -> Iterator[str]:
            for line in self._inputs.lines(text).lines:
                words = line.split(" ")
                yield self._join(words, word_phrases(words, self._phrases))

        _print(joined())

    def parallel(self, text: str, source: str, links: str, rule: str, fertility: str | None) -> None:
        """Print a translation with the phrases joined that `rule` takes; fertilities go to the file `fertility`."""
        from phraseloom.phrases.extract import read_aligned
        from phraseloom.phrases.fertility import format_fertilities
        from phraseloom.phrases.merge import RELEASED_SIZES, fertilities, merge_aligned

        self._check_lengths(source, text, links)
        longer = sum(number for size, number in self._sizes.items() if size > max(RELEASED_SIZES))
        if longer and rule == "released":
            note(
                "phrases",
                f"{plural(longer, 'phrase')} of more than {max(RELEASED_SIZES)} words: never joined by the rule released",
            )

        def rows() -> Iterator[str]:
            block: list[str] = []
            for line in read_aligned(*(self._inputs.lines(path) for path in (source, text, links))):
                words = line.target_line.split(" ")
                parts = merge_aligned(words, line.links, self._phrases, rule)
                block.append(self._join(words, [part.size for part in parts]))
                if len(block) == BLOCK:
                    sys.stdout.buffer.write(encode_lines(block))
                    block.clear()
                yield format_fertilities(fertilities(parts, words, line.links, len(line.source)))
            sys.stdout.buffer.write(encode_lines(block))
            sys.stdout.buffer.flush()

        if fertility is None:
            for _ in rows():
                pass
        else:
            write_lines(fertility, rows())

    def _check_lengths(self, *paths: str) -> None:
        """Raise DataError for parallel files of different length, FileProblem for a pipe, before a line is written.

        Standard input is read once, so nothing is checked with it.
        """
        from phraseloom.phrases.extract import NOT_PARALLEL, too_short

        if STDIN in paths:
            return
        counts = [count_lines(require_regular_file(path)) for path in paths]
        fewest = min(counts)
        if max(counts) > fewest:
            rows = [None if count == fewest else "" for count in counts]
            raise too_short(paths, rows, fewest + 1, NOT_PARALLEL)

    def _join(self, words: list[str], sizes: list[int]) -> str:
        from phraseloom.text.words import join_line

        self.lines += 1
        if len(sizes) < len(words):
            self.changed += 1
            start = 0
            for size in sizes:
                if size > 1:
                    self.joined += 1
                    self.found.add(" ".join(words[start : start + size]))
                start += size
        return join_line(words, sizes)

    def summary(self) -> str:
        """What was joined, in one line for people."""
        phrases = sum(self._sizes.values())
        one = f"; {plural(self._sizes[1], 'phrase')} of one word, nothing to join" if self._sizes[1] else ""
        return (
            f"{plural(self.lines, 'line')}, {self.changed:,} with a phrase; {plural(self.joined, 'phrase')} joined, "
            f"{len(self.found):,} different of the {phrases:,} of the table{one}"
        )
