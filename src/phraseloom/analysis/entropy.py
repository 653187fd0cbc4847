"""Attention entropy: how spread the cross-attention of each decoder layer is (Ghader and Monz 2017; paper 004 §4.2, Eq. 1).

    E_l(t) = -Σ_s A_l(t,s) log A_l(t,s)        A_l = mean over heads of the attention weights of layer l

over the real source tokens, EOS included, as the model sees them; nats, 0 log 0 = 0. Attention to one token has entropy 0,
attention spread evenly over S tokens has log S, which is the greatest. The entropy of the whole mechanism is that of the mean
of A_l over layers. Steps t are the target pieces and EOS; a text has the mean over all its steps, or the mean over
sentences of the mean over their steps (spec §6.2).

An attention to phrases has two readings: over *tokens*, each slot spreading its weight evenly over its tokens, which can be
compared between models; and over *slots*, the attention of unigram queries as the model normalises it. `uniform` of slots is
the entropy when every head spreads its weight evenly over its slots.
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

    `layers`: by decoder layer; `whole`: of the mean of all layers; `uniform`: what evenly spread attention would have;
    `heads`: by layer and head. `by_sentence`: for `layers` and `whole`, [sum over its steps, steps] of each sentence.
    """

    layers: list[MeanEntropy]
    whole: MeanEntropy
    uniform: MeanEntropy
    heads: list[list[MeanEntropy]]
    by_sentence: dict[str, Any]


@dataclass(frozen=True)
class AttentionEntropy:
    """What a model has on a text of so many `steps` (target pieces and EOS) in so many `sentences`.

    `slots` None: those of a token attention are the tokens. `own`: the targets were the model's own translations; of these,
    `unfinished` were ended by the maximal length. `blank`: pairs with a blank side, left out; `cropped`: pairs with a side
    that is too long, whose end was left out.
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
    """The subword ids of the model's own translations, by its own options, and how many reached the maximal length.

    Long lines are cropped; a blank line has no ids.
    """
    report, id_of = TranslationReport(), translator.tokenizer.target.vocabulary.id
    found = translator.translate(sources, trees=trees, long_lines="crop", n_best=1, report=report)
    return [[id_of(token) for token in translation.tokens] for translation in found], report.hit_max_length


def attention_entropy(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    trees: Sequence[str] | None = None,
) -> AttentionEntropy:
    """The entropies of the cross-attention of a model over raw lines; without `targets`, over its own translations.

    `trees` of the sources, where the phrases of the model are made of them. Raises UsageError (numbers of lines, trees),
    DataError (nothing to look at, a tree that does not fit), ModelError (no attention, NaN).
    """
    structures = cross_structures(translator.model)
    forced: Sequence[str] | Sequence[list[int]] = targets or []
    unfinished = blank = 0
    if targets is None:
        forced, unfinished = own_targets(translator, sources, trees)
    tokens, slots = _Tally(), None if all(s.is_token for s in structures) else _Tally()
    for attended in forced_attention(translator, sources, forced, trees=trees):
        if not attended.source_word or (targets is not None and not attended.target_word):
            blank += 1
            continue
        tokens.add(_of_tokens(attended))
        if slots is not None:
            slots.add(_of_slots(attended, structures))
    if not tokens.steps:
        raise DataError("no line with text on every side", hint="there is nothing to look at")
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
    """Sums over the steps of each sentence so far of C values: each layer, all layers, uniform, then every head of a layer."""

    def __init__(self) -> None:
        self.steps = self.sentences = 0
        self._sums: list[np.ndarray] = []
        self._lengths: list[int] = []

    def add(self, values_CT: np.ndarray) -> None:
        """Count the steps of one sentence."""
        self.steps, self.sentences = self.steps + values_CT.shape[1], self.sentences + 1
        self._sums.append(values_CT.sum(1))
        self._lengths.append(values_CT.shape[1])

    def reading(self, structures: Sequence[Structure]) -> Reading:
        """The means of all."""
        sums_NC, lengths_N = np.stack(self._sums), np.array(self._lengths)
        of_steps, of_sentences = sums_NC.sum(0) / self.steps, (sums_NC / lengths_N[:, None]).mean(0)
        means = [MeanEntropy(*pair) for pair in zip(of_steps.tolist(), of_sentences.tolist(), strict=True)]
        layers, (whole, uniform, *rest) = means[: len(structures)], means[len(structures) :]
        ends = list(accumulate(s.heads for s in structures))
        heads = [rest[end - s.heads : end] for end, s in zip(ends, structures, strict=True)]
        pairs = [list(map(list, zip(column, self._lengths, strict=True))) for column in sums_NC.T.tolist()]
        by_sentence = {"layers": pairs[: len(layers)], "whole": pairs[len(layers)]}
        return Reading(layers, whole, uniform, heads, by_sentence)


def _of_tokens(attended: Attended) -> np.ndarray:
    heads = [weights_HTS.astype(np.float64) for weights_HTS in attended.layers]
    return _values(np.stack([weights.mean(0) for weights in heads]), heads, math.log(heads[0].shape[-1]))


def _of_slots(attended: Attended, structures: Sequence[Structure]) -> np.ndarray:
    heads = [weights.astype(np.float64) for weights in attended.slots]
    means = [_mean_of_heads(weights, s) for weights, s in zip(heads, structures, strict=True)]
    return _values(np.stack(means), heads, uniform_slots(structures[0], attended.layers[0].shape[-1]))


def _values(means_LTK: np.ndarray, heads: list[np.ndarray], uniform: float) -> np.ndarray:
    """The entropies (C, T) of one sentence, in the order of `_Tally`; `heads` of each layer (H, T, K)."""
    whole_T = entropy(means_LTK.mean(0))
    return np.concatenate([entropy(means_LTK), [whole_T], [np.full_like(whole_T, uniform)], *map(entropy, heads)])


def _mean_of_heads(slots_HTK: np.ndarray, structure: Structure) -> np.ndarray:
    """(H, T, G·S) → (T, N·S), each column a slot, whichever heads see it."""
    one_query = replace(structure, query_orders=(1,))
    by_order_NTS = slot_weights(torch.from_numpy(slots_HTK)[None], one_query)[0, 0].numpy()
    return np.concatenate(list(by_order_NTS), axis=-1)


@cache
def uniform_slots(structure: Structure, length: int) -> float:
    """The entropy over slots of `length` tokens when every head spreads its weight evenly over the slots that it sees."""
    slots_HGS = np.zeros((structure.heads, len(structure.blocks), length))
    for g, block in enumerate(structure.blocks):
        for part in block:
            slots_HGS[part.first : part.last, g, 0 if structure.zero_extended else part.order - 1 :] = 1
    even = slots_HGS / np.maximum(1, slots_HGS.sum((1, 2), keepdims=True))
    return float(entropy(_mean_of_heads(even.reshape(structure.heads, 1, -1), structure))[0])
