"""`phraseloom phrases filter`: which candidates are phrases."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.options import grouped
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.phrases.files import STDIN, InputFiles, plain_name
from phraseloom.cli.streams import note
from phraseloom.errors import UsageError
from phraseloom.files import require_file
from phraseloom.text.lines import write_lines

if TYPE_CHECKING:
    from phraseloom.phrases.filter import Filtered, Filters, Tags


Preset = Literal["paper", "released"]
Characters = Literal["no-punctuation", "letters", "any"]
StopRule = Literal["only", "any"]


@dataclass(frozen=True)
class FilterOptions:
    """Which filters are applied; None means what the preset says."""

    preset: Annotated[Preset, typer.Option(help="The five filters of the paper, or those of its released code.")] = (
        "paper"
    )
    min_count: Annotated[int | None, typer.Option(min=1, help="Drop rarer candidates. Default: 2.")] = None
    max_words: Annotated[int | None, typer.Option(min=0, help="Drop longer candidates. 0: no limit. Default: 4.")] = (
        None
    )
    characters: Annotated[
        Characters | None,
        typer.Option(help="Characters allowed in words. Default: no-punctuation; with --preset released: letters."),
    ] = None
    repetition: Annotated[bool, typer.Option("--repetition", help="Allow a repeated word.")] = False
    stop_words: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="en, released, none, or a file with one word per line. Default: the preset's list.",
        ),
    ] = None
    stop_rule: Annotated[
        StopRule | None,
        typer.Option(help="Drop phrases made only of stop-words, or phrases with any. Default: the preset's rule."),
    ] = None
    tags: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Penn Treebank tags of the target text, one per word. Only noun phrases are kept."
        ),
    ] = None
    parts_of_speech: Annotated[
        bool | None, typer.Option(help="Filter by part of speech. Default: on with --preset released or --tags.")
    ] = None
    min_pmi: Annotated[float | None, typer.Option(help="Keep phrases with a PMI (in bits) above this. Default: 0.")] = (
        None
    )
    no_pmi: Annotated[
        bool, typer.Option("--no-pmi", help="Do not filter by PMI. The target text is then not needed.")
    ] = False

    def filters(self) -> Filters:
        """The filters of the preset with the options that were given. Raises UsageError, FileProblem."""
        from phraseloom.phrases.filter import PRESETS

        options: dict[str, Any] = {
            "min_count": self.min_count,
            "max_words": self.max_words,
            "characters": self.characters,
            "repetition": self.repetition or None,
            "stop_words": _stop_words(self.stop_words),
            "stop_rule": self.stop_rule,
            "parts_of_speech": True if self.tags is not None and self.parts_of_speech is None else self.parts_of_speech,
            "min_pmi": self.min_pmi,
        }
        filters = replace(PRESETS[self.preset], **{key: value for key, value in options.items() if value is not None})
        return replace(filters, min_pmi=None) if self.no_pmi else filters


@grouped
def command(
    candidates: Annotated[
        Path, typer.Argument(metavar="CANDIDATES", help="The candidate table, written by phrases extract.")
    ],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The table of phrases to write.")],
    target: Annotated[
        str | None,
        typer.Option(
            "-t",
            "--target",
            metavar="FILE",
            help="Target text for PMI: the text given to phrases extract, or a larger one.",
        ),
    ] = None,
    *,
    options: FilterOptions,
    within_lines: Annotated[
        bool, typer.Option("--within-lines", help="For PMI, do not count phrases across line ends.")
    ] = False,
    moses: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write a phrase table in Moses format.")
    ] = None,
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
    from phraseloom.phrases.filter import filter_candidates, format_moses, format_phrases

    outputs = {"-o": plain_name(output), "--moses": moses and plain_name(moses)}
    check_outputs(outputs, inputs=[candidates, target, options.stop_words, options.tags], overwrite=overwrite)
    if options.no_pmi and options.min_pmi is not None:
        raise UsageError("--min-pmi and --no-pmi exclude each other")
    filters = options.filters()
    inputs = InputFiles()
    result = filter_candidates(
        read_candidates(require_file(candidates, "table of candidates")),
        filters,
        tags=_tags(filters, target, options.tags),
        across_lines=not within_lines,
        text=_text(filters, target, inputs),
    )
    write_lines(output, format_phrases(result.phrases))
    if moses is not None:
        write_lines(moses, format_moses(result.phrases))
    inputs.note_changes()
    print(summary(result, filters), file=sys.stderr)
    if not result.phrases:
        note("phrases", "no candidate passed: the table is empty")


def _stop_words(name: str | None) -> frozenset[str] | None:
    from phraseloom.phrases.filter import STOP_WORDS, read_stop_words

    return None if name is None else STOP_WORDS[name] if name in STOP_WORDS else read_stop_words(name)


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
    return Tags(require_file(target, "text file"), require_file(tags, "file of tags"))


def _text(filters: Filters, target: str | None, inputs: InputFiles) -> Any:
    if filters.min_pmi is None:
        return ()
    if target is None:
        raise UsageError("PMI needs the target text", hint="give -t FILE, or --no-pmi")
    return inputs.lines(target).lines


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
