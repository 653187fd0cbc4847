"""`phraseloom score`: the log-probability that a model gives to translations."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.decoding_options import PenaltyName, given, penalty, workers
from phraseloom.errors import DataError, UsageError

if TYPE_CHECKING:
    from phraseloom.text.lines import LineReport

Window = tuple[list[str], list[str]]


class Output(Enum):
    """Forms of the output."""

    text = "text"
    json = "json"


def command(
    model: Annotated[
        Path, typer.Argument(help="Model folder, run folder (its best checkpoint) or checkpoint.", metavar="MODEL")
    ],
    source: Annotated[
        Path | None, typer.Argument(help="Source text, one sentence per line.", metavar="[SOURCE]")
    ] = None,
    target: Annotated[Path | None, typer.Argument(help="Its translation, line by line.", metavar="[TARGET]")] = None,
    output: Annotated[
        Output, typer.Option(help="text: one number per pair; json: also the log-probability of each subword.")
    ] = Output.text,
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Divide by the length penalty, as translate ranks.")
    ] = False,
    length_penalty: Annotated[PenaltyName | None, typer.Option(help="Kind of length penalty.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Exponent of the length penalty.")] = None,
    beta: Annotated[float | None, typer.Option(help="Constant of Sockeye's length penalty.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Pairs scored together.")] = None,
    workers_: Annotated[
        str | None, typer.Option("--workers", help="Threads that score side by side, or auto: one per core.")
    ] = None,
    max_input_tokens: Annotated[int | None, typer.Option(min=1, help="Sources of more subwords are cropped.")] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1.")] = "cpu",
) -> None:
    """Print log P(target | source) in nats for each pair, end of sentence counted: one line out per pair in.

    Pairs come from two files, or from standard input as SOURCE<tab>TARGET lines.

    Example: phraseloom score runs/mine source.txt translation.txt
    """
    if (source is None) != (target is None):
        raise UsageError("score takes both SOURCE and TARGET, or neither and tab-separated pairs on standard input")
    options = given(batch_sentences=batch, workers=workers(workers_), max_input_tokens=max_input_tokens)
    if source is not None and target is not None:
        _same_length(source, target)
    from phraseloom.decoding.translator import Translator
    from phraseloom.text.lines import LineReport
    from phraseloom.training.distributed import keep_pages

    keep_pages()
    translator = Translator.from_pretrained(model, device=device, **options)
    changed = penalty(translator.config.length_penalty.model_dump(), length_penalty, alpha, beta)
    if changed is not None:
        translator = translator.with_options(length_penalty=changed)
    report, cropped = LineReport(), 0
    size = translator.config.window
    pairs = _from_stdin(size, report) if source is None or target is None else _from_files(source, target, size, report)
    for sources, targets in pairs:
        scores = translator.score(sources, targets)
        cropped += sum(s.cropped for s in scores)
        sys.stdout.write("".join(_line(s, output, normalise) for s in scores))
        sys.stdout.flush()
    if cropped:
        limit = translator.config.max_input_tokens
        print(
            f"phraseloom score: warning: {cropped} sources of more than {limit} subwords were cropped", file=sys.stderr
        )
    if report.invalid_utf8:
        print(f"phraseloom score: warning: {report.invalid_utf8} lines held invalid UTF-8, replaced", file=sys.stderr)


def _line(score: Any, output: Output, normalise: bool) -> str:
    if output is Output.text:
        return f"{score.score if normalise else score.log_prob:.6f}\n"
    value = {
        "log_prob": score.log_prob,
        "score": score.score,
        "tokens": [*score.tokens, "</s>"],
        "token_log_probs": score.token_log_probs,
        "cropped": score.cropped,
    }
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def _same_length(source: Path, target: Path) -> None:
    from phraseloom.text.lines import count_lines

    counts = count_lines(source), count_lines(target)
    if counts[0] != counts[1]:
        raise DataError(
            f"{counts[0]} lines, but {target} has {counts[1]}",
            file=source,
            hint="the files must be parallel line by line",
        )


def _from_files(source: Path, target: Path, size: int, report: LineReport) -> Iterator[Window]:
    from phraseloom.text.lines import read_lines

    pairs = zip(
        read_lines(source, invalid="replace", report=report),
        read_lines(target, invalid="replace", report=report),
        strict=True,
    )
    while window := list(islice(pairs, size)):
        yield [s for s, _ in window], [t for _, t in window]


def _from_stdin(size: int, report: LineReport) -> Iterator[Window]:
    from phraseloom.cli.windows import standard_input, windows

    before = 0
    for lines in windows(standard_input(), size, report=report):
        parts = [line.split("\t") for line in lines]
        bad = next((i for i, p in enumerate(parts) if len(p) != 2), None)
        if bad is not None:
            raise DataError(
                f"{len(parts[bad])} tab-separated fields instead of 2",
                file="stdin",
                line=before + bad + 1,
                hint="write SOURCE<tab>TARGET",
            )
        before += len(lines)
        yield [p[0] for p in parts], [p[1] for p in parts]
