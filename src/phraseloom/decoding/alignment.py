"""Which attention aligns, and phrase alignments from it (spec §6.3; Garg et al. 2019 for the choice of layer).

The output is fed through the decoder once more, all at once. Of one layer, one head is taken, the mean of all or the largest
weight over all (paper 004, footnote 7, after Tang et al. 2018; such weights need not sum to one). For words
each slot spreads its weight evenly over the tokens of its window (`Structure.token_weights`); `word_links.py` does the rest.

**Phrases** (the mappings of paper 002 §3.3, read as links of word spans):

1. A slot stands for the source words that its window touches, EOS cut off; a slot of nothing but EOS is left out. The weights
   of the slots that touch the same words are added. What lies on EOS is not given to the others.
2. A query stands for the target words that its pieces touch: a unigram query for one word; an n-gram query of interleaved
   attention for the words of n pieces; queries that read EOS are left out. The queries of one order that touch the same
   words are averaged. Each such span of target words chooses the span of source words with the largest weight.
3. The choices are taken in the order of their weights, each whose target words are all still free. So an n-gram of target
   words counts as a span where its weight is larger than those of its words, and every target word is in one link.
4. Neighbouring links that chose the same two or more source words join to one; its weight is their mean, each word
   counting once. Links to one source word stay apart: they are word links, and those of a token model are its word alignment.

Ties: shorter target span, then lower target span; source span that begins, then ends, earlier.

Word links from attention (paper 004 §5; spec §6.3).

Given the attention (target pieces, source pieces) of one decoder layer, of one head or the mean of all:

1. **Words.** The columns of the pieces of a source word are summed, the rows of the pieces of a target word averaged. Rows and
   columns of EOS are left out; what lies on EOS is not given to the others.
2. **Directions.** target-to-source: each target word is linked to the source word with the largest weight. source-to-target:
   each source word is linked to the target word with the largest weight. Ties: the lower word.
3. **Methods.** One of the directions, or both joined (`align/links.py`; target-to-source is the forward one). Paper 004
   takes the union.

Words without a piece are in no link. A target piece of several words (a phrase) counts as one word; what is linked to it is
linked to all its words. Weights are float32 values summed in float64, so that equal sums are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phraseloom.align import links as symmetrize
from phraseloom.align.links import Links
from phraseloom.data.tensors import make_batch
from phraseloom.decoding.translation import PhraseLink
from phraseloom.errors import ModelError, UsageError, plural
from phraseloom.layers.attention.structure import HeadGroup, Structure
from phraseloom.options.decoding import DecodingConfig

TARGET_TO_SOURCE, SOURCE_TO_TARGET = "target-to-source", "source-to-target"
METHODS: tuple[str, ...] = (TARGET_TO_SOURCE, SOURCE_TO_TARGET, *symmetrize.METHODS)


class WordWeights(NamedTuple):
    """Attention between words, float64 (…, target words, source words), and the number of each word, ascending."""

    weights: np.ndarray
    source: list[int]
    target: list[int]


Numbers = Sequence[int] | Sequence[range]


def as_ranges(numbers: Numbers) -> list[range]:
    """The words of each piece, where a plain number is one word."""
    return [n if isinstance(n, range) else range(n, n + 1) for n in numbers]


def word_weights(weights: np.ndarray, source_word: Sequence[int], target_word: Sequence[int]) -> WordWeights:
    """Attention (…, target pieces + EOS or more, source pieces + EOS or more) → attention between words.

    `source_word`, `target_word`: the word number of each piece, in ascending order, at least one each.
    """
    pieces = weights[..., : len(target_word), : len(source_word)].astype(np.float64)
    source, source_starts = np.unique(source_word, return_index=True)
    target, target_starts, sizes = np.unique(target_word, return_index=True, return_counts=True)
    summed = np.add.reduceat(pieces, source_starts, axis=-1)
    means = np.add.reduceat(summed, target_starts, axis=-2) / sizes[:, None]
    return WordWeights(means, source.tolist(), target.tolist())


def directions(words: WordWeights) -> tuple[Links, Links]:
    """Links target-to-source and source-to-target, of weights with two axes."""
    best_source, best_target = words.weights.argmax(1).tolist(), words.weights.argmax(0).tolist()
    return (
        frozenset((words.source[s], t) for t, s in zip(words.target, best_source, strict=True)),
        frozenset((s, words.target[t]) for s, t in zip(words.source, best_target, strict=True)),
    )


def combine(to_source: Links, to_target: Links, method: str) -> Links:
    """The links of a method from those of both directions. Raises UsageError for an unknown one."""
    if method == TARGET_TO_SOURCE:
        return to_source
    if method == SOURCE_TO_TARGET:
        return to_target
    return symmetrize.symmetrize(to_source, to_target, method)


def link_words(
    weights_TS: np.ndarray, source_word: Sequence[int], target_words: Numbers, method: str = TARGET_TO_SOURCE
) -> list[tuple[int, int]]:
    """Links (source word, target word) in the order of the target words; see `word_weights` for the arguments.

    `target_words`: the word number of each piece, or the numbers of its words, in ascending order; pieces of one word share it.
    """
    if not source_word or not target_words:
        return []
    units, words = _units(as_ranges(target_words))
    links = combine(*directions(word_weights(weights_TS, source_word, units)), method)
    return sorted(((s, word) for s, unit in links for word in words[unit]), key=lambda link: (link[1], link[0]))


def _units(target_words: list[range]) -> tuple[list[int], dict[int, range]]:
    """Numbers of the pieces in which a phrase counts as one word, so that neighbours stay neighbours; the words of each."""
    units: list[int] = []
    words: dict[int, range] = {}
    more = 0
    for number, of_piece in enumerate(target_words):
        if number and of_piece == target_words[number - 1]:
            units.append(units[-1])
        else:
            units.append(of_piece.start - more)
            more += len(of_piece) - 1
        words[units[-1]] = of_piece
    return units, words


CHUNK_WEIGHTS = 2**24

MAX: Literal["max"] = "max"

Span = tuple[int, int]


def alignment_layer(wanted: int | None, layers: int) -> int:
    """The index (from 0) of the decoder layer `wanted` (from 1); by default the last but one.

    Raises UsageError where the model has no such layer.
    """
    if wanted is None:
        return max(0, layers - 2)
    if wanted > layers:
        raise UsageError(f"alignment_layer {wanted}: the decoder has {plural(layers, 'layer')}")
    return wanted - 1


class Choice(NamedTuple):
    """Layer and head whose attention aligns, from 0 (None: the mean of all; `MAX`: the largest), and how words are linked."""

    layer: int
    head: int | Literal["max"] | None
    method: str


def choose(config: DecodingConfig, structures: Sequence[Structure]) -> Choice:
    """What `config` asks of a model with these cross-attentions.

    Raises UsageError where it has no such layer or head, ModelError where it has no attention at all.
    """
    if not structures:
        raise ModelError(
            "this model cannot align words: it attends to no source tokens",
            hint="its decoder sees one fixed vector of the source",
        )
    layer, head = alignment_layer(config.alignment_layer, len(structures)), config.alignment_head
    if isinstance(head, int) and head > structures[layer].heads:
        heads = structures[layer].heads
        raise UsageError(
            f"alignment_head {head}: layer {layer + 1} of the decoder attends with {plural(heads, 'head')}"
        )
    return Choice(layer, head - 1 if isinstance(head, int) else head, config.alignment_method)


class Look(NamedTuple):
    """The cross-attention of one target, of a head, the mean of all or the largest weight over all, float64.

    Row t is the attention that predicted target piece t; the last row predicted EOS. `tokens_TS`: attention to tokens.
    `slots_MNTS`: by order of the query (`structure.query_orders`) and of the slot (`structure.orders`).
    """

    tokens_TS: np.ndarray
    slots_MNTS: np.ndarray
    structure: Structure


def one_head(weights_BHQK: Tensor, structure: Structure, head: int) -> tuple[Tensor, Structure]:
    """The weights of one head (from 0) alone and what that head sees."""
    blocks = tuple(
        tuple(HeadGroup(p.order, 0, 1) for p in block if p.first <= head < p.last) for block in structure.blocks
    )
    return weights_BHQK[:, head : head + 1], replace(structure, heads=1, blocks=blocks)


def slot_weights(weights_BHQK: Tensor, structure: Structure, *, largest: bool = False) -> Tensor:
    """(B, H, J·Q, G·K) → (B, J, N, Q, K): the mean over all heads (or the `largest` weight), slots sorted by their order.

    A head that does not see slots of an order counts as zero for them, so the means of a query sum to one over all N·K.
    """
    split = structure.split(weights_BHQK)
    result = torch.zeros_like(split[:, 0, :, :, 0]).unsqueeze(2).repeat(1, 1, len(structure.orders), 1, 1)
    for g, block in enumerate(structure.blocks):
        for part in block:
            slots, heads = result[:, :, structure.orders.index(part.order)], split[:, part.first : part.last, :, :, g]
            slots.copy_(torch.maximum(slots, heads.amax(1)) if largest else slots + heads.sum(1))
    return result if largest else result / structure.heads


def merge_heads(
    weights_BHQK: Tensor, structure: Structure, head: int | Literal["max"] | None
) -> tuple[Tensor, Tensor, Structure]:
    """What `Choice.head` makes of all heads: weights on tokens (B, T, S), on slots (B, J, N, T, S), and the structure seen.

    Float64. T: queries; S: source tokens.
    """
    weights, seen = one_head(weights_BHQK, structure, head) if isinstance(head, int) else (weights_BHQK, structure)
    of_heads_BHTS = seen.token_weights(weights).double()
    tokens_BTS = of_heads_BHTS.amax(1) if head == MAX else of_heads_BHTS.mean(1)
    if seen.is_token:
        return tokens_BTS, tokens_BTS[:, None, None], seen
    return tokens_BTS, slot_weights(weights, seen, largest=head == MAX).double(), seen


def link_phrases(look: Look, source_word: Sequence[int], target_words: Numbers) -> list[PhraseLink]:
    """Links of spans of words, in the order of the target words, by the rule above; every target word is in one.

    None where no slot exists (a source shorter than every order, not zero-extended).

    `source_word`: the word number of each piece; `target_words`: the same, or the numbers of its words where a piece may be of
    several. Both in ascending order.
    """
    if not source_word or not target_words:
        return []
    words = as_ranges(target_words)
    choices: list[PhraseLink] = []
    slots, spans = _source_spans(look, source_word)
    if not spans:
        return []
    for m, order in enumerate(look.structure.query_orders):
        by_span = np.zeros((len(spans), len(look.tokens_TS)))
        np.add.at(by_span, slots.span, look.slots_MNTS[m][slots.order, :, slots.end])
        queries: dict[Span, list[int]] = {}
        for i in range(order - 1, len(words)):
            queries.setdefault((words[i - order + 1].start, words[i].stop), []).append(i)
        for target, rows in queries.items():
            weights = by_span[:, rows].sum(1)
            best = int(weights.argmax())
            choices.append(PhraseLink(spans[best], target, float(weights[best]) / len(rows)))
    return list(_join(_free_choices(choices, words[-1].stop)))


class _Slots(NamedTuple):
    """For each slot that counts: its order (as an index), its last piece, and the number of its span of words."""

    order: np.ndarray
    end: np.ndarray
    span: np.ndarray


def _source_spans(look: Look, source_word: Sequence[int]) -> tuple[_Slots, list[Span]]:
    """The slots with the words that they touch, and those spans in order."""
    structure, size = look.structure, len(source_word)
    found: list[tuple[int, int, Span]] = []
    for n, order in enumerate(structure.orders):
        for end in range(0 if structure.zero_extended else order - 1, size + 1):
            first, last = max(0, end - order + 1), min(end, size - 1)
            if first <= last:
                found.append((n, end, (source_word[first], source_word[last] + 1)))
    spans = sorted({span for _, _, span in found})
    number = {span: i for i, span in enumerate(spans)}
    columns = np.array([(n, end, number[span]) for n, end, span in found], np.int64).reshape(-1, 3).T
    return _Slots(*columns), spans


def _free_choices(choices: list[PhraseLink], num_words: int) -> list[PhraseLink]:
    """Of all choices, by weight, those whose target words are all free, in the order of the target words."""
    free, kept = [True] * num_words, []
    for link in sorted(choices, key=lambda c: (-c.weight, c.target[1] - c.target[0], c.target, c.source)):
        words = range(*link.target)
        if all(free[w] for w in words):
            kept.append(link)
            for w in words:
                free[w] = False
    return sorted(kept, key=lambda c: c.target)


def _join(links: list[PhraseLink]) -> Iterator[PhraseLink]:
    """Neighbours that chose the same two or more source words as one link."""
    held: list[PhraseLink] = []
    for link in links:
        if held and (link.source != held[0].source or link.source[1] - link.source[0] < 2):
            yield _mean(held)
            held = []
        held.append(link)
    if held:
        yield _mean(held)


def _mean(links: list[PhraseLink]) -> PhraseLink:
    if len(links) == 1:
        return links[0]
    sizes = [t2 - t1 for _, (t1, t2), _ in links]
    weight = sum(link.weight * n for link, n in zip(links, sizes, strict=True)) / sum(sizes)
    return PhraseLink(links[0].source, (links[0].target[0], links[-1].target[1]), weight)


def attention_of(
    model: Any, memory: Any, sources: Sequence[int], targets: list[list[int]], choice: Choice
) -> list[Look]:
    """The attention that aligns, for each target; target i is of sentence `sources[i]`.

    Row t is the attention with which target piece t was predicted.
    """
    result: list[Look] = []
    structure = model.decoder.cross_structures[choice.layer]
    device = memory.states_BSD.device
    length = memory.states_BSD.shape[1] * len(structure.query_orders) * len(structure.blocks)
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
        weights: Tensor = model.decode(batch.target_in_BT.to(device), chosen, keep_weights=True)[1][choice.layer]
        result += _looks(weights, structure, choice, [len(t) + 1 for t in chunk])
        start = end
    return result


def _looks(weights_BHQK: Tensor, structure: Structure, choice: Choice, lengths: list[int]) -> list[Look]:
    *merged, seen = merge_heads(weights_BHQK, structure, choice.head)
    tokens, slots = (weights.cpu().numpy() for weights in merged)
    return [Look(t[:n], s[:, :, :n], seen) for t, s, n in zip(tokens, slots, lengths, strict=True)]
