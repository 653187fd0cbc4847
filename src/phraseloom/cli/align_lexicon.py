"""`phraseloom align lexicon`: the most frequent translation of each word of a word-aligned text."""

from __future__ import annotations

from typing import Annotated

import typer

from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.phrases_input import InputFiles, LinkFile, Source, Target, note, plain_name, single_stdin
from phraseloom.errors import plural


def command(
    source: Source,
    target: Target,
    links: LinkFile,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The lexicon to write.")],
    min_count: Annotated[
        int, typer.Option(min=1, help="Leave out words that are linked to their translation less often.")
    ] = 1,
    overwrite: Overwrite = False,
) -> None:
    """Make a lexicon: for each source word the target word that it is linked to most often.

    Writes a row for each source word, those with the most links first, columns separated by tabs: source word, target word,
    links between them, links of the source word in all. Of equals the first target word in the order of code points.
    translate --unknown replace takes it; the text should be tokenised as that of the model (docs/continuous_output.md).

    Example: phraseloom align lexicon -s train.de -t train.en -a train.links -o de-en.lexicon
    """
    from phraseloom.align.lexicon import LinkCounts, format_entries
    from phraseloom.phrases.aligned import read_aligned
    from phraseloom.text.lines import write_lines

    single_stdin(source, target, links)
    check_outputs({"-o": plain_name(output)}, inputs=[source, target, links], overwrite=overwrite)
    inputs, counts = InputFiles("align"), LinkCounts()
    for one in read_aligned(inputs.lines(source), inputs.lines(target), inputs.lines(links)):
        counts.add(one.source, one.target, one.links)
    rows = write_lines(output, format_entries(counts.entries(min_count)))
    inputs.note_changes()
    note(f"{plural(counts.lines, 'pair')}, {plural(counts.links, 'link')}: {plural(rows, 'source word')}", "align")
    if counts.with_tab:
        note(f"{plural(counts.with_tab, 'link')} of words with a tab, which a lexicon cannot hold: left out", "align")
