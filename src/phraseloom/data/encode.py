"""Encode chunks of raw pairs as filtered token arrays, in this process or in worker processes.

An encoded chunk also has the positions that were left out and why, and with a segmenter the source phrases of each pair.
Chunks come back in order; a worker that dies is an error.
"""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phraseloom.align.links import parse_links
from phraseloom.errors import DataError, PhraseloomError
from phraseloom.options.data import AnyFilter, TextFilterConfig
from phraseloom.phrases.source import Segmenter, has_tree, load_segmenter, segment_lines, word_of_piece
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
    """Encodes a chunk; every process has the same one."""

    tokenizer: Tokenizer
    token_type: str
    segmenter: Segmenter | None = None

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
            pairs = _encodable(tokenizer, target if is_text else source, target, filters, dropped)
        left = tokenizer.source.encode_batch([source[i] for i in pairs])
        right = tokenizer.target.encode_batch([target[i] for i in pairs])
        passed = np.ones(len(pairs), dtype=bool)
        sizes = [np.fromiter(map(len, ids), dtype=np.int32, count=len(ids)) for ids in (left, right)]
        if filters is not None:
            passed = _passed(sizes[1] if is_text else sizes[0], sizes[1], pairs, filters, dropped)
        keys = None
        if filters is not None and filters.deduplicate:
            texts = (f"{source[i]}\n{target[i]}".encode() for i in pairs)
            digests = [hashlib.blake2b(text, digest_size=16).digest() for text in texts]
            keys = np.array(digests, dtype="S16")
        tokens = (_flat(left, sizes[0], self.token_type), _flat(right, sizes[1], self.token_type))
        lines = np.array(pairs, dtype=np.int64)
        with_trees = zip(source, chunk.trees or (), strict=False)
        no_tree = [i for i, (line, tree) in enumerate(with_trees) if line.strip() and not has_tree(tree)]
        encoded = EncodedChunk(tokens, (sizes[0], sizes[1]), lines, dropped, keys, no_tree).keep(passed)
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

    A link of words links all their tokens. Raises DataError (file, line).
    """
    assert chunk.links is not None
    flat: list[int] = []
    counts = np.zeros(len(encoded.lines), np.int32)
    ends = [np.cumsum(lengths, dtype=np.int64) for lengths in encoded.lengths]
    for row, number in enumerate(encoded.lines.tolist()):
        if not chunk.links[number].strip():
            continue
        line, texts = chunk.first + number, (chunk.source[number], chunk.target[number])
        lengths = [sum(map(bool, text.split(" "))) for text in texts]
        links = parse_links(chunk.links[number], file=chunk.link_file, line=line, lengths=(lengths[0], lengths[1]))
        tokens: list[list[list[int]]] = []
        for k, side in enumerate((tokenizer.source, tokenizer.target)):
            own: list[list[int]] = [[] for _ in range(lengths[k])]
            ids = encoded.tokens[k][ends[k][row] - encoded.lengths[k][row] : ends[k][row]].tolist()
            try:
                words = word_of_piece(side, texts[k], ids)
            except DataError as error:
                raise DataError(error.what, file=chunk.link_file, line=line, hint=error.hint) from error
            for token, word in enumerate(words):
                own[word].append(token)
            tokens.append(own)
        places = sorted((t, s) for i, j in links for s in tokens[0][i] for t in tokens[1][j])
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


def _flat(ids: list[list[int]], sizes: npt.NDArray[np.int32], token_type: str) -> npt.NDArray[Any]:
    return np.fromiter(chain.from_iterable(ids), dtype=token_type, count=int(sizes.sum()))


def _encodable(
    tokenizer: Tokenizer, source: list[str], target: list[str], filters: AnyFilter, dropped: dict[str, list[int]]
) -> list[int]:
    """Positions of pairs with text on both sides, without pairs that are certainly too long."""
    limits = [filters.max_tokens * _longest(side) for side in (tokenizer.source, tokenizer.target)]
    pairs, blank = [], "empty" if isinstance(filters, TextFilterConfig) else "empty_both"
    for i, (left, right) in enumerate(zip(source, target, strict=True)):
        if left.strip() and right.strip():
            if len(left) <= limits[0] and len(right) <= limits[1]:
                pairs.append(i)
                continue
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


_coder: Coder | None = None


def start_worker(folder: str, token_type: str) -> None:
    """Load the coder in a worker process, which exits when its parent ends for any reason.

    `folder` holds `tokenizer` and, with source phrases, `segmenter`.
    """
    global _coder
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    segmenter = Path(folder) / "segmenter"
    _coder = Coder(
        Tokenizer.load(Path(folder) / "tokenizer"),
        token_type,
        load_segmenter(segmenter) if segmenter.is_dir() else None,
    )


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def work(chunk: Chunk, filters: AnyFilter | None) -> EncodedChunk:
    """`Coder.encode` of a `packed` chunk in a worker process."""
    assert _coder is not None
    return _coder.encode(unpacked(chunk), filters)


def packed(chunk: Chunk) -> Chunk:
    """The chunk with the lines of each list joined, which is faster to send."""
    trees = None if chunk.trees is None else ["\n".join(chunk.trees)]
    links = None if chunk.links is None else ["\n".join(chunk.links)]
    source, target = ["\n".join(chunk.source)], ["\n".join(chunk.target)]
    return replace(chunk, source=source, target=target, trees=trees, links=links)


def unpacked(chunk: Chunk) -> Chunk:
    """The inverse of `packed`."""
    trees = None if chunk.trees is None else chunk.trees[0].split("\n")
    links = None if chunk.links is None else chunk.links[0].split("\n")
    source, target = chunk.source[0].split("\n"), chunk.target[0].split("\n")
    return replace(chunk, source=source, target=target, trees=trees, links=links)


class Encoder:
    """Encodes chunks in this process or in several, and returns them in order; `folder`: see `start_worker`."""

    def __init__(self, coder: Coder, folder: Path, processes: int) -> None:
        self.coder, self.folder, self.processes = coder, folder, processes
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Encoder:
        if self.processes > 1:
            context = multiprocessing.get_context("spawn")
            arguments = (str(self.folder), self.coder.token_type)
            self._pool = ProcessPoolExecutor(self.processes, context, start_worker, arguments)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, chunks: Iterator[Chunk], filters: AnyFilter | None) -> Iterator[tuple[Chunk, EncodedChunk]]:
        """Each chunk with its encoding. Raises DataError, and PhraseloomError if a worker process dies."""
        if self._pool is None:
            for chunk in chunks:
                yield chunk, self.coder.encode(chunk, filters)
            return
        waiting: deque[tuple[Chunk, Future[EncodedChunk]]] = deque()
        try:
            for chunk in chunks:
                waiting.append((chunk, self._pool.submit(work, packed(chunk), filters)))
                if len(waiting) > self.processes + 1:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        except BrokenProcessPool as error:
            hint = "try data.processes=1, or --processes 1"
            raise PhraseloomError("a worker process was killed; it may have run out of memory", hint=hint) from error
