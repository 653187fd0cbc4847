"""Activation shares: the fractions of attention to tokens and to phrases (paper 002, Tables 3 and 4).

The cells of an attention form four quadrants: query token or n-gram × slot of a token or an n-gram (n ≥ 2):
token-to-token TT, token-to-phrase TP, phrase-to-token PT, phrase-to-phrase PP. The papers do not define their "activation
percentage" precisely, so there are three readings, each in percent per sentence:

    mass        TT = sum of p over TT / sum of p over TT and TP;   PT = sum over PT / sum over PT and PP
    joint       each = sum of p over the quadrant / sum of p over all four
    activation  each = cells of the quadrant with p > tau / cells of all four with p > tau

Sums are over heads, real queries and slots; the result is the mean over sentences. A row of weights sums to one, so in `joint`
each query order has its fraction of the queries (about one half each for orders 1-2). EOS counts as a token. A slot that begins
before the sentence (homogeneous) counts by its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import or_
from typing import Any

import torch
from torch import Tensor

from phraseloom.analysis.attention import look_in_batches
from phraseloom.decoding.alignment import slot_weights
from phraseloom.decoding.limits import refuse_nan
from phraseloom.decoding.long_lines import crop_targets
from phraseloom.decoding.source_phrases import cropped_sources
from phraseloom.errors import DataError, ModelError, UsageError
from phraseloom.layers.attention.structure import Structure

USES = ("encoder-self", "decoder-self", "cross")
QUADRANTS = ("token-to-token", "token-to-phrase", "phrase-to-token", "phrase-to-phrase")
READINGS = ("mass", "joint", "activation")
BATCH_SENTENCES, BATCH_TOKENS = 16, 1024


@dataclass(frozen=True)
class Shares:
    """The shares of one layer (0: all layers together) in percent, by reading and quadrant, for the quadrants of its attention.

    `orders` has for "m-n" the mass of slots of order n among queries of order m. `silent` counts sentences without any cell
    above tau, which are left out of the mean of `activation` (None if all are). `by_sentence` has by reading and quadrant
    [share in percent, 1] for each pair of lines, or [0, 0] if it is left out.
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
    """The shares of every layer (from 1) by use, and the options and sentences that they were computed with.

    `whole`: by use, the shares of all its layers together, whose sums are added. Missing where the layers differ in structure.
    `blank` counts pairs with a blank side, which are left out, and `cropped` pairs with a side that is too long.
    """

    tau: float
    mean_heads: bool
    sentences: int
    blank: int
    cropped: int
    uses: dict[str, list[Shares]]
    whole: dict[str, Shares]


def order_sums(cells: Tensor, structure: Structure, lengths_B: Tensor) -> Tensor:
    """Sum cells (B, J, N, Q, K), slots by order, over the slots and the real queries to (B, J, N) in float64.

    A real query is an n-gram of the first `lengths_B` tokens. Cells without a slot must hold zero.
    """
    last = torch.arange(cells.shape[3], device=cells.device)
    inside_BQ = last < lengths_B[:, None]
    whole_MQ = last >= torch.tensor(structure.query_orders, device=cells.device)[:, None] - 1
    rows_BJNQ = cells.double().sum(-1)
    return (rows_BJNQ * (inside_BQ[:, None] & whole_MQ)[:, :, None]).sum(-1)


def sentence_sums(
    weights_BHQK: Tensor, structure: Structure, lengths_B: Tensor, *, tau: float, mean_heads: bool = False
) -> tuple[Tensor, Tensor]:
    """The mass and the number of cells above `tau`, each (B, J, N), of weights (B, H, J·Q, G·K) for `lengths_B` query tokens.

    With `mean_heads` the cells are those of the mean over heads, as in a heat map; otherwise those of each head.
    """
    slots = slot_weights(weights_BHQK, structure)
    mass = order_sums(slots, structure, lengths_B)
    above = slots > tau if mean_heads else slot_weights((weights_BHQK > tau).double(), structure)
    return mass, order_sums(above, structure, lengths_B)


