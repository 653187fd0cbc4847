"""What a worker process does: a chunk of raw pairs → filtered token arrays, with what was left out and why."""

from __future__ import annotations

import hashlib
import multiprocessing
import multiprocessing.connection
import os
import threading
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phraseloom.data.config import AnyFilter, TextFilterConfig
from phraseloom.text.tokenizer import Side, Tokenizer


@dataclass
class Encoded:
    """A chunk after encoding. `lines` are positions in the chunk; `dropped` gives for a reason the positions left out.

    `keys` holds a 128-bit hash of each pair kept (dtype S16), when duplicates are to be found.
    """

    tokens: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    lengths: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]
    lines: npt.NDArray[np.int64]
    dropped: dict[str, list[int]] = field(default_factory=dict)
    keys: npt.NDArray[np.bytes_] | None = None

    def keep(self, wanted: npt.NDArray[np.bool_]) -> Encoded:
        """The pairs where `wanted` is true."""
        tokens = tuple(t[np.repeat(wanted, n)] for t, n in zip(self.tokens, self.lengths, strict=True))
        lengths = tuple(n[wanted] for n in self.lengths)
        keys = None if self.keys is None else self.keys[wanted]
        return Encoded(tokens, lengths, self.lines[wanted], self.dropped, keys)  # type: ignore[arg-type]


def encode_chunk(
    tokenizer: Tokenizer, source: list[str], target: list[str], filters: AnyFilter | None, token_type: str
) -> Encoded:
    """Encode a chunk; without `filters` every pair is kept (valid and test), blank lines as zero tokens.

    A TextFilterConfig looks at the target alone.
    """
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
    tokens = (_flat(left, sizes[0], token_type), _flat(right, sizes[1], token_type))
    return Encoded(tokens, (sizes[0], sizes[1]), np.array(kept, dtype=np.int64), dropped, keys).keep(wanted)


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


_tokenizer: Tokenizer | None = None


def start_worker(folder: str) -> None:
    """Load the tokenizer once in a worker process, which ends with the process that started it, however that ends."""
    global _tokenizer
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    _tokenizer = Tokenizer.load(Path(folder))


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def work(source: str, target: str, filters: AnyFilter | None, token_type: str) -> Encoded:
    """`encode_chunk` in a worker process; the lines come joined, which travels faster."""
    assert _tokenizer is not None
    return encode_chunk(_tokenizer, source.split("\n"), target.split("\n"), filters, token_type)
