"""The option `--by-sentence` of the verbs whose numbers are means over sentences."""

from __future__ import annotations

from typing import Annotated

import typer

from phraseloom.errors import UsageError

BySentence = Annotated[
    bool,
    typer.Option(
        "--by-sentence",
        help="Add to the JSON the numerator and denominator of each number per sentence, for resampling.",
    ),
]


def require_json(by_sentence: bool, is_json: bool, option: str) -> None:
    """Raise UsageError where there is no JSON to hold them."""
    if by_sentence and not is_json:
        raise UsageError(f"--by-sentence needs {option}: that is where it writes")
