"""`phraseloom subwords`: learn subwords from text, cut lines into them, and join them again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from phraseloom.cli.group import VerbCommand
from phraseloom.cli.streams import lines_of, note
from phraseloom.files import require_regular_file
from phraseloom.replace import STDIN
from phraseloom.text.lines import LineReport, encode_lines, read_blocks

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Learn, apply and undo subword segmentation.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


Kind = Literal["sentencepiece", "subword_nmt", "words"]


Model = Literal["bpe", "unigram"]


Side = Literal["source", "target"]


Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="A folder with a tokenizer: output of subwords train, a dataset, or a model."
    ),
]
SideOption = Annotated[Side, typer.Option(help="Which side, if source and target have separate vocabularies.")]


@app.command("train", cls=VerbCommand)
def train(
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The folder to write.")],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Text files (plain, .gz, .xz). Default: standard input.")
    ] = None,
    kind: Annotated[
        Kind, typer.Option(help="The library; words means whole words without segmentation.")
    ] = "sentencepiece",
    model: Annotated[Model, typer.Option(help="sentencepiece only.")] = "bpe",
    size: Annotated[int, typer.Option(min=0, help="Vocabulary size; for subword_nmt, the number of merges.")] = 8000,
    byte_fallback: Annotated[bool, typer.Option(help="sentencepiece only: spell unknown characters as bytes.")] = True,
    min_frequency: Annotated[
        int, typer.Option(min=1, help="subword_nmt: do not merge rarer pairs. words: treat rarer words as unknown.")
    ] = 2,
    sample_lines: Annotated[
        int, typer.Option(min=1, help="Number of lines to learn from, sampled across the files.")
    ] = 1_000_000,
    language: Annotated[str, typer.Option(help="Language code to store.")] = "und",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing tokenizer.")] = False,
) -> None:
    """Learn subwords from text and write them to the folder OUTPUT. From standard input, the first lines are used."""
    from phraseloom.config import validate
    from phraseloom.options.text import SentencepieceConfig, SubwordNmtConfig, SubwordsConfig, TextConfig, WordsConfig
    from phraseloom.replace import check_folder, new_folder
    from phraseloom.text.tokenizer import TOKENIZER, Tokenizer, learn_subwords

    config: SubwordsConfig
    common = {"sample_lines": sample_lines}
    if kind == "sentencepiece":
        options = {**common, "model": model, "size": size, "byte_fallback": byte_fallback}
        config = validate(SentencepieceConfig, options)
    elif kind == "subword_nmt":
        config = validate(SubwordNmtConfig, {**common, "merges": size, "min_frequency": min_frequency})
    else:
        config = validate(WordsConfig, {**common, "size": size, "min_frequency": min_frequency, "joint": True})
    check_folder(output, TOKENIZER, overwrite=overwrite, inputs=files or ())
    report = LineReport()
    lines = _sample(files, sample_lines) if files else islice(lines_of(STDIN, report), sample_lines)
    subwords = learn_subwords(lines, config)
    for text in report.changes():
        note("subwords", text)
    with new_folder(output, TOKENIZER, overwrite=overwrite, inputs=files or ()) as folder:
        Tokenizer(TextConfig(), language, language, subwords, subwords).save(folder)
    print(f"{len(subwords.vocabulary):,} pieces in {output}", file=sys.stderr)


@app.command("apply", cls=VerbCommand)
def apply(folder: Folder, side: SideOption = "source") -> None:
    """Split each line of standard input into subwords, separated by spaces; undo restores the line."""
    subwords = _load(folder, side)
    _filter(lambda line: " ".join(subwords.pieces(line)))


@app.command("undo", cls=VerbCommand)
def undo(folder: Folder, side: SideOption = "source") -> None:
    """Join the subwords on each line of standard input; this restores the original line."""
    subwords = _load(folder, side)
    _filter(lambda line: subwords.undo(line.split(" ")) if line else "")


def _load(folder: Path, side: Side) -> Any:
    from phraseloom.text.tokenizer import FILE, Tokenizer

    inner = folder / "tokenizer"
    tokenizer = Tokenizer.load(inner if not (folder / FILE).exists() and inner.is_dir() else folder)
    return (tokenizer.source if side == "source" else tokenizer.target).subwords


def _sample(files: list[Path], size: int) -> Iterator[str]:
    """Lines of the files; what reading changes is reported on standard error."""
    from phraseloom.data.survey import read_through, sample

    reports = [(path, read_through(require_regular_file(path), None)[0]) for path in files]
    for path, report in dict(reports).items():
        for text in report.warnings(path):
            note("subwords", text)
    return sample(files, sum(report.lines for _, report in reports), size)


def _filter(change: Callable[[str], str]) -> None:
    """Write one line per input line; report on standard error what reading changed."""

    report = LineReport()
    for lines in read_blocks(sys.stdin.buffer, invalid="replace", report=report):
        sys.stdout.buffer.write(encode_lines([change(line) for line in lines]))
        sys.stdout.buffer.flush()
    for text in report.changes():
        note("subwords", text)
