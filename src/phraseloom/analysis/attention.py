"""Attention of whole texts under forced decoding, for every layer, head and step.

The decoder reads each target at once, as in training and scoring. Row t of a sentence is the attention that predicted target
piece t; the last row predicted EOS. `forced_attention` reads pairs in windows of bounded size, batches them by length and
returns them in order, so a text of any length needs the memory of one window.

`pack` stores an array of weights in JSON with one byte per weight, deflated, as text:

    value = byte / 255 · scale        byte = round(value / scale · 255),   scale = the largest weight

The error is at most scale / 510; 0 and the largest weight are exact. Most attention weights are close to 0, which deflates
well.
"""

from __future__ import annotations

import base64
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.decoding.batching import map_batches, num_workers, plan_batches
from phraseloom.decoding.limits import refuse_nan
from phraseloom.decoding.long_lines import crop
from phraseloom.decoding.source_phrases import cropped_sources
from phraseloom.errors import ModelError, UsageError
from phraseloom.layers.attention.structure import Structure

BATCH_WEIGHTS = 2**23  # of all layers, including padding: 32 MiB
WINDOW_WEIGHTS = 2**25  # of the pairs in a window: 128 MiB


def look_in_batches(
    translator: Any,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    phrases: Sequence[list[int]] | None,
    *,
    sentences: int,
    tokens: int,
) -> Iterator[tuple[Sequence[int], Batch, Any]]:
    """The attention maps of all layers for pairs of subword ids with forced targets, in batches of similar lengths.

    Yields the numbers of the pairs, the batch and the maps. `phrases` are the sizes of source phrases, if the model has any.
    """
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for numbers in plan_batches(lengths, sentences=sentences, tokens=tokens):
        sizes = None if phrases is None else [phrases[n] for n in numbers]
        batch = make_batch([sources[n] for n in numbers], [targets[n] for n in numbers], sizes).to(translator.device)
        with torch.inference_mode():
            inputs = batch.source_BS, batch.source_lengths_B, batch.target_in_BT, batch.phrase_sizes_BP
            maps = translator.model.attention_maps(*inputs)
        yield numbers, batch, maps


class Attended(NamedTuple):
    """The cross-attention of one sentence pair by decoder layer, float32, without padding.

    `layers` has the attention to tokens (H, T+1, S+1) of each layer, slots spread evenly over their tokens
    (`Structure.token_weights`). `slots` has the attention of the unigram queries to slots (H, T+1, G·(S+1)) as the model
    normalises it, in the layout of the layer's structure; for token attention it is the same array. Rows are the target
    pieces, then EOS; columns the source pieces, then EOS. `source_word` and `target_word` have the word of each piece, from 0,
    without EOS.
    """

    layers: list[np.ndarray]
    slots: list[np.ndarray]
    source_word: list[int]
    target_word: list[int]


def cross_structures(model: Any) -> list[Structure]:
    """The structure of every cross-attention of the decoder, by layer. Raises ModelError if it has none."""
    if model.writes == "segments":
        hint = "phraseloom analyse segments shows its segments; translate --alignments links its words"
        raise ModelError("a segmental model has no attention", hint=hint)
    structures: list[Structure] = model.decoder.cross_structures
    if not structures:
        raise ModelError(
            "the model attends to no source tokens",
            hint="its decoder sees one fixed vector of the source; analyse the attention of another model",
        )
    return structures


def forced_attention(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str] | Sequence[list[int]],
    *,
    trees: Sequence[str] | None = None,
    batch_tokens: int | None = None,
) -> Iterator[Attended]:
    """The attention of each pair of raw lines, in order; targets may also be subword ids, such as those of a translation.

    Lines that are too long are cropped. `trees` of the sources are for models with phrases from parse trees. `batch_tokens`
    is the number of padded tokens per batch, by default that of the translator. Raises UsageError (numbers of lines, trees),
    DataError (a tree that does not fit), ModelError (no attention, NaN).
    """
    if len(sources) != len(targets):
        raise UsageError(f"{len(sources)} sources, but {len(targets)} targets")
    structures = cross_structures(translator.model)
    source_ids, phrases, _ = cropped_sources(translator, sources, trees)
    source, target = translator.tokenizer.source, translator.tokenizer.target
    target_ids = _target_ids(target, targets, translator.config.max_target_tokens)
    begun = [
        (source.pieces_of(line, own), target.pieces_of(text, other) if isinstance(text, str) else [])
        for line, text, own, other in zip(sources, targets, source_ids, target_ids, strict=True)
    ]
    return _windows(translator, structures, _Pairs(source_ids, target_ids, phrases, begun), batch_tokens)


class _Pairs(NamedTuple):
    """The ids of each pair, the sizes of its phrases, and `begun` of both sides for `Side.word_of_piece`."""

    source: list[list[int]]
    target: list[list[int]]
    phrases: list[list[int]] | None
    begun: list[tuple[list[str], list[str]]]


def _target_ids(side: Any, targets: Sequence[str] | Sequence[list[int]], limit: int) -> list[list[int]]:
    lines = [target for target in targets if isinstance(target, str)]
    encoded: list[list[int]] = side.encode_batch(lines) if lines else []
    return crop(encoded or [list(target) for target in targets if not isinstance(target, str)], limit)[0]


