"""What a request says of the words of its translations (docs/decoding.md).

`constraints`: one object, or a list with an object or null for each text. `terms`: one object of source and target phrases for
all texts, in place of the table of the server.
"""

from __future__ import annotations

from typing import Any

from phraseloom.decoding.constraints import Constraints, read_constraints
from phraseloom.decoding.terms import Terms
from phraseloom.errors import DataError, plural
from phraseloom.options.serving import ServingConfig
from phraseloom.serving.message import Problem
from phraseloom.serving.protocol import Fields


def constraints_of(fields: Fields, count: int, config: ServingConfig) -> list[Constraints] | None:
    """The constraints of each of `count` texts, None if the request has none. Problem 400 for bad ones."""

    def read(value: Any) -> list[Constraints]:
        values = value if isinstance(value, list) else [value]
        if len(values) != count:
            raise Problem(400, f"constraints: {len(values)} for {plural(count, 'text')}")
        return [
            _read(own, f"constraints {n}" if isinstance(value, list) else "constraints", config)
            for n, own in enumerate(values, 1)
        ]

    return fields.read("constraints", read)


def _read(value: Any, place: str, config: ServingConfig) -> Constraints:
    if isinstance(value, str):
        raise Problem(400, f"{place}: an object is needed, not a text")
    lists = [value.get(key) for key in ("include", "exclude")] if isinstance(value, dict) else []
    phrases = [phrase for found in lists if isinstance(found, list) for phrase in found]
    if len(phrases) > config.max_phrases:  # before they are compared with each other
        limit = f"max_phrases = {config.max_phrases}"
        raise Problem(400, f"{place}: {len(phrases)} phrases are above the limit of this server, {limit}")
    longest = max((len(phrase) for phrase in phrases if isinstance(phrase, str)), default=0)
    if longest > config.max_phrase_characters:
        limit = f"max_phrase_characters = {config.max_phrase_characters}"
        raise Problem(400, f"{place}: a phrase of {longest} characters is above the limit of this server, {limit}")
    try:
        return read_constraints(value, 1)
    except DataError as error:
        raise Problem(400, f"{place}: {error.what[:200]}") from error


def terms_of(fields: Fields, config: ServingConfig) -> Terms | None:
    """The terms of a request, None if it has none. Problem 400 for bad ones."""
    table = fields.table(
        "terms",
        most=config.max_terms,
        most_name="max_terms",
        characters=config.max_phrase_characters,
        characters_name="max_phrase_characters",
    )
    try:
        return None if table is None else Terms.of(table)
    except DataError as error:
        raise Problem(400, f"terms {error.line}: {error.what[:200]}") from error
