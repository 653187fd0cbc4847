"""Count what `prepare` leaves out, and print the summary of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from phraseloom.data.encode import Chunk, EncodedChunk, RawChunk
from phraseloom.data.mixture import mixture_of
from phraseloom.data.shards import REASONS, Dropped, FileInfo, Index, NoTree, SplitInfo, VectorInfo, WordInfo
from phraseloom.errors import escape_controls, plural
from phraseloom.options.data import AnyFilter
from phraseloom.text.lines import LineReport
from phraseloom.text.vector_check import LOW_COVERAGE, OTHER_VECTORS, remedy


class Tally:
    """Counts pairs that are left out, blank or long; chunks must come in order."""

    def __init__(self, files: list[FileInfo], filters: AnyFilter | None, *, longest: int) -> None:
        self.files, self.filters, self.longest = files, filters, longest
        self.no_tree: NoTree | None = None
        self.blank: Dropped | None = None
        self.long: Dropped | None = None
        self._dropped: dict[str, Dropped] = {}

    @property
    def dropped(self) -> dict[str, Dropped]:
        """The pairs left out by reason, in the order of REASONS."""
        return {reason: self._dropped[reason] for reason in REASONS if reason in self._dropped}

    def count(
        self, chunk: Chunk | RawChunk, encoded: EncodedChunk, repeated: npt.NDArray[np.bool_] | None = None
    ) -> EncodedChunk:
        """Count the pairs that a chunk lost and its lines without a tree; return the chunk without the `repeated` pairs."""
        self._count_trees(chunk, encoded.no_tree)
        if self.filters is None:
            self._count_blank(chunk, encoded)
            self._count_long(chunk, encoded)
        if repeated is not None and repeated.any():
            encoded.dropped["duplicate"] = [int(i) for i in encoded.lines[repeated]]
            encoded = encoded.keep(~repeated)
        for reason, places in encoded.dropped.items():
            self._dropped[reason] = self._more(self._dropped.get(reason), chunk, places)
        return encoded

    def _more(self, old: Dropped | None, chunk: Chunk | RawChunk, places: list[int]) -> Dropped:
        if old is None:
            old = Dropped(pairs=0, first_file=self.files[chunk.file].name, first_line=chunk.first + places[0])
        return old.model_copy(update={"pairs": old.pairs + len(places)})

    def _count_blank(self, chunk: Chunk | RawChunk, encoded: EncodedChunk) -> None:
        """Count pairs without tokens on a side that the files have."""
        source, target = encoded.lengths[:2]
        blank = (target == 0) | ((source == 0) & bool(self.files[chunk.file].source))
        places = [int(i) for i in encoded.lines[blank]]
        if places:
            self.blank = self._more(self.blank, chunk, places)

    def _count_long(self, chunk: Chunk | RawChunk, encoded: EncodedChunk) -> None:
        """Count pairs with a side that validation crops."""
        long = np.maximum(*encoded.lengths[:2]) > self.longest
        places = [int(i) for i in encoded.lines[long]]
        if places:
            self.long = self._more(self.long, chunk, places)

    def _count_trees(self, chunk: Chunk | RawChunk, places: list[int]) -> None:
        """Count non-blank lines without a tree, including those of pairs that are left out."""
        if places:
            name = self.files[chunk.file].trees or ""
            old = self.no_tree or NoTree(lines=0, first_file=name, first_line=chunk.first + places[0])
            self.no_tree = old.model_copy(update={"lines": old.lines + len(places)})


def table(index: Index, *, learned: bool = False) -> str:
    """The summary of a dataset as text: pairs and tokens of each split, then everything left out and everything changed.

    `learned`: `prepare` itself learned the vectors (`data.target_phrases`), which changes the advice on them.
    """
    words, unit = index.subwords, "line" if index.is_text else "pair"
    tokens = "subwords" if words.target_words is None else "words"
    source_tokens = "subwords" if words.source_words is None else "words"
    rows = [["split", f"{unit}s read", f"{unit}s kept", f"source {source_tokens}", f"target {tokens}"]]
    rows += [
        [name, f"{s.read:,}", f"{s.pairs:,}", f"{s.source_tokens:,}", f"{s.target_tokens:,}"]
        for name, s in index.splits.items()
    ]
    if index.is_text:
        rows = [[*row[:3], row[4].removeprefix("target ")] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
        for r in rows
    ]
    for split in index.splits.values():
        lines += [*_left_out(split, index.reasons, unit), *_changed(split)]
    for name, split in index.splits.items():
        lines += [
            *_blank(name, split, unit),
            *_long(name, split, unit, index.valid_tokens),
            *_phrases(name, split),
            *_unknown(name, split, index.is_text),
        ]
    if "valid" not in index.splits:
        lines.append("there is no validation text: phraseloom train needs data.valid")
    mixture = mixture_of(index)
    lines += [] if mixture is None else mixture.description(unit)
    sizes = f"{words.target_vocabulary:,}"
    if not index.is_text:
        sizes = f"{words.source_vocabulary:,} source, {words.target_vocabulary:,} target"
    origin = f"learned on {plural(words.sample_pairs, unit)}"
    if words.reused:
        added = f" and {plural(words.new_pieces, 'new piece')} {origin}" if words.new_pieces is not None else ""
        origin = f"of data.tokenizer{added}"
    lines.append(f"{tokens} {origin}; vocabulary: {sizes}")
    if words.source_words is not None and not index.is_text:
        lines.append("source" + _learned(words.source_words))
    if words.target_words is not None:
        lines.append(("text" if index.is_text else "target") + _learned(words.target_words))
        lines += _without_vector(words.target_words)
    if words.target_vectors is not None:
        done = {name: bool(index.config["subwords"].get(name)) for name in ("center", "whiten")}
        lines += _vectors(words.target_vectors, remedy(**done, learned=learned))
    return "\n".join(lines)


def _left_out(split: SplitInfo, reasons: Mapping[str, str], unit: str) -> Iterator[str]:
    for reason, dropped in split.dropped.items():
        place = f"{dropped.first_file}:{dropped.first_line}"
        yield f"left out {plural(dropped.pairs, unit)}: {reasons.get(reason, reason)} (first: {place})"


def _changed(split: SplitInfo) -> Iterator[str]:
    for file in split.files:
        reports = (
            (file.source, file.source_report),
            (file.target, file.target_report),
            (file.trees, file.trees_report),
            (file.links, file.links_report),
        )
        for name, report in reports:
            yield from (f"{name}: {change}" for change in LineReport(**(report or {})).changes())


def _blank(name: str, split: SplitInfo, unit: str) -> Iterator[str]:
    if split.blank is not None:
        count = split.blank.pairs
        what = plural(count, "blank line") if unit == "line" else f"{plural(count, 'pair')} with a blank side"
        place = f"{split.blank.first_file}:{split.blank.first_line}"
        yield f"warning: {name} has {what}, which are kept (first: {place})"


def _long(name: str, split: SplitInfo, unit: str, limit: int) -> Iterator[str]:
    if split.long is not None:
        place = f"{split.long.first_file}:{split.long.first_line}"
        what = f"{plural(split.long.pairs, unit)} of more than {limit:,} subwords"
        yield f"warning: {name} has {what}, which validation and the model crop (first: {place})"


def _phrases(name: str, split: SplitInfo) -> Iterator[str]:
    if split.source_phrases is not None:
        tokens = split.source_tokens + split.pairs  # including EOS
        mean = tokens / max(1, split.source_phrases)
        yield f"{name}: {plural(split.source_phrases, 'source phrase')} of {mean:.2f} subwords on average"
    if split.links is not None:
        yield f"{name}: {plural(split.links, 'link')} between subwords"
    if split.no_tree is not None:
        place = f"{split.no_tree.first_file}:{split.no_tree.first_line}"
        lines = plural(split.no_tree.lines, "line")
        yield f"{name}: {lines} without a parse tree, used as flat trees (first: {place})"


def _unknown(name: str, split: SplitInfo, is_text: bool) -> Iterator[str]:
    sides = [("", split.target_unknown, split.target_tokens)]
    if not is_text:
        sides = [("source ", split.source_unknown, split.source_tokens), ("target ", *sides[0][1:])]
    pieces = "words" if split.unknown_words is None else "subwords"
    counts = [f"{_share(n, tokens)} {side}{pieces}" for side, n, tokens in sides if n is not None]
    if counts:
        examples = ", ".join(escape_controls(word[:40]) for word in split.unknown_words or ())
        examples = f"; words with unknown pieces: {examples}" if examples else ""
        yield f"{name}: unknown are {' and '.join(counts)}{examples}"


def _learned(words: WordInfo) -> str:
    split = f"; {plural(words.split_types, 'phrase')} ({words.split_tokens:,} times) are read as their words"
    return (
        f": unknown are {_share(words.unknown_types, words.types)} different words and "
        f"{_share(words.unknown_tokens, words.tokens)} words{split if words.split_types else ''}"
    )


def _without_vector(words: WordInfo) -> Iterator[str]:
    lacking = words.without_vector
    if lacking is not None and 1 - lacking / max(1, words.tokens) < LOW_COVERAGE:
        yield f"warning: target: {_share(lacking, words.tokens)} words have no vector: {OTHER_VECTORS}"


def _vectors(found: VectorInfo, advice: str) -> Iterator[str]:
    parts = []
    if found.effective_rank is not None:
        parts = [
            f"effective rank {found.effective_rank:.1f}",
            f"{found.share_of_64:.0%} of the variance in 64 dimensions",
        ]
    if found.mean_cosine is not None and found.nearest_cosine is not None:
        of_nearest = f"median cosine with the nearest {found.nearest_cosine:.2f}"
        parts = [f"mean cosine {found.mean_cosine:z.2f}", of_nearest, *parts]
    if found.likeliest is not None and found.random_likeliest is not None:
        what = f"the vector nearest to the posterior mean is the likeliest in {found.likeliest:.0%}"
        parts.append(f"{what} (random vectors {found.random_likeliest:.0%})")
    yield f"target vectors: {', '.join(parts) or 'one'}"
    yield from (f"warning: target vectors: {fault}" for fault in found.problems)
    if found.problems:
        yield f"warning: target vectors: {advice}"


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({100 * part / max(1, whole):.1f} %)"
