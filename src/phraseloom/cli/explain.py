"""`phraseloom explain`: a page that shows how a model translates chosen lines of parallel files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from phraseloom.cli.options import Device, named, options_of, warn_without_tag
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.parallel import naming
from phraseloom.cli.phrases.files import InputFiles, single_stdin
from phraseloom.cli.streams import first_sign, name_of, note
from phraseloom.errors import DataError, UsageError, plural
from phraseloom.files import atomic_write_text
from phraseloom.options.decoding import DecodingConfig

MAX_MODELS = 2


Use = Literal["cross", "encoder-self", "decoder-self", "encoder-phrases", "decoder-phrases", "all"]


ShownModels = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]MODEL",
        help="Model folder, run folder (its best checkpoint) or checkpoint; two are shown side by side.",
    ),
]
ExplainedText = Annotated[
    str,
    typer.Option("-s", "--source", metavar="FILE", help="Source text, one sentence per line; - is standard input."),
]
ForcedTargets = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--targets",
        metavar="FILE",
        help="Translations for forced decoding. Default: each model's own output.",
    ),
]
PageData = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the data of the page as JSON; with or without --output."),
]


@options_of(DecodingConfig, only=("beam", "alignment_layer", "alignment_head", "alignment_method", "tags"))
def command(
    models: ShownModels,
    source: ExplainedText,
    *,
    targets: ForcedTargets = None,
    reference: Annotated[
        str | None, typer.Option(metavar="FILE", help="Human translations, shown next to the model's.")
    ] = None,
    trees: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Parse trees of the source, for a model that takes phrases from trees."),
    ] = None,
    lines: Annotated[
        str | None, typer.Option(metavar="LINES", help="Line numbers, such as 3,7-9. Default: from the first line.")
    ] = None,
    max_sentences: Annotated[int, typer.Option(min=1, help="Most sentences on the page.")] = 20,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most subwords of a sentence, on each side.")] = 250,
    ensemble: Annotated[
        list[str] | None, typer.Option("--ensemble", metavar="MODEL", hidden=True, help="Refused, with the reason.")
    ] = None,
    use: Annotated[Use, typer.Option(help="Which attention the page shows.")] = "all",
    options: dict[str, Any],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The page, one .html file.")
    ] = None,
    json_: PageData = None,
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Write a page with everything a model does with some sentences: word and phrase links, all attention,
    attention shares, segments, source phrases, fertilities. The page is one file and loads nothing from a network.

    Example: phraseloom explain runs/base runs/phrasal -s test.en --reference test.de --lines 3,7-9 -o page.html
    """
    _check(models, ensemble, output, json_)
    folders = named(models)
    sources = [*folders.values(), source, targets, reference, trees]
    check_outputs({"-o": output, "--json": json_}, inputs=sources, overwrite=overwrite)
    chosen = choose(
        {"source": source, "targets": targets, "reference": reference, "trees": trees}, lines, max_sentences
    )
    first_sign("explain", f"loading {' and '.join(map(str, folders.values()))}")
    document = _document(folders, chosen, use, max_tokens=max_tokens, device=device, **options)
    _write(document, output, json_)
    _report(document, chosen.left_out)


def _check(models: list[str], ensemble: list[str] | None, output: Path | None, json_: Path | None) -> None:
    if len(models) > MAX_MODELS:
        raise UsageError(f"{len(models)} models: explain one model, or two side by side")
    if ensemble:
        hint = "name two models: phraseloom explain A B shows them side by side"
        raise UsageError("an ensemble averages predictions; each of its models has attention of its own", hint=hint)
    if output is None and json_ is None:
        raise UsageError("nothing would be written", hint="name the page with -o FILE, or its data with --json FILE")


def _document(
    folders: Mapping[str, Any], chosen: Chosen, use: Use, *, max_tokens: int, **options: Any
) -> dict[str, Any]:
    """What the models do with the chosen lines. `options`: those of the translators."""
    from phraseloom.analysis.explain.sentence import ORDER, explain
    from phraseloom.decoding.translator import Translator

    if "beam" in options:
        options["n_best"] = 1
    translators = {name: Translator.from_pretrained(folder, **options) for name, folder in folders.items()}
    warn_without_tag("explain", translators)
    with chosen.places():
        return explain(
            translators,
            chosen.texts["source"] or [],
            chosen.texts["targets"],
            references=chosen.texts["reference"],
            trees=chosen.texts["trees"],
            lines=chosen.lines,
            uses=ORDER if use == "all" else (use,),
            max_tokens=max_tokens,
        )


