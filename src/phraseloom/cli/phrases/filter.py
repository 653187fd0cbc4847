"""`phraseloom phrases filter`: which candidates are phrases."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.options import options_of
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.phrases.files import InputFiles
from phraseloom.errors import DataError, UsageError
from phraseloom.files import require_file, require_regular_file
from phraseloom.options.data import PhraseFilterConfig
from phraseloom.replace import STDIN
from phraseloom.text.lines import write_lines

if TYPE_CHECKING:
    from phraseloom.phrases.filter import Filtered, Filters, Tags


Preset = Literal["paper", "released"]

CandidateTable = Annotated[
    Path, typer.Argument(metavar="CANDIDATES", help="The candidate table, written by phrases extract.")
]
PmiText = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--target",
        metavar="FILE",
        help="Target text for PMI: the text given to phrases extract, or a larger one.",
    ),
]
PresetOption = Annotated[Preset, typer.Option(help="The five filters of the paper, or those of its released code.")]
TagFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Penn Treebank tags of the target text, one per word. Only noun phrases are kept."
    ),
]
ByPartOfSpeech = Annotated[
    bool | None, typer.Option(help="Filter by part of speech. Default: on with --preset released or --tags.")
]
NoPmi = Annotated[bool, typer.Option("--no-pmi", help="Do not filter by PMI. The target text is then not needed.")]
WithinLines = Annotated[bool, typer.Option("--within-lines", help="For PMI, do not count phrases across line ends.")]
MosesTable = Annotated[str | None, typer.Option(metavar="FILE", help="Also write a phrase table in Moses format.")]


@options_of(
    PhraseFilterConfig,
    forms={"repetition": {"names": ["--repetition"]}, "stop_words": {"metavar": "NAME|FILE"}},
    of_model=False,
)
def command(
    candidates: CandidateTable,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The table of phrases to write.")],
    target: PmiText = None,
    *,
    preset: PresetOption = "paper",
    options: dict[str, Any],
    tags: TagFile = None,
    parts_of_speech: ByPartOfSpeech = None,
    no_pmi: NoPmi = False,
    within_lines: WithinLines = False,
    moses: MosesTable = None,
    overwrite: Overwrite = False,
) -> None:
    """Drop candidates that are not phrases: too rare, too long, punctuation, repeated words, stop-words, PMI of 0
    or less.

    The output has one row per phrase, most frequent first. The tab-separated columns are: phrase, count, PMI,
    occurrences as adjacent words, most frequent source word. The number of candidates that each filter dropped goes
    to standard error (docs/phrases.md).

    Example: phraseloom phrases filter candidates.tsv -t train.en -o phrases.tsv
    """
    from phraseloom.phrases.extract import read_candidates
    from phraseloom.phrases.filter import filter_candidates, filters_of, format_moses, format_phrases

    outputs = {"-o": output, "--moses": moses}
    check_outputs(outputs, inputs=[candidates, target, options.get("stop_words"), tags], overwrite=overwrite)
    if no_pmi and "min_pmi" in options:
        raise UsageError("--min-pmi and --no-pmi exclude each other")
    if tags is not None and parts_of_speech is None:
        parts_of_speech = True
    filters = filters_of(preset, options, parts_of_speech=parts_of_speech)
    filters = replace(filters, min_pmi=None) if no_pmi else filters
    inputs = InputFiles()
    result = filter_candidates(
        read_candidates(require_file(candidates, "table of candidates")),
        filters,
        tags=_tags(filters, target, tags),
        across_lines=not within_lines,
        text=_text(filters, target, inputs),
    )
    inputs.note_changes()
    print(summary(result, filters), file=sys.stderr)
    if not result.phrases and not any(result.dropped.values()):
        raise DataError("the table has no candidate", file=candidates, hint="phraseloom phrases extract finds them")
    if not result.phrases:
        hint = "relax these filters, or give more text; the table above has all counts"
        raise DataError(f"no candidate passed the filters: {_dropped(result, filters)}", file=candidates, hint=hint)
    write_lines(output, format_phrases(result.phrases))
    if moses is not None:
        write_lines(moses, format_moses(result.phrases))


def _tags(filters: Filters, target: str | None, tags: Path | None) -> Tags | None:
    from phraseloom.phrases.filter import Tags

    if not filters.parts_of_speech:
        if tags is not None:
            raise UsageError("--tags is for the filter by part of speech")
        return None
    if tags is None:
        hint = "give --tags FILE, or --no-parts-of-speech"
        raise UsageError("the filter by part of speech needs the tags of the target text", hint=hint)
    if target is None or target == STDIN:
        raise UsageError("--tags needs the target text as a file", hint="give -t FILE")
    return Tags(require_regular_file(target), require_file(tags, "file of tags"))


def _text(filters: Filters, target: str | None, inputs: InputFiles) -> Any:
    if filters.min_pmi is None:
        return ()
    if target is None:
        raise UsageError("PMI needs the target text", hint="give -t FILE, or --no-pmi")
    return inputs.lines(target).lines


def _dropped(result: Filtered, filters: Filters) -> str:
    """How many candidates each filter dropped, the most first, with the option that relaxes it (read by `reproduce`)."""
    options = {
        "form": "the word ||| in it",
        "length": f"--max-words {filters.max_words}",
        "count": f"--min-count {filters.min_count}",
        "characters": f"--characters {filters.characters}",
        "repetition": "no --repetition",
        "stop-words": f"--stop-words with --stop-rule {filters.stop_rule}",
        "part of speech": "--parts-of-speech",
        "pmi": f"--min-pmi {filters.min_pmi or 0:g}",
    }
    return ", ".join(f"{options[reason]} dropped {count:,}" for reason, count in result.dropped.most_common() if count)


def summary(result: Filtered, filters: Filters) -> str:
    """The number of phrases that each filter dropped, and that remain after it."""
    from phraseloom.phrases.filter import REASONS
    from phraseloom.report.markup import terminal

    names = {
        "form": "the word ||| in it",
        "length": f"more than {filters.max_words} words",
        "count": f"count below {filters.min_count}",
        "characters": "not letters only" if filters.characters == "letters" else "punctuation",
        "repetition": "a word twice in a row",
        "stop-words": f"{filters.stop_rule} stop-words" if filters.stop_rule == "only" else "a stop-word",
        "part of speech": "not the parts of speech",
        "pmi": "no PMI asked" if filters.min_pmi is None else f"PMI not above {filters.min_pmi:g}",
    }
    remaining, rows = result.candidates, [["candidates", None, result.candidates]]
    for reason in REASONS:
        if dropped := result.dropped[reason]:
            remaining -= dropped
            rows.append([names[reason], dropped, remaining])
    return terminal(["filter", "dropped", "left"], rows)
