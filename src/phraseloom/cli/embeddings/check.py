"""`phraseloom embeddings check`: can a continuous output tell these vectors apart?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.options import JsonFile, Vectors
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.streams import note, warn
from phraseloom.errors import DataError
from phraseloom.files import atomic_write_json, require_regular_file
from phraseloom.text.lines import count_lines

if TYPE_CHECKING:
    from phraseloom.text.vector_check import VectorCoverage, VectorFigures


def command(
    file: Vectors,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Joined text: adds the posterior-mean test.")
    ] = None,
    size: Annotated[
        int,
        typer.Option(
            min=2, max=1_000_000, help="Number of vectors: the most frequent tokens of the text, or the first rows."
        ),
    ] = 50_000,
    json: JsonFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Check whether vectors can be the targets of a continuous output: as they are, centred, and whitened.

    Random vectors are shown for comparison. With --text, there is also the posterior-mean test. A trigram model of the
    text gives the probabilities of the next token, and the vectors are averaged with these weights. The test counts how
    often the vector nearest to this mean belongs to the likeliest token. The command warns of bad vectors.

    Example: phraseloom embeddings check en.vec --text train.joined.en
    """
    from phraseloom.report.markup import terminal
    from phraseloom.text.vector_check import problems, remedy

    check_outputs({"--json": json}, inputs=[file, text], overwrite=overwrite)
    figures, coverage = _figures(file, text, size)
    print(terminal(["", *(name for name in figures)], _rows(figures)))
    if coverage is not None:
        print(f"\n{coverage}")
        if (lacking := coverage.warning()) is not None:
            warn("embeddings", f"{file}: {lacking}")
    faults = problems(figures["as they are"], figures["random"])
    for fault in faults:
        warn("embeddings", f"{file}: {fault}")
    if faults:
        same = figures["as they are"].effective_rank is None  # then no transformation helps
        note("embeddings", remedy(center=same, whiten=same))
    if json is not None:
        found = {name: table.as_dict() for name, table in figures.items()}
        atomic_write_json(
            json,
            {
                "file": str(file),
                "text": text and str(text),
                "tables": found,
                "problems": faults,
                "coverage": None if coverage is None else coverage.share,
            },
        )


def _figures(file: Path, text: Path | None, size: int) -> tuple[dict[str, VectorFigures], VectorCoverage | None]:
    """The figures of each variant of the table and of random vectors; with a text, how much of it has vectors."""
    from phraseloom.text.vector_check import VectorCoverage, check_tables, first_tokens, read_rows, variants
    from phraseloom.text.vectors import read_tokens

    require_regular_file(file, "file of vectors")
    if text is None:
        _, rows_VM = read_rows(file, first_tokens(file, size), size, None)
        return check_tables(variants(rows_VM), None), None
    split = _sampled(text)
    counts = Counter(token for line in split for token in line)
    tokens = sorted(counts, key=lambda token: (-counts[token], token))
    known = read_tokens(file, set(tokens))
    coverage = VectorCoverage.of(counts, known)
    if known:  # without any, read_rows says so
        coverage.require(file)
    present, rows_VM = read_rows(file, tokens, size, known)
    place = {token: row for row, token in enumerate(present)}
    lines = [[place.get(token, -1) for token in line] for line in split]
    return check_tables(variants(rows_VM), lines), coverage


def _sampled(text: Path) -> list[list[str]]:
    """The tokens of evenly spaced lines."""
    from phraseloom.data.survey import sample
    from phraseloom.text.vector_check import LINES

    total = count_lines(require_regular_file(text))
    lines = sample([text], total, LINES) if total else ()
    split = [[token for token in line.split(" ") if token] for line in lines]
    if not any(split):
        raise DataError("a text without words", file=text)
    return split


def _rows(figures: dict[str, VectorFigures]) -> list[list[object]]:
    def share(value: float | None) -> str | None:
        return None if value is None else f"{100 * value:.1f} %"

    def number(value: float | None, digits: int = 2) -> str | None:
        return None if value is None else f"{value:z.{digits}f}"

    tables = list(figures.values())
    rows: list[list[object]] = [
        ["vectors", *(f"{t.rows:,}" for t in tables)],
        ["width", *(str(t.width) for t in tables)],
        ["mean cosine", *(number(t.mean_cosine) for t in tables)],
        ["median cosine with the nearest", *(number(t.nearest_cosine) for t in tables)],
        ["effective rank", *(number(t.effective_rank, 1) for t in tables)],
        ["variance in 64 dimensions", *(share(t.share_of_64) for t in tables)],
    ]
    if tables[0].likeliest is not None:
        rows += [
            ["nearest to the posterior mean is the likeliest", *(share(t.likeliest) for t in tables)],
            ["its probability", *(share(t.expected) for t in tables)],
            ["probability of the likeliest", *(share(t.best) for t in tables)],
        ]
    return rows
