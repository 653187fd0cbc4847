"""The source phrases of lines to translate: from the segmenter of the model, which may need parse trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from phraseloom.decoding.batching import Piece
from phraseloom.decoding.long_lines import crop, encode
from phraseloom.errors import UsageError, plural
from phraseloom.phrases.source import Segmenter, cut_sizes, segment_lines
from phraseloom.text.tokenizer import Side

TREES = "trees"  # name of the caller's trees in messages


def needs_phrases(model: Any) -> bool:
    """Whether a model reads phrases that the length of the source does not determine."""
    return bool(getattr(model, "needs_phrases", False))


def require_trees(model: Any, segmenter: Segmenter | None, given: bool) -> None:
    """Raise UsageError if parse trees are missing for a model that needs them, or given for one that does not."""
    if needs_phrases(model) and segmenter is None:
        raise UsageError("this model needs source phrases, and its folder has no segmenter that makes them")
    needed = segmenter is not None and segmenter.needs_trees
    if needed and not given:
        raise UsageError(
            "this model needs parse trees to find source phrases",
            hint="give the trees of the source: --trees FILE (heatmap: --tree TREE), or trees=[…] "
            "(phraseloom phrases parse makes some)",
        )
    if given and not needed:
        why = "reads no phrases of parse trees" if segmenter is None else f"takes its phrases from: {segmenter}"
        raise UsageError(f"trees are given, but this model {why}", hint="leave them out")


def phrases_of(
    segmenter: Segmenter | None, side: Side, lines: Sequence[str], ids: list[list[int]], trees: Sequence[str] | None
) -> list[list[int]] | None:
    """The sizes of the phrases of each line, from its subword ids; None without a segmenter.

    Raises UsageError if the numbers of lines and trees differ, DataError if a tree does not fit its line (line from 1).
    """
    if trees is not None and len(trees) != len(lines):
        raise UsageError(f"{plural(len(lines), 'line')}, but {plural(len(trees), 'tree')}")
    if segmenter is None:
        return None
    return segment_lines(segmenter, side, list(lines), ids, None if trees is None else list(trees), file=TREES)


def cropped_sources(
    translator: Any, lines: Sequence[str], trees: Sequence[str] | None
) -> tuple[list[list[int]], list[list[int]] | None, list[bool]]:
    """The ids of raw lines cropped to `max_input_tokens`, the sizes of their phrases (None for a model that needs none), and
    which were cropped. Raises as `Translator.phrases_of`."""
    limit = translator.config.max_input_tokens
    side = translator.tokenizer.source
    ids = encode(side, lines, limit) if translator.segmenter is None else side.encode_batch(list(lines))
    sizes = translator.phrases_of(lines, ids, trees)
    ids, cropped = crop(ids, limit)
    if tags := translator.tokenizer.tag_ids(translator.config.tags):
        ids = [[*tags, *line] if line else line for line in ids]
    if sizes is not None:
        sizes = [cut_sizes(n, 0, limit) if is_cropped else n for n, is_cropped in zip(sizes, cropped, strict=True)]
    return ids, sizes, cropped


def with_phrases(pieces: list[Piece], sizes: list[int]) -> list[Piece]:
    """The pieces of a line with their phrases, from the phrases of the line; a cut of the line also cuts its phrase."""
    return [replace(piece, phrases=_of_piece(piece, sizes)) for piece in pieces]


def _of_piece(piece: Piece, sizes: list[int]) -> list[int]:
    if len(piece.ids) + 1 == sum(sizes):
        return sizes
    return cut_sizes(sizes, piece.first_id, piece.first_id + len(piece.ids))
