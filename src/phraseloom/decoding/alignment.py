"""Word alignments from cross-attention (spec §6.3; Garg et al. 2019 for the choice of layer).

The output is fed through the decoder once more, all at once. Of one layer, the weights are averaged over the heads; the
columns of the pieces of a source word are summed, the rows of the pieces of a target word averaged, EOS left out. Each
target word is linked to the source word with the largest weight, ties to the lower one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phraseloom.data.tensors import make_batch
from phraseloom.errors import UsageError

CHUNK_WEIGHTS = 2**24


def alignment_layer(wanted: int | None, layers: int) -> int:
    """The index (from 0) of the decoder layer `wanted` (from 1); by default the last but one.

    Raises UsageError where the model has no such layer.
    """
    if wanted is None:
        return max(0, layers - 2)
    if wanted > layers:
        raise UsageError(f"alignment_layer {wanted}: the decoder has {layers} layers")
    return wanted - 1


def link_words(weights_TS: np.ndarray, source_word: Sequence[int], target_word: Sequence[int]) -> list[tuple[int, int]]:
    """Links (source word, target word) from attention (target pieces + EOS, source pieces + EOS or more).

    `source_word`, `target_word`: the word number of each piece, in ascending order.
    """
    if not source_word or not target_word:
        return []
    num_source, num_target = len(source_word), len(target_word)
    by_source = np.zeros((num_target, max(source_word) + 1))
    np.add.at(by_source.T, np.asarray(source_word), weights_TS[:num_target, :num_source].T)
    by_word = np.zeros((max(target_word) + 1, by_source.shape[1]))
    np.add.at(by_word, np.asarray(target_word), by_source)
    return [(int(s), t) for t, s in enumerate(by_word.argmax(1))]


def attention_of(
    model: Any, memory: Any, sources: Sequence[int], targets: list[list[int]], layer: int
) -> list[np.ndarray]:
    """The weights (T + 1, S) of one layer, averaged over heads, for each target; target i is of sentence `sources[i]`.

    Row t is the attention with which target piece t was predicted.
    """
    result: list[np.ndarray] = []
    device = memory.states_BSD.device
    length = memory.states_BSD.shape[1]
    start = 0
    while start < len(targets):
        end, longest = start, 1
        while end < len(targets):
            longest = max(longest, len(targets[end]) + 1)
            if end > start and (end + 1 - start) * longest * length > CHUNK_WEIGHTS // 16:
                break
            end += 1
        chunk = targets[start:end]
        batch = make_batch([[] for _ in chunk], chunk)
        chosen = memory.select(torch.tensor(sources[start:end], device=device))
        weights: Tensor = model.decode(batch.target_in_BT.to(device), chosen, keep_weights=True)[1][layer]
        mean_BTS = weights.mean(1).double().cpu().numpy()
        result += [w[: len(t) + 1] for w, t in zip(mean_BTS, chunk, strict=True)]
        start = end
    return result
