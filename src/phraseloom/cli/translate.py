"""`phraseloom translate`: lines in, translations out, with output formats and alignment files."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.options import (
    Device,
    GateScoreOption,
    Model,
    MorePhrases,
    Trees,
    change_output,
    check_ensemble,
    no_sampling,
    options_of,
    warn_without_tag,
    with_penalty,
)
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.parallel import ParallelFile
from phraseloom.cli.streams import first_sign, note, warn
from phraseloom.errors import UsageError
from phraseloom.files import atomic_write, disk
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.lines import LineReport

if TYPE_CHECKING:
    from phraseloom.decoding.terms import Terms
    from phraseloom.decoding.translator import Translation, Translator

Output = Literal["text", "nbest", "json"]


class _StandardOutputError(Exception):
    """Carries an OSError of standard output past the writers of the alignment files."""


class Run:
    """One pass over standard input."""

    def __init__(
        self,
        translator: Any,
        output: Output,
        beside: Mapping[str, ParallelFile],
        *,
        terms: Terms | None = None,
        want_alignments: bool,
        stream: bool,
        min_score: float | None = None,
        show: bool = False,
    ) -> None:
        from phraseloom.decoding.translation import TranslationReport

        self.translator, self.beside, self.stream = translator, beside, stream
        self.terms = terms
        self.alignments = want_alignments or show or (output == "json" and translator.can_align)
        self.format = picture(translator) if show else FORMATS[output]
        self.report, self.lines = TranslationReport(), LineReport()
        self.min_score, self.rejected = min_score, 0

    def write(self, files: Mapping[Path, Callable[[Translation], str]]) -> None:
        """Translate everything to standard output, and write one line per translation to each of `files`.

        The files appear whole at the end or not at all. Raises as `Translator.translate`, FileProblem, OSError.
        """
        try:
            _with_files(self, files)
        except _StandardOutputError as failure:
            raise failure.__cause__ or failure from None

    def to_stdout(self, also: Callable[[list[Translation]], None]) -> None:
        """Translate and print everything, and pass each window to `also`."""
        number = 0
        for lines, translations in self._translated():
            if self.min_score is not None:
                translations = [self._filtered(t, self.min_score) for t in translations]
            pairs = zip(lines, translations, strict=True)
            text = "".join(self.format(number + i, line, t) for i, (line, t) in enumerate(pairs))
            number += len(translations)
            also(translations)
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except OSError as error:
                raise _StandardOutputError from error

    def _filtered(self, translation: Translation, least: float) -> Translation:
        """The translation, or a blank one if its score is below `least`."""
        if translation.blank or translation.score >= least:
            return translation
        self.rejected += 1
        return translation.emptied()

    def _translated(self) -> Iterator[tuple[list[str], list[Translation]]]:
        from phraseloom.cli.streams import GATHER_SECONDS, standard_input, windows

        seconds, number = 0.0 if self.stream else GATHER_SECONDS, 0
        for lines in windows(standard_input(), self.translator.config.window, seconds=seconds, report=self.lines):
            beside = {name: file.take(len(lines)) for name, file in self.beside.items()}
            with contextlib.ExitStack() as places:
                for file in self.beside.values():
                    places.enter_context(file.places())
                translations = self.translator.translate(
                    lines,
                    terms=self.terms,
                    alignments=self.alignments,
                    numbers=range(number, number + len(lines)),
                    report=self.report,
                    **beside,
                )
            yield lines, translations
            number += len(lines)
        for file in self.beside.values():
            file.finish()

    def warn(self) -> None:
        """Print warnings about cropped, split or cut lines to standard error."""
        for text in self.report.warnings(self.translator.config.max_input_tokens) + self.lines.warnings():
            warn("translate", text)
        if self.rejected:
            count = f"{self.rejected:,} of {self.report.lines:,} translations"
            note("translate", f"{count} are below --min-score: blank lines")


def _with_files(run: Run, files: Mapping[Path, Callable[[Translation], str]]) -> None:
    """Run and write one line per translation to each file; the files appear whole at the end or not at all."""

    remaining, handles = list(files), []

    def write(temporary: Path) -> None:
        with disk.open(temporary, "wb") as handle:
            handles.append(handle)
            open_next()
            disk.flush(handle)

    def open_next() -> None:
        if remaining:
            atomic_write(remaining.pop(0), write)
        else:
            run.to_stdout(also)

    def also(window: list[Translation]) -> None:
        for handle, line in zip(handles, files.values(), strict=True):
            disk.write(handle, "".join(line(t) + "\n" for t in window).encode("ascii"))

    open_next()


def pharaoh(translation: Translation) -> str:
    """A line of word links."""
    return translation.pharaoh()


def pharaoh_phrases(translation: Translation) -> str:
    """A line of phrase links."""
    return translation.pharaoh_phrases()


def _text(number: int, line: str, translation: Translation) -> str:
    return translation.text + "\n"


def _nbest(number: int, line: str, translation: Translation) -> str:
    """Moses: `id ||| text ||| features ||| score`; `|||` inside a text is written `&#124;&#124;&#124;`."""
    return "".join(
        f"{number} ||| {t.text.replace('|||', '&#124;&#124;&#124;')} ||| "
        f"LogProb= {t.log_prob:.6f} Length= {len(t.tokens)} ||| {t.score:.6f}\n"
        for t in translation.n_best
    )


def _json(number: int, line: str, translation: Translation) -> str:
    return json.dumps({"id": number, **translation.as_dict()}, ensure_ascii=False, allow_nan=False) + "\n"


Format = Callable[[int, str, Any], str]
FORMATS: dict[Output, Format] = {"text": _text, "nbest": _nbest, "json": _json}


def picture(translator: Any) -> Format:
    """The format of `--show`: each translation with its phrase alignment (`cli/show.py`)."""
    from rich.console import Console

    from phraseloom.cli.show import ShownPair, show

    console, tokenizer = Console(), translator.tokenizer
    languages = tokenizer.source.language, tokenizer.target.language

    def draw(number: int, line: str, translation: Translation) -> str:
        return show(ShownPair.of(translation, tokenizer.source.words(line), languages), console)

    return draw


OutputForm = Annotated[
    Output, typer.Option(help="text: one translation per line; nbest: Moses n-best list; json: one object per line.")
]
Prefixes = Annotated[
    Path | None, typer.Option(help="File of forced prefixes: line n is the beginning of translation n.")
]
EnsembleFolders = Annotated[
    list[Path] | None,
    typer.Option(
        "--ensemble",
        metavar="MODEL",
        help="A further model with the same vocabulary that translates together with the first. Repeatable.",
    ),
]
ConstraintFile = Annotated[
    Path | None,
    typer.Option(
        "--constraints",
        metavar="FILE",
        help='Phrases that translation n must and must not contain: line n of this file is {"include": [...], '
        '"exclude": [...]} or blank.',
    ),
]
TermTable = Annotated[
    Path | None,
    typer.Option(
        "--terms",
        metavar="TABLE",
        help="Terminology: rows SOURCE<tab>TARGET, or a table of phrases extract. If a line has the source phrase, its "
        "translation has the target phrase.",
    ),
]
Alignments = Annotated[Path | None, typer.Option(help="Write word alignments (Pharaoh i-j) to this file.")]
PhraseFile = Annotated[
    Path | None, typer.Option(help="Write phrase alignments (s1:s2-t1:t2=weight, half-open) to this file.")
]
MinScore = Annotated[
    float | None, typer.Option(metavar="X", help="Write a blank line in place of a translation with a lower score.")
]
Show = Annotated[
    bool, typer.Option("--show", help="Draw each translation with its phrase alignment, for reading in a terminal.")
]
Stream = Annotated[bool, typer.Option("--stream", help="Translate lines as soon as they arrive; never wait for more.")]


@options_of(
    DecodingConfig,
    without=("batch_tokens", "alignment_selection"),
    forms={"sample": {"names": ["--sample/--search"]}},
)
def command(
    model: Model,
    *,
    output: OutputForm = "text",
    options: dict[str, Any],
    ensemble: EnsembleFolders = None,
    prefixes: Prefixes = None,
    trees: Trees = None,
    constraints: ConstraintFile = None,
    terms: TermTable = None,
    add_phrases: MorePhrases = None,
    gate_score: GateScoreOption = None,
    alignments: Alignments = None,
    phrases: PhraseFile = None,
    min_score: MinScore = None,
    show: Show = False,
    stream: Stream = False,
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Translate lines from standard input to standard output: one line out per line in, in order.

    A blank line gives a blank line. The numbers of lines that were cropped, replaced or cut go to standard error.

    Example: phraseloom translate runs/mine --beam 5 < source.txt > translation.txt
    """
    lexicon = options.get("lexicon")
    _check_form(output, options, min_score, show)
    check_outputs(
        {"--alignments": alignments, "--phrases": phrases},
        inputs=[model, *(ensemble or []), lexicon, prefixes, trees, constraints, terms, add_phrases],
        overwrite=overwrite,
    )
    files = {path: write for path, write in ((alignments, pharaoh), (phrases, pharaoh_phrases)) if path is not None}
    beside = _beside(prefixes=prefixes, trees=trees, constraints=constraints)
    first_sign("translate", f"loading {model}")
    translator = _load(model, ensemble or [], device, options)
    translator.require_trees(trees is not None)
    warn_without_tag("translate", {model: translator})
    change_output("translate", translator, add_phrases, gate_score)
    if translator.lexicon() is None and lexicon is not None:
        raise UsageError("--lexicon is for --unknown replace")
    table = None if terms is None else translator.read_terms(terms)
    run = Run(
        translator,
        output,
        beside,
        terms=table,
        want_alignments=bool(files),
        stream=stream,
        min_score=min_score,
        show=show,
    )
    run.write(files)
    run.warn()


