"""Do the phrase slots that fire cover the gold phrases?

A slot is a window of n subwords, so of the words that they belong to. Against the gold phrases of a sentence, which are
spans of two and more source words, it is

    exact     it touches every word of a phrase and no other
    inside    it touches only words of one phrase, not all of them
    crossing  it touches words of a phrase and others
    outside   it touches no word of a phrase; the end of the sentence is a word of its own

For one layer and order n: mass_c is the attention to slots of class c, averaged over heads, summed over queries and
sentences. Attention that is uniform over the slots of order n, each sentence with the mass that it really gives to
order n, would give class c the mass chance_c = Σ_sentences mass · (slots of class c) / slots.

    share_c = mass_c / mass    against chance_c / mass
    lift    = (mass_exact + mass_inside) / (chance_exact + chance_inside)

Order 1, where a "slot" is a token, is the control: attention that merely prefers the words of phrases lifts it as well.
For each gold phrase, the *strongest* slot of order 2 and more is that with the largest mass from the queries of the
phrase: its own subwords in encoder self-attention, those of the target words aligned to it in cross-attention. `hit`:
it is exact or inside this phrase; by chance, as often as the share of all such slots that is. A layer that looks at the
same place whatever the query hits by luck or never: `others` is the hit of all the other queries of the sentence.

Intervals are over sentences, not over trainings: random weights have lifts a few percent from 1 that these call
certain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from phraseloom.decoding.alignment import slot_weights
from phraseloom.layers.attention.structure import Structure
from phraseloom.metrics.compare import SEED, resamples

CLASSES = ("exact", "inside", "crossing", "outside")
EXACT, INSIDE, CROSSING, OUTSIDE = range(4)
Span = tuple[int, int]


@dataclass(frozen=True)
class GoldSpan:
    """A gold phrase: source words [`source[0]`, `source[1]`), target words aligned to it, kind ("" if not said)."""

    source: Span
    target: tuple[int, ...] = ()
    kind: str = ""


def windows(words_K: Sequence[int], order: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last word of the slot of `order` that ends at each token; windows begin with the sentence at most."""
    words = np.asarray(words_K)
    return words[np.maximum(np.arange(len(words)) - order + 1, 0)], words


def classify(words_K: Sequence[int], order: int, spans: Sequence[Span]) -> np.ndarray:
    """The class (an index into CLASSES) of the slot that ends at each token; the best where phrases overlap."""
    first, last = windows(words_K, order)
    result = np.full(len(first), OUTSIDE)
    for start, end in spans:
        touches = (last >= start) & (first < end)
        within = (first >= start) & (last < end)
        whole = (first == start) & (last == end - 1)
        result = np.minimum(result, np.select([whole, within, touches], [EXACT, INSIDE, CROSSING], OUTSIDE))
    return result


def exists(length: int, order: int, structure: Structure) -> np.ndarray:
    """Which slots of an order a sentence of `length` tokens has (all where windows are zero-extended)."""
    return np.ones(length, bool) if structure.zero_extended else np.arange(length) >= order - 1


def by_order(weights_BHQK: Tensor, structure: Structure) -> dict[int, np.ndarray]:
    """Mass on the slots of each order, (B, Q, K) float64: the mean over heads and the query n-grams that end at a
    token.

    Together the orders give every query 1.
    """
    slots_BJNQK = slot_weights(weights_BHQK.detach(), structure).double().cpu().numpy()
    first_M = np.array(structure.query_orders)[:, None] - 1
    whole_MQ = np.arange(slots_BJNQK.shape[3]) >= first_M
    mean_BNQK = np.einsum("bmnqk,mq->bnqk", slots_BJNQK, whole_MQ / whole_MQ.sum(0))
    return {order: mean_BNQK[:, n] for n, order in enumerate(structure.orders)}


class Hit(NamedTuple):
    """The slots of order 2 and more for one gold phrase.

    `hit`, `exact`: whether the strongest slot of the phrase's queries is in the phrase, is exactly it; `share`: of the
    mass of these queries on such slots, the part in the phrase; `others`: `hit` of all other queries of the sentence
    together. `chance`, `exact_chance`: the share of such slots that are in the phrase, are exactly it.
    """

    sentence: int
    kind: str
    hit: float
    exact: float
    share: float
    others: float
    chance: float
    exact_chance: float


@dataclass
class LayerTally:
    """Counts of one layer of one use of attention.

    For each sentence `mass[order]`: the mass by class; `chance[order]`: that of uniform attention; `total`: all mass.
    """

    mass: dict[int, list[np.ndarray]] = field(default_factory=dict)
    chance: dict[int, list[np.ndarray]] = field(default_factory=dict)
    total: list[float] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)

    def add(
        self,
        mass_QK: Mapping[int, np.ndarray],
        words_K: Sequence[int],
        phrases: Sequence[GoldSpan],
        queries: Sequence[Sequence[int]],
        structure: Structure,
    ) -> None:
        """Count one sentence: mass by order, (Q, K) unpadded; word of each key token; query rows of each phrase."""
        spans = [p.source for p in phrases]
        for order, weights in mass_QK.items():
            found = exists(len(words_K), order, structure)
            classes = classify(words_K, order, spans)
            column = weights.sum(0)
            self.mass.setdefault(order, []).append(np.bincount(classes, weights=column, minlength=len(CLASSES)))
            share = np.bincount(classes[found], minlength=len(CLASSES)) / max(1, found.sum())
            self.chance.setdefault(order, []).append(share * column.sum())
        number = len(self.total)
        self.total.append(float(sum(w.sum() for w in mass_QK.values())))
        for phrase, rows in zip(phrases, queries, strict=True):
            hit = strongest(mass_QK, words_K, phrase, rows, structure, sentence=number) if len(rows) else None
            if hit:
                self.hits.append(hit)


