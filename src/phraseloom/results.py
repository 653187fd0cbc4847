"""The JSON results of commands: one class per kind, which writes and reads it.

    phraseloom evaluate --output json    →  {"format": 1, "kind": "scores", "sentences": …}    →  read(path): ScoresResult

`kind` names the class. Files written before results had a `kind` are recognised by their keys (`KEYS`). Keys that a class does
not declare are kept, so a file of a later version of the same format is read. A key that is absent stays absent when the
result is written again. The JSON of other commands is refused with the name of the command (`NOT_RESULTS`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import pydantic

from phraseloom.config import Config
from phraseloom.errors import CorruptError, DataError
from phraseloom.files import atomic_write_json, read_json

FORMAT = 1
LINE_MAX_BYTES = 2**20

T = TypeVar("T")
Number = int | float
Interval = Annotated[list[Number], pydantic.Field(min_length=2, max_length=2)]
Sums = list[list[Number]]  # [numerator, denominator] of each sentence, for resampling (metrics/ratio.py)
NonEmpty = Annotated[list[T], pydantic.Field(min_length=1)]


class ResultPart(Config, extra="allow"):
    """A part of a result. Unknown keys are kept."""


class CommandResult(ResultPart):
    """The JSON object that a command writes. `command` is the command, such as `analyse entropy`."""

    command: ClassVar[str]

    format: int = FORMAT
    kind: str

    def as_json(self) -> dict[str, Any]:
        """Plain data: format and kind, then the keys that were given."""
        return {"format": FORMAT, "kind": self.kind, **self.model_dump(exclude_unset=True, exclude={"format", "kind"})}


class ScoreComparison(ResultPart):
    """A score against the score of another system; None for the baseline, and in files without intervals."""

    difference: Number | None = None
    difference_low: Number | None = None
    difference_high: Number | None = None
    p: Number | None = None
    one_seed: bool | None = None


class ScoreInterval(ResultPart):
    """A score with its 95 % interval; None without resamples."""

    value: Number
    low: Number | None = None
    high: Number | None = None


class TestedScore(ScoreComparison, ScoreInterval):
    """A score with its interval and its comparison with the baseline. (The keys of the last base come first.)"""


class ScoredSystem(ResultPart):
    """What a score is about."""

    metric: str
    system: str


class ScoredPair(ScoredSystem):
    """The comparison of `system` with `other`."""

    other: str


class MetricTest(TestedScore, ScoredSystem):
    """The `TestedScore` of one metric and system."""

    signature: str = ""


class PairTest(ScoreComparison, ScoredPair):
    """The comparison of two systems by one metric; `p_holm`: p after Holm's correction for all pairs of the metric."""

    difference: Number
    p: Number
    p_holm: Number
    signature: str = ""


class BootstrapTests(ResultPart):
    """Intervals and tests from `samples` resamples; `pairs`: every pair of systems, if requested."""

    samples: int
    seed: int
    baseline: str
    results: list[MetricTest]
    pairs: list[PairTest] | None = None


class MetricScore(ResultPart):
    """The score of a system by one metric: the mean of its `runs`, with their standard deviation if there are several."""

    name: str
    value: Number
    deviation: Number | None = None
    runs: list[Number] | None = None
    signature: str
    detail: str = ""
    higher_is_better: bool | None = None  # None in files of earlier versions


class SystemScores(ResultPart):
    """The scores of one system; `runs`: their number."""

    name: str
    runs: int = 1
    scores: NonEmpty[MetricScore]


class MeanScore(ResultPart):
    """The mean over runs of the score of one length group. Files of an early version have a signature in each group."""

    value: Number
    deviation: Number | None = None
    signature: str = ""


class LengthGroupScore(ResultPart):
    """Sentences with more than `above` and at most `up_to` source tokens; `score` None if there are none."""

    label: str
    above: int | None = None
    up_to: int | None = None
    sentences: int
    score: MeanScore | None
    bootstrap: TestedScore | None = None


class SystemLengths(ResultPart):
    """The length groups of one system, the same groups for every system."""

    name: str
    groups: NonEmpty[LengthGroupScore]


class LengthScores(ResultPart):
    """A metric by source length; `source_tokens`: the tokeniser that counts. Baseline, samples and seed if resampled."""

    metric: str
    signature: str = ""
    source_tokens: str = ""
    systems: NonEmpty[SystemLengths]
    baseline: str | None = None
    samples: int | None = None
    seed: int | None = None


