"""Encode chunks of raw pairs as filtered token arrays, in this process or in worker processes.

An encoded chunk also has the positions that were left out and why, and with a segmenter the source phrases of each pair.
Chunks come back in order; a worker that dies is an error.
"""

from __future__ import annotations

import functools
import gc
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phraseloom.align.links import parse_links
from phraseloom.data.workers import Workers
from phraseloom.errors import DataError
from phraseloom.options.data import AnyFilter, TextFilterConfig
from phraseloom.phrases.source import Segmenter, has_tree, load_segmenter, segment_lines, word_of_piece
from phraseloom.text.held_out import HeldOut
from phraseloom.text.lines import LineReport, split_region
from phraseloom.text.tokenizer import Side, Tokenizer


@dataclass(frozen=True)
class Chunk:
    """Raw pairs: the number of their file, the line of the first pair (from 1), and its number in the split (from 0).

    Text without a source has empty source lines. `trees` has one line per source line, and `tree_file` is their file. `tags`
    come before every source. `links` has a line of Pharaoh text per pair, and `link_file` is its file. `part`: the number of
    its part (`data/parts.py`).
    """

    file: int
    first: int
    base: int
    source: list[str]
    target: list[str]
    trees: list[str] | None = None
    tree_file: str | None = None
    tags: tuple[str, ...] = ()
    links: list[str] | None = None
    link_file: str | None = None
    part: int = 0


@dataclass(frozen=True)
class RawChunk:
    """The bytes of a chunk, so that a worker process decodes them. `texts` and `files`: the bytes and the file of each side.

    `has_links`: whether any file of the split has links. The others: see Chunk.
    """

    file: int
    first: int
    base: int
    pairs: int
    texts: dict[str, bytes]
    files: dict[str, Path]
    tags: tuple[str, ...] = ()
    has_links: bool = False
    part: int = 0

    def read(self) -> Chunk:
        """The chunk. Raises DataError for a line that is not UTF-8."""
        lines = {
            side: split_region(text, name=self.files[side], report=LineReport(lines=self.first - 1))
            for side, text in self.texts.items()
        }
        none = [""] * self.pairs
        return Chunk(
            self.file,
            self.first,
            self.base,
            lines.get("source", none),
            lines["target"],
            lines.get("trees"),
            str(self.files["trees"]) if "trees" in lines else None,
            self.tags,
            lines.get("links", none if self.has_links else None),
            str(self.files["links"]) if "links" in lines else None,
            self.part,
        )


@dataclass
class EncodedChunk:
    """A chunk after encoding. `lines` are positions in the chunk; `dropped` has the positions left out for each reason.

    `tokens` and `lengths` have one array each for source, target and, with phrases, the phrase sizes. `keys` holds a 128-bit
    hash of each remaining pair (dtype S16) if duplicates are removed. `no_tree`: positions of non-blank lines without a tree.
    """

    tokens: tuple[npt.NDArray[Any], ...]
    lengths: tuple[npt.NDArray[np.int32], ...]
    lines: npt.NDArray[np.int64]
    dropped: dict[str, list[int]] = field(default_factory=dict)
    keys: npt.NDArray[np.bytes_] | None = None
    no_tree: list[int] = field(default_factory=list)

    def keep(self, mask: npt.NDArray[np.bool_]) -> EncodedChunk:
        """The pairs where `mask` is True."""
        tokens = tuple(t[np.repeat(mask, n)] for t, n in zip(self.tokens, self.lengths, strict=True))
        lengths = tuple(n[mask] for n in self.lengths)
        keys = None if self.keys is None else self.keys[mask]
        return EncodedChunk(tokens, lengths, self.lines[mask], self.dropped, keys, self.no_tree)


