"""`phraseloom generate`: prompts in, what a language model writes on out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from phraseloom.cli.options import Device, given, workers
from phraseloom.errors import UsageError

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
    sample: Annotated[
        bool | None, typer.Option("--sample/--greedy", help="Sample tokens, or always take the best. Default: greedy.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Softmax temperature. Below 1: less random; above 1: more random.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from the k best tokens only.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Nucleus sampling: sample from the smallest set of tokens with this total probability."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed.")] = None,
    samples: Annotated[int | None, typer.Option("-n", "--samples", min=1, help="Continuations per prompt.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most subwords of a continuation.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Continuations per batch.")] = None,
    workers_: Annotated[
        str | None, typer.Option("--workers", help="Number of parallel threads, or auto: one per core.")
    ] = None,
    max_input_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longer prompts (in subwords) lose their beginning.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=1, help="Largest number of prompts to read and sort by length together.")
    ] = None,
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
    drawing = given(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    options = drawing | given(
        sample=sample,
        samples=samples,
        max_tokens=max_tokens,
        batch_sentences=batch,
        workers=workers(workers_),
        max_input_tokens=max_input_tokens,
        window=window,
    )
    from phraseloom.decoding.generator import TextGenerator
    from phraseloom.training.distributed import keep_pages

    keep_pages()
    generator = TextGenerator.from_pretrained(model, device=device)
    if not (generator.config.sample if sample is None else sample) and (drawing or (samples or 1) > 1):
        name = next(iter(drawing), "samples").replace("_", "-")
        raise UsageError(f"--{name} is for drawing tokens, and greedy search draws none", hint="add --sample")
    if sample is False:
        options["samples"] = 1
    generator = TextGenerator(generator.model, generator.tokenizer, generator.options(**options))
    _run(generator, output, with_prompt=with_prompt, stream=stream)


def _run(generator: Any, output: Output, *, with_prompt: bool, stream: bool) -> None:
    """Print a line for each continuation; then what did not come out as it was meant, on standard error."""
    from phraseloom.cli.streams import GATHER_SECONDS, standard_input, windows
    from phraseloom.text.lines import LineReport

    report, number, cropped, first = LineReport(), 0, 0, 0
    seconds = 0.0 if stream else GATHER_SECONDS
    for prompts in windows(standard_input(), generator.config.window, seconds=seconds, report=report):
        found = generator.generate(prompts, first=number)
        for i, some in enumerate(found, start=number):
            if some[0].cropped:
                cropped, first = cropped + 1, first or i + 1
            sys.stdout.write(_json(i, some) if output == "json" else _text(some, with_prompt))
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
