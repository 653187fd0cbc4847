"""What a worker process does: a chunk of raw pairs → filtered token arrays, with what was left out and why.

Where a segmenter is given, the source phrases of each pair that is kept are a third array.

Chunks of raw pairs go to worker processes and come back encoded, in order; a worker that dies is an error.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phraseloom.errors import DataError, PhraseloomError
from phraseloom.options.data import AnyFilter, TextFilterConfig
from phraseloom.phrases.source import Segmenter, load_segmenter, segment_lines
from phraseloom.text.tokenizer import Side, Tokenizer


@dataclass(frozen=True)
class Chunk:
    """Raw pairs: number of the file, line of the first pair in it (from 1), and its number in the split (from 0).

    Of text without a source, all source lines are empty. `trees`: one line for each source line, and the file they are in.
    """

    file: int
    first: int
    base: int
    source: list[str]
    target: list[str]
    trees: list[str] | None = None
    tree_file: str | None = None


@dataclass
class EncodedChunk:
    """A chunk after encoding. `lines` are positions in the chunk; `dropped` gives for a reason the positions left out.

    `tokens` and `lengths` are of source and target, and with phrases of the sizes of these. `keys` holds a 128-bit hash of
    each pair kept (dtype S16), when duplicates are to be found.
    """

    tokens: tuple[npt.NDArray[Any], ...]
    lengths: tuple[npt.NDArray[np.int32], ...]
    lines: npt.NDArray[np.int64]
    dropped: dict[str, list[int]] = field(default_factory=dict)
    keys: npt.NDArray[np.bytes_] | None = None

    def keep(self, wanted: npt.NDArray[np.bool_]) -> EncodedChunk:
        """The pairs where `wanted` is true."""
        tokens = tuple(t[np.repeat(wanted, n)] for t, n in zip(self.tokens, self.lengths, strict=True))
        lengths = tuple(n[wanted] for n in self.lengths)
        keys = None if self.keys is None else self.keys[wanted]
        return EncodedChunk(tokens, lengths, self.lines[wanted], self.dropped, keys)


@dataclass(frozen=True)
class Coder:
    """All that it takes to encode a chunk: the same in every process."""

    tokenizer: Tokenizer
    token_type: str
    segmenter: Segmenter | None = None

    def encode(self, chunk: Chunk, filters: AnyFilter | None) -> EncodedChunk:
        """Encode a chunk; without `filters` every pair is kept (valid and test), blank lines as zero tokens.

        A TextFilterConfig looks at the target alone. Raises DataError where a tree does not fit its line; a tree whose pair is
        left out is not looked at.
        """
        source, target, tokenizer = chunk.source, chunk.target, self.tokenizer
        kept = list(range(len(source)))
        dropped: dict[str, list[int]] = {}
        is_text = isinstance(filters, TextFilterConfig)
        if filters is not None:
            kept = _readable(tokenizer, target if is_text else source, target, filters, dropped)
        left = tokenizer.source.encode_batch([source[i] for i in kept])
        right = tokenizer.target.encode_batch([target[i] for i in kept])
        wanted = np.ones(len(kept), dtype=bool)
        sizes = [np.fromiter(map(len, ids), dtype=np.int32, count=len(ids)) for ids in (left, right)]
        if filters is not None:
            wanted = _fitting(sizes[1] if is_text else sizes[0], sizes[1], kept, filters, dropped)
        keys = None
        if filters is not None and filters.deduplicate:
            texts = (f"{source[i]}\n{target[i]}".encode() for i in kept)
            digests = [hashlib.blake2b(text, digest_size=16).digest() for text in texts]
            keys = np.array(digests, dtype="S16")
        tokens = (_flat(left, sizes[0], self.token_type), _flat(right, sizes[1], self.token_type))
        lines = np.array(kept, dtype=np.int64)
        encoded = EncodedChunk(tokens, (sizes[0], sizes[1]), lines, dropped, keys).keep(wanted)
        if self.segmenter is not None:
            _add_phrases(encoded, chunk, tokenizer.source, self.segmenter)
        return encoded


def _add_phrases(encoded: EncodedChunk, chunk: Chunk, side: Side, segmenter: Segmenter) -> None:
    """The sizes of the source phrases of each pair kept, as a third array."""
    lines = encoded.lines.tolist()
    ends = np.cumsum(encoded.lengths[0], dtype=np.int64)
    ids = [part.tolist() for part in np.split(encoded.tokens[0], ends[:-1])] if lines else []
    trees = None if chunk.trees is None else [chunk.trees[i] for i in lines]
    try:
        phrases = segment_lines(segmenter, side, [chunk.source[i] for i in lines], ids, trees)
    except DataError as error:  # it counts the lines that it was given
        line = None if error.line is None else chunk.first + lines[error.line - 1]
        raise DataError(error.what, file=chunk.tree_file or error.file, line=line, hint=error.hint) from error
    counts = np.fromiter(map(len, phrases), dtype=np.int32, count=len(phrases))
    flat = np.fromiter(chain.from_iterable(phrases), dtype=np.int64, count=int(counts.sum()))
    if flat.max(initial=0) >= 2**16:
        owner = lines[int(np.searchsorted(np.cumsum(counts), flat.argmax(), side="right"))]
        raise DataError(
            f"pair {chunk.base + owner + 1} has a phrase of {flat.max():,} subwords; a phrase has at most 65,535",
            hint="cut the line",
        )
    encoded.tokens, encoded.lengths = (*encoded.tokens, flat.astype(np.uint16)), (*encoded.lengths, counts)


def _flat(ids: list[list[int]], sizes: npt.NDArray[np.int32], token_type: str) -> npt.NDArray[Any]:
    return np.fromiter(chain.from_iterable(ids), dtype=token_type, count=int(sizes.sum()))


def _readable(
    tokenizer: Tokenizer, source: list[str], target: list[str], filters: AnyFilter, dropped: dict[str, list[int]]
) -> list[int]:
    """Positions of pairs with text on both sides and not so long that they need not be encoded to be left out."""
    most = [filters.max_tokens * _longest(side) for side in (tokenizer.source, tokenizer.target)]
    kept, blank = [], "empty" if isinstance(filters, TextFilterConfig) else "empty_both"
    for i, (left, right) in enumerate(zip(source, target, strict=True)):
        if left.strip() and right.strip():
            if len(left) <= most[0] and len(right) <= most[1]:
                kept.append(i)
                continue
            reason = "too_long"
        elif left.strip():
            reason = "empty_target"
        else:
            reason = "empty_source" if right.strip() else blank
        dropped.setdefault(reason, []).append(i)
    return kept


def _longest(side: Side) -> int:
    # Normalisation may shorten a line a little, so a line is given room before it counts as hopeless.
    return side.subwords.longest_piece * (1 if side.normaliser.identity else 4)


def _fitting(
    left: npt.NDArray[np.int32],
    right: npt.NDArray[np.int32],
    kept: list[int],
    filters: AnyFilter,
    dropped: dict[str, list[int]],
) -> npt.NDArray[np.bool_]:
    longer, shorter = np.maximum(left, right), np.minimum(left, right)
    bad = {"too_long": longer > filters.max_tokens, "too_short": shorter < filters.min_tokens}
    if filters.max_ratio is not None:
        bad["ratio"] = longer > filters.max_ratio * shorter
    wanted = np.ones(len(kept), dtype=bool)
    for reason, flags in bad.items():
        found = [kept[i] for i in np.flatnonzero(flags & wanted)]
        if found:
            dropped[reason] = sorted(dropped.get(reason, []) + found)
        wanted &= ~flags
    return wanted


_coder: Coder | None = None


def start_worker(folder: str, token_type: str) -> None:
    """Load what encodes once in a worker process, which ends with the process that started it, however that ends.

    `folder` holds `tokenizer` and, where there are source phrases, `segmenter`.
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
    """`Coder.encode` in a worker process; the lines come joined (see `packed`)."""
    assert _coder is not None
    return _coder.encode(unpacked(chunk), filters)