def shares(mass_BJN: Tensor, active_BJN: Tensor, structure: Structure, *, layer: int = 1) -> Shares:
    """The three readings (see the module) from the sums of every pair of lines; those of a pair without text are zero."""
    mass, active = _quadrants(mass_BJN, structure), _quadrants(active_BJN, structure)
    within = (mass.unflatten(1, (2, 2)) / mass.unflatten(1, (2, 2)).sum(2, keepdim=True)).flatten(1)
    by_order = (mass_BJN / mass_BJN.sum(2, keepdim=True)).flatten(1)
    names = [f"{m}-{n}" for m in structure.query_orders for n in structure.orders]
    exist = _existing(structure)
    readings = (within, mass / mass.sum(1, keepdim=True), active / active.sum(1, keepdim=True))
    mass_shares, joint, activation = (_means(QUADRANTS, values, exist) for values in readings)
    return Shares(
        layer,
        mass_shares,
        joint,
        activation,
        _means(names, by_order, [True] * len(names)),
        silent=int(((active.sum(1) == 0) & (mass.sum(1) > 0)).sum()),
        by_sentence={name: _rows(values, exist) for name, values in zip(READINGS, readings, strict=True)},
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


def _means(names: Sequence[str], values_BC: Tensor, exist: list[bool]) -> dict[str, float | None]:
    """The mean of each column in percent over the sentences that have it; NaN (0/0) means no such query or no active cell."""
    means = values_BC.nanmean(0).tolist()
    return {n: None if v != v else 100 * v for n, v, exists in zip(names, means, exist, strict=True) if exists}


def _rows(values_BC: Tensor, exist: list[bool]) -> dict[str, list[list[float]]]:
    """By quadrant, the numerator and denominator that each sentence adds to the mean."""
    columns = values_BC.T.tolist()
    return {
        name: [[0.0, 0] if v != v else [100 * v, 1] for v in column]
        for name, column, exists in zip(QUADRANTS, columns, exist, strict=True)
        if exists
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
    """The shares of a model over parallel lines, with each target forced as in training.

    `trees` of the sources are for models with phrases from parse trees. Raises UsageError (numbers of lines, tau, trees),
    DataError (no pair with two sides, a tree that does not fit), ModelError (NaN; a model with none of the `uses`).
    Of several `uses`, those that the model lacks are left out.
    """
    if len(sources) != len(targets):
        raise UsageError(f"{len(sources)} sources, but {len(targets)} targets")
    if not 0 <= tau < 1:
        raise UsageError(f"tau {tau:g}: it must be at least 0 and below 1, because no weight is larger than 1")
    translator = translator.first_model()
    ids, phrases, cropped = cropped_sources(translator, sources, trees)
    target_ids, cropped_targets = crop_targets(translator, targets)
    real = [n for n, (s, t) in enumerate(zip(ids, target_ids, strict=True)) if s and t]
    if not real:
        raise DataError("no pair of lines has text on both sides", hint="there is nothing to analyse")
    pairs = (
        [ids[n] for n in real],
        [target_ids[n] for n in real],
        None if phrases is None else [phrases[n] for n in real],
    )
    sums: dict[str, list[_LayerSums]] = {}
    placed: list[int] = []  # the batches are of similar lengths, not in the order of the lines
    for numbers, batch, maps in look_in_batches(translator, *pairs, sentences=BATCH_SENTENCES, tokens=BATCH_TOKENS):
        placed += (real[n] for n in numbers)
        for use in uses:
            lengths = batch.source_lengths_B if use == "encoder-self" else batch.target_lengths_B
            layers = getattr(maps, use.replace("-", "_"))
            use_sums = sums.setdefault(use, [_LayerSums(structure, placed, len(sources)) for _, structure in layers])
            for layer, (weights, structure) in zip(use_sums, layers, strict=True):
                refuse_nan(weights)
                mass, active = sentence_sums(weights, structure, lengths, tau=tau, mean_heads=mean_heads)
                layer.mass.append(mass.cpu())
                layer.active.append(active.cpu())
    found = [use for use in uses if sums[use]]
    if not found:
        hint = "--use names another; all takes what is there" if len(uses) < len(USES) else ""
        raise ModelError(f"this model has no {' or '.join(uses)} attention", hint=hint)
    return Activation(
        tau,
        mean_heads,
        sentences=len(real),
        blank=len(sources) - len(real),
        cropped=sum(map(or_, cropped, cropped_targets)),
        uses={use: [layer.shares(i) for i, layer in enumerate(sums[use], 1)] for use in found},
        whole={use: whole for use in found if (whole := _together(sums[use])) is not None},
    )


def _together(layers: Sequence[_LayerSums]) -> Shares | None:
    """The shares of the added sums of layers; None if there is no layer, or if their structures differ."""
    structures = {layer.structure for layer in layers}
    if len(structures) != 1:
        return None
    mass, active = (sum(sums) for sums in zip(*(layer.of_lines() for layer in layers), strict=True))
    return shares(mass, active, structures.pop(), layer=0)


@dataclass
class _LayerSums:
    """The sums of a layer, one tensor per batch; `placed`: the number of each of their pairs among all `lines`."""

    structure: Structure
    placed: Sequence[int]
    lines: int
    mass: list[Tensor] = field(default_factory=list)
    active: list[Tensor] = field(default_factory=list)

    def of_lines(self) -> tuple[Tensor, Tensor]:
        """Mass and active cells of every pair, each (lines, J, N)."""
        mass, active = torch.cat(self.mass), torch.cat(self.active)
        placed = torch.tensor(self.placed)
        return tuple(s.new_zeros(self.lines, *s.shape[1:]).index_copy(0, placed, s) for s in (mass, active))  # type: ignore[return-value]

    def shares(self, layer: int) -> Shares:
        return shares(*self.of_lines(), self.structure, layer=layer)
