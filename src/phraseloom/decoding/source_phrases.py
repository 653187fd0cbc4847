"""The phrases of the lines that a translator is given: by the segmenter of its model, of parse trees where it needs these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from phraseloom.decoding.batching import Piece
from phraseloom.decoding.long_lines import crop, encode
from phraseloom.errors import UsageError, plural
from phraseloom.phrases.source import Segmenter, cut_sizes, segment_lines
from phraseloom.text.tokenizer import Side

TREES = "trees"  # what messages call the trees that a caller gave


def needs_phrases(model: Any) -> bool:
    """Whether a model reads phrases that do not follow from the length of the source."""
    return bool(getattr(model, "needs_phrases", False))


def require_trees(model: Any, segmenter: Segmenter | None, given: bool) -> None:
    """UsageError unless parse trees are given exactly where the phrases of the model are made of them."""
    if needs_phrases(model) and segmenter is None:
        raise UsageError(
            "this model reads phrases of its training data, and came without the segmenter that makes them"
        )
    wanted = segmenter is not None and segmenter.needs_trees
    if wanted and not given:
        raise UsageError(
            "the phrases of this model are made of parse trees",
            hint="give the trees of the source: --trees FILE, or trees=[…] (phraseloom phrases parse makes some)",
        )
    if given and not wanted:
        why = "reads no phrases of parse trees" if segmenter is None else f"takes its phrases from: {segmenter}"
        raise UsageError(f"trees are given (--trees), but this model {why}")


def phrases_of(
    segmenter: Segmenter | None, side: Side, lines: Sequence[str], ids: list[list[int]], trees: Sequence[str] | None
) -> list[list[int]] | None:
    """The sizes of the phrases of each line, given its subword ids; None without segmenter.

    Raises UsageError where the numbers of lines differ, DataError where a tree does not fit its line (line from 1).
    """
    if trees is not None and len(trees) != len(lines):
        raise UsageError(f"{plural(len(lines), 'line')}, but {plural(len(trees), 'tree')}")
    if segmenter is None:
        return None
    return segment_lines(segmenter, side, list(lines), ids, None if trees is None else list(trees), file=TREES)


def cropped_sources(
    translator: Any, lines: Sequence[str], trees: Sequence[str] | None
) -> tuple[list[list[int]], list[list[int]] | None, list[bool]]:
    """The ids of raw lines without what is beyond `max_input_tokens`, the sizes of their phrases (None for a model that needs
    none), and which were cropped. Raises as `Translator.phrases_of`."""
    limit = translator.config.max_input_tokens
    side = translator.tokenizer.source
    ids = encode(side, lines, limit) if translator.segmenter is None else side.encode_batch(list(lines))
    sizes = translator.phrases_of(lines, ids, trees)
    kept, cropped = crop(ids, limit)
    if sizes is not None:
        sizes = [cut_sizes(n, 0, limit) if is_cropped else n for n, is_cropped in zip(sizes, cropped, strict=True)]
    return kept, sizes, cropped


def with_phrases(pieces: list[Piece], sizes: list[int]) -> list[Piece]:
    """The pieces of a line with their phrases, from those of the line; a phrase is cut where the line is."""
    return [replace(piece, phrases=_of_piece(piece, sizes)) for piece in pieces]


def _of_piece(piece: Piece, sizes: list[int]) -> list[int]:
    if len(piece.ids) + 1 == sum(sizes):
        return sizes
    return cut_sizes(sizes, piece.first_id, piece.first_id + len(piece.ids))
