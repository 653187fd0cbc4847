"""`phraseloom align lexicon`: the most frequent translation of each word of a word-aligned text."""

from __future__ import annotations

from typing import Annotated

import typer

from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.phrases.files import InputFiles, LinkFile, Source, Target, single_stdin
from phraseloom.cli.streams import note
from phraseloom.errors import plural
from phraseloom.text.lines import write_lines


def command(
    source: Source,
    target: Target,
    links: LinkFile,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The lexicon to write.")],
    min_count: Annotated[
        int, typer.Option(min=1, help="Skip words that are linked to their translation less often.")
    ] = 1,
    overwrite: Overwrite = False,
) -> None:
    """Write a lexicon: for each source word, the target word that it is linked to most often.

    The output has one row per source word, most links first, with tab-separated columns: source word, target word,
    links between them, all links of the source word. A tie goes to the target word that is first in code-point
    order. translate --unknown replace reads the lexicon. Tokenise the text like that of the model
    (docs/continuous_output.md).

    Example: phraseloom align lexicon -s train.de -t train.en -a train.links -o de-en.lexicon
    """
    from phraseloom.align.lexicon import LinkCounts, format_entries
    from phraseloom.phrases.extract import read_aligned

    single_stdin(source, target, links)
    check_outputs({"-o": output}, inputs=[source, target, links], overwrite=overwrite)
    inputs, counts = InputFiles("align"), LinkCounts()
    for pair in read_aligned(inputs.lines(source), inputs.lines(target), inputs.lines(links)):
        counts.add(pair.source, pair.target, pair.links)
    rows = write_lines(output, format_entries(counts.entries(min_count)))
    inputs.note_changes()
    note("align", f"{plural(counts.lines, 'pair')}, {plural(counts.links, 'link')}: {plural(rows, 'source word')}")
    if counts.with_tab:
        note("align", f"{plural(counts.with_tab, 'link')} of words with a tab, which a lexicon cannot hold: left out")
