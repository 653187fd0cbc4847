"""A batch of pieces through the model: the search, and what the model says of the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from phraseloom.data.tensors import make_batch
from phraseloom.decoding.batching import Piece
from phraseloom.decoding.beam import build_penalty
from phraseloom.decoding.parts import Found
from phraseloom.decoding.search import Limits, Question, SearchOptions, search, writer_of
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.tokenizer import Side, Tokenizer
from phraseloom.text.vocabulary import BOS, PAD, UNK


def with_prefixes(side: Side, of_line: list[list[Piece]], prefixes: Sequence[str]) -> list[list[Piece]]:
    """The pieces of each line, the first of them with what the translation must begin with, in ids of the target side."""
    result = []
    for some, prefix, ids in zip(of_line, prefixes, side.encode_batch(list(prefixes)), strict=True):
        begun = side.pieces(prefix) if UNK in ids else ()
        result.append([replace(piece, prefix=ids, begun=begun) for piece in some[:1]] + some[1:])
    return result


def search_pieces(
    model: Any,
    tokenizer: Tokenizer,
    pieces: list[Piece],
    config: DecodingConfig,
    *,
    device: torch.device,
    alignments: bool,
    cancelled: Question | None = None,
) -> list[Found]:
    """The n-best list of each piece, with alignments if asked for, and with unknown words where they are to be replaced.

    All pieces are one batch; several threads may call this at a time. Raises Cancelled.
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
        cancelled=cancelled,
    )
    with torch.inference_mode():
        phrases = [p.phrases for p in pieces if p.phrases is not None] or None
        batch = make_batch([p.ids for p in pieces], [[] for _ in pieces], phrases).to(device)
        memory = model.encode(batch.source_BS, batch.source_lengths_B, batch.phrase_sizes_BP)
        found = search(model, memory, limits, options)
        replacing = config.unknown == "replace"
        links = writer_of(model).links
        return links(model, tokenizer, pieces, found, memory, config, alignments=alignments, replacing=replacing)
