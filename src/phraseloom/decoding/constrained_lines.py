"""The constraints of lines: from the caller and from a table of terms, checked before the search; and the final check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from phraseloom.decoding.batching import Piece
from phraseloom.decoding.constraint_tracker import ConstraintTracker, spellings
from phraseloom.decoding.constraints import FILE, Constraints, read_constraints
from phraseloom.decoding.terms import Terms
from phraseloom.decoding.translation import Translation
from phraseloom.errors import DataError, UsageError, plural
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.tokenizer import Side, Tokenizer


def check_model(model: Any, config: DecodingConfig) -> None:
    """Raise UsageError for a model, or an option, that cannot keep constraints."""
    if model.writes != "tokens":
        raise UsageError(f"constraints need a model that writes tokens; this one writes {model.writes} (NPMT)")
    for name, on in (
        ("sample", config.sample),
        ("mbr", config.mbr),
        ("no_repeat_ngram_size", config.no_repeat_ngram_size),
    ):
        if on:
            raise UsageError(f"constraints are kept by beam search, without {name}", hint=f"leave out {name}")
    if config.unknown == "replace":
        raise UsageError(
            "constraints do not go with unknown: replace, which changes words after the search",
            hint="choose unknown: forbid",
        )


def check_terms(tokenizer: Tokenizer, terms: Terms) -> Terms:
    """The terms. Raises DataError (file, line) for one that the vocabulary cannot spell."""
    for term in terms.fitted(tokenizer).terms.values():
        _spellings(tokenizer.target, term.target, str(terms.path), term.line)
    return terms


def _spellings(side: Side, phrase: str, file: str, line: int) -> list[tuple[int, ...]]:
    ways = spellings(side, phrase)
    if not ways:
        raise DataError(
            f"the vocabulary of this model cannot spell {phrase!r}",
            file=file,
            line=line,
            hint="remove it, or write it as the training text does",
        )
    return ways


def with_constraints(
    tokenizer: Tokenizer,
    lines: Sequence[str],
    cut: list[list[Piece]],
    constraints: Sequence[Any] | None,
    terms: Terms | Sequence[Terms | None] | None,
    config: DecodingConfig,
    numbers: Sequence[int] | None = None,
) -> tuple[list[list[Piece]], list[Constraints]]:
    """The pieces of each line with a tracker if the line has constraints, and the constraints of each line.

    `constraints`: see `read_constraints`, one per line. `terms`: one table for all lines, or one per line; they are matched in
    the part of a line that is translated. `numbers`: those of the lines in the whole input, from 0, for messages. Raises
    UsageError if there are not as many as lines; DataError (line) for constraints that cannot be met, also because the line is
    blank or split.
    """
    values = list(constraints) if constraints is not None else [None] * len(lines)
    if len(values) != len(lines):
        raise UsageError(f"{plural(len(lines), 'line')}, but constraints for {len(values)}")
    if isinstance(terms, Mapping | str | Path):
        raise UsageError(
            "terms is no table of terms", hint="use translator.read_terms(FILE) or Terms.of({source: target})"
        )
    tables = [terms] * len(lines) if terms is None or isinstance(terms, Terms) else list(terms)
    if not all(table is None or isinstance(table, Terms) for table in tables):
        raise UsageError("terms has items that are no tables of terms", hint="use translator.read_terms(FILE)")
    if len(tables) != len(lines):
        raise UsageError(f"{plural(len(lines), 'line')}, but tables of terms for {len(tables)}")
    numbers = range(len(lines)) if numbers is None else numbers
    read = [read_constraints(value, number, tokenizer.target.written) for number, value in enumerate(values, 1)]
    result: list[list[Piece]] = []
    for number, (line, pieces, own, table) in enumerate(zip(lines, cut, read, tables, strict=True), 1):
        in_input = numbers[number - 1] + 1
        if table is not None and pieces:
            whole = len(tokenizer.source.encode(line)) == sum(len(piece.ids) - piece.tags for piece in pieces)
            text = line if whole else tokenizer.source.decode(pieces[0].ids)
            found = table.fitted(tokenizer).matches(tokenizer.source.characters(text))
        else:
            found = []
        places = dict.fromkeys(own.include, (FILE, number))
        for term in found if table is not None else ():
            places.setdefault(term.target, (str(table.path), term.line))  # type: ignore[union-attr]
        read[number - 1] = own = replace(own, include=tuple(places))
        if own.include and not pieces:
            hint = "remove its constraints"
            raise DataError("the line is blank, and so is its translation", file=FILE, line=number, hint=hint)
        if pieces and (own.include or own.exclude):
            if len(pieces) > 1:
                hint = "use long_lines: crop, or shorten it"
                file, place = next(iter(places.values()), (FILE, number))
                if file == FILE or own.exclude:
                    raise DataError("a line with constraints cannot be split", file=FILE, line=number, hint=hint)
                what = f"line {in_input} has this term and cannot be split"
                raise DataError(what, file=file, line=place, hint=hint)
            pieces = [_constrained(tokenizer.target, pieces[0], own, places, config, in_input)]
        result.append(pieces)
    return result, read


def _constrained(
    side: Side,
    piece: Piece,
    constraints: Constraints,
    places: dict[str, tuple[str, int]],
    config: DecodingConfig,
    line: int,
) -> Piece:
    """The piece with its tracker; `line` is the number of its line in the whole input, not in its window. Raises DataError at
    the place (file, line) of a phrase that cannot be met."""
    longest = config.max_length.of(len(piece.ids))
    required = []
    for phrase, (file, number) in places.items():
        if forbidden := constraints.forbidden_in(phrase):
            raise DataError(
                f"{phrase!r} is required in line {line} and contains {forbidden!r}, which is forbidden there",
                file=file,
                line=number,
                hint="remove one of the two",
            )
        ways = _spellings(side, phrase, file, number)
        if len(ways[0]) > longest:
            raise DataError(
                f"{phrase!r} has {len(ways[0])} subwords, but the translation of line {line} at most {longest}",
                file=file,
                line=number,
                hint="shorten it, or raise max_length",
            )
        required.append(ways)
    tracker = ConstraintTracker(side, constraints, required, piece.begun)
    if piece.prefix and tracker.extend_all(piece.prefix).is_dead:
        hint = "change one of the two"
        raise DataError("the forced prefix contains a forbidden phrase", file=FILE, line=piece.line + 1, hint=hint)
    return replace(piece, tracker=tracker)


def checked(translation: Translation, constraints: Constraints) -> Translation:
    """The translation and its alternatives with the constraints that their texts do not meet."""
    if not constraints.include and not constraints.exclude:
        return translation
    others = [checked(other, constraints) for other in translation.alternatives]
    return replace(translation, unmet=constraints.unmet(translation.text), alternatives=others)
