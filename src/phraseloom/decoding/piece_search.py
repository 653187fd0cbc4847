"""Search for a batch of pieces, with alignments of the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from phraseloom.data.tensors import make_batch
from phraseloom.decoding.batching import Piece
from phraseloom.decoding.cancellation import ShouldCancel
from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.parts import PieceResult
from phraseloom.decoding.penalties import build_penalty
from phraseloom.decoding.search import search, writer_of
from phraseloom.native.model import fast
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.tokenizer import Side, Tokenizer
from phraseloom.text.vocabulary import BOS, PAD, UNK


def with_prefixes(side: Side, lines: list[list[Piece]], prefixes: Sequence[str]) -> list[list[Piece]]:
    """The pieces of each line, with the forced prefix of its translation in the first piece; `side` is the target side."""
    result = []
    for pieces, prefix, ids in zip(lines, prefixes, side.encode_batch(list(prefixes)), strict=True):
        begun = side.pieces(prefix) if UNK in ids else ()
        result.append([replace(piece, prefix=ids, begun=begun) for piece in pieces[:1]] + pieces[1:])
    return result


def search_pieces(
    model: Any,
    tokenizer: Tokenizer,
    pieces: list[Piece],
    config: DecodingConfig,
    *,
    device: torch.device,
    alignments: bool,
    should_cancel: ShouldCancel | None = None,
) -> list[PieceResult]:
    """The n-best list of each piece, with alignments if requested, and with unknown words if they are replaced.

    All pieces form one batch; several threads may call this at the same time. Raises Cancelled.
    """
    sizes = [len(p.ids) for p in pieces]
    limits = Limits.of(
        [config.max_length.of(n) for n in sizes],
        [config.min_length.of(n) for n in sizes],
        [p.prefix for p in pieces],
        device,
        expected=max(sizes) + 8,
    )
    options = SearchOptions(
        beam=config.beam,
        n_best=config.n_best,
        penalty=build_penalty(config.length_penalty),
        banned=(PAD, UNK, BOS) if config.unknown == "forbid" else (PAD, BOS),
        exact=config.stop == "exact",
        transformers=config.stop == "transformers",
        word_bonus=config.word_bonus,
        should_cancel=should_cancel,
    )
    with torch.inference_mode():
        phrases = [p.phrases for p in pieces if p.phrases is not None] or None
        batch = make_batch([p.ids for p in pieces], [[] for _ in pieces], phrases).to(device)
        searched = fast(model, config.kernels)
        memory = searched.encode(batch.source_BS, batch.source_lengths_B, batch.phrase_sizes_BP)
        n_best = search(searched, memory, limits, options)
        replacing = config.unknown == "replace"
        links = writer_of(model).links
        return links(model, tokenizer, pieces, n_best, memory, config, alignments=alignments, replacing=replacing)
