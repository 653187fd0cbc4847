"""`phraseloom score`: the log-probability that a model gives to translations, or a language model to lines."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from phraseloom.cli.options import (
    BySentence,
    Device,
    GateScoreOption,
    Model,
    MorePhrases,
    Trees,
    change_output,
    check_ensemble,
    options_of,
    require_json,
    warn_without_tag,
    with_penalty,
)
from phraseloom.cli.parallel import PairReader, ParallelFile, same_length
from phraseloom.cli.streams import note, standard_input, warn, windows
from phraseloom.decoding.long_lines import CroppedLines
from phraseloom.errors import UsageError
from phraseloom.metrics.ratio import plain
from phraseloom.options.decoding import DecodingConfig
from phraseloom.serving.message import plain as finite
from phraseloom.text.lines import LineReport, read_lines
from phraseloom.text.vocabulary import UNK

if TYPE_CHECKING:
    from phraseloom.decoding.scoring import Score
    from phraseloom.decoding.translator import Translator

Output = Literal["text", "json", "summary"]

SourceFile = Annotated[
    Path | None,
    typer.Argument(help="Source text, one sentence per line; for a language model, the text.", metavar="SOURCE"),
]
OutputForm = Annotated[
    Output,
    typer.Option(
        help="text: one number per line; json: also the log-probability of each subword; "
        "summary: one JSON object with the sums and perplexities of all lines. In JSON, log 0 is null."
    ),
]
Summary = Annotated[
    bool,
    typer.Option("--summary", help="Print the perplexity per subword and per word to standard error at the end."),
]
Ensemble = Annotated[
    list[Path] | None,
    typer.Option(
        "--ensemble",
        metavar="MODEL",
        help="A further model with the same vocabulary: the scores are those of the models together. Repeatable.",
    ),
]
Normalise = Annotated[
    bool, typer.Option("--normalise", help="Divide by the length penalty, as translate does to rank hypotheses.")
]


@options_of(
    DecodingConfig,
    only=(
        "ensemble_mean",
        "length_penalty",
        "tags",
        "phrase_odds",
        "gate_weight",
        "batch_sentences",
        "workers",
        "max_input_tokens",
    ),
)
def command(
    model: Model,
    source: SourceFile = None,
    target: Annotated[Path | None, typer.Argument(help="Its translation, line by line.", metavar="TARGET")] = None,
    *,
    trees: Trees = None,
    output: OutputForm = "text",
    summary: Summary = False,
    ensemble: Ensemble = None,
    add_phrases: MorePhrases = None,
    gate_score: GateScoreOption = None,
    normalise: Normalise = False,
    options: dict[str, Any],
    by_sentence: BySentence = False,
    device: Device = "cpu",
) -> None:
    """Print log P(target | source) in nats for each pair, end of sentence included: one line out per pair in.

    Pairs come from two files, or from standard input as SOURCE<tab>TARGET lines. A language model scores the lines
    of one file or of standard input: log P(line). Perplexity per subword counts the end of each line. Perplexity
    per word uses the same probabilities; it counts white-space separated words and the end of each line.

    Example: phraseloom score runs/mine source.txt translation.txt

    Example: phraseloom score runs/a source.txt translation.txt --ensemble runs/b

    Example: phraseloom score runs/my-language-model --summary < text.txt
    """
    require_json(by_sentence, output == "summary", "--output summary")
    check_ensemble(options, ensemble)
    from phraseloom.models.store import find_task
    from phraseloom.training.distributed import keep_pages

    keep_pages()
    if find_task(model) == "language_model":
        given: dict[str, object] = {
            "TARGET": target,
            "--normalise": normalise,
            "--trees": trees,
            "--ensemble": ensemble,
        }
        given |= {"--add-phrases": add_phrases, "--gate-score": gate_score}
        _refuse_what_is_for_pairs(given, options)
        scored = _of_lines(model, source, device=device, options=options)
    else:
        if (source is None) != (target is None):
            raise UsageError("score takes both SOURCE and TARGET, or neither and tab-separated pairs on standard input")
        _refuse_what_is_not_written(output, options, normalise=normalise)
        translator = _load(model, ensemble or [], device, options)
        change_output("score", translator, add_phrases, gate_score)
        scored = _of_pairs(translator, source, target, trees)
    sums = _print(scored, output, normalise, by_sentence)
    for text in scored.warnings():
        warn("score", text)
    if summary:
        note("score", str(sums))


def _refuse_what_is_not_written(output: Output, options: Mapping[str, Any], *, normalise: bool) -> None:
    """Raise UsageError for an option of the normalised score where that is not written."""
    if normalise and output == "summary":
        raise UsageError("--normalise is for the scores of pairs, not for --output summary")
    if output == "json" or normalise:
        return
    for option in ("--length-penalty", "--alpha", "--beta"):
        if option[2:].replace("-", "_") in options:
            raise UsageError(f"{option} is for the normalised score", hint="add --normalise, or --output json")


def _refuse_what_is_for_pairs(given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    fields = {"--length-penalty": "length_penalty", "--alpha": "alpha", "--beta": "beta"}
    fields |= {"--tag": "tags", "--phrase-odds": "phrase_odds", "--gate-weight": "gate_weight"}
    names = [name for name, value in given.items() if value] + [name for name, key in fields.items() if key in options]
    if names:
        raise UsageError(f"{names[0]} is for translations, and this is a language model", hint="it scores one text")


Window = list[tuple["Score", str | None]]


class ScoredText(NamedTuple):
    """Scores with their raw text (None if the perplexity leaves it out), the piece for unknown tokens, and a function that
    gives the warnings once everything is read."""

    windows: Iterator[Window]
    unknown: str
    warnings: Callable[[], list[str]]


def _of_lines(model: Path, source: Path | None, *, device: str, options: dict[str, Any]) -> ScoredText:
    """The lines of a file or of standard input, under a language model."""
    from phraseloom.decoding.generator import TextGenerator

    generator, report = TextGenerator.from_pretrained(model, device=device, **options), LineReport()
    size, cropped = generator.config.window, CroppedLines("line")

    def run() -> Iterator[Window]:
        read = windows(standard_input(), size, report=report) if source is None else _of_file(source, size, report)
        for lines in read:
            scores = generator.score(lines)
            for score in scores:
                cropped.note(score.cropped)
            yield [(score, None if score.cropped else line) for score, line in zip(scores, lines, strict=True)]

    def warnings() -> list[str]:
        return cropped.warnings(generator.config) + report.warnings("stdin" if source is None else source)

    return ScoredText(run(), generator.side.vocabulary.piece(UNK), warnings)


def _load(model: Path, ensemble: Sequence[Path], device: str, options: Mapping[str, Any]) -> Translator:
    """The models that score together, with the options of the command line."""
    from phraseloom.decoding.translator import Translator

    translator = Translator.from_pretrained(model, ensemble=ensemble, device=device)
    translator = translator.with_options(**with_penalty(translator.config, options))
    warn_without_tag("score", {model: translator})
    return translator


def _of_pairs(translator: Translator, source: Path | None, target: Path | None, trees: Path | None) -> ScoredText:
    """The pairs of two files or of standard input, with the `trees` of the sources.

    Perplexity leaves out a pair of two blank lines, whose probability is 1, and cropped pairs, whose words were not all scored.
    """
    if source is not None and target is not None:
        same_length(source, target, trees)
    beside = None if trees is None else ParallelFile(trees, "trees", "tree file")
    translator.require_trees(trees is not None)
    pairs, cropped = PairReader(source, target), CroppedLines("pair")
    piece, unknown = translator.tokenizer.target.vocabulary.piece(UNK), Counter[bool]()

    def run() -> Iterator[Window]:
        for sources, targets in pairs.windows(translator.config.window):
            of_sources = None if beside is None else beside.take(len(sources))
            with contextlib.nullcontext() if beside is None else beside.places():
                scores = translator.score(sources, targets, trees=of_sources)
            for score in scores:
                cropped.note(score.cropped)
                unknown.update(token == piece for token in score.tokens)
            yield [
                (score, t if (s.strip() or t.strip()) and not score.cropped else None)
                for score, s, t in zip(scores, sources, targets, strict=True)
            ]
        if beside is not None:
            beside.finish()

    def warnings() -> list[str]:
        found = cropped.warnings(translator.config) + pairs.warnings()
        if translator.tokenizer.target.joined and unknown[True]:
            what = "targets of this model are joined text (phraseloom phrases segment), not plain text"
            found.append(f"{what}; {unknown[True]:,} of {unknown.total():,} target tokens are unknown to it")
        return found

    return ScoredText(run(), piece, warnings)


def _of_file(source: Path, size: int, report: LineReport) -> Iterator[list[str]]:
    lines = read_lines(source, invalid="replace", report=report)
    while window := list(islice(lines, size)):
        yield window


def _print(scored: ScoredText, output: Output, normalise: bool, by_sentence: bool) -> Any:
    """Print a line for each score, or the sums over all of them; the sums."""
    from phraseloom.metrics.perplexity import Perplexity, count_words

    lines: list[Perplexity] = []
    sums = Perplexity()
    for window in scored.windows:
        for score, text in window:
            line = Perplexity()
            if text is not None:
                unknown = sum(token == scored.unknown for token in score.tokens)
                line = Perplexity(1, count_words([text]), len(score.tokens), unknown, -score.log_prob)
            sums += line
            lines += [line] * by_sentence
        if output != "summary":
            sys.stdout.write("".join(_line(s, output, normalise) for s, _ in window))
            sys.stdout.flush()
    if output == "summary":
        rows = {
            "perplexity": [[line.nll, line.subwords + line.lines] for line in lines],
            "word_perplexity": [[line.nll, line.words + line.lines] for line in lines],
        }
        print(json.dumps(finite(plain({**sums.as_dict(), "by_sentence": rows}, by_sentence)), allow_nan=False))
    return sums


def _line(score: Any, output: Output, normalise: bool) -> str:
    if output == "text":
        return f"{score.score if normalise else score.log_prob:.6f}\n"
    value = {
        "log_prob": score.log_prob,
        "score": score.score,
        "tokens": [*score.tokens, "</s>"],
        "token_log_probs": score.token_log_probs,
        "cropped": score.cropped,
    }
    return json.dumps(finite(value), ensure_ascii=False, allow_nan=False) + "\n"