def _windows(
    translator: Any, structures: list[Structure], pairs: _Pairs, batch_tokens: int | None
) -> Iterator[Attended]:
    start = 0
    while start < len(pairs.source):
        end, size = start, 0
        while end < len(pairs.source):
            size += _num_weights(structures, len(pairs.source[end]) + 1, len(pairs.target[end]) + 1)
            if end > start and size > WINDOW_WEIGHTS:
                break
            end += 1
        done = deque(_window(translator, structures, pairs, range(start, end), batch_tokens))
        while done:
            yield done.popleft()
        start = end


def _num_weights(structures: list[Structure], source: int, target: int) -> int:
    """The number of weights of all layers for `source` and `target` tokens."""
    return sum(s.heads * len(s.query_orders) * len(s.blocks) for s in structures) * source * target


def _window(
    translator: Any, structures: list[Structure], pairs: _Pairs, window: range, batch_tokens: int | None
) -> list[Attended]:
    config = translator.config
    workers = num_workers(config.workers, translator.device)
    lengths = [max(len(pairs.source[n]), len(pairs.target[n])) + 1 for n in window]
    planned = plan_batches(
        lengths, sentences=config.sentences_together, tokens=batch_tokens or config.batch_tokens, workers=workers
    )
    batches = []
    for batch in planned:
        numbers = [window[i] for i in batch]
        longest = [max(len(side[n]) for n in numbers) + 1 for side in (pairs.source, pairs.target)]
        step = max(1, BATCH_WEIGHTS // _num_weights(structures, *longest))
        batches += [numbers[i : i + step] for i in range(0, len(numbers), step)]

    def work(numbers: list[int]) -> list[Attended]:
        return _attend(translator, structures, pairs, numbers)

    result: dict[int, Attended] = {}
    for numbers, attended in zip(batches, map_batches(work, batches, workers=workers), strict=True):
        result.update(zip(numbers, attended, strict=True))
    return [result[n] for n in window]


def _attend(translator: Any, structures: list[Structure], pairs: _Pairs, numbers: list[int]) -> list[Attended]:
    """The attention of one batch; runs in a worker thread."""
    model, tokenizer = translator.model, translator.tokenizer
    sources, targets = [pairs.source[n] for n in numbers], [pairs.target[n] for n in numbers]
    sizes = None if pairs.phrases is None else [pairs.phrases[n] for n in numbers]
    shapes = [(len(t) + 1, len(s) + 1) for s, t in zip(sources, targets, strict=True)]
    by_layer = []
    with torch.inference_mode():
        batch = make_batch(sources, targets, sizes).to(translator.device)
        memory = model.encode(batch.source_BS, batch.source_lengths_B, batch.phrase_sizes_BP)
        attention_weights = model.decode(batch.target_in_BT, memory, keep_weights=True)[1]
        for structure in structures:
            weights = attention_weights.pop(0)
            refuse_nan(weights)
            by_layer.append(_cut(weights, structure, shapes))
    return [
        Attended(
            [layer[b][0] for layer in by_layer],
            [layer[b][1] for layer in by_layer],
            tokenizer.source.word_of_piece(source, pairs.begun[n][0]),
            tokenizer.target.word_of_piece(target, pairs.begun[n][1]),
        )
        for b, (n, source, target) in enumerate(zip(numbers, sources, targets, strict=True))
    ]


def _cut(
    weights_BHQK: Tensor, structure: Structure, shapes: list[tuple[int, int]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The attention of a layer to tokens and to slots for each sentence, copied and cut to (target, source) tokens."""
    tokens = structure.token_weights(weights_BHQK).float().cpu().numpy()
    if structure.is_token:
        return [(own, own) for own in (tokens[b, :, :t, :s].copy() for b, (t, s) in enumerate(shapes))]
    unigram = structure.split(weights_BHQK)[:, :, structure.query_orders.index(1)]
    slots = unigram.float().cpu().numpy()
    return [
        (tokens[b, :, :t, :s].copy(), slots[b, :, :t, :, :s].copy().reshape(structure.heads, t, -1))
        for b, (t, s) in enumerate(shapes)
    ]


LEVELS = 255
DEFLATE = 6


def pack(values: np.ndarray) -> dict[str, Any]:
    """Non-negative finite `values` of any shape as plain data: shape, scale and the encoded bytes in C order."""
    exact = np.asarray(values, np.float64)
    scale = float(exact.max(initial=0.0))
    if not np.isfinite(exact).all() or float(exact.min(initial=0.0)) < 0:
        raise ValueError("only finite, non-negative weights can be packed")
    levels = np.rint(exact * (LEVELS / scale)) if scale > 0 else exact
    data = zlib.compress(np.ascontiguousarray(levels, np.uint8).tobytes(), DEFLATE)
    return {"shape": list(exact.shape), "scale": scale, "data": base64.b64encode(data).decode("ascii")}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The inverse of `pack`, to within scale / 510, in float64."""
    levels = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8)
    exact: np.ndarray = levels.astype(np.float64).reshape(packed["shape"]) / LEVELS * packed["scale"]
    return exact
