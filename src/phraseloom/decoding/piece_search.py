"""A batch of pieces through the model: the search, and what its attention says of the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from phraseloom.data.tensors import make_batch
from phraseloom.decoding.alignment import attention_of, choose, link_phrases
from phraseloom.decoding.batching import Piece
from phraseloom.decoding.cancellation import Question
from phraseloom.decoding.config import DecodingConfig
from phraseloom.decoding.parts import Aligned, Found
from phraseloom.decoding.penalties import build_penalty
from phraseloom.decoding.search import Hypothesis, Limits, SearchOptions, search
from phraseloom.decoding.segment_links import look_at_segments
from phraseloom.decoding.segmental import is_segmental
from phraseloom.decoding.unknown_words import UnknownWord, unknown_words
from phraseloom.decoding.word_links import link_words
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
        if is_segmental(model):
            return look_at_segments(tokenizer, pieces, found, alignments=alignments, replacing=replacing)
        return _look(model, tokenizer, pieces, found, memory, config, alignments=alignments, replacing=replacing)


def _look(
    model: Any, tokenizer: Tokenizer, pieces: list[Piece], found: list[list[Hypothesis]], memory: Any,
    config: DecodingConfig, *, alignments: bool, replacing: bool,
) -> list[Found]:  # fmt: skip
    """What the cross-attention of one layer says: word and phrase links, and where unknown words come from."""
    wanted = [[alignments or (replacing and UNK in h.tokens) for h in some] for some in found]
    if not any(map(any, wanted)):
        return [Found(some, [None] * len(some)) for some in found]
    choice = choose(config, model.decoder.cross_structures)
    seen = [(b, h.tokens) for b, some in enumerate(found) for h, want in zip(some, wanted[b], strict=True) if want]
    looks = iter(attention_of(model, memory, [b for b, _ in seen], [tokens for _, tokens in seen], choice))
    result = []
    for piece, some, want in zip(pieces, found, wanted, strict=True):
        source_word = tokenizer.source.word_of_piece(piece.ids)
        aligned: list[Aligned | None] = [None] * len(some)
        unknown: list[list[UnknownWord]] = [[] for _ in some]
        for rank in (rank for rank, is_wanted in enumerate(want) if is_wanted):
            look, tokens = next(looks), some[rank].tokens
            target_words = tokenizer.target.words_of_piece(tokens, piece.begun)
            if replacing:
                unknown[rank] = unknown_words(look.tokens_TS, tokens, source_word, target_words)
            if alignments:
                links = link_words(look.tokens_TS, source_word, target_words, choice.method)
                aligned[rank] = Aligned(links, link_phrases(look, source_word, target_words)).moved(piece.first_word)
        result.append(Found(some, aligned, unknown))
    return result