class LineSubset(ResultPart):
    """The lines of a text that were scored: those named in `file`, among `of` lines."""

    file: str
    of: int


class ScoresResult(CommandResult):
    """Scores of translations."""

    command = "evaluate"
    kind: Literal["scores"] = "scores"
    sentences: int
    references: int = 1
    systems: NonEmpty[SystemScores]
    by_length: LengthScores | None = None
    bootstrap: BootstrapTests | None = None
    lines: LineSubset | None = None


class SystemAccuracy(ResultPart):
    """The accuracy of one system on a group of items, with Wilson's 95 % interval.

    `difference`, `won`, `lost`, `p`: against the first system, by McNemar's exact test; absent for the first.
    `indistinguishable`: contrastive items whose two translations are the same subwords. `exact_sentences`: the share of
    sentences of the world that are translated exactly. `deviation`: over runs, in a report.
    """

    system: str
    correct: int | None = None
    accuracy: Number
    deviation: Number | None = None
    interval: Interval
    indistinguishable: int | None = None
    by_sentence: Sums | None = None
    exact_sentences: Number | None = None
    difference: Number | None = None
    won: int | None = None
    lost: int | None = None
    p: Number | None = None
    difference_interval: Interval | None = None


class ContrastiveGroup(ResultPart):
    """Items of one category (None: all) at one distance (a label; None: any), `low` to `high` words."""

    category: str | None
    distance: str | None
    low: int | None = None
    high: int | None = None
    items: int
    systems: NonEmpty[SystemAccuracy]


class ContrastiveResult(CommandResult):
    """Accuracy on contrastive items. `distance`: how distances are known; `cropped`: cropped items by model."""

    command = "analyse contrastive"
    kind: Literal["contrastive"] = "contrastive"
    items: int
    distance: Literal["given", "position"] | None
    groups: NonEmpty[ContrastiveGroup]
    cropped: dict[str, int] | None = None


class PhenomenonAccuracy(ResultPart):
    """The accuracy of every system on one phenomenon of the built-in world."""

    phenomenon: str
    instances: int
    sentences: int | None = None
    systems: NonEmpty[SystemAccuracy]


class PhenomenaResult(CommandResult):
    """Accuracy on the phenomena of the built-in world."""

    command = "analyse phenomena"
    kind: Literal["phenomena"] = "phenomena"
    world: str = ""
    split: str
    sentences: int
    bootstrap: int | None = None
    seed: int | None = None
    phenomena: NonEmpty[PhenomenonAccuracy]


class AlignmentMeasures(ResultPart):
    """Scores of links against gold links as fractions, and the counts that they are made of."""

    aer: Number
    precision: Number
    recall: Number
    f1: Number | None = None
    sentences: int
    links: int | None = None
    sure: int | None = None
    possible: int | None = None
    in_sure: int | None = None
    in_possible: int | None = None


class AttentionPlace(ResultPart):
    """A layer and a head (its number, None: the mean, max: the largest weight), and how links are made of its weights."""

    layer: int
    head: int | Literal["max"] | None
    method: str


class AttentionLinks(AlignmentMeasures, AttentionPlace):
    """The scores of links made from attention."""

    by_sentence: Sums | None = None


class ModelAlignment(ResultPart):
    """Every layer, head and method of one model."""

    model: str
    settings: NonEmpty[AttentionLinks]


class AlignmentResult(CommandResult):
    """The alignment error rate of attention. `cropped`: pairs by model that are longer than its limits."""

    command = "analyse alignment"
    kind: Literal["alignment"] = "alignment"
    source: str = ""
    target: str = ""
    gold: str
    systems: NonEmpty[ModelAlignment]
    cropped: dict[str, int] | None = None


class NamedSystem(ResultPart):
    """A system by its name."""

    name: str


class SystemLinks(AlignmentMeasures, NamedSystem):
    """The scores of one file of links."""

    f1: Number


class LinksResult(CommandResult):
    """Scores of word links."""

    command = "align evaluate"
    kind: Literal["links"] = "links"
    gold: str
    systems: NonEmpty[SystemLinks]


class EntropyMeans(ResultPart):
    """An entropy in nats: the mean over all steps, and over the means of sentences."""

    steps: Number
    sentences: Number


class EntropySums(ResultPart):
    """[sum over its steps, steps] of each sentence."""

    layers: list[Sums]
    whole: Sums


