"""`phraseloom translate`: lines in, translations out."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.decoding_options import (
    AlignmentMethod,
    LongLines,
    PenaltyName,
    Stop,
    Unknown,
    given,
    head,
    length,
    penalty,
    workers,
)
from phraseloom.errors import UsageError

if TYPE_CHECKING:
    from phraseloom.cli.parallel import ParallelFile
    from phraseloom.decoding.translator import Translation, Translator


class Output(Enum):
    """Forms of the output."""

    text = "text"
    nbest = "nbest"
    json = "json"


class _StandardOutputError(Exception):
    """Carries an OSError of standard output past the writers of the alignment files."""


Model = Annotated[
    Path, typer.Argument(help="Model folder, run folder (its best checkpoint) or checkpoint.", metavar="MODEL")
]
OutputForm = Annotated[
    Output, typer.Option(help="text: one line per line; nbest: Moses n-best list; json: one object per line.")
]
Beam = Annotated[int | None, typer.Option(min=1, help="Width of the beam; 1 is greedy search. Default: the model's.")]
NBest = Annotated[int | None, typer.Option(min=1, help="Translations per line (nbest, json), at most the beam.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Sentences translated together.")]
Workers = Annotated[
    str | None, typer.Option("--workers", help="Threads that translate side by side, or auto: one per core.")
]
Penalty = Annotated[PenaltyName | None, typer.Option(help="Kind of length penalty.")]
Alpha = Annotated[float | None, typer.Option(help="Exponent of the length penalty.")]
Beta = Annotated[float | None, typer.Option(help="Constant of Sockeye's length penalty.")]
WordBonus = Annotated[
    float | None, typer.Option(help="Added to the log-probability for each subword, by segmental models (NPMT).")
]
StopRule = Annotated[
    Stop | None, typer.Option(help="When a sentence is done: beam hypotheses finished, or nothing better can come.")
]
MaxLength = Annotated[str | None, typer.Option(help="FACTOR,CONSTANT: at most FACTOR x source subwords + CONSTANT.")]
MinLength = Annotated[str | None, typer.Option(help="FACTOR,CONSTANT: at least so many subwords.")]
MaxInput = Annotated[int | None, typer.Option(min=1, help="Lines of more subwords are cropped or split.")]
Long = Annotated[LongLines | None, typer.Option(help="What to do with longer lines.")]
UnknownWords = Annotated[
    Unknown | None,
    typer.Option(
        help="Unknown words in the output: none, as they come, or the source word that was attended to instead."
    ),
]
Lexicon = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="For --unknown replace: translations of words, a file of align lexicon."),
]
Prefixes = Annotated[Path | None, typer.Option(help="File with what each translation must begin with, line by line.")]
Trees = Annotated[
    Path | None,
    typer.Option(
        help="File with the parse tree of each line in brackets, for a model whose phrases are made of trees."
    ),
]
MorePhrases = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Phrases that the output may also be, for a model with continuous output: one a line, or a .vec file of them.",
    ),
]
Alignments = Annotated[Path | None, typer.Option(help="Write word alignments (Pharaoh i-j) to this file.")]
PhraseFile = Annotated[
    Path | None, typer.Option(help="Write phrase alignments (s1:s2-t1:t2=weight, half-open) to this file.")
]
Layer = Annotated[
    int | None, typer.Option(min=1, help="Decoder layer whose attention aligns, from 1; default: the model's.")
]
Head = Annotated[
    str | None,
    typer.Option(metavar="N", help="Its head, from 1, or mean: of all; default: mean with --alignment-layer."),
]
Method = Annotated[AlignmentMethod | None, typer.Option(help="How words are linked; default: the model's.")]
Window = Annotated[int | None, typer.Option(min=1, help="Lines sorted and translated together at most.")]
Stream = Annotated[
    bool, typer.Option("--stream", help="Translate what has arrived at once; never wait for more lines.")
]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1.")]


def command(
    model: Model,
    output: OutputForm = Output.text,
    beam: Beam = None,
    n_best: NBest = None,
    batch: Batch = None,
    workers_: Workers = None,
    length_penalty: Penalty = None,
    alpha: Alpha = None,
    beta: Beta = None,
    word_bonus: WordBonus = None,
    stop: StopRule = None,
    max_length: MaxLength = None,
    min_length: MinLength = None,
    max_input_tokens: MaxInput = None,
    long_lines: Long = None,
    unknown: UnknownWords = None,
    lexicon: Lexicon = None,
    prefixes: Prefixes = None,
    trees: Trees = None,
    add_phrases: MorePhrases = None,
    alignments: Alignments = None,
    phrases: PhraseFile = None,
    alignment_layer: Layer = None,
    alignment_head: Head = None,
    alignment_method: Method = None,
    window: Window = None,
    stream: Stream = False,
    device: Device = "cpu",
) -> None:
    """Translate lines from standard input to standard output: one line out per line in, in order.

    A blank line gives a blank line. What was cropped, replaced or cut is counted on standard error.

    Example: phraseloom translate runs/mine --beam 5 < source.txt > translation.txt
    """
    if n_best is not None and n_best > 1 and output is Output.text:
        raise UsageError("--n-best needs --output nbest or --output json")
    files = {path: write for path, write in ((alignments, _pharaoh), (phrases, _pharaoh_phrases)) if path is not None}
    if alignments is not None and alignments == phrases:
        raise UsageError(f"--alignments and --phrases are the same file, {phrases}")
    options = given(
        beam=beam,
        n_best=n_best,
        batch_sentences=batch,
        workers=workers(workers_),
        word_bonus=word_bonus,
        stop=stop,
        max_length=length(max_length, "max-length"),
        min_length=length(min_length, "min-length"),
        max_input_tokens=max_input_tokens,
        long_lines=long_lines,
        unknown=unknown,
        lexicon=lexicon,
        alignment_layer=alignment_layer,
        alignment_method=alignment_method,
        window=window,
    ) | head(alignment_head, "alignment-head")
    beside = _beside(prefixes, trees)
    translator = _translator(model, device, options, (length_penalty, alpha, beta))
    translator.require_trees(trees is not None)
    if add_phrases is not None:
        added = translator.add_phrases(add_phrases)
        print(f"phraseloom translate: {added.new:,} phrases added, {added.known:,} known before", file=sys.stderr)
    if translator.lexicon() is None and lexicon is not None:
        raise UsageError("--lexicon is for --unknown replace")
    run = _Run(translator, output, beside, want_alignments=bool(files), stream=stream)
    try:
        _with_files(run, files)
    except _StandardOutputError as failure:
        raise failure.__cause__ or failure from None
    run.warn()


def _beside(prefixes: Path | None, trees: Path | None) -> dict[str, ParallelFile]:
    """The files beside the input, by the argument of `Translator.translate` that their lines are."""
    from phraseloom.cli.parallel import ParallelFile

    found = {}
    if prefixes is not None:
        found["prefixes"] = ParallelFile(prefixes, "prefixes", "prefix file")
    if trees is not None:
        found["trees"] = ParallelFile(trees, "trees", "tree file")
    return found


def _translator(
    model: Path,
    device: str,
    options: dict[str, Any],
    changes: tuple[PenaltyName | None, float | None, float | None],
) -> Translator:
    from phraseloom.decoding.translator import Translator
    from phraseloom.training.distributed import keep_pages

    keep_pages()
    translator = Translator.from_pretrained(model, device=device, **options)
    changed = penalty(translator.config.length_penalty.model_dump(), *changes)
    return translator if changed is None else translator.with_options(length_penalty=changed)


class _Run:
    """One pass over standard input."""

    def __init__(
        self,
        translator: Any,
        output: Output,
        beside: Mapping[str, ParallelFile],
        *,
        want_alignments: bool,
        stream: bool,
    ) -> None:
        from phraseloom.decoding.translation import TranslationReport
        from phraseloom.text.lines import LineReport

        self.translator, self.output, self.beside, self.stream = translator, output, beside, stream
        self.alignments = want_alignments or (output is Output.json and translator.can_align)
        self.report, self.lines = TranslationReport(), LineReport()

    def to_stdout(self, also: Callable[[list[Translation]], None]) -> None:
        """Translate everything, print it, and hand each window to `also`."""
        write = FORMATS[self.output]
        number = 0
        for translations in self._translated():
            text = "".join(write(number + i, t) for i, t in enumerate(translations))
            number += len(translations)
            also(translations)
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except OSError as error:
                raise _StandardOutputError from error

    def _translated(self) -> Iterator[list[Translation]]:
        from phraseloom.cli.windows import GATHER_SECONDS, standard_input, windows

        seconds = 0.0 if self.stream else GATHER_SECONDS
        for lines in windows(standard_input(), self.translator.config.window, seconds=seconds, report=self.lines):
            beside = {name: file.take(len(lines)) for name, file in self.beside.items()}
            with self.beside["trees"].places() if "trees" in self.beside else contextlib.nullcontext():
                done = self.translator.translate(lines, alignments=self.alignments, report=self.report, **beside)
            yield done
        if "trees" in self.beside:
            self.beside["trees"].finish()

    def warn(self) -> None:
        """Say on standard error what did not come out as it was meant."""
        found = self.report.warnings(self.translator.config.max_input_tokens)
        if self.lines.invalid_utf8:
            first = self.lines.first.get("invalid_utf8")
            found.append(f"{self.lines.invalid_utf8} lines held invalid UTF-8, replaced (first: line {first})")
        for text in found:
            print(f"phraseloom translate: warning: {text}", file=sys.stderr)


def _with_files(run: _Run, files: Mapping[Path, Callable[[Translation], str]]) -> None:
    """Run with one line per translation going to each file, all of which appear whole at the end or not at all."""
    from phraseloom.files import atomic_write, disk

    left, handles = list(files), []

    def write(temporary: Path) -> None:
        with disk.open(temporary, "wb") as handle:
            handles.append(handle)
            open_next()
            disk.flush(handle)

    def open_next() -> None:
        if left:
            atomic_write(left.pop(0), write)
        else:
            run.to_stdout(also)

    def also(window: list[Translation]) -> None:
        for handle, line in zip(handles, files.values(), strict=True):
            disk.write(handle, "".join(line(t) + "\n" for t in window).encode("ascii"))

    open_next()


def _pharaoh(translation: Translation) -> str:
    return translation.pharaoh()


def _pharaoh_phrases(translation: Translation) -> str:
    return translation.pharaoh_phrases()


def _text(number: int, translation: Translation) -> str:
    return translation.text + "\n"


def _nbest(number: int, translation: Translation) -> str:
    """Moses: `id ||| text ||| features ||| score`; `|||` inside a text is written `&#124;&#124;&#124;`."""
    return "".join(
        f"{number} ||| {t.text.replace('|||', '&#124;&#124;&#124;')} ||| "
        f"LogProb= {t.log_prob:.6f} Length= {len(t.tokens)} ||| {t.score:.6f}\n"
        for t in translation.n_best
    )


def _json(number: int, translation: Translation) -> str:
    return json.dumps({"id": number, **translation.as_dict()}, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: dict[Output, Callable[[int, Any], str]] = {Output.text: _text, Output.nbest: _nbest, Output.json: _json}
