"""`phraseloom generate`: prompts in, continuations by a language model out."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Literal

import typer

from phraseloom.cli.options import Device, Model, no_sampling, options_of
from phraseloom.options.decoding import GenerationConfig
from phraseloom.text.lines import LineReport

Output = Literal["text", "json"]


@options_of(
    GenerationConfig,
    without=("batch_tokens",),
    forms={"sample": {"names": ["--sample/--greedy"]}, "samples": {"names": ["-n", "--samples"]}},
)
def command(
    model: Model,
    *,
    output: Annotated[
        Output, typer.Option(help="text: one line per continuation; json: one object per prompt with all of them.")
    ] = "text",
    with_prompt: Annotated[
        bool, typer.Option("--with-prompt", help="Print the prompt before its continuation.")
    ] = False,
    options: dict[str, Any],
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
    from phraseloom.decoding.generator import TextGenerator
    from phraseloom.training.distributed import keep_pages

    keep_pages()
    generator = TextGenerator.from_pretrained(model, device=device)
    if not options.get("sample", generator.config.sample):
        no_sampling(options, "tokens, and greedy search draws none", "add --sample")
    if options.get("sample") is False:
        options.setdefault("samples", 1)
    generator = TextGenerator(generator.model, generator.tokenizer, generator.options(**options))
    _run(generator, output, with_prompt=with_prompt, stream=stream)


def _run(generator: Any, output: Output, *, with_prompt: bool, stream: bool) -> None:
    """Print a line for each continuation; then warnings on standard error."""
    from phraseloom.cli.streams import GATHER_SECONDS, standard_input, warn, windows

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
        warn("generate", text)
    for text in report.warnings():
        warn("generate", text)


def _text(continuations: list[Any], with_prompt: bool) -> str:
    return "".join((c.text if with_prompt else c.continuation) + "\n" for c in continuations)


def _json(number: int, continuations: list[Any]) -> str:
    value = {"id": number, "prompt": continuations[0].prompt, "samples": [c.as_dict() for c in continuations]}
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