def _check_form(output: str, options: Mapping[str, Any], min_score: float | None, show: bool) -> None:
    """Raise UsageError if the form of the output cannot hold what is asked for."""
    if options.get("n_best", 1) > 1 and output == "text":
        raise UsageError("--n-best needs --output nbest or --output json")
    if min_score is not None and not math.isfinite(min_score):
        raise UsageError(f"--min-score {min_score}: it must be a finite number")
    if min_score is not None and output == "nbest":
        raise UsageError("--min-score needs --output text or --output json: an n-best list has its scores")
    if show and output != "text":
        raise UsageError(f"--show draws text; it cannot be combined with --output {output}")


def _load(model: Path, ensemble: list[Path], device: str, options: Mapping[str, Any]) -> Translator:
    """The models of the command line, with its options."""
    from phraseloom.decoding.translator import Translator
    from phraseloom.training.distributed import keep_pages

    keep_pages()
    check_ensemble(options, ensemble)
    translator = Translator.from_pretrained(model, ensemble=ensemble, device=device)
    _check_sampling(options, translator.config)
    return translator.with_options(**with_penalty(translator.config, options))


def _check_sampling(options: Mapping[str, Any], config: DecodingConfig) -> None:
    """Raise UsageError if the command line has an option of sampling or of mbr that is not on, or of search with one on."""
    samples = options.get("sample", config.sample)
    mbr = options.get("mbr", config.mbr)
    if not (samples or mbr):
        no_sampling(options, "samples, and search draws none", "add --sample or --mbr N")
    for name in ("beam", "stop", *(("length_penalty", "alpha", "beta") if mbr else ())):
        if name in options and (samples or mbr):
            option, what = f"--{name.replace('_', '-')}", "minimum Bayes risk" if mbr else "sampling"
            off = "--mbr 0" if mbr else "--search"
            raise UsageError(f"{option} is for search, and {what} is on", hint=f"leave {option} out, or add {off}")
    if "mbr_metric" in options and not mbr:
        raise UsageError("--mbr-metric is for minimum Bayes risk", hint="add --mbr N")


def _beside(**paths: Path | None) -> dict[str, ParallelFile]:
    """The files parallel to the input, by the argument of `Translator.translate` that takes their lines."""
    kinds = {"prefixes": "prefix file", "trees": "tree file", "constraints": "file of constraints"}
    return {name: ParallelFile(path, name, kinds[name]) for name, path in paths.items() if path is not None}
