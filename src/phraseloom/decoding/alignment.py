"""Word and phrase alignments from cross-attention (Garg et al. 2019 for the choice of layer).

One more pass of the decoder over the output gives the weights of one layer: of one head, the mean over all heads, or the
largest weight over all heads (paper 004, footnote 7, after Tang et al. 2018; such weights need not sum to one).

**Word links** (paper 004 §5). Each slot spreads its weight evenly over the tokens of its window (`Structure.token_weights`).

1. **Words.** Sum the columns of the pieces of a source word; average the rows of the pieces of a target word. Drop rows and
   columns of EOS, without giving their weight to other words.
2. **Directions.** target-to-source links each target word to the source word with the largest weight; source-to-target links
   each source word to the target word with the largest weight. Ties: the lower word.
3. **Methods.** One direction, or both combined (`align/links.py`; target-to-source is the forward one). Paper 004 takes the
   union.

Words without a piece have no link. A target piece of several words (a phrase) counts as one word, and its links hold for all
its words. Weights are float32 values summed in float64, so that equal sums are equal.

**Phrase links** (the mappings of paper 002 §3.3, as links of word spans).

1. A slot represents the source words that its window touches, without EOS; a slot on EOS only is ignored. The weights of slots
   that touch the same words are added. Weight on EOS is dropped.
2. A query represents the target words that its pieces touch: one word for a unigram query, the words of n pieces for an n-gram
   query of interleaved attention; queries that read EOS are ignored. Queries of one order that touch the same words are
   averaged. Each such span of target words chooses the source span with the largest weight.
3. Choices are accepted in the order of their weights, if all their target words are still free. So an n-gram of target words
   becomes a span if its weight is above those of its words, and every target word is in one link.
4. Neighbouring links to the same span of two or more source words are merged; the weight is the mean over their words. Links
   to one source word are not merged: they are word links, and for a token model they are its word alignment.

Ties: shorter target span, then lower target span; source span that begins, then ends, earlier.
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
    """The words of each piece; a plain number is one word."""
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
    """The links of a method from the links of both directions. Raises UsageError for an unknown method."""
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
    units, words = word_units(as_ranges(target_words))
    links = combine(*directions(word_weights(weights_TS, source_word, units)), method)
    return sorted(((s, word) for s, unit in links for word in words[unit]), key=lambda link: (link[1], link[0]))


def word_units(target_words: list[range]) -> tuple[list[int], dict[int, range]]:
    """The unit of each piece, where a phrase is one unit and units are consecutive; and the words of each unit."""
    units: list[int] = []
    words: dict[int, range] = {}
    extra = 0  # words of phrases before, beyond one each
    for number, piece_words in enumerate(target_words):
        if number and piece_words == target_words[number - 1]:
            units.append(units[-1])
        else:
            units.append(piece_words.start - extra)
            extra += len(piece_words) - 1
        words[units[-1]] = piece_words
    return units, words


CHUNK_WEIGHTS = 2**24

MAX: Literal["max"] = "max"

Span = tuple[int, int]


def alignment_layer(layer: int | None, layers: int) -> int:
    """The index (from 0) of decoder layer `layer` (from 1); None means the last but one.

    Raises UsageError if the model has no such layer.
    """
    if layer is None:
        return max(0, layers - 2)
    if layer > layers:
        raise UsageError(f"alignment_layer {layer}: the decoder has {plural(layers, 'layer')}")
    return layer - 1


class Choice(NamedTuple):
    """The layer and head (from 0; None for the mean, `MAX` for the largest weight) whose attention aligns, and the method."""

    layer: int
    head: int | Literal["max"] | None
    method: str


def choose(config: DecodingConfig, structures: Sequence[Structure]) -> Choice:
    """The attention that `config` selects from these cross-attentions.

    Raises UsageError if the model has no such layer or head, ModelError if it has no attention.
    """
    if not structures:
        raise ModelError(
            "this model cannot align words: it attends to no source tokens",
            hint="its decoder reads one fixed vector of the source",
        )
    layer, head = alignment_layer(config.alignment_layer, len(structures)), config.alignment_head
    if isinstance(head, int) and head > structures[layer].heads:
        heads = structures[layer].heads
        raise UsageError(
            f"alignment_head {head}: layer {layer + 1} of the decoder attends with {plural(heads, 'head')}"
        )
    return Choice(layer, head - 1 if isinstance(head, int) else head, config.alignment_method)


class CrossAttention(NamedTuple):
    """The cross-attention weights of one target after `merge_heads`, float64.

    Row t is the attention that predicted target piece t; the last row predicted EOS. `tokens_TS`: attention to tokens.
    `slots_MNTS`: by order of the query (`structure.query_orders`) and of the slot (`structure.orders`). `tags`: source tokens
    before the first column, which slots may begin with.
    """

    tokens_TS: np.ndarray
    slots_MNTS: np.ndarray
    structure: Structure
    tags: int = 0

    def after(self, tags: int) -> CrossAttention:
        """The attention to the source tokens (and slots that end) after the first `tags` tokens."""
        if not tags:
            return self
        tokens_TS, slots_MNTS = self.tokens_TS[:, tags:], self.slots_MNTS[..., tags:]
        return CrossAttention(tokens_TS, slots_MNTS, self.structure, self.tags + tags)


def one_head(weights_BHQK: Tensor, structure: Structure, head: int) -> tuple[Tensor, Structure]:
    """The weights of one head (from 0), and the structure of that head."""
    blocks = tuple(
        tuple(HeadGroup(p.order, 0, 1) for p in block if p.first <= head < p.last) for block in structure.blocks
    )
    return weights_BHQK[:, head : head + 1], replace(structure, heads=1, blocks=blocks)


def slot_weights(weights_BHQK: Tensor, structure: Structure, *, largest: bool = False) -> Tensor:
    """(B, H, J·Q, G·K) → (B, J, N, Q, K): the mean over all heads (or the `largest` weight), slots sorted by their order.

    A head without slots of an order counts as zero for them, so the means of a query sum to one over all N·K.
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
    """Merge the heads by `Choice.head`: weights on tokens (B, T, S), on slots (B, J, N, T, S), and their structure.

    Float64. T: queries; S: source tokens.
    """
    if isinstance(head, int):
        weights_BHQK, structure = one_head(weights_BHQK, structure, head)
    token_weights_BHTS = structure.token_weights(weights_BHQK).double()
    tokens_BTS = token_weights_BHTS.amax(1) if head == MAX else token_weights_BHTS.mean(1)
    if structure.is_token:
        return tokens_BTS, tokens_BTS[:, None, None], structure
    return tokens_BTS, slot_weights(weights_BHQK, structure, largest=head == MAX).double(), structure


