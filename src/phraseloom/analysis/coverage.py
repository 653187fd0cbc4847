"""Phrase coverage: does the attention of a model to phrase slots cover the gold phrases?

Gold phrases have one line per sentence: `s1:s2` spans of source words, half-open, from 0, separated by spaces. The target spans
and the kind may follow a span, as in the `.phrases` of the world: `2:4-2:3,6:7=separable`. Words are those of the raw lines,
before any tokenisation; those of joined text are counted with its phrases split. Targets are forced as in training.

A slot is a window of n subwords, and touches their words. Gold phrases are spans of two or more source words. A slot is

    exact     if it touches every word of a phrase and no other
    inside    if it touches only words of one phrase, but not all of them
    crossing  if it touches words of a phrase and others
    outside   if it touches no word of a phrase; the end of the sentence is a word of its own, and so are tags

For one layer and order n, mass_c is the attention to slots of class c, averaged over heads, summed over queries and sentences.
Attention that is uniform over the slots of order n, with the same mass on order n in each sentence, would give class c the
mass chance_c = Σ_sentences mass · (slots of class c) / slots.

    share_c = mass_c / mass    against chance_c / mass
    lift    = (mass_exact + mass_inside) / (chance_exact + chance_inside)

Order 1, with tokens as "slots", is the control: attention that merely prefers the words of phrases has a lift there too. For
each gold phrase, the *strongest* slot of order 2 or more is that with the largest mass from the queries of the phrase: its own
subwords in encoder self-attention, those of the aligned target words in cross-attention. It is a `hit` if it is exact or
inside this phrase; the chance is the fraction of such slots. `others` is the hit of all other queries of the sentence, because
a layer may attend to the same place for every query.

Intervals are over sentences, not over training runs: random weights have lifts a few percent from 1 with intervals that
exclude 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from phraseloom.analysis.alignment import words_of_raw_pair
from phraseloom.analysis.attention import look_in_batches
from phraseloom.analysis.gold import parse_links
from phraseloom.decoding.alignment import slot_weights
from phraseloom.decoding.limits import refuse_nan
from phraseloom.errors import DataError, ModelError, UsageError, plural
from phraseloom.layers.attention.structure import Structure
from phraseloom.metrics.compare import SEED, resamples

TAG_WORD = -1  # a word of no phrase
CLASSES = ("exact", "inside", "crossing", "outside")
EXACT, INSIDE, CROSSING, OUTSIDE = range(4)
Span = tuple[int, int]
NamedFiles = tuple[str | Path, str | Path, str | Path]
"""The files of sources, targets and phrases."""
T = TypeVar("T")


@dataclass(frozen=True)
class GoldSpan:
    """A gold phrase: source words [`source[0]`, `source[1]`), the target words aligned to it, its kind ("" if unknown)."""

    source: Span
    target: tuple[int, ...] = ()
    kind: str = ""


def windows(words_K: Sequence[int], order: int) -> tuple[np.ndarray, np.ndarray]:
    """The first and last word of the slot of `order` that ends at each token; windows are cut at the start of the sentence."""
    words = np.asarray(words_K)
    return words[np.maximum(np.arange(len(words)) - order + 1, 0)], words


def classify(words_K: Sequence[int], order: int, spans: Sequence[Span]) -> np.ndarray:
    """The class (an index into CLASSES) of the slot that ends at each token; the best one if phrases overlap."""
    first, last = windows(words_K, order)
    result = np.full(len(first), OUTSIDE)
    for start, end in spans:
        touches = (last >= start) & (first < end)
        within = (first >= start) & (last < end)
        whole = (first == start) & (last == end - 1)
        result = np.minimum(result, np.select([whole, within, touches], [EXACT, INSIDE, CROSSING], OUTSIDE))
    return result


def exists(length: int, order: int, structure: Structure) -> np.ndarray:
    """A mask of the slots of an order that a sentence of `length` tokens has (all if windows are zero-extended)."""
    return np.ones(length, bool) if structure.zero_extended else np.arange(length) >= order - 1


def by_order(weights_BHQK: Tensor, structure: Structure) -> dict[int, np.ndarray]:
    """The mass on the slots of each order, (B, Q, K) float64: the mean over heads and over the query n-grams that end at a
    token. The orders of a query sum to 1."""
    slots_BJNQK = slot_weights(weights_BHQK.detach(), structure).double().cpu().numpy()
    first_M = np.array(structure.query_orders)[:, None] - 1
    whole_MQ = np.arange(slots_BJNQK.shape[3]) >= first_M
    mean_BNQK = np.einsum("bmnqk,mq->bnqk", slots_BJNQK, whole_MQ / whole_MQ.sum(0))
    return {order: mean_BNQK[:, n] for n, order in enumerate(structure.orders)}


class Hit(NamedTuple):
    """The attention to slots of order 2 or more for one gold phrase.

    `hit` and `exact` tell whether the strongest slot of the phrase's queries is in the phrase, or exactly the phrase. `share`
    is the fraction of the mass of these queries on such slots that is in the phrase. `others` is the `hit` of all other
    queries of the sentence together. `chance` and `exact_chance` are the fractions of such slots in or exactly on the phrase.
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
    """Sums of one layer of one use of attention, with one entry per sentence.

    `mass[order]` has the mass by class, `chance[order]` that of uniform attention, `total` the whole mass.
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
        """Add a sentence: its unpadded mass (Q, K) by order, the word of each key token, the query rows of each phrase."""
        spans = [p.source for p in phrases]
        for order, weights in mass_QK.items():
            mask = exists(len(words_K), order, structure)
            classes = classify(words_K, order, spans)
            column = weights.sum(0)
            self.mass.setdefault(order, []).append(np.bincount(classes, weights=column, minlength=len(CLASSES)))
            share = np.bincount(classes[mask], minlength=len(CLASSES)) / max(1, mask.sum())
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
    """The `Hit` of a phrase for these query rows; None if there are no slots of order 2 or more."""
    slots, classes = [], []
    for order in sorted(order for order in mass_QK if order > 1):
        mask = exists(len(words_K), order, structure)
        slots.append(mass_QK[order][:, mask])
        classes.append(classify(words_K, order, [phrase.source])[mask])
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
    """Shares, chance and lift of each order and of the strongest slots, with central 95 % intervals over sentences."""
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
    """The hits of all phrases (key "") and of each kind: means over phrases, and the lift hit / chance."""
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
    """Σ above / Σ below over sentences; with `counts` also the central 95 % over resamples. None if Σ below is 0."""
    value = float(above.sum() / below.sum()) if below.sum() else None
    if counts is None:
        return value
    bottom = counts @ below
    defined = bottom > 0
    if not defined.any():
        return {"value": value, "interval": None}
    low, high = np.percentile((counts @ above)[defined] / bottom[defined], (2.5, 97.5))
    return {"value": value, "interval": [float(low), float(high)]}


POSITION = "[0-9]{1,6}"
SPAN = re.compile(rf"({POSITION}):({POSITION})(?:-({POSITION}:{POSITION}(?:,{POSITION}:{POSITION})*))?(?:=(\w+))?")
USES = ("encoder-self", "cross")
BATCH_SENTENCES, BATCH_TOKENS = 16, 1024


def parse_spans(line: str) -> list[GoldSpan]:
    """Read one line of phrases. Raises DataError."""
    phrases = []
    for item in line.split():
        match = SPAN.fullmatch(item)
        spans = [tuple(map(int, span.split(":"))) for span in (match[3] or "").split(",") if span] if match else []
        if not match or int(match[1]) >= int(match[2]) or any(start >= end for start, end in spans):
            raise DataError(
                f"not a phrase: {item[:80]!r}", hint="a phrase is s1:s2 or s1:s2-t1:t2=kind, half-open, from 0"
            )
        target = tuple(j for start, end in spans for j in range(start, end))
        phrases.append(GoldSpan((int(match[1]), int(match[2])), target, match[4] or ""))
    return phrases


def parse_each(lines: Iterable[str], parse: Callable[[str], T], file: str | Path | None) -> Iterator[T]:
    """`parse(line)` of each line. Raises DataError with file and line."""
    for number, line in enumerate(lines, 1):
        try:
            result = parse(line)
        except DataError as error:
            raise DataError(error.what, file=file, line=number, hint=error.hint) from error
        yield result


def read_phrases(
    lines: Iterable[str],
    *,
    file: str | Path,
    links: Iterable[str] | None = None,
    links_file: str | Path | None = None,
    kinds: Sequence[str] = (),
) -> list[list[GoldSpan]]:
    """The gold phrases of each line with two or more source words, and one of `kinds` if it is not empty.

    With lines of word `links` (`i-j`), they replace the target words of the phrases. Raises DataError with file and line.
    """
    result = [
        [s for s in spans if s.source[1] - s.source[0] > 1 and (not kinds or s.kind in kinds)]
        for spans in parse_each(lines, parse_spans, file)
    ]
    if links is None:
        return result
    linked = zip(result, parse_each(links, parse_links, links_file), strict=True)
    return [[_aligned(span, pairs) for span in spans] for spans, pairs in linked]


def _aligned(span: GoldSpan, links: Sequence[tuple[int, int]]) -> GoldSpan:
    start, end = span.source
    return GoldSpan(span.source, tuple(sorted({j for i, j in links if start <= i < end})), span.kind)


def measure(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str],
    phrases: Sequence[Sequence[GoldSpan]],
    *,
    samples: int = 1000,
    seed: int = SEED,
    trees: Sequence[str] | None = None,
    files: NamedFiles = ("source", "target", "phrases"),
) -> dict[str, Any]:
    """The `summary` of every layer (from 1) of encoder self- and cross-attention that has phrase slots.

    Sentences without a gold phrase and sentences longer than `max_input_tokens` are left out. `trees` of the sources are for
    models with phrases from parse trees. `files` are for messages. Raises UsageError, DataError (with file
    and line), ModelError (no phrase slots, NaN).
    """
    if not len(sources) == len(targets) == len(phrases):
        raise UsageError(
            f"{len(sources)} sources, {len(targets)} targets, phrases of {plural(len(phrases), 'sentence')}"
        )
    if samples < 1:
        raise UsageError(f"the bootstrap needs at least 1 resample, not {samples}")
    translator = translator.first_model()
    structures = _structures(translator.model)
    if not any(max(structure.orders) > 1 for layers in structures.values() for structure in layers):
        raise ModelError(
            "the model has no phrase slots in encoder self- or cross-attention",
            hint="coverage needs a model with n-gram slots, such as queryk heterogeneous 1-2",
        )
    sentences, cropped = _encoded(translator, sources, targets, phrases, trees, files)
    tallies = {use: [LayerTally() for _ in layers] for use, layers in structures.items()}
    sizes = [s.sizes for s in sentences if s.sizes is not None] or None
    pairs = ([s.source for s in sentences], [s.target for s in sentences], sizes)
    for numbers, _, maps in look_in_batches(translator, *pairs, sentences=BATCH_SENTENCES, tokens=BATCH_TOKENS):
        _count(maps, [sentences[n] for n in numbers], tallies)
    return {
        "sentences": len(sentences),
        "left_out": {"without_phrases": sum(not p for p in phrases), "too_long": cropped},
        "phrases": sum(len(s.phrases) for s in sentences),
        "uses": {
            use: [
                {"layer": i, "slots": list(structure.orders), **summary(tally, samples=samples, seed=seed)}
                for i, (tally, structure) in enumerate(zip(tallies[use], structures[use], strict=True), 1)
                if max(structure.orders) > 1
            ]
            for use in USES
        },
    }


class _Sentence(NamedTuple):
    """The ids of both sides, the word of each source token (EOS and tags belong to no phrase), and the gold phrases.

    `own[p]` and `aligned[p]` are the query rows of phrase p in encoder self-attention and in cross-attention. `sizes` are those
    of the source phrases, if the model reads any.
    """

    source: list[int]
    target: list[int]
    words_K: list[int]
    phrases: Sequence[GoldSpan]
    own: list[list[int]]
    aligned: list[list[int]]
    sizes: list[int] | None


def _structures(model: Any) -> dict[str, list[Structure]]:
    if not (hasattr(model, "encoder") and hasattr(model, "decoder")):
        raise ModelError("not a translation model: it has no encoder", hint="gold phrases are spans of the source")
    return {
        "encoder-self": list(model.encoder.structures),
        "cross": model.decoder.cross_structures,
    }


def _encoded(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str],
    phrases: Sequence[Sequence[GoldSpan]],
    trees: Sequence[str] | None,
    files: NamedFiles,
) -> tuple[list[_Sentence], int]:
    """The usable sentences, and the number of those that are too long. Raises DataError for a phrase beyond its sentence."""
    tokenizer, limit = translator.tokenizer, translator.config.max_input_tokens
    tags = tokenizer.tag_ids(translator.config.tags)
    result: list[_Sentence] = []
    cropped = 0
    ids = [side.encode_batch(list(lines)) for side, lines in ((tokenizer.source, sources), (tokenizer.target, targets))]
    sizes = translator.phrases_of(sources, ids[0], trees) or [None] * len(sources)
    for number, (source, target, spans, phrase_sizes) in enumerate(zip(*ids, phrases, sizes, strict=True), 1):
        if not spans:
            continue
        lines = sources[number - 1], targets[number - 1]
        (words_s, num_s), (words_t, num_t) = words_of_raw_pair(tokenizer, lines, (source, target), files[:2], number)
        for span in spans:
            if span.source[1] > num_s or max(span.target, default=-1) >= num_t:
                raise DataError(
                    f"the sentence has {num_s} and {num_t} words, too few for the phrase on source words "
                    f"{span.source[0]}:{span.source[1]}"
                    + (f" and target word {max(span.target)}" if span.target else ""),
                    file=files[2],
                    line=number,
                    hint="spans count the words of the line, from 0; are the files parallel?",
                )
        if max(len(source), len(target)) > limit:
            cropped += 1
            continue
        words_K = [*(TAG_WORD for _ in tags), *(words.start for words in words_s), num_s]
        own = [[i for i, w in enumerate(words_K) if span.source[0] <= w < span.source[1]] for span in spans]
        aligned = [[t for t, words in enumerate(words_t) if set(words) & set(span.target)] for span in spans]
        result.append(_Sentence([*tags, *source], target, words_K, spans, own, aligned, phrase_sizes))
    if not result:
        raise DataError("no sentence has a gold phrase of two or more source words", hint="there is nothing to cover")
    return result, cropped


def _count(maps: Any, sentences: list[_Sentence], tallies: Mapping[str, list[LayerTally]]) -> None:
    """Add the attention maps of a batch of sentences to the tallies of every layer that has phrase slots."""
    for use, layers in tallies.items():
        for tally, (weights, structure) in zip(layers, getattr(maps, use.replace("-", "_")), strict=True):
            if max(structure.orders) == 1:
                continue
            refuse_nan(weights)
            mass = by_order(weights, structure)
            for b, sentence in enumerate(sentences):
                keys = len(sentence.words_K)
                queries = keys if use == "encoder-self" else len(sentence.target) + 1
                rows = sentence.own if use == "encoder-self" else sentence.aligned
                cut = {order: mass_BQK[b, :queries, :keys] for order, mass_BQK in mass.items()}
                tally.add(cut, sentence.words_K, sentence.phrases, rows, structure)