class EntropyReading(ResultPart):
    """Entropies by layer, of the mean of all layers, of uniform attention, and by layer and head."""

    layers: list[EntropyMeans]
    whole: EntropyMeans
    uniform: EntropyMeans
    heads: list[list[EntropyMeans]]
    by_sentence: EntropySums | None = None


class ModelEntropy(ResultPart):
    """The entropy of one model over tokens, and over slots if it has phrase slots; `own`: on its own translations."""

    model: str
    steps: int
    sentences: int
    own: bool
    blank: int = 0
    cropped: int = 0
    unfinished: int = 0
    tokens: EntropyReading
    slots: EntropyReading | None


class EntropyResult(CommandResult):
    """The entropy of cross-attention."""

    command = "analyse entropy"
    kind: Literal["entropy"] = "entropy"
    source: str = ""
    target: str | None = None
    unit: Literal["nats"]
    systems: NonEmpty[ModelEntropy]


class LayerShares(ResultPart):
    """Shares of attention in per cent of one layer, by quadrant and by pair of orders (`analysis/activation.py`)."""

    layer: int
    mass: dict[str, Number | None]
    joint: dict[str, Number | None]
    activation: dict[str, Number | None]
    orders: dict[str, Number | None]
    silent: int = 0
    by_sentence: dict[str, dict[str, Sums]] | None = None


class ActivationResult(CommandResult):
    """Shares of token and phrase attention, by use and layer. `whole`: by use, all layers together (`layer` is 0)."""

    command = "analyse activation"
    kind: Literal["activation"] = "activation"
    tau: Number
    mean_heads: bool = False
    sentences: int
    blank: int = 0
    cropped: int = 0
    uses: dict[str, list[LayerShares]]
    whole: dict[str, LayerShares] = pydantic.Field(default_factory=dict)


class FertilityClass(ResultPart):
    """Precision, recall and F1 of one class as fractions, with its counts of tokens."""

    precision: Number
    recall: Number
    f1: Number
    total: int
    predicted: int | None = None
    right: int | None = None


class FertilityResult(CommandResult):
    """Scores of a fertility module. `confusion`: tokens by true and predicted class."""

    command = "fertility evaluate"
    kind: Literal["fertility"] = "fertility"
    model: str = ""
    source: str = ""
    labels: str = ""
    sentences: int
    tokens: int
    accuracy: Number
    loss: Number
    classes: dict[str, FertilityClass]
    gate: dict[str, FertilityClass]
    confusion: list[list[int]]
    by_sentence: dict[str, dict[str, dict[str, Sums]]] | None = None


class Estimate(ResultPart):
    """A number and its 95 % interval over resamples; None if it is not defined."""

    value: Number | None
    interval: Interval | None


class ShareAndChance(ResultPart):
    """A share of attention mass, and the share of uniform attention."""

    share: Number | None
    chance: Number | None


class CoveredShare(ResultPart):
    """A `ShareAndChance` whose share has an interval."""

    share: Estimate
    chance: Number | None


class OrderCoverage(ResultPart):
    """The mass on slots of one order (or a range such as 2–4), by their position relative to gold phrases."""

    order: int | str
    mass: Estimate
    exact: ShareAndChance
    inside: ShareAndChance
    crossing: ShareAndChance
    outside: ShareAndChance
    covered: CoveredShare
    lift: Estimate


class StrongestSlots(ResultPart):
    """How often the strongest phrase slot is in the gold phrase, as means over phrases of one kind."""

    phrases: int
    hit: Estimate
    exact: Estimate
    share: Estimate
    others: Estimate
    chance: Number | None
    exact_chance: Number | None
    lift: Estimate


class LayerCoverage(ResultPart):
    """One layer; `slots`: the orders of its slots; `strongest`: by kind of phrase, "" for all."""

    layer: int
    slots: list[int]
    orders: list[OrderCoverage]
    strongest: dict[str, StrongestSlots]


class CoverageResult(CommandResult):
    """Attention to phrase slots against gold phrases, by use and layer."""

    command = "analyse coverage"
    kind: Literal["coverage"] = "coverage"
    model: str = ""
    bootstrap: int | None = None
    seed: int | None = None
    sentences: int
    left_out: dict[str, int]
    phrases: int
    uses: dict[str, list[LayerCoverage]]


class WrittenSegment(ResultPart):
    """Target subwords `start` to `end` - 1, written by source subword `source`."""

    source: int
    start: int
    end: int
    probability: Number


class SentenceSegments(ResultPart):
    """A sentence in subwords and its segments; `log_prob` in nats."""

    source: list[str]
    target: list[str]
    segments: list[WrittenSegment]
    log_prob: Number


