"""The `Writer` of models that write token by token: greedy or beam search, and links from cross-attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phraseloom.decoding.alignment import attention_of, choose, link_phrases, link_words
from phraseloom.decoding.batching import Piece
from phraseloom.decoding.beam import beam_search, greedy_search
from phraseloom.decoding.compiled import compiled_search
from phraseloom.decoding.limits import Hypothesis, Limits, SearchModel, SearchOptions
from phraseloom.decoding.parts import Aligned, PieceResult, unknown_words
from phraseloom.decoding.sampling import sample_search
from phraseloom.errors import UsageError
from phraseloom.native.model import NativeModel
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import UNK


def search(model: SearchModel, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """Samples if the options have `sampling`, else greedy search for a beam of 1, otherwise beam search."""
    if options.sampling is not None:
        return sample_search(model, memory, limits, options)
    if isinstance(model, NativeModel) and (found := compiled_search(model, memory, limits, options)) is not None:
        return found
    return (greedy_search if options.beam == 1 else beam_search)(model, memory, limits, options)


def can_align(model: Any) -> bool:
    """Whether the model attends to source tokens."""
    return bool(model.decoder.cross_structures)


def check(model: Any, config: DecodingConfig, *, aligned: bool) -> None:
    """Raise UsageError for a word bonus. If an attention is needed or named, raise UsageError for a layer or head that the
    model lacks, ModelError if it has none."""
    if config.word_bonus:
        raise UsageError(
            f"word_bonus {config.word_bonus:g} is for segmental models", hint="use length_penalty for this model"
        )
    if aligned or config.alignment_layer is not None or config.alignment_head is not None:
        choose(config, model.decoder.cross_structures)


def links(
    model: Any, tokenizer: Tokenizer, pieces: Sequence[Piece], n_best: Sequence[list[Hypothesis]], memory: Any,
    config: DecodingConfig, *, alignments: bool, replacing: bool,
) -> list[PieceResult]:  # fmt: skip
    """Word and phrase links, and the sources of unknown words, from the cross-attention of one layer."""
    needed = [
        (b, rank)
        for b, hypotheses in enumerate(n_best)
        for rank, h in enumerate(hypotheses)
        if alignments or (replacing and UNK in h.tokens)
    ]
    result = [PieceResult(h, [None] * len(h), [[] for _ in h] if needed else None) for h in n_best]
    if not needed:
        return result
    choice = choose(config, model.decoder.cross_structures)
    targets = [n_best[b][rank].tokens for b, rank in needed]
    attentions = attention_of(model, memory, [b for b, _ in needed], targets, choice)
    for (b, rank), tokens, attention in zip(needed, targets, attentions, strict=True):
        piece, unknown = pieces[b], result[b].unknown
        source_word = tokenizer.source.word_of_piece(piece.ids[piece.tags :], piece.source_pieces)
        attention = attention.after(piece.tags)
        target_words = tokenizer.target.words_of_piece(tokens, piece.begun)
        if replacing and unknown is not None:
            unknown[rank] = unknown_words(attention.tokens_TS, tokens, source_word, target_words)
        if alignments:
            words = link_words(attention.tokens_TS, source_word, target_words, choice.method)
            aligned = Aligned(words, link_phrases(attention, source_word, target_words))
            result[b].aligned[rank] = aligned.shifted(piece.first_word)
    return result
