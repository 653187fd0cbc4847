"""`phraseloom phrases mwt`: the test sentences in which one source word is translated by a phrase."""

from __future__ import annotations

from itertools import compress
from pathlib import Path
from typing import Annotated

import typer

from phraseloom.cli.options import Rule
from phraseloom.cli.phrases.files import InputFiles, LinkFile, Source, Table, Target
from phraseloom.cli.streams import note
from phraseloom.errors import DataError, UsageError, plural
from phraseloom.files import MANIFEST, require_regular_file, write_manifest
from phraseloom.replace import STDIN
from phraseloom.text.lines import write_lines

LINES = "lines.txt"

ParallelFiles = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="Another parallel file; write the same lines of it. Repeatable."),
]


def command(
    source: Source,
    target: Target,
    links: LinkFile,
    table: Table,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="The folder to write.")],
    also: ParallelFiles = None,
    rule: Annotated[Rule, typer.Option(help="Which phrases count (docs/phrases.md).")] = "released",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing subset.")] = False,
) -> None:
    """Write the multi-word subset of a test set: the sentences with words that phrases segment would join.

    The output folder has lines.txt, the line numbers from 1, and the lines of each file under its own name (without
    .gz or .xz). For the target there is also NAME.joined, with the phrases joined. Use --also for system outputs
    and untokenised references, so that evaluate can score them on this subset.

    Example: phraseloom phrases mwt -s test.de -t test.en -a test.links --table phrases.tsv --also system.en -o mwt
    """
    from phraseloom.phrases.extract import read_aligned
    from phraseloom.phrases.merge import merge_aligned
    from phraseloom.phrases.segmenters import index_phrases, read_phrases
    from phraseloom.replace import FolderKind, check_folder, new_folder
    from phraseloom.text.words import join_line

    files = [source, target, *(also or [])]
    if STDIN in (*files, links, table):
        raise UsageError("the files are read more than once: none can be - (standard input)")
    names = [Path(file).name.removesuffix(".gz").removesuffix(".xz") for file in files]
    taken = [*names, LINES, f"{names[1]}.joined"]
    reserved = [*taken, MANIFEST]
    twice = next((name for name in reserved if reserved.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two files of the folder would have the name {twice}", hint="rename one of them")
    kind, sources = FolderKind("multi-word subset", needs=(LINES,)), [*files, links, table]
    check_folder(output, kind, overwrite=overwrite, inputs=sources)
    for file in files:
        require_regular_file(file)
    phrases = index_phrases(read_phrases(table))
    inputs = InputFiles()
    chosen: list[bool] = []
    joined: list[str] = []
    for line in read_aligned(inputs.lines(source), inputs.lines(target), inputs.lines(links)):
        words = line.target_line.split(" ")
        sizes = [part.size for part in merge_aligned(words, line.links, phrases, rule)]
        chosen.append(len(sizes) < len(words))
        if chosen[-1]:
            joined.append(join_line(words, sizes))
    for file in also or []:
        _same_length(file, len(chosen), source, inputs)
    with new_folder(output, kind, overwrite=overwrite, inputs=sources) as folder:
        write_lines(folder / f"{names[1]}.joined", joined)
        for file, name in zip(files, names, strict=True):
            write_lines(folder / name, compress(InputFiles().lines(file).lines, chosen))
        write_lines(folder / LINES, (str(number) for number, is_chosen in enumerate(chosen, 1) if is_chosen))
        write_manifest(folder, taken)
    inputs.note_changes()
    note(
        "phrases",
        f"{len(joined):,} of {len(chosen):,} sentences hold a phrase for one source word ({_share(len(joined), len(chosen))})",
    )


def _same_length(file: str, expected: int, source: str, inputs: InputFiles) -> None:
    count = sum(1 for _ in inputs.lines(file).lines)
    if count != expected:
        raise DataError(
            f"{plural(count, 'line')}, but {source} has {expected:,}", file=file, hint="the files must be parallel"
        )


def _share(part: int, whole: int) -> str:
    return f"{part / max(1, whole):.2%}"
