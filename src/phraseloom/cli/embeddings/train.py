"""`phraseloom embeddings train`: fastText vectors for the words and phrases of joined text."""

from __future__ import annotations

import math
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.options import grouped
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.streams import first_sign
from phraseloom.errors import UsageError, escape_controls, plural
from phraseloom.files import require_regular_file
from phraseloom.text.lines import LineReport, read_lines

if TYPE_CHECKING:
    from phraseloom.phrases.embeddings import EmbeddingProgress, EmbeddingSettings, TokenCounts

SECONDS = 10.0  # between two messages in an epoch
ALIKE = 0.5  # mean cosine above which the vectors are called alike
REMEDY = "the text is too short to tell words apart; more --epochs, a larger --sample (0.01) or more text help"


@dataclass(frozen=True)
class VectorOptions:
    """How vectors are trained, for which tokens, and how they are written."""

    width: Annotated[int, typer.Option(min=1, max=2**16, help="Size of the vectors.")] = 300
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the text.")] = 20
    min_count: Annotated[int, typer.Option(min=1, help="Skip rarer tokens.")] = 5
    vocabulary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write vectors for these tokens or phrases (one per line), "
            "built from character n-grams if they are not in the text.",
        ),
    ] = None
    window: Annotated[int, typer.Option(min=1, max=1000, help="Largest context window, in words on each side.")] = 5
    ngrams: Annotated[str, typer.Option(metavar="MIN-MAX", help="Lengths of character n-grams.")] = "3-6"
    buckets: Annotated[
        int | None,
        typer.Option(
            min=1, max=2**31 - 1, help="Hash buckets for n-grams. Default: twice their number, at most 2000000."
        ),
    ] = None
    negative: Annotated[int, typer.Option(min=1, max=1000, help="Negative samples per predicted word.")] = 5
    rate: Annotated[float, typer.Option(help="Initial learning rate; decays to 0.")] = 0.05
    sample: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Subsample tokens with a larger relative frequency. 0: never."),
    ] = 1e-3
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 2, help="Random seed.")] = 1
    whiten: Annotated[
        bool,
        typer.Option("--whiten", help="Write whitened unit vectors: every principal component has the same variance."),
    ] = False
    dimensions: Annotated[
        int | None, typer.Option(min=1, max=2**16, help="With --whiten: write only the N largest components.")
    ] = None

    def settings(self) -> EmbeddingSettings:
        """The settings of fastText. Raises UsageError for options that do not fit."""
        from phraseloom.phrases.embeddings import EmbeddingSettings

        if not 0 < self.rate < math.inf:
            raise UsageError(f"--rate {self.rate}", hint="a number above 0, such as 0.05")
        if math.isnan(self.sample):
            raise UsageError("--sample nan", hint="a number from 0 to 1, such as 0.001")
        if self.dimensions is not None and not self.whiten:
            what = f"--dimensions {self.dimensions} without --whiten"
            raise UsageError(what, hint="it keeps components of whitened vectors")
        if self.dimensions is not None and self.dimensions > self.width:
            raise UsageError(f"--dimensions {self.dimensions} is more than --width {self.width}")
        return EmbeddingSettings(
            self.width,
            self.epochs,
            self.min_count,
            self.window,
            _range(self.ngrams),
            self.buckets,
            self.negative,
            self.rate,
            self.sample,
            self.seed,
        )


@grouped
def command(
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="Joined text, as phrases segment writes it.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The vectors to write: .vec, .vec.gz or .vec.xz.")
    ],
    *,
    options: VectorOptions,
    jobs: Annotated[
        int, typer.Option(min=1, max=256, help="Threads. With more than 1, the vectors differ from run to run.")
    ] = 1,
    overwrite: Overwrite = False,
) -> None:
    """Train vectors with fastText's skip-gram, which also learns vectors of character n-grams.

    A phrase joined to one token, quality_of_life, gets a vector in the same space as words. The file lists the
    tokens of the text by frequency, then those of --vocabulary, for example all phrases of a table. The same text
    and options with --jobs 1 give the same bytes. You need gensim: pip install 'phraseloom[embeddings]'.

    Example: phraseloom embeddings train train.joined.en -o en.vec --vocabulary phrases.tsv
    """
    from phraseloom.phrases.embeddings import (
        count_tokens,
        read_tokens,
        require_gensim,
        train_vectors,
    )
    from phraseloom.text.vectors import mean_cosine, write_vectors
    from phraseloom.text.word_vectors import whitened

    check_outputs({"-o": output}, inputs=[text, options.vocabulary], overwrite=overwrite, compresses=True)
    first_sign("embeddings train", f"reading {text}")
    settings = options.settings()
    require_gensim()
    require_regular_file(text)
    extra = [] if options.vocabulary is None else read_tokens(options.vocabulary)
    report = LineReport()
    counted = count_tokens(lambda: read_lines(text, report=report), settings.min_count, name=text)
    _note_changes(text, report)
    _say(_counted(counted, settings.min_count))
    if jobs > 1:
        _say(f"{jobs} threads: another run will give other vectors; --jobs 1 gives the same again")
    vectors = train_vectors(lambda: read_lines(text), counted, settings, extra=extra, jobs=jobs, report=_Told())
    alike = mean_cosine(vectors.matrix_VM)  # before whitening, which makes every mean 0
    if options.whiten:
        vectors = whitened(vectors, options.dimensions)
    write_vectors(output, vectors.tokens, vectors.matrix_VM)
    _say(_summary(vectors.tokens, counted, extra, output))
    if alike is not None and alike > ALIKE:
        _say(f"warning: two vectors have a cosine of {alike:.2f} on average: {REMEDY}")


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,3})-([0-9]{1,3})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--ngrams {text}", hint="the shortest and the longest length, such as 3-6")
    return int(match[1]), int(match[2])


def _counted(counted: TokenCounts, min_count: int) -> str:
    frequent = sum(counted.tokens.values())
    return (
        f"{plural(counted.lines, 'line')}, {plural(counted.words, 'token')}; {len(counted.tokens):,} "
        f"occur at least {min_count} times, {frequent / counted.words:.2%} of the text"
    )


def _summary(tokens: list[str], counted: TokenCounts, extra: list[str], output: Path) -> str:
    from phraseloom.text.words import is_phrase

    added = len(tokens) - len(counted.tokens)
    short = sum(token not in counted.tokens for token in extra) - added
    more = f", {added:,} of them of n-grams alone" if extra else ""
    left_out = f"; left out: {short:,} shorter than every n-gram" if short else ""
    return f"{output}: {plural(len(tokens), 'vector')}, {sum(map(is_phrase, tokens)):,} of phrases{more}{left_out}"


class _Told:
    """Reports progress: after each epoch, and every few seconds within one."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, now: EmbeddingProgress) -> None:
        moment, whole = time.monotonic(), now.done == now.lines
        if whole or moment - self._last >= SECONDS:
            self._last = moment
            part = "" if whole else f": {now.done / now.lines:.0%}"
            _say(f"epoch {now.epoch} of {now.epochs}{part}")


def _note_changes(path: Path, report: LineReport) -> None:
    for change in report.changes():
        _say(f"{path}: {change}")


def _say(text: str) -> None:
    print(f"phraseloom embeddings: {escape_controls(text)}", file=sys.stderr)
