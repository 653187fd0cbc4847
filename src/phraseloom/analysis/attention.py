"""The cross-attention of whole texts: every layer, head and step of forced decoding, a sentence pair at a time.

Each target is fed through the decoder all at once, as in training and scoring, and the weights of every layer that attends to
the source are kept. Row t of a sentence is the attention with which target piece t was predicted; the last row predicted EOS.

Pairs are taken in windows of bounded size, batched by length inside them, and given back in their order, so that a text of
any length needs only the memory of one window.

Arrays of weights inside JSON: one byte a weight, deflated, as text.

    value = byte / 255 · scale        byte = round(value / scale · 255),   scale = the largest weight

so no value is farther than scale / 510 from what was packed, 0 stays 0 and the largest stays itself. Attention is mostly close
to 0, which deflates well.
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

from phraseloom.data.tensors import make_batch
from phraseloom.decoding.batching import map_batches, num_workers, plan_batches
from phraseloom.decoding.limits import refuse_nan
from phraseloom.decoding.long_lines import crop
from phraseloom.decoding.source_phrases import cropped_sources
from phraseloom.errors import ModelError, UsageError
from phraseloom.layers.attention.structure import Structure

BATCH_WEIGHTS = 2**23  # of all layers, padding counted: 32 MiB
WINDOW_WEIGHTS = 2**25  # of the pairs that are held until it is their turn: 128 MiB


class Attended(NamedTuple):
    """The cross-attention of one sentence pair by decoder layer, float32, without padding.

    `layers`: attention to tokens (H, T+1, S+1) of each layer, slots spread evenly over their tokens
    (`Structure.token_weights`); `slots`: attention of the unigram queries to slots (H, T+1, G·(S+1)) as the model normalises
    it, in the layout of the layer's structure; for token attention the same array. Rows are the target pieces, then EOS;
    columns the source pieces, then EOS. `source_word`, `target_word`: the word of each piece, from 0, without EOS.
    """

    layers: list[np.ndarray]
    slots: list[np.ndarray]
    source_word: list[int]
    target_word: list[int]


def cross_structures(model: Any) -> list[Structure]:
    """The structure of every cross-attention of a model's decoder, by layer. Raises ModelError where there is none."""
    structures: list[Structure] = model.decoder.cross_structures
    if not structures:
        raise ModelError(
            "the model attends to no source tokens",
            hint="its decoder sees one fixed vector of the source; attention can be looked at in other models",
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
    """The attention of each pair of raw lines, in order; a target may also be subword ids, such as those of an own output.

    Lines that are too long are cropped. `trees` of the sources, where the phrases of the model are made of them.
    `batch_tokens`: padded tokens computed together, by default as the translator does. Raises UsageError (numbers of lines,
    trees), DataError (a tree that does not fit), ModelError (no attention; NaN, where it is met).
    """
    if len(sources) != len(targets):
        raise UsageError(f"{len(sources)} sources, but {len(targets)} targets")
    structures = cross_structures(translator.model)
    source_ids, phrases, _ = cropped_sources(translator, sources, trees)
    target_ids = _target_ids(translator.tokenizer.target, targets, translator.config.max_target_tokens)
    return _windows(translator, structures, _Pairs(source_ids, target_ids, phrases), batch_tokens)


class _Pairs(NamedTuple):
    source: list[list[int]]
    target: list[list[int]]
    phrases: list[list[int]] | None


def _target_ids(side: Any, targets: Sequence[str] | Sequence[list[int]], limit: int) -> list[list[int]]:
    lines = [target for target in targets if isinstance(target, str)]
    encoded: list[list[int]] = side.encode_batch(lines) if lines else []
    return crop(encoded or [list(target) for target in targets if not isinstance(target, str)], limit)[0]


def _windows(
    translator: Any, structures: list[Structure], pairs: _Pairs, batch_tokens: int | None
) -> Iterator[Attended]:
    start = 0
    while start < len(pairs.source):
        end, held = start, 0
        while end < len(pairs.source):
            held += _num_weights(structures, len(pairs.source[end]) + 1, len(pairs.target[end]) + 1)
            if end > start and held > WINDOW_WEIGHTS:
                break
            end += 1
        done = deque(_window(translator, structures, pairs, range(start, end), batch_tokens))
        while done:
            yield done.popleft()
        start = end


def _num_weights(structures: list[Structure], source: int, target: int) -> int:
    """The weights of all layers for so many tokens on each side."""
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
        most = max(1, BATCH_WEIGHTS // _num_weights(structures, *longest))
        batches += [numbers[i : i + most] for i in range(0, len(numbers), most)]

    def work(numbers: list[int]) -> list[Attended]:
        return _attend(translator, structures, pairs, numbers)

    found: dict[int, Attended] = {}
    for numbers, some in zip(batches, map_batches(work, batches, workers=workers), strict=True):
        found.update(zip(numbers, some, strict=True))
    return [found[n] for n in window]


def _attend(translator: Any, structures: list[Structure], pairs: _Pairs, numbers: list[int]) -> list[Attended]:
    """One batch; runs in a worker thread."""
    model, tokenizer = translator.model, translator.tokenizer
    sources, targets = [pairs.source[n] for n in numbers], [pairs.target[n] for n in numbers]
    sizes = None if pairs.phrases is None else [pairs.phrases[n] for n in numbers]
    shapes = [(len(t) + 1, len(s) + 1) for s, t in zip(sources, targets, strict=True)]
    by_layer = []
    with torch.inference_mode():
        batch = make_batch(sources, targets, sizes).to(translator.device)
        memory = model.encode(batch.source_BS, batch.source_lengths_B, batch.phrase_sizes_BP)
        kept = model.decode(batch.target_in_BT, memory, keep_weights=True)[1]
        for structure in structures:
            weights = kept.pop(0)
            refuse_nan(weights)
            by_layer.append(_cut(weights, structure, shapes))
    return [
        Attended(
            [layer[b][0] for layer in by_layer],
            [layer[b][1] for layer in by_layer],
            tokenizer.source.word_of_piece(source),
            tokenizer.target.word_of_piece(target),
        )
        for b, (source, target) in enumerate(zip(sources, targets, strict=True))
    ]


def _cut(
    weights_BHQK: Tensor, structure: Structure, shapes: list[tuple[int, int]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(attention to tokens, to slots) of each sentence of a layer, arrays of their own, cut to (target, source) tokens."""
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
    """`values` (any shape, none below 0, all finite) as plain data: shape, scale and the text of its bytes in C order."""
    exact = np.asarray(values, np.float64)
    scale = float(exact.max(initial=0.0))
    if not np.isfinite(exact).all() or float(exact.min(initial=0.0)) < 0:
        raise ValueError("only finite weights from 0 can be packed")
    levels = np.rint(exact * (LEVELS / scale)) if scale > 0 else exact
    data = zlib.compress(np.ascontiguousarray(levels, np.uint8).tobytes(), DEFLATE)
    return {"shape": list(exact.shape), "scale": scale, "data": base64.b64encode(data).decode("ascii")}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The float64 array that `pack` was given, to within scale / 510."""
    levels = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8)
    exact: np.ndarray = levels.astype(np.float64).reshape(packed["shape"]) / LEVELS * packed["scale"]
    return exact