def link_phrases(attention: CrossAttention, source_word: Sequence[int], target_words: Numbers) -> list[PhraseLink]:
    """Links of word spans by the rule above, in the order of the target words; every target word is in one link.

    Empty if no slot exists (a source shorter than every order, without zero extension).

    `source_word`: the word number of each piece; `target_words`: the word number of each piece, or the numbers of its words.
    Both in ascending order.
    """
    if not source_word or not target_words:
        return []
    words = as_ranges(target_words)
    choices: list[PhraseLink] = []
    slots, spans = _source_spans(attention, source_word)
    if not spans:
        return []
    for m, order in enumerate(attention.structure.query_orders):
        by_span = np.zeros((len(spans), len(attention.tokens_TS)))
        np.add.at(by_span, slots.span, attention.slots_MNTS[m][slots.order, :, slots.end])
        queries: dict[Span, list[int]] = {}
        for i in range(order - 1, len(words)):
            queries.setdefault((words[i - order + 1].start, words[i].stop), []).append(i)
        for target, rows in queries.items():
            weights = by_span[:, rows].sum(1)
            best = int(weights.argmax())
            choices.append(PhraseLink(spans[best], target, float(weights[best]) / len(rows)))
    return list(_join(_free_choices(choices, words[-1].stop)))


class _Slots(NamedTuple):
    """For each slot in use: its order (as an index), its last piece, and the number of its span of words."""

    order: np.ndarray
    end: np.ndarray
    span: np.ndarray


def _source_spans(attention: CrossAttention, source_word: Sequence[int]) -> tuple[_Slots, list[Span]]:
    """The slots with the words that they touch, and the spans of these words in order."""
    structure, size = attention.structure, len(source_word)
    slots: list[tuple[int, int, Span]] = []
    for n, order in enumerate(structure.orders):
        for end in range(0 if structure.zero_extended else max(0, order - 1 - attention.tags), size + 1):
            first, last = max(0, end - order + 1), min(end, size - 1)
            if first <= last:
                slots.append((n, end, (source_word[first], source_word[last] + 1)))
    spans = sorted({span for _, _, span in slots})
    number = {span: i for i, span in enumerate(spans)}
    columns = np.array([(n, end, number[span]) for n, end, span in slots], np.int64).reshape(-1, 3).T
    return _Slots(*columns), spans


def _free_choices(choices: list[PhraseLink], num_words: int) -> list[PhraseLink]:
    """Accept choices by weight, each if its target words are all free; sorted by target words."""
    free, accepted = [True] * num_words, []
    for link in sorted(choices, key=lambda c: (-c.weight, c.target[1] - c.target[0], c.target, c.source)):
        words = range(*link.target)
        if all(free[w] for w in words):
            accepted.append(link)
            for w in words:
                free[w] = False
    return sorted(accepted, key=lambda c: c.target)


def _join(links: list[PhraseLink]) -> Iterator[PhraseLink]:
    """Merge neighbouring links to the same two or more source words."""
    group: list[PhraseLink] = []
    for link in links:
        if group and (link.source != group[0].source or link.source[1] - link.source[0] < 2):
            yield _mean(group)
            group = []
        group.append(link)
    if group:
        yield _mean(group)


def _mean(links: list[PhraseLink]) -> PhraseLink:
    if len(links) == 1:
        return links[0]
    sizes = [t2 - t1 for _, (t1, t2), _ in links]
    weight = sum(link.weight * n for link, n in zip(links, sizes, strict=True)) / sum(sizes)
    return PhraseLink(links[0].source, (links[0].target[0], links[-1].target[1]), weight)


def attention_of(
    model: Any, memory: Any, sources: Sequence[int], targets: list[list[int]], choice: Choice
) -> list[CrossAttention]:
    """The attention that aligns, for each target; target i belongs to sentence `sources[i]` of `memory`."""
    result: list[CrossAttention] = []
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
        decoded = model.decode(batch.target_in_BT.to(device), chosen, keep_weights=True)
        *merged, merged_structure = merge_heads(decoded.attention_weights[choice.layer], structure, choice.head)
        arrays = (weights.cpu().numpy() for weights in merged)
        for target, tokens, slots in zip(chunk, *arrays, strict=True):
            rows = len(target) + 1
            result.append(CrossAttention(tokens[:rows], slots[:, :, :rows], merged_structure))
        start = end
    return result