def _write(document: dict[str, Any], output: Path | None, json_: Path | None) -> None:
    texts = []
    if json_ is not None:
        texts.append((json_, json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n"))
    if output is not None:
        from phraseloom.report.explain_page import explain_page

        texts.append((output, explain_page(document)))
    for path, text in texts:
        atomic_write_text(path, text)
        note("explain", f"{path}: {plural(len(document['sentences']), 'sentence')}, {path.stat().st_size / 1e6:.1f} MB")


def _report(document: dict[str, Any], left_out: Sequence[int]) -> None:
    """Print to standard error what the page leaves out, and the notes of its sentences, with all line numbers."""
    if left_out:
        count = f"{len(left_out):,} of {len(left_out) + len(document['sentences']):,} lines were left out"
        note("explain", f"{count} ({spans(left_out)}); --lines and --max-sentences choose")
    notes: dict[str, list[int]] = {}
    for sentence in document["sentences"]:
        for model, view in zip(document["models"], sentence["views"], strict=True):
            for text in view["notes"]:
                notes.setdefault(f"{model['label']}: {text}", []).append(sentence["line"])
    for text, places in notes.items():
        note("explain", f"{text} ({spans(places)})")


SOURCE = "source"


@dataclass(frozen=True)
class Chosen:
    """The chosen `lines` (numbers from 1, in order), and their `texts` in each file.

    `left_out`: the numbers of requested lines that are too many.
    """

    lines: list[int]
    texts: dict[str, list[str] | None]
    files: Mapping[str, str | None]
    left_out: Sequence[int]

    def places(self) -> contextlib.AbstractContextManager[None]:
        """Make an error about a tree name its line in the file."""
        return naming("trees", self.files["trees"], lambda line: self.lines[line - 1])


def choose(files: Mapping[str, str | None], lines: str | None, most: int) -> Chosen:
    """Read the first `most` of `lines` from `files` (role → path or None; `source` is required, and may be -).

    `lines` as in `parse_lines`, None for all. Raises UsageError, FileProblem; DataError if the files are not parallel, lack a
    line, or have no text.
    """
    single_stdin(*files.values())
    requested: Sequence[int] | None = None if lines is None else parse_lines(lines)
    chosen = [] if requested is None else list(requested[:most])
    inputs, totals = InputFiles("explain"), {}
    names = {role: name_of(path) for role, path in files.items() if path is not None}
    texts: dict[str, list[str] | None] = dict.fromkeys(files)
    for name, path in files.items():
        if path is not None:
            texts[name], totals[name] = _read(
                inputs.lines(path).lines, None if requested is None else set(chosen), most
            )
    total = totals[SOURCE]
    _require_parallel(names, totals)
    if requested is not None and requested[-1] > total:
        raise DataError(f"no line {requested[-1]}: there are {total:,}", file=names[SOURCE])
    if requested is None:
        requested = range(1, total + 1)
        chosen = list(requested[:most])
    if not any(text.strip() for text in texts[SOURCE] or []):
        raise DataError("no line with text: there is nothing to look at", file=names[SOURCE])
    inputs.note_changes()
    return Chosen(chosen, texts, files, requested[most:])


def _read(lines: Iterable[str], numbers: set[int] | None, most: int) -> tuple[list[str], int]:
    """The lines with these numbers, or the first `most`; and the number of all lines."""
    texts: list[str] = []
    count = 0
    for count, text in enumerate(lines, 1):
        if count <= most if numbers is None else count in numbers:
            texts.append(text)
    return texts, count


def _require_parallel(names: Mapping[str, str], totals: Mapping[str, int]) -> None:
    for name, total in totals.items():
        if total != totals[SOURCE]:
            raise DataError(
                f"{plural(total, 'line')}, but {names[SOURCE]} has {totals[SOURCE]:,}",
                file=names[name],
                hint="the files must be parallel line by line",
            )


def parse_lines(text: str) -> list[int]:
    """`3,7-9` → [3, 7, 8, 9]: sorted, without repeats. Raises UsageError."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = (side.strip() for side in part.partition("-"))
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() and len(end) < 10 for end in ends):
            raise UsageError(f"--lines {text!r} are no line numbers", hint="write numbers and ranges, such as 3,7-9")
        low, high = map(int, ends)
        if not 1 <= low <= high:
            raise UsageError(f"--lines {text!r}: {part.strip()!r} is no range of lines, which count from 1")
        if high - low >= 1_000_000:
            raise UsageError(f"--lines {text!r}: {part.strip()!r} are more than a page can show")
        numbers.update(range(low, high + 1))
    return sorted(numbers)


def spans(numbers: Sequence[int]) -> str:
    """Rising line numbers as text: [3, 7, 8, 9] → `lines 3, 7-9`."""
    if isinstance(numbers, range):
        ends = [(numbers[0], numbers[-1])]
    else:
        groups = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
        runs = [[number for _, number in group] for _, group in groups]
        ends = [(run[0], run[-1]) for run in runs]
    parts = [f"{first}-{last}" if last > first else str(first) for first, last in ends]
    return f"line{'s' * (len(numbers) > 1)} {', '.join(parts)}"
