"""The parts of a report: one plain form for each kind of result, whether it was just measured or is read from a JSON file.

A part has only the numbers that a report shows; each kind has a class. `read_part` makes it from a file that another command
wrote (`results.py`), `measured.py` from models and translations.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from phraseloom import results
from phraseloom.errors import DataError
from phraseloom.report.run.runs import OverRuns
from phraseloom.results import Number

METHOD = "union"  # by which words are linked in what is shown, as in paper 004
PLACES = ("segment", "inside", "split")
COMPARED = ("low", "high", "difference", "difference_low", "difference_high", "p", "one_seed")


def read_part(name: str, path: Path) -> Part:
    """The part in a JSON file. `name` is that of the system if the file is about one, else of what was measured.

    Raises FileProblem, CorruptError, and DataError, with the name of the command, for a file that a report does not show.
    """
    result = results.read(path)
    make = PARTS.get(type(result))
    if make is None:
        raise DataError(f"a report does not show what {result.command} writes", file=path)
    try:
        return make(result, name, path.name)
    except (ValueError, IndexError) as error:  # lists of different lengths
        raise DataError(
            f"not a complete result of {result.command} ({error})", file=path, hint="write it again"
        ) from error


class ReportItem(results.ResultPart, from_attributes=True):
    """The base of parts and their items. Validation also takes a result, of which it reads the declared attributes."""


class ShownSystem(ReportItem):
    """A system, by its name in the report."""

    name: str


class ReportPart(ReportItem):
    """The base of all parts. `origin`: the name of its file, or `measured`."""

    kind: str
    name: str
    origin: str


class RunScores(results.ResultPart):
    """The mean of the scores of runs, with their standard deviation if there are several."""

    value: Number
    deviation: Number | None
    runs: list[Number] | None


class ComparedScore(results.TestedScore, RunScores):
    """The score of a system by one metric, with its interval and its comparison with the baseline."""


class ScoredLines(ReportItem):
    """The lines that were scored: those named in `file`, of a text of `sentences` lines."""

    file: str
    sentences: int


class ScoredMetric(ReportItem):
    """A metric and its signature."""

    metric: str
    signature: str
    higher_is_better: bool


class SystemMetrics(ShownSystem):
    """The scores of a system by metric."""

    scores: dict[str, ComparedScore]


class ResamplingOptions(ReportItem):
    """The options of bootstrap resampling."""

    samples: int
    seed: int
    baseline: str


class LengthScore(ShownSystem):
    """The score of a system on one length group; None if the group is empty, or too small for an interval."""

    value: Number | None
    deviation: Number | None
    low: Number | None
    high: Number | None
    difference: Number | None
    difference_low: Number | None
    difference_high: Number | None
    p: Number | None
    one_seed: bool | None


class ScoredLengthGroup(ReportItem):
    """Sentences of similar source length."""

    label: str
    sentences: int
    systems: list[LengthScore]


class ScoresByLength(ReportItem):
    """A metric by source length."""

    metric: str
    signature: str
    groups: list[ScoredLengthGroup]


class ScoresPart(ReportPart):
    """The scores of translations. `of`: the lines that were scored, if not all; `pairs`: every pair of systems, if tested."""

    kind: Literal["scores"]
    sentences: int
    of: ScoredLines | None
    metrics: list[ScoredMetric]
    systems: list[SystemMetrics]
    bootstrap: ResamplingOptions | None
    pairs: list[results.PairTest] | None
    by_length: ScoresByLength | None


def scores(result: results.ScoresResult, name: str, origin: str) -> ScoresPart:
    """`evaluate`: by system and metric the score, its interval and its comparison with the baseline."""
    boot = result.bootstrap
    tested = {(test.metric, test.system): test for test in boot.results} if boot else {}
    part = {
        "kind": "scores",
        "name": name,
        "origin": origin,
        "sentences": result.sentences,
        "of": result.lines and {"file": result.lines.file, "sentences": result.lines.of},
        "metrics": [
            {
                "metric": score.name,
                "signature": score.signature,
                "higher_is_better": score.name != "TER" if score.higher_is_better is None else score.higher_is_better,
            }
            for score in result.systems[0].scores
        ],
        "systems": [
            {
                "name": system.name,
                "scores": {
                    score.name: {
                        "value": score.value,
                        "deviation": score.deviation,
                        "runs": score.runs,
                        **_compared(tested.get((score.name, system.name))),
                    }
                    for score in system.scores
                },
            }
            for system in result.systems
        ],
        "bootstrap": boot,
        "pairs": boot.pairs if boot else None,
        "by_length": result.by_length and length_scores(result.by_length),
    }
    return ScoresPart.model_validate(part)


def _compared(test: results.TestedScore | None) -> dict[str, Any]:
    return {key: getattr(test, key, None) for key in COMPARED}


def length_scores(part: results.LengthScores) -> ScoresByLength:
    """Scores by source length: groups, each with every system."""
    groups = []
    for i, group in enumerate(part.systems[0].groups):
        entries = []
        for system in part.systems:
            score, test = system.groups[i].score, system.groups[i].bootstrap
            values = {"value": score and score.value, "deviation": score and score.deviation}
            entries.append(LengthScore.model_validate({"name": system.name, **values, **_compared(test)}))
        groups.append(ScoredLengthGroup(label=group.label, sentences=group.sentences, systems=entries))
    signature = part.signature or next(g.score.signature for s in part.systems for g in s.groups if g.score)
    return ScoresByLength(metric=part.metric, signature=signature, groups=groups)


class GroupAccuracy(ShownSystem):
    """The accuracy of a system on a group of items as a fraction, and p against the first system.

    `deviation`: over runs, of contrastive items.
    """

    accuracy: Number
    deviation: Number | None = None
    low: Number
    high: Number
    difference: Number | None
    won: int | None
    lost: int | None
    p: Number | None


class ContrastiveItems(ReportItem):
    """Items of one category (None: all) at one distance (None: any)."""

    category: str | None
    distance: str | None
    items: int
    systems: list[GroupAccuracy]


class ContrastivePart(ReportPart):
    """Accuracy on contrastive items. `distance`: how distances are known."""

    kind: Literal["contrastive"]
    items: int
    distance: Literal["given", "position"] | None
    groups: list[ContrastiveItems]
    systems: list[ShownSystem]


def contrastive(result: results.ContrastiveResult, name: str, origin: str) -> ContrastivePart:
    """`analyse contrastive`: groups of items by category and distance, each with every system."""
    groups = [
        ContrastiveItems(
            category=group.category,
            distance=group.distance,
            items=group.items,
            systems=[_accuracy(s, deviation=s.deviation) for s in group.systems],
        )
        for group in result.groups
    ]
    return ContrastivePart(
        kind="contrastive",
        name=name,
        origin=origin,
        items=result.items,
        distance=result.distance,
        groups=groups,
        systems=[ShownSystem(name=system.name) for system in groups[0].systems],
    )


class PhenomenonItems(ReportItem):
    """The instances of one phenomenon."""

    phenomenon: str
    instances: int
    systems: list[GroupAccuracy]


class PhenomenaPart(ReportPart):
    """Accuracy on the phenomena of the built-in world."""

    kind: Literal["phenomena"]
    sentences: int
    split: str
    groups: list[PhenomenonItems]
    systems: list[ShownSystem]


def phenomena(result: results.PhenomenaResult, name: str, origin: str) -> PhenomenaPart:
    """`analyse phenomena`: the accuracy of every system by phenomenon."""
    groups = [
        PhenomenonItems(phenomenon=g.phenomenon, instances=g.instances, systems=[_accuracy(s) for s in g.systems])
        for g in result.phenomena
    ]
    return PhenomenaPart(
        kind="phenomena",
        name=name,
        origin=origin,
        sentences=result.sentences,
        split=result.split,
        groups=groups,
        systems=[ShownSystem(name=system.name) for system in groups[0].systems],
    )


def _accuracy(system: results.SystemAccuracy, **more: Number | None) -> GroupAccuracy:
    low, high = system.interval
    against = {key: getattr(system, key) for key in ("difference", "won", "lost", "p")}
    entry = {"name": system.system, "accuracy": system.accuracy, **more, "low": low, "high": high, **against}
    return GroupAccuracy.model_validate(entry)


class AlignmentSetting(ReportItem):
    """The scores of links of one layer, head (None: the mean) and method, as fractions."""

    layer: Number
    head: Number | Literal["max"] | None
    method: str
    aer: Number
    precision: Number
    recall: Number


class SystemAlignment(ShownSystem):
    """One system of `analyse alignment`. `cropped`: its pairs that are longer than the model's limits.

    In all systems, `runs` and `deviation` are set for means over several runs.
    """

    settings: list[AlignmentSetting]
    cropped: Number = 0
    runs: int = 1
    deviation: SystemAlignment | None = None


class AlignmentPart(ReportPart):
    """The alignment error rate of attention. `gold`: the name of the gold links."""

    kind: Literal["alignment"]
    gold: str | None
    sentences: int
    systems: list[SystemAlignment]


def alignment(result: results.AlignmentResult, name: str, origin: str) -> AlignmentPart:
    """`analyse alignment`: every layer, head and method of each system."""
    about = {"kind": "alignment", "name": name, "origin": origin, "gold": result.gold}
    cropped = result.cropped or {}
    systems = [
        {"name": system.model, "settings": system.settings, "cropped": cropped.get(system.model, 0)}
        for system in result.systems
    ]
    sentences = result.systems[0].settings[0].sentences
    return AlignmentPart.model_validate({**about, "sentences": sentences, "systems": systems})


class GoldLinkScores(ShownSystem):
    """The scores of links against gold links, as fractions."""

    aer: Number
    precision: Number
    recall: Number
    f1: Number


class LinksPart(ReportPart):
    """The scores of word links in files. `gold`: the name of the gold links."""

    kind: Literal["links"]
    gold: str
    sentences: int
    systems: list[GoldLinkScores]


def links(result: results.LinksResult, name: str, origin: str) -> LinksPart:
    """`align evaluate`."""
    about = {"kind": "links", "name": name, "origin": origin, "gold": result.gold}
    return LinksPart.model_validate({**about, "sentences": result.systems[0].sentences, "systems": result.systems})


class LayerEntropies(ReportItem):
    """Entropies in nats: by layer, of the mean of all layers, and of uniform attention."""

    layers: list[Number]
    whole: Number
    uniform: Number


class SystemEntropy(ShownSystem):
    """One system of `analyse entropy`: over tokens, and over slots if there are any. `own`: on its own translations."""

    steps: Number
    sentences: Number
    own: bool
    tokens: LayerEntropies
    slots: LayerEntropies | None
    runs: int = 1
    deviation: SystemEntropy | None = None


class EntropyPart(ReportPart):
    """The entropy of cross-attention by layer."""

    kind: Literal["entropy"]
    unit: Literal["nats"]
    systems: list[SystemEntropy]


def entropy(result: results.EntropyResult, name: str, origin: str) -> EntropyPart:
    """`analyse entropy`: nats by layer, means over steps."""
    systems = [entropy_of(system) for system in result.systems]
    return EntropyPart(kind="entropy", name=name, origin=origin, unit=result.unit, systems=systems)


def entropy_of(system: results.ModelEntropy) -> SystemEntropy:
    """One system of `analyse entropy`."""
    return SystemEntropy(
        name=system.model,
        steps=system.steps,
        sentences=system.sentences,
        own=system.own,
        tokens=_reading(system.tokens),
        slots=_reading(system.slots) if system.slots else None,
    )


def _reading(reading: results.EntropyReading) -> LayerEntropies:
    layers = [layer.steps for layer in reading.layers]
    return LayerEntropies(layers=layers, whole=reading.whole.steps, uniform=reading.uniform.steps)


class LayerActivation(ReportItem):
    """Shares of attention of one layer in per cent, by quadrant and by pair of orders."""

    layer: Number
    joint: dict[str, Number | None]
    mass: dict[str, Number | None]
    activation: dict[str, Number | None]
    orders: dict[str, Number | None]


class SystemActivation(ShownSystem):
    """One system of `analyse activation`: its layers by use."""

    tau: Number
    sentences: Number
    uses: dict[str, list[LayerActivation]]
    runs: int = 1
    deviation: SystemActivation | None = None


class ActivationPart(ReportPart):
    """Shares of token and phrase attention."""

    kind: Literal["activation"]
    systems: list[SystemActivation]


def activation(result: results.ActivationResult, name: str, origin: str) -> ActivationPart:
    """`analyse activation` of the system `name`: shares by use and layer."""
    return ActivationPart(kind="activation", name=name, origin=origin, systems=[activation_of(result, name)])


def activation_of(result: results.ActivationResult, name: str) -> SystemActivation:
    """One system of `analyse activation`."""
    system = {"name": name, "tau": result.tau, "sentences": result.sentences, "uses": result.uses}
    return SystemActivation.model_validate(system)


class ClassScores(ReportItem):
    """Precision, recall and F1 of a class as fractions, and its number of tokens."""

    total: Number
    precision: Number
    recall: Number
    f1: Number


class SystemFertility(ShownSystem):
    """One system of `fertility evaluate`: the scores of each class, and of the gate between words and phrases."""

    sentences: Number
    tokens: Number
    accuracy: Number
    loss: Number
    classes: dict[str, ClassScores]
    gate: dict[str, ClassScores]
    runs: int = 1
    deviation: SystemFertility | None = None


class FertilityPart(ReportPart):
    """The scores of fertility modules."""

    kind: Literal["fertility"]
    systems: list[SystemFertility]


def fertility(result: results.FertilityResult, name: str, origin: str) -> FertilityPart:
    """`fertility evaluate` of the system `name`."""
    return FertilityPart(kind="fertility", name=name, origin=origin, systems=[fertility_of(result, name)])


def fertility_of(result: results.FertilityResult, name: str) -> SystemFertility:
    """One system of `fertility evaluate`."""
    keys = ("sentences", "tokens", "accuracy", "loss", "classes", "gate")
    return SystemFertility.model_validate({"name": name, **{key: getattr(result, key) for key in keys}})


class CoverageRow(ReportItem):
    """The mass of one use, layer and order on gold phrases, compared with chance."""

    use: str
    layer: int
    order: int | str
    covered: Number | None
    chance: Number | None
    lift: Number | None
    interval: results.Interval | None


class SystemCoverage(ShownSystem):
    """One system of `analyse coverage`."""

    rows: list[CoverageRow]


class CoveragePart(ReportPart):
    """Attention to phrase slots against gold phrases."""

    kind: Literal["coverage"]
    phrases: int
    sentences: int
    systems: list[SystemCoverage]


def coverage(result: results.CoverageResult, name: str, origin: str) -> CoveragePart:
    """`analyse coverage` of the system `name`: by use, layer and order the mass on gold phrases, compared with chance."""
    rows = [
        CoverageRow(
            use=use,
            layer=layer.layer,
            order=entry.order,
            covered=entry.covered.share.value,
            chance=entry.covered.chance,
            lift=entry.lift.value,
            interval=entry.lift.interval,
        )
        for use, layers in result.uses.items()
        for layer in layers
        for entry in layer.orders
    ]
    return CoveragePart(
        kind="coverage",
        name=name,
        origin=origin,
        phrases=result.phrases,
        sentences=result.sentences,
        systems=[SystemCoverage(name=name, rows=rows)],
    )


class SizeCount(ReportItem):
    """The number of phrases or segments of this size in subwords."""

    size: int
    count: int


class PhraseShares(ReportItem):
    """The shares of `results.KnownPhrases`; `low` and `high`: the interval of `segment`."""

    kind: str
    phrases: int
    low: Number
    high: Number
    segment: Number | None
    inside: Number | None
    split: Number | None
    chance: Number | None
    posterior: Number | None
    from_its_source: Number | None


class SystemSegments(ShownSystem):
    """One system of `analyse segments`: how many subwords a source subword writes, and known phrases by kind."""

    lengths: list[SizeCount]
    phrases: list[PhraseShares]


class SegmentsPart(ReportPart):
    """The segments of a segmental model. `forced`: of given translations."""

    kind: Literal["segments"]
    forced: bool
    sentences: int
    left_out: int
    systems: list[SystemSegments]


def segments(result: results.SegmentsResult, name: str, origin: str) -> SegmentsPart:
    """`analyse segments` of the system `name`."""
    keys = (*PLACES, "chance", "posterior", "from_its_source")
    phrases = [
        PhraseShares.model_validate(
            {
                "kind": kind,
                "phrases": entry.phrases,
                "low": entry.interval[0],
                "high": entry.interval[1],
                **{key: getattr(entry, key) for key in keys},
            }
        )
        for kind, entry in (result.phrases or {}).items()
    ]
    lengths = [SizeCount(size=int(size), count=count) for size, count in result.lengths.items()]
    return SegmentsPart(
        kind="segments",
        name=name,
        origin=origin,
        forced=result.left_out is not None,
        sentences=sum(sentence is not None for sentence in result.sentences),
        left_out=sum((result.left_out or {}).values()),
        systems=[SystemSegments(name=name, lengths=lengths, phrases=phrases)],
    )


class LevelWeights(ReportItem):
    """The weight of the heaviest subword: `greatest`, the mean over phrases of several subwords; `even`: that of 1 / size."""

    level: int
    phrases: int
    greatest: Number
    even: Number


class SystemPhrases(ShownSystem):
    """One system of `analyse phrases`; `shares[i][j]`: how much of level i decoder layer j reads."""

    phrases: int
    sizes: list[SizeCount]
    levels: list[LevelWeights]
    shares: list[list[Number]] | None


class SourcePhrasesPart(ReportPart):
    """Source phrases and the weights of their subwords."""

    kind: Literal["source_phrases"]
    sentences: int
    cropped: int
    systems: list[SystemPhrases]


def source_phrases(result: results.SourcePhrasesResult, name: str, origin: str) -> SourcePhrasesPart:
    """`analyse phrases` of the system `name`: sizes of phrases, and by level the weight of their heaviest subword."""
    phrases = [phrase for sentence in result.sentences for phrase in sentence]
    sizes = Counter(len(phrase.pieces) for phrase in phrases)
    levels = []
    for level in range(max((len(phrase.weights) for phrase in phrases), default=0)):
        several = [phrase.weights[level] for phrase in phrases if len(phrase.pieces) > 1]
        weighted = [weights for weights in several if weights is not None]
        if weighted:
            greatest = statistics.fmean(max(weights) for weights in weighted)
            even = statistics.fmean(1 / len(weights) for weights in weighted)
            levels.append(LevelWeights(level=level, phrases=len(weighted), greatest=greatest, even=even))
    counts = [SizeCount(size=size, count=count) for size, count in sorted(sizes.items())]
    system = SystemPhrases(name=name, phrases=len(phrases), sizes=counts, levels=levels, shares=result.shares)
    return SourcePhrasesPart(
        kind="source_phrases",
        name=name,
        origin=origin,
        sentences=sum(map(bool, result.sentences)),
        cropped=result.cropped,
        systems=[system],
    )


class NeighbourAgreement(ReportItem):
    """How far the neighbours and the cosines of two models agree; None if undefined."""

    overlap: Number
    chance: Number
    pairs: int
    pearson: Number | None
    spearman: Number | None


class ListedToken(ReportItem):
    """A token and, for each model, [piece, cosine] of its neighbours."""

    piece: str
    count: int | None
    shared: int | None
    neighbours: list[list[list[str | Number]]]


class SystemNeighbours(ShownSystem):
    """The mean cosine of neighbours in one model, by rank."""

    cosines: list[Number]


class NeighboursPart(ReportPart):
    """The neighbours of tokens in one model or two."""

    kind: Literal["neighbours"]
    side: str
    neighbours: int
    candidates: int
    agreement: NeighbourAgreement | None
    tokens: list[ListedToken]
    systems: list[SystemNeighbours]


def neighbours(result: results.NeighboursResult, name: str, origin: str) -> NeighboursPart:
    """`analyse neighbours`: the neighbours of each token in one model or two, and how far two agree."""
    systems = []
    for i, model in enumerate(result.models):
        ranks = zip(*(token.neighbours[i] for token in result.tokens), strict=True)
        cosines = [statistics.fmean(cosine for _, cosine in rank) for rank in ranks]
        systems.append(SystemNeighbours(name=model, cosines=cosines))
    return NeighboursPart(
        kind="neighbours",
        name=name,
        origin=origin,
        side=result.side,
        neighbours=result.neighbours,
        candidates=result.candidates,
        agreement=NeighbourAgreement.model_validate(result) if len(systems) == 2 else None,
        tokens=[ListedToken.model_validate(token) for token in result.tokens],
        systems=systems,
    )


class SystemSpeed(ShownSystem):
    """The speed at which a system translates."""

    device: str
    workers: int
    beam: int
    sentences_per_second: OverRuns
    tokens_per_second: OverRuns
    warnings: list[str]


class SpeedPart(ReportPart):
    """The speed of translation on this machine."""

    kind: Literal["speed"]
    sentences: int
    systems: list[SystemSpeed]


Part = Annotated[
    ScoresPart
    | ContrastivePart
    | PhenomenaPart
    | AlignmentPart
    | LinksPart
    | EntropyPart
    | ActivationPart
    | FertilityPart
    | CoveragePart
    | SegmentsPart
    | SourcePhrasesPart
    | NeighboursPart
    | SpeedPart,
    pydantic.Field(discriminator="kind"),
]
PARTS: dict[type[results.CommandResult], Callable[[Any, str, str], Part]] = {
    results.ScoresResult: scores,
    results.ContrastiveResult: contrastive,
    results.AlignmentResult: alignment,
    results.LinksResult: links,
    results.EntropyResult: entropy,
    results.ActivationResult: activation,
    results.FertilityResult: fertility,
    results.CoverageResult: coverage,
    results.PhenomenaResult: phenomena,
    results.SegmentsResult: segments,
    results.SourcePhrasesResult: source_phrases,
    results.NeighboursResult: neighbours,
}
ORDER = tuple(kind for kind, cls in results.BY_KIND.items() if cls in PARTS)
