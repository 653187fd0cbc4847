"""Lines above the limit of a model; the rule is the same in every command (docs/decoding.md, "Long lines").

A source has at most `max_input_tokens` subwords, a given target at most `max_target_tokens` (`DecodingConfig`): the longest
that the model could write. A longer line is cropped: its end is ignored. Commands report the number of cropped lines and the
first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phraseloom.errors import DataError

if TYPE_CHECKING:
    from phraseloom.decoding.batching import Piece

PREFIXES = "prefixes"  # the name of forced prefixes in messages


def crop(ids: Sequence[list[int]], limit: int) -> tuple[list[list[int]], list[bool]]:
    """The first `limit` subwords of each line, and whether it was longer."""
    return [line[:limit] for line in ids], [len(line) > limit for line in ids]


def encode(side: Any, lines: Sequence[str], limit: int) -> list[list[int]]:
    """The ids of raw lines; of a far too long line only the beginning, but more than `limit` ids."""
    characters = 4 * limit * side.subwords.longest_piece  # normalisation may shorten a line
    ids: list[list[int]] = side.encode_batch([line[:characters] for line in lines])
    for number, line in enumerate(lines):
        if len(line) > characters and len(ids[number]) <= limit:
            ids[number] = side.encode(line)
    return ids


def crop_targets(translator: Any, targets: Sequence[str]) -> tuple[list[list[int]], list[bool]]:
    """The ids of given targets, cropped, and which of them were cropped."""
    limit = translator.config.max_target_tokens
    return crop(encode(translator.tokenizer.target, targets, limit), limit)


def refuse_long_prefixes(pieces: Sequence[Piece], limit: int, max_segment: int | None = None) -> None:
    """Raise DataError (line from 1) for a prefix above the limit: a cropped prefix would change the request.

    `pieces`: the first of each line, with tags. `max_segment`: the most subwords that a source subword of a segmental model
    writes, so a prefix above what the source can write has no probability.
    """
    for piece in pieces:
        size = len(piece.prefix)
        if size > limit:
            hint = "shorten it, or raise max_length or max_input_tokens"
            what = f"a prefix of {size:,} subwords; this model takes at most {limit:,}"
            raise DataError(what, file=PREFIXES, line=piece.line + 1, hint=hint)
        if max_segment is not None and size > len(piece.ids) * max_segment:
            hint = f"each source subword writes at most {max_segment}; shorten the prefix"
            what = f"a prefix of {size:,} subwords, but {len(piece.ids):,} source subwords write at most "
            what += f"{len(piece.ids) * max_segment:,}"
            raise DataError(what, file=PREFIXES, line=piece.line + 1, hint=hint)


@dataclass
class CroppedLines:
    """Counts the cropped lines of a text of `noun`s (such as "pair"), and stores the number of the first."""

    noun: str
    lines: int = 0
    cropped: int = 0
    first: int = 0

    def note(self, cropped: bool) -> None:
        """Count the next line."""
        self.lines += 1
        if cropped:
            self.cropped, self.first = self.cropped + 1, self.first or self.lines

    def warnings(self, config: Any) -> list[str]:
        """One sentence if lines were cropped; `config` has the limits."""
        source, target = config.max_input_tokens, getattr(config, "max_target_tokens", None)
        limit = f"{source} subwords" if target is None else f"{source} source or {target} target subwords"
        text = f"longer than {limit}: the end was left out (first: line {self.first})"
        return [f"{self.cropped} of {self.lines} {self.noun}s {text}"] if self.cropped else []
