"""`phraseloom score`: the log-probability that a model gives to translations, or a language model to lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.options import (
    BySentence,
    Device,
    given,
    model_option,
    number_or_word,
    require_json,
)
from phraseloom.errors import UsageError
from phraseloom.metrics.ratio import plain
from phraseloom.options.decoding import DecodingConfig, EnsembleMean, PenaltyName, SockeyePenaltyConfig, WuPenaltyConfig

if TYPE_CHECKING:
    from phraseloom.cli.score_input import ScoredText


Output = Literal["text", "json", "summary"]


def command(
    model: Annotated[
        Path, typer.Argument(help="Model folder, run folder (its best checkpoint) or checkpoint.", metavar="MODEL")
    ],
    source: Annotated[
        Path | None,
        typer.Argument(help="Source text, one sentence per line; for a language model, the text.", metavar="SOURCE"),
    ] = None,
    target: Annotated[Path | None, typer.Argument(help="Its translation, line by line.", metavar="TARGET")] = None,
    trees: Annotated[
        Path | None,
        typer.Option(
            help="File with the bracketed parse tree of each source line, for a model that takes phrases from trees."
        ),
    ] = None,
    output: Annotated[
        Output,
        typer.Option(
            help="text: one number per line; json: also the log-probability of each subword; "
            "summary: one JSON object with the sums and perplexities of all lines."
        ),
    ] = "text",
    summary: Annotated[
        bool,
        typer.Option("--summary", help="Print the perplexity per subword and per word to standard error at the end."),
    ] = False,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(
            "--ensemble",
            metavar="MODEL",
            help="A further model with the same vocabulary: the scores are those of the models together. Repeatable.",
        ),
    ] = None,
    ensemble_mean: Annotated[EnsembleMean | None, model_option(DecodingConfig, "ensemble_mean")] = None,
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Divide by the length penalty, as translate does to rank hypotheses.")
    ] = False,
    length_penalty: Annotated[PenaltyName | None, model_option(DecodingConfig, "length_penalty")] = None,
    alpha: Annotated[float | None, model_option(WuPenaltyConfig, "alpha")] = None,
    beta: Annotated[float | None, model_option(SockeyePenaltyConfig, "beta")] = None,
    batch_sentences: Annotated[int | None, model_option(DecodingConfig, "batch_sentences", "--batch")] = None,
    workers: Annotated[Any, model_option(DecodingConfig, "workers", parser=number_or_word, metavar="N")] = None,
    max_input_tokens: Annotated[int | None, model_option(DecodingConfig, "max_input_tokens")] = None,
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
    options = given(batch_sentences=batch_sentences, workers=workers, max_input_tokens=max_input_tokens)
    if ensemble_mean is not None and not ensemble:
        raise UsageError("--ensemble-mean is for an ensemble of models", hint="add --ensemble MODEL")
    changes = given(kind=length_penalty, alpha=alpha, beta=beta)
    from phraseloom.cli import score_input
    from phraseloom.models.store import find_task
    from phraseloom.training.distributed import keep_pages

    keep_pages()
    if find_task(model) == "language_model":
        for_pairs = {
            "TARGET": target is not None,
            "--length-penalty": length_penalty is not None,
            "--alpha": alpha is not None,
            "--beta": beta is not None,
            "--normalise": normalise,
            "--trees": trees is not None,
            "--ensemble": bool(ensemble),
        }
        for what in (name for name, is_given in for_pairs.items() if is_given):
            raise UsageError(f"{what} is for translations, and this is a language model", hint="it scores one text")
        scored = score_input.of_lines(model, source, device=device, options=options)
    else:
        if (source is None) != (target is None):
            raise UsageError("score takes both SOURCE and TARGET, or neither and tab-separated pairs on standard input")
        scored = score_input.of_pairs(
            model,
            source,
            target,
            trees=trees,
            ensemble=ensemble or [],
            device=device,
            options=options | given(ensemble_mean=ensemble_mean),
            changes=changes,
        )
    sums = _print(scored, output, normalise, by_sentence)
    for text in scored.warnings():
        print(f"phraseloom score: warning: {text}", file=sys.stderr)
    if summary:
        print(f"phraseloom score: {sums}", file=sys.stderr)


def _print(scored: ScoredText, output: Output, normalise: bool, by_sentence: bool) -> Any:
    """Print a line for each score, or the sums over all of them; the sums."""
    from phraseloom.metrics.perplexity import Perplexity, count_words

    lines: list[Perplexity] = []
    sums = Perplexity()
    for window in scored.windows:
        for score, text in window:
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
        print(json.dumps(plain({**sums.as_dict(), "by_sentence": rows}, by_sentence), allow_nan=False))
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
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
