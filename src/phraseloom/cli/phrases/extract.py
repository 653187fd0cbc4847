"""`phraseloom phrases extract`: candidate phrases from words linked to the same source word."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.phrases.files import InputFiles, LinkFile, Source, Target, single_stdin
from phraseloom.cli.streams import note
from phraseloom.errors import DataError, plural
from phraseloom.text.lines import write_lines

if TYPE_CHECKING:
    from phraseloom.phrases.extract import PhraseCandidate


def command(
    source: Source,
    target: Target,
    links: LinkFile,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The table of candidates to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Extract candidate phrases of the target language: target words that are linked to one source word.

    The output has one row per candidate and source word, most frequent candidates first. The tab-separated columns
    are: phrase, source word, how often the two are linked, how often this source word is linked at all. phrases
    filter turns it into a phrase table (docs/phrases.md).

    Example: phraseloom phrases extract -s train.de -t train.en -a train.links -o candidates.tsv
    """
    from phraseloom.phrases.extract import extract, format_candidates, read_aligned

    single_stdin(source, target, links)
    check_outputs({"-o": output}, inputs=[source, target, links], overwrite=overwrite)
    inputs = InputFiles()
    extraction = extract(read_aligned(inputs.lines(source), inputs.lines(target), inputs.lines(links)))
    candidates = 0

    def counted() -> Iterator[PhraseCandidate]:
        nonlocal candidates
        for candidate in extraction:
            candidates += 1
            yield candidate

    found = counted()
    first = next(found, None)
    if first is None:
        if extraction.with_tab:
            what = f"no candidate: {extraction.with_tab:,} with a tab in a word, which cannot stand in a table"
            raise DataError(what, file=target, hint="write spaces for tabs in both texts, and align them anew")
        what = f"no candidate: in {plural(extraction.pairs, 'pair')}, no source word is linked to several target words"
        unused = f"{extraction.blank:,} with a blank side, {extraction.unlinked:,} without links"
        raise DataError(
            what, file=links, hint=f"{unused}; these links may be of another text, or symmetrised too strictly"
        )
    rows = write_lines(output, format_candidates(chain([first], found)))
    inputs.note_changes()
    note(
        "phrases",
        f"{plural(extraction.pairs, 'pair')}, {extraction.blank:,} with a blank side, {extraction.unlinked:,} without links; "
        f"{extraction.occurrences:,} times a source word with several target words: {candidates:,} candidates, {rows:,} rows",
    )
    if extraction.with_tab:
        note("phrases", f"{extraction.with_tab:,} more were left out: a word with a tab cannot stand in a table")
