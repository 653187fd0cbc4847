"""`phraseloom translate`: lines in, translations out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.decoding_options import (
    AlignmentMethod,
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
from phraseloom.cli.device import Device
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.translate_run import Output, Run, pharaoh, pharaoh_phrases
from phraseloom.errors import UsageError, plural

if TYPE_CHECKING:
    from phraseloom.cli.parallel import ParallelFile
    from phraseloom.decoding.translator import Translator


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
    translator = Translator.from_pretrained(model, device=device)
    enough_beam(options.get("n_best"), options.get("beam", translator.config.beam))
    translator = translator.with_options(**options)
    changed = penalty(translator.config.length_penalty.model_dump(), *changes)
    return translator if changed is None else translator.with_options(length_penalty=changed)