class KnownPhrases(ResultPart):
    """Shares of known phrases of one kind that are one segment, inside one, or split; Wilson's interval of the first."""

    phrases: int
    longer_than_a_segment: int = 0
    segment: Number | None
    inside: Number | None
    split: Number | None
    interval: Interval
    chance: Number | None
    posterior: Number | None
    from_its_source: Number | None


class SegmentsResult(CommandResult):
    """Segments of a segmental model: `lengths` {subwords: count}; `left_out` and `phrases` for given translations."""

    command = "analyse segments"
    kind: Literal["segments"] = "segments"
    lengths: dict[str, int]
    left_out: dict[str, int] | None = None
    phrases: dict[str, KnownPhrases] | None = None
    sentences: list[SentenceSegments | None]


class WeightedPhrase(ResultPart):
    """A source phrase: its subwords, and their weights by level (None without weights)."""

    pieces: list[str]
    weights: list[list[Number] | None]


class SourcePhrasesResult(CommandResult):
    """Source phrases by sentence; `shares[i][j]`: how much of level i decoder layer j reads."""

    command = "analyse phrases"
    kind: Literal["source_phrases"] = "source_phrases"
    sentences: list[list[WeightedPhrase]]
    shares: list[list[Number]] | None
    cropped: int


class TokenNeighbours(ResultPart):
    """A token and, for each model, [piece, cosine] of its neighbours; `shared`: common neighbours of two models."""

    piece: str
    count: int | None
    shared: int | None = None
    neighbours: list[list[Annotated[list[str | Number], pydantic.Field(min_length=2, max_length=2)]]]


class NeighboursResult(CommandResult):
    """Nearest neighbours of embeddings; the keys from `overlap` to `spearman` compare two models."""

    command = "analyse neighbours"
    kind: Literal["neighbours"] = "neighbours"
    side: str
    text: str | None = None
    models: NonEmpty[str]
    neighbours: int
    candidates: int
    zero: int = 0
    overlap: Number | None = None
    chance: Number | None = None
    pairs: int | None = None
    pearson: Number | None = None
    spearman: Number | None = None
    tokens: list[TokenNeighbours]


class NearestResult(CommandResult):
    """The nearest tokens of a file of vectors: {token: [[neighbour, cosine], …]}."""

    command = "embeddings nearest"
    kind: Literal["nearest"] = "nearest"
    file: str
    count: int
    phrases_only: bool
    neighbours: dict[str, list[list[str | Number]]]


class JudgedAccuracy(ResultPart):
    """The share of correct translations of one system, with Wilson's 95 % interval."""

    system: str
    correct: int
    accuracy: Number | None
    low: Number
    high: Number


class JudgedComparison(ResultPart):
    """The first system against `system` on the same phrases, by McNemar's exact test."""

    system: str
    difference: Number
    won: int
    lost: int
    p: Number


class JudgedCategory(ResultPart):
    """The phrases of one category, their share of all judged phrases, and the verdicts by system."""

    category: str
    phrases: int
    share: Number | None
    scores: list[JudgedAccuracy]
    first_against: list[JudgedComparison]


class FoundWords(ResultPart):
    """Phrases whose words are (exactly, scattered, partly, not) in a text, and the verdicts on them."""

    kind: str
    phrases: int
    judged: int
    correct: int


class FoundPlace(ResultPart):
    """One column of the sheet: a text, and the `system` whose verdicts count."""

    place: str
    system: str
    kinds: list[FoundWords]


class PhraseSampleResult(CommandResult):
    """The judgements on a sheet of phrases."""

    command = "phrases sample --tally"
    kind: Literal["phrase_sample"] = "phrase_sample"
    systems: NonEmpty[str]
    phrases: int
    judged: int
    categories: list[JudgedCategory]
    found: list[FoundPlace]


