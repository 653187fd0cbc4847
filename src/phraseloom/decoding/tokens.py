"""Models that write token after token: greedy or beam search, and the links that one of their attentions gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phraseloom.decoding.alignment import attention_of, choose, link_phrases, link_words
from phraseloom.decoding.batching import Piece
from phraseloom.decoding.beam import beam_search, greedy_search
from phraseloom.decoding.limits import Hypothesis, Limits, SearchModel, SearchOptions
from phraseloom.decoding.parts import Aligned, Found, UnknownWord, unknown_words
from phraseloom.errors import UsageError
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import UNK


def search(model: SearchModel, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """Greedy where the beam is 1, else by beam. UsageError for a word bonus."""
    if options.word_bonus:
        raise UsageError(
            f"word_bonus {options.word_bonus:g} is for segmental models", hint="use length_penalty for this one"
        )
    return (greedy_search if options.beam == 1 else beam_search)(model, memory, limits, options)


def can_align(model: Any) -> bool:
    """Whether the model attends to source tokens."""
    return bool(model.decoder.cross_structures)


def check(model: Any, config: DecodingConfig, *, aligned: bool) -> None:
    """If an attention is needed: UsageError for a layer or head that the model does not have, ModelError if it has none."""
    if aligned:
        choose(config, model.decoder.cross_structures)


def links(
    model: Any, tokenizer: Tokenizer, pieces: Sequence[Piece], found: Sequence[list[Hypothesis]], memory: Any,
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
                words = link_words(look.tokens_TS, source_word, target_words, choice.method)
                aligned[rank] = Aligned(words, link_phrases(look, source_word, target_words)).moved(piece.first_word)
        result.append(Found(some, aligned, unknown))
    return result
