"""Attention entropy: how spread out the cross-attention of each decoder layer is (Ghader and Monz 2017; paper 004 §4.2, Eq. 1).

    E_l(t) = -Σ_s A_l(t,s) log A_l(t,s)        A_l = mean over heads of the attention weights of layer l

The sum is over the real source tokens, including EOS; in nats, with 0 log 0 = 0. Attention to one token has entropy 0; even
attention to S tokens has the maximum log S. The entropy of the whole mechanism is that of the mean of A_l over layers. Steps t
are the target pieces and EOS. A text has the mean over all its steps, or the mean over sentences of the mean over their steps.

Attention to phrases has two readings: over *tokens*, with the weight of each slot spread evenly over its tokens, which is
comparable between models; and over *slots*, the attention of unigram queries as the model normalises it. `uniform` of slots is
the entropy if every head spreads its weight evenly over its slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from operator import or_
from typing import Any

import numpy as np
import torch

from phraseloom.analysis.attention import Attended, cross_structures, forced_attention
from phraseloom.decoding.alignment import slot_weights
from phraseloom.decoding.long_lines import crop, crop_targets
from phraseloom.decoding.translation import TranslationReport
from phraseloom.errors import DataError
from phraseloom.layers.attention.structure import Structure


@dataclass(frozen=True)
class MeanEntropy:
    """A mean in nats over all `steps`, and over `sentences` of the mean over their steps."""

    steps: float
    sentences: float


@dataclass(frozen=True)
class Reading:
    """The entropies of a text, over tokens or over slots.

    `layers` has one per decoder layer, `whole` is that of the mean of all layers, `uniform` that of even attention, and `heads`
    has one per layer and head. `by_sentence` has [sum over steps, steps] of each sentence for `layers` and `whole`.
    """

    layers: list[MeanEntropy]
    whole: MeanEntropy
    uniform: MeanEntropy
    heads: list[list[MeanEntropy]]
    by_sentence: dict[str, Any]


@dataclass(frozen=True)
class AttentionEntropy:
    """The entropies of a model on a text of `steps` target pieces and EOS in `sentences`.

    `slots` is None for token attention, whose slots are the tokens. `own` is true if the targets were the model's own
    translations; `unfinished` of them reached the maximal length. `blank` counts pairs with a blank side, which are left out,
    and `cropped` pairs with a side that is too long.
    """

    steps: int
    sentences: int
    own: bool
    blank: int
    cropped: int
    unfinished: int
    tokens: Reading
    slots: Reading | None


def entropy(weights: np.ndarray) -> np.ndarray:
    """-Σ a log a over the last axis, in nats and float64; 0 log 0 = 0."""
    a = np.asarray(weights, np.float64)
    return 0.0 - (a * np.log(a, out=np.zeros_like(a), where=a > 0)).sum(-1)


def own_targets(
    translator: Any, sources: Sequence[str], trees: Sequence[str] | None = None
) -> tuple[list[list[int]], int]:
    """The subword ids of the model's own translations with its own options, and how many reached the maximal length.

    Long lines are cropped; a blank line has no ids.
    """
    report, id_of = TranslationReport(), translator.tokenizer.target.vocabulary.id
    translations = translator.translate(sources, trees=trees, long_lines="crop", n_best=1, report=report)
    return [[id_of(token) for token in t.tokens] for t in translations], report.hit_max_length


def attention_entropy(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    trees: Sequence[str] | None = None,
) -> AttentionEntropy:
    """The entropies of the cross-attention of a model on raw lines; without `targets`, on its own translations.

    `trees` of the sources are for models with phrases from parse trees. Raises UsageError (numbers of lines, trees), DataError
    (no text, a tree that does not fit), ModelError (no attention, NaN).
    """
    translator = translator.first_model()
    structures = cross_structures(translator.model)
    forced: Sequence[str] | Sequence[list[int]] = targets or []
    unfinished = blank = 0
    if targets is None:
        forced, unfinished = own_targets(translator, sources, trees)
    tokens, slots = _Tally(), None if all(s.is_token for s in structures) else _Tally()
    for attended in forced_attention(translator, sources, forced, trees=trees):
        if not attended.source_word or (targets is not None and not attended.target_word):
            blank += 1
            for tally in (tokens, slots):
                if tally is not None:
                    tally.skip()
            continue
        tokens.add(_token_values(attended))
        if slots is not None:
            slots.add(_slot_values(attended, structures))
    if not tokens.steps:
        raise DataError("no line has text on every side", hint="there is nothing to analyse")
    cropped = crop(translator.tokenizer.source.encode_batch(list(sources)), translator.config.max_input_tokens)[1]
    if targets is not None:
        cropped = list(map(or_, cropped, crop_targets(translator, targets)[1]))
    return AttentionEntropy(
        tokens.steps,
        tokens.sentences,
        own=targets is None,
        blank=blank,
        cropped=sum(cropped),
        unfinished=unfinished,
        tokens=tokens.reading(structures),
        slots=None if slots is None else slots.reading(structures),
    )


class _Tally:
    """Sums over the steps of each sentence of C values: each layer, all layers, uniform, then every head of each layer."""

    def __init__(self) -> None:
        self.steps = self.sentences = 0
        self._sums: list[np.ndarray] = []
        self._lengths: list[int] = []
        self._lines: list[int] = []  # the number of each sentence among all pairs
        self._pairs = 0

    def add(self, values_CT: np.ndarray) -> None:
        """Add the steps of a sentence."""
        self.steps, self.sentences = self.steps + values_CT.shape[1], self.sentences + 1
        self._sums.append(values_CT.sum(1))
        self._lengths.append(values_CT.shape[1])
        self._lines.append(self._pairs)
        self._pairs += 1

    def skip(self) -> None:
        """A pair of lines that is left out."""
        self._pairs += 1

    def reading(self, structures: Sequence[Structure]) -> Reading:
        """The means over all sentences."""
        sums_NC, lengths_N = np.stack(self._sums), np.array(self._lengths)
        by_steps, by_sentences = sums_NC.sum(0) / self.steps, (sums_NC / lengths_N[:, None]).mean(0)
        means = [MeanEntropy(*pair) for pair in zip(by_steps.tolist(), by_sentences.tolist(), strict=True)]
        layers, (whole, uniform, *head_means) = means[: len(structures)], means[len(structures) :]
        ends = list(accumulate(s.heads for s in structures))
        heads = [head_means[end - s.heads : end] for end, s in zip(ends, structures, strict=True)]
        sums = [self._of_pairs(column) for column in sums_NC.T.tolist()[: len(layers) + 1]]
        return Reading(layers, whole, uniform, heads, {"layers": sums[:-1], "whole": sums[-1]})

    def _of_pairs(self, sums: Sequence[float]) -> list[list[float]]:
        """Numerator and denominator of each pair of lines; [0, 0] for those that are left out."""
        result: list[list[float]] = [[0.0, 0] for _ in range(self._pairs)]
        for line, value, steps in zip(self._lines, sums, self._lengths, strict=True):
            result[line] = [value, steps]
        return result


def _token_values(attended: Attended) -> np.ndarray:
    heads = [weights_HTS.astype(np.float64) for weights_HTS in attended.layers]
    return _values(np.stack([weights.mean(0) for weights in heads]), heads, math.log(heads[0].shape[-1]))


def _slot_values(attended: Attended, structures: Sequence[Structure]) -> np.ndarray:
    heads = [weights.astype(np.float64) for weights in attended.slots]
    means = [_mean_of_heads(weights, s) for weights, s in zip(heads, structures, strict=True)]
    return _values(np.stack(means), heads, uniform_slots(structures[0], attended.layers[0].shape[-1]))


def _values(means_LTK: np.ndarray, heads: list[np.ndarray], uniform: float) -> np.ndarray:
    """The entropies (C, T) of one sentence, in the order of `_Tally`; `heads` of each layer (H, T, K)."""
    whole_T = entropy(means_LTK.mean(0))
    return np.concatenate([entropy(means_LTK), [whole_T], [np.full_like(whole_T, uniform)], *map(entropy, heads)])


def _mean_of_heads(slots_HTK: np.ndarray, structure: Structure) -> np.ndarray:
    """(H, T, G·S) → (T, N·S): the mean over heads, with one column per slot."""
    one_query = replace(structure, query_orders=(1,))
    by_order_NTS = slot_weights(torch.from_numpy(slots_HTK)[None], one_query)[0, 0].numpy()
    return np.concatenate(list(by_order_NTS), axis=-1)


@cache
def uniform_slots(structure: Structure, length: int) -> float:
    """The entropy over the slots of `length` tokens if every head spreads its weight evenly over its slots."""
    slots_HGS = np.zeros((structure.heads, len(structure.blocks), length))
    for g, block in enumerate(structure.blocks):
        for part in block:
            slots_HGS[part.first : part.last, g, 0 if structure.zero_extended else part.order - 1 :] = 1
    even = slots_HGS / np.maximum(1, slots_HGS.sum((1, 2), keepdims=True))
    return float(entropy(_mean_of_heads(even.reshape(structure.heads, 1, -1), structure))[0])
