"""`phraseloom generate`: prompts in, continuations by a language model out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from phraseloom.cli.options import Device, fields_of, model_option, number_or_word
from phraseloom.errors import UsageError
from phraseloom.options.decoding import GenerationConfig

Output = Literal["text", "json"]


def command(
    model: Annotated[
        Path, typer.Argument(help="Model folder, run folder (its best checkpoint) or checkpoint.", metavar="MODEL")
    ],
    output: Annotated[
        Output, typer.Option(help="text: one line per continuation; json: one object per prompt with all of them.")
    ] = "text",
    with_prompt: Annotated[
        bool, typer.Option("--with-prompt", help="Print the prompt before its continuation.")
    ] = False,
    sample: Annotated[bool | None, model_option(GenerationConfig, "sample", "--sample/--greedy")] = None,
    temperature: Annotated[float | None, model_option(GenerationConfig, "temperature")] = None,
    top_k: Annotated[int | None, model_option(GenerationConfig, "top_k")] = None,
    top_p: Annotated[float | None, model_option(GenerationConfig, "top_p")] = None,
    seed: Annotated[int | None, model_option(GenerationConfig, "seed")] = None,
    samples: Annotated[int | None, model_option(GenerationConfig, "samples", "-n", "--samples")] = None,
    max_tokens: Annotated[int | None, model_option(GenerationConfig, "max_tokens")] = None,
    batch_sentences: Annotated[int | None, model_option(GenerationConfig, "batch_sentences", "--batch")] = None,
    workers: Annotated[Any, model_option(GenerationConfig, "workers", parser=number_or_word, metavar="N")] = None,
    max_input_tokens: Annotated[int | None, model_option(GenerationConfig, "max_input_tokens")] = None,
    window: Annotated[int | None, model_option(GenerationConfig, "window")] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Process prompts as soon as they arrive; never wait for more.")
    ] = False,
    device: Device = "cpu",
) -> None:
    """Generate text from prompts with a language model: one output line per prompt and sample, in order.

    Each line of standard input is a prompt. An empty line means no prompt. A continuation ends where the model ends
    the line, or after --max-tokens. It begins with a space unless it continues the last word of the prompt. Samples
    depend on the seed, the line number and the sample number, and not on the other lines.

    Example: echo "The president said" | phraseloom generate runs/my-language-model --sample --top-p 0.9 -n 3
    """
    options = fields_of(GenerationConfig, locals())
    from phraseloom.decoding.generator import TextGenerator
    from phraseloom.training.distributed import keep_pages

    keep_pages()
    generator = TextGenerator.from_pretrained(model, device=device)
    if not options.get("sample", generator.config.sample):
        for name in ("temperature", "top_k", "top_p", "seed"):
            if name in options:
                what = f"--{name.replace('_', '-')} is for drawing tokens, and greedy search draws none"
                raise UsageError(what, hint="add --sample")
    if sample is False:
        options.setdefault("samples", 1)
    generator = TextGenerator(generator.model, generator.tokenizer, generator.options(**options))
    _run(generator, output, with_prompt=with_prompt, stream=stream)


def _run(generator: Any, output: Output, *, with_prompt: bool, stream: bool) -> None:
    """Print a line for each continuation; then warnings on standard error."""
    from phraseloom.cli.streams import GATHER_SECONDS, standard_input, windows
    from phraseloom.text.lines import LineReport

    report, number, cropped, first = LineReport(), 0, 0, 0
    seconds = 0.0 if stream else GATHER_SECONDS
    for prompts in windows(standard_input(), generator.config.window, seconds=seconds, report=report):
        results = generator.generate(prompts, first=number)
        for i, continuations in enumerate(results, start=number):
            if continuations[0].cropped:
                cropped, first = cropped + 1, first or i + 1
            sys.stdout.write(_json(i, continuations) if output == "json" else _text(continuations, with_prompt))
        sys.stdout.flush()
        number += len(prompts)
    if cropped:
        limit = generator.config.max_input_tokens
        text = f"{cropped} of {number} prompts longer than {limit} subwords: the beginning was left out (first: line {first})"
        print(f"phraseloom generate: warning: {text}", file=sys.stderr)
    for text in report.warnings():
        print(f"phraseloom generate: warning: {text}", file=sys.stderr)


def _text(continuations: list[Any], with_prompt: bool) -> str:
    return "".join((c.text if with_prompt else c.continuation) + "\n" for c in continuations)


def _json(number: int, continuations: list[Any]) -> str:
    value = {"id": number, "prompt": continuations[0].prompt, "samples": [c.as_dict() for c in continuations]}
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