@dataclass(frozen=True)
class Coder:
    """Encodes a chunk; every process has the same one. `held_out`: what training pairs must not have, if anything."""

    tokenizer: Tokenizer
    token_type: str
    segmenter: Segmenter | None = None
    held_out: HeldOut | None = None

    def encode(self, chunk: Chunk, filters: AnyFilter | None) -> EncodedChunk:
        """Encode a chunk. Without `filters` every pair stays (valid and test), and a blank line has no tokens.

        A TextFilterConfig filters by the target only. Raises DataError if a tree does not fit its line; trees of pairs that
        are left out are not checked.
        """
        with _without_collection():
            return self._encode(chunk, filters)

    def _encode(self, chunk: Chunk, filters: AnyFilter | None) -> EncodedChunk:
        source, target, tokenizer = chunk.source, chunk.target, self.tokenizer
        pairs = list(range(len(source)))
        dropped: dict[str, list[int]] = {}
        is_text = isinstance(filters, TextFilterConfig)
        if filters is not None:
            sides = {"target": target} if is_text else {"source": source, "target": target}
            held_out = None if self.held_out is None else self.held_out.found(sides)
            pairs = _encodable(tokenizer, target if is_text else source, target, filters, held_out, dropped)
        left, left_sizes = tokenizer.source.encode_flat([source[i] for i in pairs])
        right, right_sizes = tokenizer.target.encode_flat([target[i] for i in pairs])
        passed, sizes = np.ones(len(pairs), dtype=bool), (left_sizes, right_sizes)
        if filters is not None:
            passed = _passed(sizes[1] if is_text else sizes[0], sizes[1], pairs, filters, dropped)
        keys = None
        if filters is not None and filters.deduplicate:
            task = "".join(f"{tag}\n" for tag in chunk.tags)  # a pair with other tags is another example
            texts = (f"{task}{source[i]}\n{target[i]}".encode() for i in pairs)
            digests = [hashlib.blake2b(text, digest_size=16).digest() for text in texts]
            keys = np.array(digests, dtype="S16")
        tokens = (left.astype(self.token_type), right.astype(self.token_type))
        lines = np.array(pairs, dtype=np.int64)
        with_trees = zip(source, chunk.trees or (), strict=False)
        no_tree = [i for i, (line, tree) in enumerate(with_trees) if line.strip() and not has_tree(tree)]
        encoded = EncodedChunk(tokens, sizes, lines, dropped, keys, no_tree).keep(passed)
        links = None if chunk.links is None else _links(encoded, chunk, tokenizer)  # of the tokens without tags
        if chunk.tags:
            _add_tags(encoded, tokenizer.tag_ids(chunk.tags))
        if self.segmenter is not None:
            _add_phrases(encoded, chunk, tokenizer.source, self.segmenter)
        if links is not None:
            flat, counts = links
            flat[::2] += len(chunk.tags)
            encoded.tokens = (*encoded.tokens, flat.astype(np.uint16))
            encoded.lengths = (*encoded.lengths, counts)
        return encoded


@contextmanager
def _without_collection() -> Iterator[None]:
    """Spare the garbage collector the lists of a chunk, which it would visit again and again; none of them is in a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _links(
    encoded: EncodedChunk, chunk: Chunk, tokenizer: Tokenizer
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Source token and target token of each link between tokens, in turn, and twice the number of links of each pair.

    A link of words links all their tokens. Raises DataError (file, line), also for links of a pair that is left out.
    """
    assert chunk.links is not None
    words = [[sum(map(bool, text.split(" "))) for text in side] for side in (chunk.source, chunk.target)]
    links_of = [
        parse_links(text, file=chunk.link_file, line=chunk.first + n, lengths=(words[0][n], words[1][n]))
        if text.strip()
        else []
        for n, text in enumerate(chunk.links)
    ]
    flat: list[int] = []
    counts = np.zeros(len(encoded.lines), np.int32)
    ends = [np.cumsum(lengths, dtype=np.int64) for lengths in encoded.lengths]
    for row, number in enumerate(encoded.lines.tolist()):
        if not links_of[number]:
            continue
        texts = chunk.source[number], chunk.target[number]
        tokens: list[list[list[int]]] = []
        for k, side in enumerate((tokenizer.source, tokenizer.target)):
            own: list[list[int]] = [[] for _ in range(words[k][number])]
            ids = encoded.tokens[k][ends[k][row] - encoded.lengths[k][row] : ends[k][row]].tolist()
            try:
                word_of = word_of_piece(side, texts[k], ids)
            except DataError as error:
                raise DataError(error.what, file=chunk.link_file, line=chunk.first + number, hint=error.hint) from error
            for token, word in enumerate(word_of):
                own[word].append(token)
            tokens.append(own)
        places = sorted((t, s) for i, j in links_of[number] for s in tokens[0][i] for t in tokens[1][j])
        flat += [token for t, s in places for token in (s, t)]
        counts[row] = 2 * len(places)
    if max(flat, default=0) + len(chunk.tags) >= 2**16:
        raise DataError("a link of a token beyond the 65,535th of a line", file=chunk.link_file, hint="split the line")
    return np.array(flat, np.int64), counts


def _add_tags(encoded: EncodedChunk, tags: list[int]) -> None:
    """Write tags before every source that has tokens."""
    source, lengths = encoded.tokens[0], encoded.lengths[0]
    begins = (np.cumsum(lengths, dtype=np.int64) - lengths)[lengths > 0]
    tagged = np.insert(source, np.repeat(begins, len(tags)), np.tile(tags, len(begins)))
    longer = lengths + np.where(lengths > 0, len(tags), 0).astype(lengths.dtype)
    encoded.tokens, encoded.lengths = (tagged, *encoded.tokens[1:]), (longer, *encoded.lengths[1:])


