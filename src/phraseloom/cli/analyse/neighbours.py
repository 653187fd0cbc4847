"""`phraseloom analyse neighbours`: the nearest neighbours of embeddings, of one model or two, as in Table 2 of paper 004."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.options import once
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.parallel import naming
from phraseloom.errors import UsageError, plural
from phraseloom.text.lines import read_lines

if TYPE_CHECKING:
    from phraseloom.analysis.neighbours import Neighbours, Token
    from phraseloom.results import NeighboursResult


Of = Literal["source", "target"]


def command(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL", help="One or two model folders, run folders (best checkpoint) or checkpoints."),
    ],
    side: Annotated[Of, typer.Option(help="Which embeddings.")] = "source",
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Number of tokens.")] = 150,
    neighbours: Annotated[int, typer.Option(min=1, metavar="K", help="Neighbours per token.")] = 5,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Raw text of that side (plain, .gz, .xz); its most frequent tokens are used."
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all results as one JSON object.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot cosines, and the agreement of two models: .png, .svg or .pdf."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Print the tokens with the largest cosine to frequent tokens, by embedding.

    Special symbols are left out. With two models, a * marks a neighbour that only one of them has. The overlap is
    the share of common neighbours; the value for random neighbours is printed with it. If the vocabularies differ,
    models are compared on the pieces that both have. Without --text, the tokens are the first of the vocabulary.

    Example: phraseloom analyse neighbours runs/base runs/noenc --text train.en --plot neighbours.svg
    """
    if len(models) > 2:
        raise UsageError(f"give one or two models, not {len(models)}")
    once(models)
    check_outputs({"--json": json, "--plot": plot}, inputs=[*models, text], overwrite=overwrite)
    if plot is not None:
        from phraseloom.report.charts.picture import can_draw

        can_draw(plot)
    from phraseloom.analysis.neighbours import TEXT, compare, load_embeddings

    lines = None if text is None else list(read_lines(text, invalid="stop"))
    embeddings = [load_embeddings(path, side) for path in models]
    with naming(TEXT, text):
        result = compare(embeddings, tokens=tokens, count=neighbours, lines=lines)
    print("\n".join(_text(result, side, "the vocabulary" if text is None else str(text))))
    if json is not None:
        from phraseloom import results

        results.write(json, _result(result, side, text))
    if plot is not None:
        from phraseloom.report.charts.neighbours import draw

        draw(result, plot, title=f"Neighbours of {plural(len(result.tokens), f'{side} token')}")


def _text(result: Neighbours, side: str, origin: str) -> Iterator[str]:
    from phraseloom.report.markup import terminal

    two = len(result.models) == 2
    first = "the first" if result.tokens[0].count is None else "the most frequent"
    among = "that both models have" if two else "of the vocabulary"
    tokens = plural(len(result.tokens), f"{side} token")
    yield f"{tokens}, {first} of {origin}; neighbours among {result.candidates:,} pieces {among}"
    if result.zero:
        yield f"left out: {result.zero:,} pieces whose vector is zero"
    counted = result.tokens[0].count is not None
    headers = ["token", *["count"] * counted, *["shared"] * two, *(result.models if two else ["neighbours (cosine)"])]
    yield ""
    yield terminal(headers, [_row(token, two=two, counted=counted) for token in result.tokens])
    if two:
        yield ""
        yield f"overlap {result.overlap:.3f} of {result.count} neighbours; by chance {result.chance:.2g}"
        named = (("Pearson", result.pearson), ("Spearman", result.spearman))
        values = [f"{name} {value:.3f}" for name, value in named if value is not None]
        if values:
            yield f"cosines of {plural(len(result.pairs[0]), 'pair')} of tokens: {', '.join(values)}"


def _row(token: Token, *, two: bool, counted: bool) -> list[object]:
    row: list[object] = [token.piece, *[token.count] * counted, *[token.shared] * two]
    if not two:
        return [*row, "  ".join(f"{n.piece} {n.cosine:.2f}" for n in token.neighbours[0])]
    for own, other in (token.neighbours, token.neighbours[::-1]):
        there = {n.piece for n in other}
        row.append(" ".join(n.piece if n.piece in there else f"*{n.piece}" for n in own))
    return row


def _result(result: Neighbours, side: str, text: Path | None) -> NeighboursResult:
    """Everything but the cosines of all pairs."""
    from phraseloom import results

    two = len(result.models) == 2
    tokens = [
        results.TokenNeighbours(
            piece=token.piece,
            count=token.count,
            **({"shared": token.shared} if two else {}),
            neighbours=[[[n.piece, n.cosine] for n in of_model] for of_model in token.neighbours],
        )
        for token in result.tokens
    ]
    agreement: dict[str, Any] = {
        "overlap": result.overlap,
        "chance": result.chance,
        "pairs": len(result.pairs[0]),
        "pearson": result.pearson,
        "spearman": result.spearman,
    }
    return results.NeighboursResult(
        side=side,
        text=None if text is None else str(text),
        models=result.models,
        neighbours=result.count,
        candidates=result.candidates,
        zero=result.zero,
        **(agreement if two else {}),
        tokens=tokens,
    )
