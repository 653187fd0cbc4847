"""`phraseloom translate`: lines in, translations out.

One pass of `phraseloom translate` over standard input: windows of lines, forms of output, files of alignments.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.options import (
    AlignmentMethod,
    Device,
    LongLines,
    PenaltyName,
    Stop,
    Unknown,
    enough_beam,
    given,
    head,
    lengths,
    penalty,
    workers,
)
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.errors import UsageError, plural

if TYPE_CHECKING:
    from phraseloom.cli.options import ParallelFile
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
        want_alignments: bool,
        stream: bool,
    ) -> None:
        from phraseloom.decoding.translation import TranslationReport
        from phraseloom.text.lines import LineReport

        self.translator, self.output, self.beside, self.stream = translator, output, beside, stream
        self.alignments = want_alignments or (output == "json" and translator.can_align)
        self.report, self.lines = TranslationReport(), LineReport()

    def write(self, files: Mapping[Path, Callable[[Translation], str]]) -> None:
        """Translate everything to standard output, with one line a translation to each of `files`.

        The files appear whole at the end or not at all. Raises as `Translator.translate`, FileProblem, OSError.
        """
        try:
            _with_files(self, files)
        except _StandardOutputError as failure:
            raise failure.__cause__ or failure from None

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
        from phraseloom.cli.streams import GATHER_SECONDS, standard_input, windows

        seconds = 0.0 if self.stream else GATHER_SECONDS
        for lines in windows(standard_input(), self.translator.config.window, seconds=seconds, report=self.lines):
            beside = {name: file.take(len(lines)) for name, file in self.beside.items()}
            with contextlib.ExitStack() as places:
                for file in self.beside.values():
                    places.enter_context(file.places())
                done = self.translator.translate(lines, alignments=self.alignments, report=self.report, **beside)
            yield done
        for file in self.beside.values():
            file.finish()

    def warn(self) -> None:
        """Say on standard error what did not come out as it was meant."""
        for text in self.report.warnings(self.translator.config.max_input_tokens) + self.lines.warnings():
            print(f"phraseloom translate: warning: {text}", file=sys.stderr)


def _with_files(run: Run, files: Mapping[Path, Callable[[Translation], str]]) -> None:
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


def pharaoh(translation: Translation) -> str:
    """A line of word links."""
    return translation.pharaoh()


def pharaoh_phrases(translation: Translation) -> str:
    """A line of phrase links."""
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


FORMATS: dict[Output, Callable[[int, Any], str]] = {"text": _text, "nbest": _nbest, "json": _json}


Model = Annotated[
    Path, typer.Argument(help="Model folder, run folder (its best checkpoint) or checkpoint.", metavar="MODEL")
]
OutputForm = Annotated[
    Output, typer.Option(help="text: one translation per line; nbest: Moses n-best list; json: one object per line.")
]
Beam = Annotated[int | None, typer.Option(min=1, help="Beam size; 1 is greedy search. Default: the model's setting.")]
NBest = Annotated[int | None, typer.Option(min=1, help="Translations per line (nbest, json); at most the beam size.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Sentences per batch.")]
Workers = Annotated[str | None, typer.Option("--workers", help="Number of parallel threads, or auto: one per core.")]
Penalty = Annotated[PenaltyName | None, typer.Option(help="Kind of length penalty.")]
Alpha = Annotated[float | None, typer.Option(help="Exponent of the length penalty.")]
Beta = Annotated[float | None, typer.Option(help="Constant of Sockeye's length penalty.")]
WordBonus = Annotated[
    float | None, typer.Option(help="Bonus per subword, added to the log-probability (segmental models, NPMT).")
]
StopRule = Annotated[
    Stop | None,
    typer.Option(
        help="Stopping rule. finished: when as many hypotheses as the beam "
        "size have finished; exact: when no better one is possible; transformers: as in generate of that library."
    ),
]
MaxLength = Annotated[
    str | None, typer.Option(help="FACTOR,CONSTANT: at most FACTOR x source subwords + CONSTANT subwords.")
]
MinLength = Annotated[
    str | None, typer.Option(help="FACTOR,CONSTANT: at least FACTOR x source subwords + CONSTANT subwords.")
]
MaxInput = Annotated[int | None, typer.Option(min=1, help="Lines with more subwords are cropped or split.")]
Long = Annotated[LongLines | None, typer.Option(help="What to do with lines above --max-input-tokens.")]
UnknownWords = Annotated[
    Unknown | None,
    typer.Option(
        help="Unknown words in the output: forbid them, keep them, or "
        "replace them by the source word with the most attention."
    ),
]
Lexicon = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="For --unknown replace: a lexicon written by align lexicon."),
]
Prefixes = Annotated[
    Path | None, typer.Option(help="File of forced prefixes: line n is the beginning of translation n.")
]
Trees = Annotated[
    Path | None,
    typer.Option(help="File with the bracketed parse tree of each line, for a model that takes phrases from trees."),
]
MorePhrases = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Extra phrases for the output of a model with continuous output: one per line, or a .vec file.",
    ),
]
Alignments = Annotated[Path | None, typer.Option(help="Write word alignments (Pharaoh i-j) to this file.")]
PhraseFile = Annotated[
    Path | None, typer.Option(help="Write phrase alignments (s1:s2-t1:t2=weight, half-open) to this file.")
]
Layer = Annotated[
    int | None,
    typer.Option(
        min=1, help="Decoder layer whose attention gives the alignment, from 1. Default: the model's setting."
    ),
]
Head = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Head of that layer, from 1, or mean or max of all heads. Default: mean with --alignment-layer.",
    ),
]
Method = Annotated[
    AlignmentMethod | None, typer.Option(help="How links are made from attention. Default: the model's setting.")
]
Window = Annotated[
    int | None, typer.Option(min=1, help="Largest number of lines to read, sort by length and translate together.")
]
Stream = Annotated[bool, typer.Option("--stream", help="Translate lines as soon as they arrive; never wait for more.")]


def command(
    model: Model,
    output: OutputForm = "text",
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
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Translate lines from standard input to standard output: one line out per line in, in order.

    A blank line gives a blank line. The numbers of lines that were cropped, replaced or cut go to standard error.

    Example: phraseloom translate runs/mine --beam 5 < source.txt > translation.txt
    """
    if n_best is not None and n_best > 1 and output == "text":
        raise UsageError("--n-best needs --output nbest or --output json")
    check_outputs(
        {"--alignments": alignments, "--phrases": phrases},
        inputs=[model, lexicon, prefixes, trees, add_phrases],
        overwrite=overwrite,
    )
    files = {path: write for path, write in ((alignments, pharaoh), (phrases, pharaoh_phrases)) if path is not None}
    options = given(
        beam=beam,
        n_best=n_best,
        batch_sentences=batch,
        workers=workers(workers_),
        word_bonus=word_bonus,
        stop=stop,
        max_input_tokens=max_input_tokens,
        long_lines=long_lines,
        unknown=unknown,
        lexicon=lexicon,
        alignment_layer=alignment_layer,
        alignment_method=alignment_method,
        window=window,
    )
    options |= lengths(max_length, min_length) | head(alignment_head, "alignment-head")
    beside = _beside(prefixes, trees)
    translator = _translator(model, device, options, (length_penalty, alpha, beta))
    translator.require_trees(trees is not None)
    if add_phrases is not None:
        added = translator.add_phrases(add_phrases)
        print(
            f"phraseloom translate: {plural(added.new, 'phrase')} added, {added.known:,} known before", file=sys.stderr
        )
    if translator.lexicon() is None and lexicon is not None:
        raise UsageError("--lexicon is for --unknown replace")
    run = Run(translator, output, beside, want_alignments=bool(files), stream=stream)
    run.write(files)
    run.warn()


def _beside(prefixes: Path | None, trees: Path | None) -> dict[str, ParallelFile]:
    """The files beside the input, by the argument of `Translator.translate` that their lines are."""
    from phraseloom.cli.options import ParallelFile

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
    translator = Translator.from_pretrained(model, device=device)
    enough_beam(options.get("n_best"), options.get("beam", translator.config.beam))
    translator = translator.with_options(**options)
    changed = penalty(translator.config.length_penalty.model_dump(), *changes)
    return translator if changed is None else translator.with_options(length_penalty=changed)
