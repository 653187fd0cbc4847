"""`phraseloom align evaluate`: alignment error rate of links against gold links.

`read_gold_text` reads the texts and gold links of all commands that score attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from phraseloom.cli.options import grouped, once
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.streams import lines_of, name_of, note
from phraseloom.errors import DataError, UsageError, plural
from phraseloom.files import require_file
from phraseloom.replace import STDIN
from phraseloom.text.lines import read_parallel

if TYPE_CHECKING:
    from phraseloom.align.links import Gold, Links
    from phraseloom.metrics.aer import AlignmentScore
    from phraseloom.text.tokenizer import Side, Tokenizer


@dataclass(frozen=True)
class GoldForm:
    """How a file of gold links is written."""

    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="Format of the gold links: pharaoh (i-j), talp (i-j sure, ipj possible), "
            "naacl (rows SENTENCE i j [S|P]), or auto (by the first line).",
        ),
    ] = "auto"
    base: Annotated[int, typer.Option(min=0, max=1, help="Index of the first word in the gold links: 0 or 1.")] = 0
    reverse: Annotated[bool, typer.Option("--reverse", help="The gold links list the target word first.")] = False

    def read(self, gold: str | Path, lines: Sequence[tuple[str, str]] | None) -> list[Gold]:
        """The links of a file; `lines`: the sentence pairs that they link. Raises DataError, UsageError."""
        from phraseloom.align.links import read_gold

        return read_gold(gold, format=self.format, base=self.base, reverse=self.reverse, lines=lines)

    def note_base(self, gold: str | Path, links: Sequence[Gold]) -> None:
        """Print a note if the links seem to count from 1."""
        possible = [link for of in links for link in of.possible]
        if self.base == 0 and possible and all(min(link) > 0 for link in possible):
            note("align", f"{gold}: no link has a word 0; does the file count from 1 (--base 1)?")


@grouped
def command(
    hypotheses: Annotated[
        list[str], typer.Argument(metavar="HYP", help="One file of links i-j (from 0) per system; - is stdin.")
    ],
    gold: Annotated[str, typer.Option("-g", "--gold", metavar="FILE", help="The gold links.")],
    *,
    form: GoldForm,
    source: Annotated[
        str | None, typer.Option("-s", "--source", metavar="FILE", help="Source text, to check the links against.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("-t", "--target", metavar="FILE", help="Target text, to check the links against.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Also write scores and counts to a file as JSON.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Score word alignments against sure and possible gold links: AER, precision, recall, F1, in per cent (--json:
    fractions).

    A hypothesis file has one line per sentence with links i-j (source word i, target word j). A blank line means no
    links. With the text (-s and -t, tokenised), the command also checks the numbers of lines and words, so a wrong
    --base or --reverse shows up. A lower AER is better (docs/alignment.md).

    Example: phraseloom align evaluate model.links --gold test.talp --base 1 -s test.en -t test.fr
    """
    from phraseloom import results
    from phraseloom.metrics.aer import score_alignment

    check_outputs({"--json": json_file}, inputs=[*hypotheses, gold, source, target], overwrite=overwrite)
    once([name_of(path) for path in hypotheses])
    if (source is None) != (target is None):
        raise UsageError("the links are checked against both texts or none", hint="give -s and -t")
    if STDIN in (gold, source, target):
        raise UsageError("- (standard input) is only allowed for links to score")
    for path in (gold, *(h for h in hypotheses if h != STDIN)):
        require_file(path, "file of links")
    lines = None
    if source is not None and target is not None:
        texts = read_parallel(Path(source), Path(target))
        lines = list(zip(texts[Path(source)], texts[Path(target)], strict=True))
    truth = form.read(gold, lines)
    scores = {name_of(path): score_alignment(_read(path, lines, truth, gold), truth) for path in hypotheses}
    if json_file is not None:
        systems = [{"name": name, **score.as_dict()} for name, score in scores.items()]
        results.write(json_file, results.LinksResult.model_validate({"gold": gold, "systems": systems}))
    form.note_base(gold, truth)
    print(_table(scores, gold))


class GoldText(NamedTuple):
    """Parallel lines, the trees of the sources (if given), and gold links."""

    sources: list[str]
    targets: list[str]
    trees: list[str] | None
    gold: list[Gold]


def read_gold_text(
    source: Path, target: Path, gold: Path, trees: Path | None, form: GoldForm, tokenizers: Iterable[Tokenizer] = ()
) -> GoldText:
    """Read and check the files; prints a note if the links seem to count from 1. Raises DataError, UsageError.

    `tokenizers`: those of the models that read the text, which tell whether a side is joined text, whose gold links count the
    words of its phrases. Without them the text is plain.
    """
    lines = read_parallel(source, target, trees)
    sides = {(t.source.joined, t.target.joined): (t.source, t.target) for t in tokenizers}
    pairs = list(zip(lines[source], lines[target], strict=True))
    readings = [[(_plain(s, a), _plain(t, b)) for a, b in pairs] for s, t in sides.values()] or [pairs]
    links, *_ = [form.read(gold, reading) for reading in readings]
    form.note_base(gold, links)
    return GoldText(lines[source], lines[target], None if trees is None else lines[trees], links)


def _plain(side: Side, line: str) -> str:
    """The words that gold links count: of joined text, those of its phrases too."""
    return " ".join(side.words(line)) if side.joined else line


def _read(path: str, lines: Sequence[tuple[str, str]] | None, truth: Sequence[Gold], gold: str) -> list[Links]:
    """The links of a system, as many lines as there are gold sentences."""
    from phraseloom.align.links import parse_lines

    links = parse_lines(lines_of(path), file=name_of(path), lines=lines)
    if len(links) != len(truth):
        raise DataError(
            f"{name_of(path)} has {plural(len(links), 'line')}, but {gold} has {plural(len(truth), 'sentence')}",
            hint="a sentence without links is a blank line"
            + ("; give -s and -t if the gold links are rows and the last sentences have none" if lines is None else ""),
        )
    return links


def _table(scores: dict[str, AlignmentScore], gold: str) -> str:
    from phraseloom.report.markup import terminal

    rows: list[list[Any]] = [
        [name, *(100 * value for value in (s.aer, s.precision, s.recall, s.f1)), s.links] for name, s in scores.items()
    ]
    any_score = next(iter(scores.values()))
    possible = any_score.possible - any_score.sure
    links = f"{any_score.sure:,} sure, {possible:,} only possible"
    about = f"{plural(any_score.sentences, 'sentence')}; gold links of {gold}: {links}"
    return f"{about}\n\n{terminal(['system', 'AER', 'precision', 'recall', 'F1', 'links'], rows)}"