def strongest(
    mass_QK: Mapping[int, np.ndarray],
    words_K: Sequence[int],
    phrase: GoldSpan,
    rows: Sequence[int],
    structure: Structure,
    *,
    sentence: int = 0,
) -> Hit | None:
    """Where the mass of these query rows on slots of order 2 and more lies; None if there are no such slots."""
    slots, classes = [], []
    for order in sorted(order for order in mass_QK if order > 1):
        found = exists(len(words_K), order, structure)
        slots.append(mass_QK[order][:, found])
        classes.append(classify(words_K, order, [phrase.source])[found])
    if not sum(map(len, classes)):
        return None
    mass_QJ, classes_J = np.concatenate(slots, 1), np.concatenate(classes)
    inside, exact = classes_J <= INSIDE, classes_J == EXACT
    own = mass_QJ[list(rows)].sum(0)
    others = mass_QJ.sum(0) - own
    best = own.argmax()
    share = own[inside].sum() / own.sum() if own.sum() else 0.0
    return Hit(
        sentence, phrase.kind, inside[best], exact[best], share, inside[others.argmax()], inside.mean(), exact.mean()
    )


def summary(tally: LayerTally, *, samples: int = 1000, seed: int = SEED) -> dict[str, Any]:
    """Shares, chance and lift of each order, and of the strongest slots, with central 95 % intervals over sentences."""
    total = np.array(tally.total)
    counts = np.concatenate(list(resamples(len(total), samples, seed=seed)))
    orders = []
    for order in sorted(tally.mass):
        mass, chance = np.stack(tally.mass[order]), np.stack(tally.chance[order])
        orders.append({"order": order, "mass": _ratio(mass.sum(1), total, counts), **_classes(mass, chance, counts)})
    several = [order for order in tally.mass if order > 1]
    if len(several) > 1:
        mass, chance = (np.sum([np.stack(t[o]) for o in several], 0) for t in (tally.mass, tally.chance))
        orders.append(
            {
                "order": f"{min(several)}–{max(several)}",
                "mass": _ratio(mass.sum(1), total, counts),
                **_classes(mass, chance, counts),
            }
        )
    return {"orders": orders, "strongest": _strongest(tally, counts)}


def _classes(mass: np.ndarray, chance: np.ndarray, counts: np.ndarray) -> dict[str, Any]:
    whole = mass.sum(1)
    result: dict[str, Any] = {
        name: {"share": _ratio(mass[:, c], whole), "chance": _ratio(chance[:, c], whole)}
        for c, name in enumerate(CLASSES)
    }
    covered, by_chance = mass[:, :2].sum(1), chance[:, :2].sum(1)
    result["covered"] = {"share": _ratio(covered, whole, counts), "chance": _ratio(by_chance, whole)}
    result["lift"] = _ratio(covered, by_chance, counts)
    return result


def _strongest(tally: LayerTally, counts: np.ndarray) -> dict[str, Any]:
    """The hits of all phrases (key "") and of each kind: means over phrases, and hit / chance."""
    result: dict[str, Any] = {}
    for kind in ("", *sorted({hit.kind for hit in tally.hits} - {""})):
        hits = [hit for hit in tally.hits if kind in ("", hit.kind)]
        if not hits:
            continue
        owners = [hit.sentence for hit in hits]
        columns = {name: [getattr(hit, name) for hit in hits] for name in Hit._fields[2:]} | {"n": [1.0] * len(hits)}
        sums = {name: np.bincount(owners, weights=c, minlength=counts.shape[1]) for name, c in columns.items()}
        means = {name: _ratio(sums[name], sums["n"], counts) for name in ("hit", "exact", "share", "others")}
        chances = {name: _ratio(sums[name], sums["n"]) for name in ("chance", "exact_chance")}
        result[kind] = {
            "phrases": len(hits), **means, **chances, "lift": _ratio(sums["hit"], sums["chance"], counts)
        }  # fmt: skip
    return result


def _ratio(above: np.ndarray, below: np.ndarray, counts: np.ndarray | None = None) -> Any:
    """Σ above / Σ below over sentences; with `counts` also its central 95 % over resamples. None where below is 0."""
    value = float(above.sum() / below.sum()) if below.sum() else None
    if counts is None:
        return value
    bottom = counts @ below
    some = bottom > 0
    if not some.any():
        return {"value": value, "interval": None}
    low, high = np.percentile((counts @ above)[some] / bottom[some], (2.5, 97.5))
    return {"value": value, "interval": [float(low), float(high)]}
