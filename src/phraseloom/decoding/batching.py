"""Lines → pieces for the model → batches of similar length, and threads that process them in parallel.

Batches go from the longest to the shortest, so that the threads finish at about the same time. Results are stored by number, so
callers do not see this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch

from phraseloom.decoding.constraint_tracker import ConstraintTracker
from phraseloom.decoding.limits import SampleSeed
from phraseloom.text.tokenizer import Side

R = TypeVar("R")
NO_SEED = SampleSeed(0, 0)


@dataclass(frozen=True)
class Piece:
    """The input of the model for a line or a part of it: subword ids without EOS.

    `first_word`, `first_id`: the numbers of words and subwords of the line before this piece. `phrases`: the sizes of its
    source phrases, if the model needs them. `prefix`: the forced prefix of the translation as subword ids; `begun`: its pieces
    as text, if the vocabulary lacks some. `tracker`: of the constraints, if the line has any. `seed`: what its samples depend
    on. `tags`: how many of `ids` are tags, which come first. `source_pieces`: those of `ids` after the tags as text, if the
    vocabulary lacks some.
    """

    line: int
    ids: list[int]
    first_word: int = 0
    first_id: int = 0
    phrases: list[int] | None = None
    prefix: Sequence[int] = ()
    begun: Sequence[str] = ()
    tracker: ConstraintTracker | None = None
    seed: SampleSeed = NO_SEED
    tags: int = 0
    source_pieces: Sequence[str] = ()


def cut_text(
    number: int, line: str, ids: list[int], side: Side, *, limit: int, how: Literal["crop", "split"]
) -> list[Piece]:
    """`cut_line` of a raw line, the `number`th, with its ids; `side` is the source side."""
    names = side.pieces_of(line, ids if how == "split" else ids[:limit])
    pieces = cut_line(number, ids, lambda ids: side.word_of_piece(ids, names), limit=limit, how=how)
    return [replace(p, source_pieces=names[p.first_id :][: len(p.ids)]) for p in pieces] if names else pieces


def cut_line(
    line: int,
    ids: list[int],
    word_of_piece: Callable[[list[int]], list[int]],
    *,
    limit: int,
    how: Literal["crop", "split"],
) -> list[Piece]:
    """The pieces of a line: one, or none for an empty line; a line above `limit` subwords is cropped or split.

    A split comes before the last word that begins within the limit, so only a word above the limit is split inside.
    """
    if not ids:
        return []
    if len(ids) <= limit:
        return [Piece(line, ids)]
    if how == "crop":
        return [Piece(line, ids[:limit])]
    words, pieces, start = word_of_piece(ids), [], 0
    while start < len(ids):
        end = min(start + limit, len(ids))
        if end < len(ids):
            begins = (i for i in range(end, start, -1) if words[i] != words[i - 1])
            end = next(begins, end)
        pieces.append(Piece(line, ids[start:end], words[start], start))
        start = end
    return pieces


def plan_batches(lengths: Sequence[int], *, sentences: int, tokens: int, workers: int = 1) -> list[list[int]]:
    """Batches of piece numbers, longest first.

    A batch has at most `sentences` pieces and, padded, at most `tokens` tokens (but at least one piece). With several
    workers no batch is larger than an equal share.
    """
    sentences = min(sentences, -(-len(lengths) // workers)) if lengths else sentences
    batches: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        current = batches[-1] if batches else None
        fits = current is not None and len(current) < sentences and lengths[current[0]] * (len(current) + 1) <= tokens
        if current is not None and fits:
            current.append(number)
        else:
            batches.append([number])
    return batches


def num_workers(workers: int | Literal["auto"], device: torch.device) -> int:
    """The number of threads that translate: `auto` means one per core that torch may use; always one on a GPU."""
    if device.type != "cpu":
        return 1
    return torch.get_num_threads() if workers == "auto" else workers


def map_batches(work: Callable[[list[int]], R], batches: list[list[int]], *, workers: int) -> list[R]:
    """The results of `work` for every batch, in order. Several workers are threads with one torch thread each.

    torch releases the interpreter lock while it computes and counts its threads per calling thread, so W workers with one
    thread each use W cores without waiting for one another inside small products. A single batch also runs in such a thread:
    its small products gain little from two cores and lose much on a busy machine. The first error cancels the other batches.
    """
    if workers == 1 or not batches:
        return [work(batch) for batch in batches]
    with ThreadPoolExecutor(
        min(workers, len(batches)), "translate", initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        jobs = [pool.submit(work, batch) for batch in batches]
        try:
            wait(jobs, return_when=FIRST_EXCEPTION)
            return [job.result() for job in jobs]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
