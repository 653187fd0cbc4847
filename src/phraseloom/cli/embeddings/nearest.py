"""`phraseloom embeddings nearest`: the nearest tokens of a file of vectors."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.options import JsonFile, Vectors
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.errors import DataError

if TYPE_CHECKING:
    from phraseloom.text.vectors import VectorNeighbour

SEARCHED = 200_000  # tokens searched for a similar spelling


def command(
    file: Vectors,
    tokens: Annotated[list[str], typer.Argument(metavar="TOKEN", help="Words, or phrases such as quality_of_life.")],
    count: Annotated[int, typer.Option("-k", "--count", min=1, help="Number of neighbours per token.")] = 10,
    phrases_only: Annotated[
        bool, typer.Option("--phrases-only", help="Print only neighbours that are phrases.")
    ] = False,
    json: JsonFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Print the tokens whose vectors have the largest cosine to the vector of a token.

    A token with spaces, "quality of life", means the phrase. The file can come from embeddings train, fastText or
    word2vec. The whole file is read: 4 bytes of memory per number.

    Example: phraseloom embeddings nearest en.vec went quality_of_life -k 5
    """
    from phraseloom.report.markup import terminal
    from phraseloom.text.vectors import nearest, read_vectors
    from phraseloom.text.words import is_phrase

    check_outputs({"--json": json}, inputs=[file], overwrite=overwrite)
    vectors = read_vectors(file)
    requested = list(dict.fromkeys(_token(text) for text in tokens))
    rows = _rows(vectors.tokens, requested, file)
    candidates = [row for row, token in enumerate(vectors.tokens) if not phrases_only or is_phrase(token)]
    neighbours_of = dict(zip(requested, nearest(vectors, rows, count, candidates), strict=True))
    print(
        terminal(
            ["token", "neighbour", "cosine"],
            [row for token, nearby in neighbours_of.items() for row in _table(token, nearby)],
        )
    )
    if json is not None:
        from phraseloom import results

        neighbours = {
            token: [[neighbour.token, neighbour.cosine] for neighbour in nearby]
            for token, nearby in neighbours_of.items()
        }
        options = {"file": str(file), "count": count, "phrases_only": phrases_only}
        results.write(json, results.NearestResult.model_validate({**options, "neighbours": neighbours}))


def _token(text: str) -> str:
    from phraseloom.text.words import join

    words = [word for word in text.split(" ") if word]
    return join(words) if len(words) > 1 else text


def _rows(tokens: Sequence[str], requested: Sequence[str], file: Path) -> list[int]:
    places = {token: row for row, token in enumerate(tokens)}
    for token in requested:
        if token not in places:
            near = difflib.get_close_matches(token, tokens, n=3) if len(tokens) <= SEARCHED else []
            raise DataError(
                f"no vector of {token!r}", file=file, hint=f"did you mean {', '.join(near)}?" if near else None
            )
    return [places[token] for token in requested]


def _table(token: str, neighbours: Sequence[VectorNeighbour]) -> Iterator[list[object]]:
    if not neighbours:
        yield [token, None, None]
    for number, neighbour in enumerate(neighbours):
        yield [None if number else token, neighbour.token, f"{neighbour.cosine:.3f}"]
