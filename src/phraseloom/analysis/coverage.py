"""Runs a model over sentences with gold phrases and counts which phrase slots its attention fires on (`slots.py`).

Phrases: one line a sentence, `s1:s2` spans of source words, half-open, from 0, separated by spaces. Behind a span may
stand the target spans and the kind, as in the `.phrases` of the world: `2:4-2:3,6:7=separable`. Targets are forced, as
in training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from phraseloom.analysis.instances import parse_links
from phraseloom.analysis.slots import GoldSpan, LayerTally, by_order, summary
from phraseloom.data.tensors import make_batch
from phraseloom.decoding.batching import plan_batches
from phraseloom.decoding.limits import refuse_nan
from phraseloom.errors import DataError, ModelError, UsageError, plural
from phraseloom.layers.attention.structure import Structure
from phraseloom.metrics.compare import SEED

SPAN = re.compile(r"(\d+):(\d+)(?:-(\d+:\d+(?:,\d+:\d+)*))?(?:=(\w+))?")
USES = ("encoder-self", "cross")
BATCH_SENTENCES, BATCH_TOKENS = 16, 1024


def parse_spans(line: str) -> list[GoldSpan]:
    """Read one line of phrases. Raises DataError."""
    found = []
    for item in line.split():
        match = SPAN.fullmatch(item)
        spans = [tuple(map(int, span.split(":"))) for span in (match[3] or "").split(",") if span] if match else []
        if not match or int(match[1]) >= int(match[2]) or any(start >= end for start, end in spans):
            raise DataError(f"not a phrase: {item!r}", hint="a phrase is s1:s2 or s1:s2-t1:t2=kind, half-open, from 0")
        target = tuple(j for start, end in spans for j in range(start, end))
        found.append(GoldSpan((int(match[1]), int(match[2])), target, match[4] or ""))
    return found


def read_phrases(
    lines: Iterable[str],
    *,
    file: str | Path,
    links: Iterable[str] | None = None,
    links_file: str | Path | None = None,
    kinds: Sequence[str] = (),
) -> list[list[GoldSpan]]:
    """The gold phrases of each line: those of two and more source words, of one of `kinds` if any are given.

    With word `links` (`i-j` a line) a phrase's target words are those linked to it, whatever its own line says. Raises
    DataError with file and line.
    """
    result = []
    for number, line in enumerate(lines, 1):
        try:
            spans = parse_spans(line)
        except DataError as error:
            raise DataError(error.what, file=file, line=number, hint=error.hint) from error
        spans = [s for s in spans if s.source[1] - s.source[0] > 1 and (not kinds or s.kind in kinds)]
        result.append(spans)
    if links is None:
        return result
    linked = []
    for number, (spans, line) in enumerate(zip(result, links, strict=True), 1):
        try:
            pairs = parse_links(line)
        except DataError as error:
            raise DataError(error.what, file=links_file, line=number, hint=error.hint) from error
        linked.append([_aligned(span, pairs) for span in spans])
    return linked


def _aligned(span: GoldSpan, links: Sequence[tuple[int, int]]) -> GoldSpan:
    start, end = span.source
    return GoldSpan(span.source, tuple(sorted({j for i, j in links if start <= i < end})), span.kind)


def measure(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str],
    phrases: Sequence[Sequence[GoldSpan]],
    *,
    samples: int = 1000,
    seed: int = SEED,
    trees: Sequence[str] | None = None,
) -> dict[str, Any]:
    """What `slots.summary` says of every layer (from 1) of encoder self- and cross-attention that has phrase slots.

    Sentences without a gold phrase are left out, so are those longer than `max_input_tokens`. `trees` of the sources, where
    the source phrases of the model are made of them. Raises UsageError, DataError, ModelError (no phrase slots, NaN).
    """
    if not len(sources) == len(targets) == len(phrases):
        raise UsageError(
            f"{len(sources)} sources, {len(targets)} targets, phrases of {plural(len(phrases), 'sentence')}"
        )
    if samples < 1:
        raise UsageError(f"the bootstrap needs at least 1 resample, not {samples}")
    structures = _structures(translator.model)
    if not any(max(structure.orders) > 1 for some in structures.values() for structure in some):
        raise ModelError(
            "the model has no phrase slots in encoder self- or cross-attention",
            hint="coverage needs a model with n-gram slots, such as queryk heterogeneous 1-2",
        )
    sentences, cropped = _encoded(translator, sources, targets, phrases, trees)
    tallies = {use: [LayerTally() for _ in some] for use, some in structures.items()}
    for batch in plan_batches(
        [max(len(s.source), len(s.target)) + 1 for s in sentences], sentences=BATCH_SENTENCES, tokens=BATCH_TOKENS
    ):
        _count(translator, [sentences[i] for i in batch], tallies)
    return {
        "sentences": len(sentences),
        "left_out": {"without_phrases": sum(not p for p in phrases), "too_long": cropped},
        "phrases": sum(len(s.phrases) for s in sentences),
        "uses": {
            use: [
                {"layer": i, "slots": list(structure.orders), **summary(tally, samples=samples, seed=seed)}
                for i, (tally, structure) in enumerate(zip(tallies[use], structures[use], strict=True), 1)
                if max(structure.orders) > 1
            ]
            for use in USES
        },
    }


class _Sentence(NamedTuple):
    """Ids of both sides, the word of each source token with EOS as a word of its own, and what to look for.

    `own[p]`, `aligned[p]`: the query rows of phrase p in encoder self-attention and in cross-attention. `sizes`: the source
    phrases that the model reads, if it needs any.
    """

    source: list[int]
    target: list[int]
    words_K: list[int]
    phrases: Sequence[GoldSpan]
    own: list[list[int]]
    aligned: list[list[int]]
    sizes: list[int] | None


def _structures(model: Any) -> dict[str, list[Structure]]:
    if not (hasattr(model, "encoder") and hasattr(model, "decoder")):
        raise ModelError("not a translation model: it has no encoder", hint="gold phrases are spans of the source")
    return {
        "encoder-self": list(model.encoder.structures),
        "cross": model.decoder.cross_structures,
    }


def _encoded(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str],
    phrases: Sequence[Sequence[GoldSpan]],
    trees: Sequence[str] | None,
) -> tuple[list[_Sentence], int]:
    """The sentences that can be used, and how many are too long. Raises DataError for a phrase beyond its sentence."""
    tokenizer, limit = translator.tokenizer, translator.config.max_input_tokens
    result: list[_Sentence] = []
    cropped = 0
    ids = [side.encode_batch(list(lines)) for side, lines in ((tokenizer.source, sources), (tokenizer.target, targets))]
    sizes = translator.phrases_of(sources, ids[0], trees) or [None] * len(sources)
    for number, (source, target, spans, of_source) in enumerate(zip(*ids, phrases, sizes, strict=True), 1):
        if not spans:
            continue
        words_s, words_t = tokenizer.source.word_of_piece(source), tokenizer.target.word_of_piece(target)
        num_s, num_t = max(words_s, default=-1) + 1, max(words_t, default=-1) + 1
        for span in spans:
            if span.source[1] > num_s or max(span.target, default=-1) >= num_t:
                raise DataError(
                    f"sentence {number} has {num_s} and {num_t} words, too few for the phrase on source words "
                    f"{span.source[0]}:{span.source[1]}"
                    + (f" and target word {max(span.target)}" if span.target else ""),
                    hint="spans count the words of the line, from 0; are the files parallel?",
                )
        if max(len(source), len(target)) > limit:
            cropped += 1
            continue
        own = [[i for i, w in enumerate(words_s) if span.source[0] <= w < span.source[1]] for span in spans]
        aligned = [[t for t, w in enumerate(words_t) if w in span.target] for span in spans]
        result.append(_Sentence(source, target, [*words_s, num_s], spans, own, aligned, of_source))
    if not result:
        raise DataError("no sentence with a gold phrase of two and more source words", hint="there is nothing to cover")
    return result, cropped


def _count(translator: Any, sentences: list[_Sentence], tallies: Mapping[str, list[LayerTally]]) -> None:
    """Add a batch of sentences to the tallies of every layer that has phrase slots."""
    with torch.inference_mode():
        sizes = [s.sizes for s in sentences if s.sizes is not None]
        batch = make_batch([s.source for s in sentences], [s.target for s in sentences], sizes or None)
        batch = batch.to(translator.device)
        looks = translator.model.look(
            batch.source_BS, batch.source_lengths_B, batch.target_in_BT, batch.phrase_sizes_BP
        )
    for use, layers in tallies.items():
        for tally, (weights, structure) in zip(layers, getattr(looks, use.replace("-", "_")), strict=True):
            if max(structure.orders) == 1:
                continue
            refuse_nan(weights)
            mass = by_order(weights, structure)
            for b, sentence in enumerate(sentences):
                keys = len(sentence.words_K)
                queries = keys if use == "encoder-self" else len(sentence.target) + 1
                rows = sentence.own if use == "encoder-self" else sentence.aligned
                cut = {order: some[b, :queries, :keys] for order, some in mass.items()}
                tally.add(cut, sentence.words_K, sentence.phrases, rows, structure)