def packed(chunk: Chunk) -> Chunk:
    """The chunk with its lines joined to one each, which travels faster."""
    trees = None if chunk.trees is None else ["\n".join(chunk.trees)]
    return replace(chunk, source=["\n".join(chunk.source)], target=["\n".join(chunk.target)], trees=trees)


def unpacked(chunk: Chunk) -> Chunk:
    """The chunk that `packed` was given."""
    trees = None if chunk.trees is None else chunk.trees[0].split("\n")
    return replace(chunk, source=chunk.source[0].split("\n"), target=chunk.target[0].split("\n"), trees=trees)


class Encoder:
    """Encodes chunks in this process or in several, always giving them back in order.

    `folder` is where a worker process finds what the coder is made of (`start_worker`).
    """

    def __init__(self, coder: Coder, folder: Path, processes: int) -> None:
        self.coder, self.folder, self.processes = coder, folder, processes
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Encoder:
        if self.processes > 1:
            context = multiprocessing.get_context("spawn")
            given = (str(self.folder), self.coder.token_type)
            self._pool = ProcessPoolExecutor(self.processes, context, start_worker, given)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, chunks: Iterator[Chunk], filters: AnyFilter | None) -> Iterator[tuple[Chunk, EncodedChunk]]:
        """Each chunk with its encoding. Raises DataError, and PhraseloomError when a worker process dies."""
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
            raise PhraseloomError(
                "a worker process was killed, perhaps for want of memory", hint="try data.processes=1, or --processes 1"
            ) from error