CLASSES: tuple[type[CommandResult], ...] = (
    ScoresResult,
    ContrastiveResult,
    AlignmentResult,
    LinksResult,
    EntropyResult,
    ActivationResult,
    FertilityResult,
    CoverageResult,
    PhenomenaResult,
    SegmentsResult,
    SourcePhrasesResult,
    NeighboursResult,
    NearestResult,
    PhraseSampleResult,
)
BY_KIND = {cast(str, result.model_fields["kind"].default): result for result in CLASSES}
# Keys of files without `kind`; after the slash, a key of the first of its `systems`.
KEYS: dict[type[CommandResult], str] = {
    ScoresResult: "sentences systems/scores",
    ContrastiveResult: "items groups",
    AlignmentResult: "gold systems/settings",
    LinksResult: "gold systems/aer",
    EntropyResult: "unit systems/tokens",
    ActivationResult: "tau uses",
    FertilityResult: "classes gate confusion",
    CoverageResult: "phrases uses left_out",
    PhenomenaResult: "phenomena split",
    SegmentsResult: "lengths sentences",
    SourcePhrasesResult: "sentences shares cropped",
    NeighboursResult: "models candidates tokens",
    NearestResult: "file phrases_only neighbours",
    PhraseSampleResult: "judged categories found",
}
# JSON of commands that is not a result: the command, keys that it has, and what to do with it instead.
NOT_RESULTS: tuple[tuple[str, str, str | None], ...] = (
    ("explain", "format models sentences", "explain -o FILE.html makes its page"),
    ("report", "format parts lacks", "give the report what this one was made of"),
    ("diff", "format curves data", "diff -o FILE.html makes its page"),
    ("reproduce", "format table claims", "its table.md shows it"),
    ("embeddings check", "file tables problems", None),
    ("score", "subwords word_perplexity", None),
    ("score", "log_prob token_log_probs cropped", None),
    ("translate", "id text tokens", "give --outputs NAME=FILE the translations as text"),
    ("generate", "id prompt samples", None),
    ("inspect", "kind folder problems", "give the report the folder itself"),
    ("doctor", "what state text", None),
)


def write(path: str | Path, result: CommandResult) -> None:
    """Write a result as a JSON file."""
    atomic_write_json(path, result.as_json())


def line(result: CommandResult) -> str:
    """A result as one line of JSON."""
    return json.dumps(result.as_json(), ensure_ascii=False, allow_nan=False)


def read(path: str | Path) -> CommandResult:
    """The result in a JSON file, with or without `kind`.

    Raises FileProblem; CorruptError for a file that is not JSON; DataError, with the name of the command, for JSON that is
    not a result, of another format, or incomplete.
    """
    path = Path(path)
    try:
        value = read_json(path, "result")
    except CorruptError as error:
        _refuse_other_command(_first_line(path), path, error)
        raise
    kind = value.get("kind") if isinstance(value, dict) else None
    cls = BY_KIND.get(kind) if isinstance(kind, str) else None
    if cls is None and isinstance(value, dict) and kind is None:
        cls = next((cls for cls, keys in KEYS.items() if _has(value, keys)), None)
    if cls is None:
        _refuse_other_command(value, path)
        if isinstance(kind, str):
            raise DataError(f"a result of unknown kind {kind[:80]!r}", file=path, hint=f"known: {', '.join(BY_KIND)}")
        commands = ", ".join(cls.command for cls in CLASSES)
        raise DataError("not the JSON of a command that writes results", file=path, hint=f"such as {commands}")
    if value.get("format", FORMAT) != FORMAT:
        what = f"a result of format {value['format']!r}; this version reads format {FORMAT}"
        raise DataError(what, file=path, hint="read it with the version of phraseloom that wrote it")
    try:
        return cls.model_validate(value)
    except pydantic.ValidationError as failure:
        first = failure.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        what = f"not a complete result of {cls.command}: {place}: {first['msg']}"
        raise DataError(what, file=path, hint="write it again") from failure


def _has(value: Mapping[str, Any], keys: str) -> bool:
    """Whether all keys are in `value`; `systems/aer`: `aer` is in the first of the `systems`."""
    for key in keys.split():
        outer, slash, inner = key.partition("/")
        if outer not in value:
            return False
        items = value[outer]
        if slash and not (isinstance(items, list) and items and isinstance(items[0], dict) and inner in items[0]):
            return False
    return True


def _refuse_other_command(value: Any, path: Path, cause: Exception | None = None) -> None:
    """Raise DataError if one of the commands of `NOT_RESULTS` wrote this value, alone or as the first of a list."""
    if isinstance(value, list) and value:
        value = value[0]
    for command, keys, hint in NOT_RESULTS:
        if isinstance(value, dict) and _has(value, keys):
            raise DataError(f"JSON of {command}, which is not a result", file=path, hint=hint) from cause


def _first_line(path: Path) -> Any:
    """The JSON value of the first line of a file; None if it has none."""
    with path.open("rb") as handle:
        text = handle.read(LINE_MAX_BYTES).partition(b"\n")[0]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
