"""Search for a batch of pieces, with alignments of the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from phraseloom.data.tensors import make_batch
from phraseloom.decoding.batching import Piece
from phraseloom.decoding.cancellation import ShouldCancel
from phraseloom.decoding.constrained import constrained_search
from phraseloom.decoding.ensemble import averaged
from phraseloom.decoding.limits import Hypothesis, Limits, Sampling, SearchOptions, tempering_of
from phraseloom.decoding.long_lines import PREFIXES
from phraseloom.decoding.mbr import expected_similarity
from phraseloom.decoding.parts import PieceResult
from phraseloom.decoding.penalties import build_penalty
from phraseloom.decoding.search import search, writer_of
from phraseloom.errors import DataError
from phraseloom.models.device import arithmetic
from phraseloom.native.model import fast
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.tokenizer import Side, Tokenizer
from phraseloom.text.vocabulary import BOS, PAD, UNK


def with_prefixes(side: Side, lines: list[list[Piece]], prefixes: Sequence[str]) -> list[list[Piece]]:
    """The pieces of each line, with the forced prefix of its translation in the first piece; `side` is the target side.

    Raises DataError (line from 1) for the prefix of a blank line.
    """
    result = []
    encoded = side.encode_batch(list(prefixes))
    for number, (pieces, prefix, ids) in enumerate(zip(lines, prefixes, encoded, strict=True), 1):
        if ids and not pieces:
            hint = "remove its prefix"
            raise DataError("the line is blank, and so is its translation", file=PREFIXES, line=number, hint=hint)
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

    Samples are sorted by log-probability or, with `mbr`, by expected similarity. All pieces form one batch; all of them have
    constraints, or none. Several threads may call this at the same time. Raises Cancelled.
    """
    with torch.inference_mode(), arithmetic(config.precision, device):
        model = averaged(model, config.ensemble_mean)
        searched = fast(model, config.kernels, config.precision)
        memory = encode_pieces(searched, pieces, config, device)
        limits, options = limits_of(pieces, config, device), search_options(tokenizer, pieces, config, should_cancel)
        trackers = [p.tracker for p in pieces if p.tracker is not None]
        if trackers:
            n_best = constrained_search(searched, memory, limits, options, trackers)
        else:
            n_best = search(searched, memory, limits, options)
        if config.samples:
            n_best = [
                rank_samples(tokenizer.target, piece, samples, config, should_cancel)
                for piece, samples in zip(pieces, n_best, strict=True)
            ]
        return link_pieces(model, tokenizer, pieces, n_best, memory, config, alignments=alignments)


def encode_pieces(model: Any, pieces: Sequence[Piece], config: DecodingConfig, device: torch.device) -> Any:
    """The memory of the model for these pieces, with the gate of these options."""
    phrases = [p.phrases for p in pieces if p.phrases is not None] or None
    batch = make_batch([p.ids for p in pieces], [[] for _ in pieces], phrases).to(device)
    lengths_B = batch.source_lengths_B if batch.is_source_padded else None
    return model.encode(batch.source_BS, lengths_B, batch.phrase_sizes_BP, tempering=tempering_of(config))


def limits_of(pieces: Sequence[Piece], config: DecodingConfig, device: torch.device) -> Limits:
    """The bounds of length of these pieces, and their forced prefixes."""
    sizes = [len(p.ids) for p in pieces]
    return Limits.of(
        [config.max_length.of(n) for n in sizes],
        [config.min_length.of(n) for n in sizes],
        [p.prefix for p in pieces],
        device,
        expected=max(sizes) + 8,
    )


def search_options(
    tokenizer: Tokenizer, pieces: Sequence[Piece], config: DecodingConfig, should_cancel: ShouldCancel | None = None
) -> SearchOptions:
    """The options of the search for these pieces."""
    return SearchOptions(
        beam=config.beam,
        n_best=config.samples or config.n_best,
        penalty=build_penalty(config.length_penalty),
        banned=((PAD, UNK, BOS) if config.unknown == "forbid" else (PAD, BOS))
        + tuple(tokenizer.target.tag_ids.values()),
        exact=config.stop == "exact",
        transformers=config.stop == "transformers",
        word_bonus=config.word_bonus,
        should_cancel=should_cancel,
        sampling=Sampling(config.temperature, config.top_k, config.top_p) if config.samples else None,
        seeds=[p.seed for p in pieces],
        no_repeat_ngram_size=config.no_repeat_ngram_size,
    )


def link_pieces(
    model: Any,
    tokenizer: Tokenizer,
    pieces: Sequence[Piece],
    n_best: Sequence[list[Hypothesis]],
    memory: Any,
    config: DecodingConfig,
    *,
    alignments: bool,
) -> list[PieceResult]:
    """The hypotheses with their links, if requested, and with the unknown words to replace."""
    replacing = config.unknown == "replace"
    links = writer_of(model).links
    return links(model, tokenizer, pieces, n_best, memory, config, alignments=alignments, replacing=replacing)


def rank_samples(
    side: Side, piece: Piece, samples: list[Hypothesis], config: DecodingConfig, should_cancel: ShouldCancel | None
) -> list[Hypothesis]:
    """The `n_best` of the samples of a piece: the likeliest or, with `mbr`, those with the largest expected similarity, which
    becomes their score. Ties: the sample that was drawn first."""
    if config.mbr:
        texts = [side.decode(sample.tokens, piece.begun).replace("\n", " ") for sample in samples]
        utilities = expected_similarity(texts, config.mbr_metric, should_cancel)
        samples = [s._replace(score=utility) for s, utility in zip(samples, utilities, strict=True)]
        return sorted(samples, key=lambda sample: -sample.score)[: config.n_best]
    return sorted(samples, key=lambda sample: -sample.log_prob)[: config.n_best]
