"""Activation shares: how much of an attention goes to tokens and how much to phrases (paper 002, Tables 3 and 4; spec §8.4).

The cells of an attention fall into four quadrants: query token or n-gram × slot of a token or an n-gram (n ≥ 2):
token-to-token TT, token-to-phrase TP, phrase-to-token PT, phrase-to-phrase PP. What the papers' "activation percentage" is
cannot be settled from their text, so there are three readings, each in percent, for each sentence:

    mass        TT = sum of p over TT / sum of p over TT and TP;   PT = sum over PT / sum over PT and PP
    joint       each = sum of p over the quadrant / sum of p over all four
    activation  each = cells of the quadrant with p > tau / cells of all four with p > tau

summed over heads, real queries and slots; then the mean over sentences. A row of weights sums to one, so `joint` gives the
queries of each order their share of the queries (about half and half for orders 1-2). EOS counts as a token; a slot that
begins before the sentence (homogeneous) counts by its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import or_
from typing import Any

import torch
from torch import Tensor

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.decoding.alignment import slot_weights
from phraseloom.decoding.batching import plan_batches
from phraseloom.decoding.limits import refuse_nan
from phraseloom.decoding.long_lines import crop_targets
from phraseloom.decoding.source_phrases import cropped_sources
from phraseloom.errors import DataError, UsageError
from phraseloom.layers.attention.structure import Structure

USES = ("encoder-self", "decoder-self", "cross")
QUADRANTS = ("token-to-token", "token-to-phrase", "phrase-to-token", "phrase-to-phrase")
READINGS = ("mass", "joint", "activation")
BATCH_SENTENCES, BATCH_TOKENS = 16, 1024


@dataclass(frozen=True)
class Shares:
    """The shares of one layer in percent, by reading and quadrant; only the quadrants that its attention has.

    `orders`: for "m-n", the mass of slots of order n within queries of order m. `silent`: sentences without any cell above
    tau, left out of the mean of `activation` (whose shares are None where that is all of them). `by_sentence`: by reading and
    quadrant [share in percent, 1] of each sentence, [0, 0] of one that is left out.
    """

    layer: int
    mass: dict[str, float | None]
    joint: dict[str, float | None]
    activation: dict[str, float | None]
    orders: dict[str, float | None]
    silent: int
    by_sentence: dict[str, dict[str, list[list[float]]]]


@dataclass(frozen=True)
class Activation:
    """The shares of every layer (from 1) by use, and what they were counted on.

    `blank`: pairs with a blank side, left out; `cropped`: pairs with a side that is too long, whose end was left out.
    """

    tau: float
    mean_heads: bool
    sentences: int
    blank: int
    cropped: int
    uses: dict[str, list[Shares]]


def order_sums(cells: Tensor, structure: Structure, lengths_B: Tensor) -> Tensor:
    """Cells (B, J, N, Q, K), slots by order → their sums (B, J, N) in float64 over the slots and the real queries.

    Real: an n-gram of the first `lengths_B` tokens. What is no slot holds zero already.
    """
    last = torch.arange(cells.shape[3], device=cells.device)
    inside_BQ = last < lengths_B[:, None]
    whole_MQ = last >= torch.tensor(structure.query_orders, device=cells.device)[:, None] - 1
    rows_BJNQ = cells.double().sum(-1)
    return (rows_BJNQ * (inside_BQ[:, None] & whole_MQ)[:, :, None]).sum(-1)


def sentence_sums(
    weights_BHQK: Tensor, structure: Structure, lengths_B: Tensor, *, tau: float, mean_heads: bool = False
) -> tuple[Tensor, Tensor]:
    """(mass, cells above `tau`), each (B, J, N), of weights (B, H, J·Q, G·K) for queries of `lengths_B` tokens.

    With `mean_heads` the cells are those of the heads' mean, as in a heat map; otherwise those of each head.
    """
    slots = slot_weights(weights_BHQK, structure)
    mass = order_sums(slots, structure, lengths_B)
    above = slots > tau if mean_heads else slot_weights((weights_BHQK > tau).double(), structure)
    return mass, order_sums(above, structure, lengths_B)


def shares(mass_BJN: Tensor, active_BJN: Tensor, structure: Structure, *, layer: int = 1) -> Shares:
    """The three readings from the sums of every sentence; see the top of the module."""
    mass, active = _quadrants(mass_BJN, structure), _quadrants(active_BJN, structure)
    within = (mass.unflatten(1, (2, 2)) / mass.unflatten(1, (2, 2)).sum(2, keepdim=True)).flatten(1)
    by_order = (mass_BJN / mass_BJN.sum(2, keepdim=True)).flatten(1)
    names = [f"{m}-{n}" for m in structure.query_orders for n in structure.orders]
    there = _existing(structure)
    of_sentences = (within, mass / mass.sum(1, keepdim=True), active / active.sum(1, keepdim=True))
    of_mass, of_all, of_cells = (_means(QUADRANTS, values, there) for values in of_sentences)
    return Shares(
        layer,
        of_mass,
        of_all,
        of_cells,
        _means(names, by_order, [True] * len(names)),
        silent=int((active.sum(1) == 0).sum()),
        by_sentence={name: _rows(values, there) for name, values in zip(READINGS, of_sentences, strict=True)},
    )


def _existing(structure: Structure) -> list[bool]:
    """For each quadrant, whether the structure has queries and slots for it."""
    queries = [1 in structure.query_orders, max(structure.query_orders) > 1]
    slots = [1 in structure.orders, max(structure.orders) > 1]
    return [q and s for q in queries for s in slots]


def _quadrants(sums_BJN: Tensor, structure: Structure) -> Tensor:
    """(B, J, N) → (B, 4): TT, TP, PT, PP."""
    result = sums_BJN.new_zeros(len(sums_BJN), 4)
    for m, query in enumerate(structure.query_orders):
        for n, slot in enumerate(structure.orders):
            result[:, 2 * (query > 1) + (slot > 1)] += sums_BJN[:, m, n]
    return result


def _means(names: Sequence[str], values_BC: Tensor, there: list[bool]) -> dict[str, float | None]:
    """The mean of each column in percent over the sentences that have it (0/0 is NaN: no such query, nothing active)."""
    means = values_BC.nanmean(0).tolist()
    return {n: None if v != v else 100 * v for n, v, is_there in zip(names, means, there, strict=True) if is_there}


def _rows(values_BC: Tensor, there: list[bool]) -> dict[str, list[list[float]]]:
    """By quadrant, what each sentence adds to the sum and the number of the mean."""
    columns = values_BC.T.tolist()
    return {
        name: [[0.0, 0] if v != v else [100 * v, 1] for v in column]
        for name, column, is_there in zip(QUADRANTS, columns, there, strict=True)
        if is_there
    }


def activation_shares(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    tau: float = 0.1,
    uses: Sequence[str] = USES,
    mean_heads: bool = False,
    trees: Sequence[str] | None = None,
) -> Activation:
    """The shares of a model over parallel lines, each target forced, as the model sees it in training.

    `trees` of the sources, where the phrases of the model are made of them. Raises UsageError (numbers of lines, tau, trees),
    DataError (no pair with two sides, a tree that does not fit), ModelError (NaN).
    """
    if len(sources) != len(targets):
        raise UsageError(f"{len(sources)} sources, but {len(targets)} targets")
    if not 0 <= tau < 1:
        raise UsageError(f"tau {tau:g} is not from 0 to below 1: no weight is larger than 1")
    ids, phrases, cropped = cropped_sources(translator, sources, trees)
    target_ids, cropped_targets = crop_targets(translator, targets)
    real = [n for n, (s, t) in enumerate(zip(ids, target_ids, strict=True)) if s and t]
    if not real:
        raise DataError("no pair of lines with text on both sides", hint="there is nothing to look at")
    sizes = [max(len(ids[n]), len(target_ids[n])) + 1 for n in real]
    found: dict[str, list[_Layer]] = {}
    for batch in plan_batches(sizes, sentences=BATCH_SENTENCES, tokens=BATCH_TOKENS):
        chosen = [real[i] for i in batch]
        of_batch = None if phrases is None else [phrases[n] for n in chosen]
        tensors = make_batch([ids[n] for n in chosen], [target_ids[n] for n in chosen], of_batch)
        _add(translator, tensors, found, uses, (tau, mean_heads))
    return Activation(
        tau,
        mean_heads,
        sentences=len(real),
        blank=len(sources) - len(real),
        cropped=sum(map(or_, cropped, cropped_targets)),
        uses={use: [layer.shares(i) for i, layer in enumerate(found[use], 1)] for use in uses},
    )


@dataclass
class _Layer:
    """The sums of the sentences so far, a tensor a batch."""

    structure: Structure
    mass: list[Tensor]
    active: list[Tensor]

    def shares(self, layer: int) -> Shares:
        return shares(torch.cat(self.mass), torch.cat(self.active), self.structure, layer=layer)


def _add(
    translator: Any,
    batch: Batch,
    found: dict[str, list[_Layer]],
    uses: Sequence[str],
    how: tuple[float, bool],
) -> None:
    with torch.inference_mode():
        batch = batch.to(translator.device)
        looks = translator.model.attention_maps(
            batch.source_BS, batch.source_lengths_B, batch.target_in_BT, batch.phrase_sizes_BP
        )
        for use in uses:
            lengths = batch.source_lengths_B if use == "encoder-self" else batch.target_lengths_B
            layers = getattr(looks, use.replace("-", "_"))
            known = found.setdefault(use, [_Layer(structure, [], []) for _, structure in layers])
            for layer, (weights, structure) in zip(known, layers, strict=True):
                refuse_nan(weights)
                mass, active = sentence_sums(weights, structure, lengths, tau=how[0], mean_heads=how[1])
                layer.mass.append(mass.cpu())
                layer.active.append(active.cpu())
