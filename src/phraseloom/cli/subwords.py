"""`phraseloom subwords`: learn subwords from text, cut lines into them, and join them again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.group import VerbCommand
from phraseloom.cli.streams import lines_of, note
from phraseloom.errors import DataError, UsageError
from phraseloom.files import require_regular_file
from phraseloom.replace import STDIN
from phraseloom.text.lines import LineReport, encode_lines, read_blocks

if TYPE_CHECKING:
    from phraseloom.config import Config
    from phraseloom.options.text import SubwordsConfig

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
    model: Annotated[Model | None, typer.Option(help="sentencepiece only.", show_default="bpe")] = None,
    size: Annotated[int, typer.Option(min=0, help="Vocabulary size; for subword_nmt, the number of merges.")] = 8000,
    byte_fallback: Annotated[
        bool | None,
        typer.Option(help="sentencepiece only: spell unknown characters as bytes.", show_default="True"),
    ] = None,
    min_frequency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="subword_nmt: do not merge rarer pairs. words: treat rarer words as unknown.",
            show_default="2",
        ),
    ] = None,
    sample_lines: Annotated[
        int, typer.Option(min=1, help="Number of lines to learn from, sampled across the files.")
    ] = 1_000_000,
    language: Annotated[str, typer.Option(help="Language code to store.")] = "und",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing tokenizer.")] = False,
) -> None:
    """Learn subwords from text and write them to the folder OUTPUT. From standard input, the first lines are used."""
    from phraseloom.options.text import TextConfig
    from phraseloom.replace import check_folder, new_folder
    from phraseloom.text.sentencepiece import named_size
    from phraseloom.text.tokenizer import TOKENIZER, Tokenizer, learn_subwords

    own = {"model": model, "byte_fallback": byte_fallback, "min_frequency": min_frequency}
    config = _config(kind, size, sample_lines, {name: value for name, value in own.items() if value is not None})
    check_folder(output, TOKENIZER, overwrite=overwrite, inputs=files or ())
    report = LineReport()
    lines = _sample(files, sample_lines) if files else islice(lines_of(STDIN, report), sample_lines)
    try:
        subwords = learn_subwords(lines, config)
    except DataError as error:
        raise named_size(error, "--size") from error
    for text in report.changes():
        note("subwords", text)
    with new_folder(output, TOKENIZER, overwrite=overwrite, inputs=files or ()) as folder:
        Tokenizer(TextConfig(), language, language, subwords, subwords).save(folder)
    print(f"{len(subwords.vocabulary):,} pieces in {output}", file=sys.stderr)


def _config(kind: Kind, size: int, sample_lines: int, own: dict[str, Any]) -> SubwordsConfig:
    """The options of a kind of subwords; `own`: the given ones that not all kinds have. Raises UsageError, ConfigError."""
    from phraseloom.config import validate
    from phraseloom.options.text import SentencepieceConfig, SubwordNmtConfig, WordsConfig

    kinds: dict[str, type[Config]] = {
        "sentencepiece": SentencepieceConfig,
        "subword_nmt": SubwordNmtConfig,
        "words": WordsConfig,
    }
    for name in (name for name in own if name not in kinds[kind].model_fields):
        option = "--no-byte-fallback" if own[name] is False else f"--{name.replace('_', '-')}"
        having = " or ".join(other for other, config in kinds.items() if name in config.model_fields)
        raise UsageError(f"{option} is for --kind {having}, and this is --kind {kind}", hint=f"leave {option} out")
    options = {"sample_lines": sample_lines, **own}
    if kind == "sentencepiece":
        return validate(SentencepieceConfig, {**options, "size": size})
    options = {"min_frequency": 2, **options}
    if kind == "subword_nmt":
        return validate(SubwordNmtConfig, {**options, "merges": size})
    return validate(WordsConfig, {**options, "size": size, "joint": True})


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