def _add_phrases(encoded: EncodedChunk, chunk: Chunk, side: Side, segmenter: Segmenter) -> None:
    """Add the sizes of the source phrases of each remaining pair, as a third array."""
    lines = encoded.lines.tolist()
    ends = np.cumsum(encoded.lengths[0], dtype=np.int64)
    ids = [part.tolist() for part in np.split(encoded.tokens[0], ends[:-1])] if lines else []
    trees = None if chunk.trees is None else [chunk.trees[i] for i in lines]
    try:
        phrases = segment_lines(segmenter, side, [chunk.source[i] for i in lines], ids, trees)
    except DataError as error:  # its line counts the remaining pairs
        line = None if error.line is None else chunk.first + lines[error.line - 1]
        raise DataError(error.what, file=chunk.tree_file or error.file, line=line, hint=error.hint) from error
    counts = np.fromiter(map(len, phrases), dtype=np.int32, count=len(phrases))
    flat = np.fromiter(chain.from_iterable(phrases), dtype=np.int64, count=int(counts.sum()))
    if flat.max(initial=0) >= 2**16:
        owner = lines[int(np.searchsorted(np.cumsum(counts), flat.argmax(), side="right"))]
        raise DataError(
            f"pair {chunk.base + owner + 1} has a phrase of {flat.max():,} subwords; the limit is 65,535",
            hint="split the line",
        )
    encoded.tokens, encoded.lengths = (*encoded.tokens, flat.astype(np.uint16)), (*encoded.lengths, counts)


def _encodable(
    tokenizer: Tokenizer,
    source: list[str],
    target: list[str],
    filters: AnyFilter,
    held_out: npt.NDArray[np.bool_] | None,
    dropped: dict[str, list[int]],
) -> list[int]:
    """Positions of pairs with text on both sides, without those that are `held_out` or certainly too long."""
    limits = [filters.max_tokens * _longest(side) for side in (tokenizer.source, tokenizer.target)]
    pairs, blank = [], "empty" if isinstance(filters, TextFilterConfig) else "empty_both"
    for i, (left, right) in enumerate(zip(source, target, strict=True)):
        if left.strip() and right.strip():
            if held_out is not None and held_out[i]:
                reason = "held_out"
            elif len(left) <= limits[0] and len(right) <= limits[1]:
                pairs.append(i)
                continue
            else:
                reason = "too_long"
        elif left.strip():
            reason = "empty_target"
        else:
            reason = "empty_source" if right.strip() else blank
        dropped.setdefault(reason, []).append(i)
    return pairs


def _longest(side: Side) -> int:
    # Normalisation may shorten a line, so the limit has a margin.
    return side.subwords.longest_piece * (1 if side.normaliser.identity else 4)


def _passed(
    left: npt.NDArray[np.int32],
    right: npt.NDArray[np.int32],
    pairs: list[int],
    filters: AnyFilter,
    dropped: dict[str, list[int]],
) -> npt.NDArray[np.bool_]:
    longer, shorter = np.maximum(left, right), np.minimum(left, right)
    bad = {"too_long": longer > filters.max_tokens, "too_short": shorter < filters.min_tokens}
    if filters.max_ratio is not None:
        bad["ratio"] = longer > filters.max_ratio * shorter
    passed = np.ones(len(pairs), dtype=bool)
    for reason, flags in bad.items():
        failed = [pairs[i] for i in np.flatnonzero(flags & passed)]
        if failed:
            dropped[reason] = sorted(dropped.get(reason, []) + failed)
        passed &= ~flags
    return passed


@functools.lru_cache(maxsize=1)
def load_coder(folder: Path, token_type: str) -> Coder:
    """The coder of a folder that holds `tokenizer` and, with source phrases, `segmenter`, and perhaps what is held out."""
    segmenter = load_segmenter(folder / "segmenter") if (folder / "segmenter").is_dir() else None
    return Coder(Tokenizer.load(folder / "tokenizer"), token_type, segmenter, HeldOut.load(folder))


def encode_raw(chunk: RawChunk, filters: AnyFilter | None, folder: Path, token_type: str) -> EncodedChunk:
    """`Coder.encode` in a worker process; `folder`: see `load_coder`."""
    return load_coder(folder, token_type).encode(chunk.read(), filters)


class Encoder:
    """Encodes chunks in worker processes, or `here`, and returns them in order; `folder`: see `load_coder`."""

    def __init__(self, coder: Coder, folder: Path, workers: Workers, *, here: bool) -> None:
        self.coder, self.folder, self.workers = coder, folder, workers
        self.here = here or workers.processes == 1

    def run(self, chunks: Iterator[RawChunk], filters: AnyFilter | None) -> Iterator[tuple[RawChunk, EncodedChunk]]:
        """Each chunk with its encoding. Raises DataError, and PhraseloomError if a worker process dies."""
        if self.here:
            for chunk in chunks:
                yield chunk, self.coder.encode(chunk.read(), filters)
            return
        jobs = ((chunk, filters, self.folder, self.coder.token_type) for chunk in chunks)
        for (chunk, *_), encoded in self.workers.run(encode_raw, jobs):
            yield chunk, encoded
