"""A table of a paper as data: rows, the steps that make them at each scale, what is measured, the paper's numbers and claims.

    recipes/tables/002-table1.yaml     one file a table or figure
    recipes/tables/steps/world.yaml    steps that several tables share (`use:` of a scale)

A step is a command line of this program; in braces stand names: `{translate}` is the folder of the step of that name,
`{train@base}` that of another row, `{here}` its own; `{recipe}`, `{recipes}`, `{overrides}`, `{seed}`, `{row}`, `{task}`,
`{root}` and the variables of the scale, task and row. Two steps with equal commands on equal inputs are one step, in all
tables of a scale.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from phraseloom.config import Config, Places, Whole, merge, read_yaml, validate
from phraseloom.errors import UsageError

FORMAT = 1  # of a table; see `TableConfig.format` and docs/file_formats.md
RECORD = "step.json"  # of every step, see records.py
Scale = Literal["tiny", "small", "paper"]
SCALES: tuple[Scale, ...] = ("tiny", "small", "paper")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
Number = float | int
Numbers = dict[str, Number | dict[str, Number]]
Words = dict[Name, str]


class StepConfig(Config):
    """One command of this program. `each`: made once a table, a task, or a row and seed; `rows`: of these rows alone."""

    run: list[str] = Field(min_length=1, description="verb and arguments")
    stdin: list[str] = Field([], description="files, one after the other; .gz and .xz are unpacked")
    stdout: Name | None = Field(None, description="file of the step's folder that takes standard output")
    each: Literal["table", "task", "seed"] = "seed"
    rows: list[Name] | None = None
    without: list[Name] = Field([])


class TextMetric(Config):
    """BLEU, chrF2 or TER of a text, with sacreBLEU's signature; `lines`: of these lines alone (their numbers, a file).

    `t2t`: BLEU as tensor2tensor computes it, on Moses tokens of the `language` with compounds split at hyphens. With `edges`
    a series: the score of each group of source lengths, in tokens of `source`.
    """

    kind: Literal["bleu", "chrf", "ter", "t2t"]
    title: str
    hypotheses: str
    reference: str
    lines: str | None = None
    source: str | None = None
    edges: str | None = None
    tokenize: str = "13a"
    language: str | None = Field(None, description="of the target, for t2t; names in braces are filled in")
    decimals: int = Field(2, ge=0, le=6)
    scales: list[Scale] = Field(list(SCALES))

    @model_validator(mode="after")
    def _keys_fit(self) -> TextMetric:
        if (self.source is None) != (self.edges is None):
            raise ValueError("source and edges stand together: groups of source lengths")
        if (self.language is None) == (self.kind == "t2t"):
            raise ValueError("kind t2t and language stand together: Moses tokens depend on the language")
        return self

    @property
    def is_series(self) -> bool:
        """Whether it has a number for each of several labels."""
        return self.edges is not None

    @property
    def apart(self) -> bool:
        """Whether labels are groups of different sentences: those of a length."""
        return self.edges is not None

    @property
    def reads(self) -> list[str]:
        """What it reads, with names in braces."""
        texts = (self.hypotheses, self.reference, self.lines, self.source, self.edges, self.language)
        return [text for text in texts if text is not None]


class JsonMetric(Config):
    """A number, or with `label` a series of them, in a JSON file of a step.

    `at`: keys between full stops; a number is a place in a list, `*` every entry, `[key=value,…]` those that fit.
    `by_sentence`: in the same way, where the two sums of each sentence stand that it is made of, as `form` says
    (metrics/ratio.py); with them a claim has an interval.
    """

    kind: Literal["json"]
    title: str
    file: str
    at: str
    label: str | None = None
    apart: bool = Field(False, description="the labels are groups of different sentences, as in groups of lengths")
    by_sentence: str | None = None
    form: Literal["ratio", "exp", "complement"] = "ratio"
    factor: float = 1.0
    decimals: int = Field(2, ge=0, le=6)
    scales: list[Scale] = Field(list(SCALES))

    @property
    def is_series(self) -> bool:
        """Whether it has a number for each of several labels."""
        return self.label is not None

    @property
    def reads(self) -> list[str]:
        """What it reads, with names in braces."""
        return [self.file, self.at, *filter(None, [self.by_sentence])]


class RunMetric(Config):
    """What the run folder of the row says: perplexity and BLEU of its best validation, parameters, updates, speed and time."""

    kind: Literal["run"]
    title: str
    read: Literal[
        "perplexity",
        "bleu",
        "parameters",
        "updates",
        "seconds",
        "tokens_per_second",
        "pairs_per_second",
        "epochs_to_best",
        "seconds_to_best",
    ]
    folder: str = "{train}/run"
    decimals: int = Field(2, ge=0, le=6)
    scales: list[Scale] = Field(list(SCALES))

    @property
    def is_series(self) -> bool:
        """Whether it has a number for each of several labels."""
        return False

    @property
    def reads(self) -> list[str]:
        """What it reads, with names in braces."""
        return [self.folder]


class ReachedMetric(Config):
    """At a stated validation perplexity of the row's run: the updates that it took, or the validation BLEU there.

    Between two validations log perplexity and BLEU are straight lines over updates. "Learns slowly" and "is worse" part: a slow
    learner has more updates, a worse model less BLEU at the same perplexity. Missing where the perplexity was not reached.
    """

    kind: Literal["reached"]
    title: str
    read: Literal["updates", "bleu"]
    perplexity: float = Field(gt=1)
    folder: str = "{train}/run"
    decimals: int = Field(0, ge=0, le=6)
    scales: list[Scale] = Field(list(SCALES))

    @property
    def is_series(self) -> bool:
        """Whether it has a number for each of several labels."""
        return False

    @property
    def reads(self) -> list[str]:
        """What it reads, with names in braces."""
        return [self.folder]


class TimeMetric(Config):
    """Wall time of a step of the row in seconds, or divided by that of the row `relative_to`.

    Of a training, that of all attempts together; of another step, which starts anew, that of the last one. Start and
    validations are in it. It compares only what ran alone on one machine (`--jobs 1`).
    """

    kind: Literal["time"]
    title: str
    step: Name
    relative_to: Name | None = None
    decimals: int = Field(2, ge=0, le=6)
    scales: list[Scale] = Field(list(SCALES))

    @property
    def is_series(self) -> bool:
        """Whether it has a number for each of several labels."""
        return False

    @property
    def reads(self) -> list[str]:
        """What it reads, with names in braces."""
        other = [] if self.relative_to is None else [f"{{{self.step}@{self.relative_to}}}/{RECORD}"]
        return [f"{{{self.step}}}/{RECORD}", *other]


MetricConfig = Annotated[TextMetric | JsonMetric | RunMetric | ReachedMetric | TimeMetric, Field(discriminator="kind")]


class RowConfig(Config):
    """One system. `recipe` of each scale beside the folder of tables; `not_run`: why there is none at a scale.

    `shares`: the row whose trained models this row has too, with another search or an added module; the two are compared in
    pairs, seed by seed. `paper`: the paper's numbers by metric, or by task and metric; a series by label.
    """

    label: str
    recipe: dict[Scale, str] = Field({})
    shares: Name | None = None
    overrides: dict[Scale, list[str]] = Field({})
    variables: dict[Scale | Literal["all"], Words] = Field({})
    not_run: dict[Scale, str] = Field({})
    tasks: list[Name] | None = None
    paper: Numbers | dict[str, Numbers] = Field({})


class FloorConfig(Config):
    """What the baseline (or `row`) must reach before a scale gives verdicts: below it nothing was learned.

    `at_least` (BLEU, accuracy) or `at_most` (perplexity, error rates), by scale; of a series `label`, or else its best number.
    """

    metric: Name
    row: Name | None = None
    label: str | None = None
    at_least: dict[Scale, Number] = Field({})
    at_most: dict[Scale, Number] = Field({})

    @model_validator(mode="after")
    def _is_one_bound(self) -> FloorConfig:
        if bool(self.at_least) == bool(self.at_most):
            raise ValueError("a floor has either at_least or at_most, with a number by scale")
        return self

    def bound(self, scale: Scale) -> float | None:
        """The number to reach at a scale; None where there is none."""
        found = (self.at_least or self.at_most).get(scale)
        return None if found is None else float(found)

    def reached(self, value: float, scale: Scale) -> bool:
        """Whether a number is good enough."""
        bound = self.bound(scale)
        return bound is None or (value >= bound if self.at_least else value <= bound)


class ClaimConfig(Config):
    """What the paper finds, as a comparison: the numbers of `more` (`less`, `equal`) against those of `than`.

    `by`: at least so far apart; `within`: equal means so near; `value`: a number in place of `than`; `than_metric`: another
    number of the same rows. Of a series all `labels`, which `than_label` may set against another one. `than` with `than_label`
    is a difference of differences: what the rows gain over `than` at `labels`, against what they gain at `than_label`. The
    names `first` and `last` mean the first and the last label of the series. `beyond`: two rows; what the rows gain over `than`
    is compared with what the first of the two gains over the second. `times`: a factor on the numbers of `than`. A claim
    without `where` is ours, and not the paper's. For the short evidence table: `short`, its wording there (a claim without
    it is not there); `budget`, what to know about the trainings beside their text and updates, such as the learning rate.
    `registered`: the hypothesis of a registered experiment that it is at scale small, such as `10 H3`; `caveat`: what keeps
    its verdict from being about the mechanism. `floor`: one more floor, for this claim alone.
    """

    says: str
    where: str = ""
    short: str = ""
    budget: str = ""
    registered: str = Field("", pattern=r"^(\d+ H\d+)?$")
    caveat: str = ""
    metric: Name
    more: list[Name] = Field([])
    less: list[Name] = Field([])
    equal: list[Name] = Field([])
    than: list[Name] = Field([])
    value: Number | None = None
    than_metric: Name | None = None
    labels: list[str] | None = None
    than_label: str | None = None
    beyond: list[Name] = Field([])
    by: float = Field(0.0, ge=0)
    times: float = Field(1.0, gt=0)
    within: float | None = Field(None, gt=0)
    tasks: list[Name] | None = None
    scales: list[Scale] = Field(list(SCALES))
    floor: FloorConfig | None = None

    @model_validator(mode="after")
    def _is_a_comparison(self) -> ClaimConfig:
        if sum(map(bool, (self.more, self.less, self.equal))) != 1:
            raise ValueError("a claim has exactly one of more, less and equal: the rows that it is about")
        if bool(self.equal) != (self.within is not None):
            raise ValueError("equal and within stand together: how near is equal")
        if sum((bool(self.than or self.than_label), self.value is not None, bool(self.than_metric))) != 1:
            raise ValueError(
                "a claim compares with exactly one of value, than_metric, and than or than_label "
                "(both together: a difference of differences)"
            )
        alone = bool(self.than) and not self.than_label and self.times == 1.0 and self.metric != "parameters"
        if self.beyond and not (alone and len(self.beyond) == 2):
            raise ValueError(
                "beyond has two rows, and is for measured numbers of the rows `than`, without than_label or times"
            )
        if self.beyond and len(set(self.rows)) < len(self.rows):
            raise ValueError("the rows of a claim with beyond are different rows")
        if self.times != 1.0 and (not self.than or self.than_label or self.metric == "parameters"):
            raise ValueError("times multiplies the measured numbers of the rows `than`, and is for nothing else")
        if self.than and self.than_label and not self.labels:
            raise ValueError(
                "a difference of differences needs labels: where the gain is compared with that at than_label"
            )
        return self

    @property
    def sign(self) -> int:
        """1 where more is claimed, -1 where less is, 0 where both are equal."""
        return 1 if self.more else -1 if self.less else 0

    @property
    def about(self) -> list[str]:
        """The rows that the claim is about."""
        return self.more or self.less or self.equal

    @property
    def rows(self) -> list[str]:
        """All its rows."""
        return [*self.about, *self.than, *self.beyond]


class LengthsConfig(Config):
    """Tokens of a mean sentence with its end symbol, for estimates before there is a dataset."""

    source: float = Field(gt=0)
    target: float = Field(gt=0)


class ScaleConfig(Config):
    """How the table is made at one scale, or why it is not: `not_done`."""

    says: str = ""
    not_done: str | None = None
    variables: Words = Field({})
    overrides: list[str] = Field([])
    steps: dict[Name, StepConfig] = Field({})
    seeds: list[int] = Field([1], min_length=1)
    lengths: LengthsConfig | None = None
    vocabulary: int | None = Field(None, description="assumed where the recipe does not say it")
    updates: int | None = Field(None, description="assumed where no number of updates ends the training")


class TableConfig(Config):
    """A table or figure of a paper; what the keys mean stands in docs/reproduce.md."""

    format: Annotated[Literal[1], Whole]
    paper: str
    title: str
    says: str = ""
    tasks: dict[Name, dict[Scale | Literal["all"], Words]] = Field({})
    no_task: dict[Name, dict[Scale, str]] = Field({}, description="why a task is not run at a scale")
    metrics: dict[Name, MetricConfig] = Field(min_length=1)
    baseline: Name | None = None
    floor: FloorConfig | None = None
    rows: dict[Name, RowConfig] = Field(min_length=1)
    claims: list[ClaimConfig] = Field([])
    notes: list[str] = Field([])
    scales: dict[Scale, ScaleConfig]

    @model_validator(mode="after")
    def _names_fit(self) -> TableConfig:
        missing = [scale for scale in SCALES if scale not in self.scales]
        if missing:
            raise ValueError(f"scale {missing[0]} is missing: give its steps, or not_done with the reason")
        for number, claim in enumerate(self.claims, 1):
            where = f"claim {number} ({claim.says})"
            self._known(where, "row", claim.rows, self.rows)
            self._known(where, "metric", [claim.metric, *filter(None, [claim.than_metric])], self._measured())
            self._known(where, "task", claim.tasks or [], self.tasks)
            if claim.beyond and len(set(map(self.models_of, claim.rows))) < len(claim.rows):
                raise ValueError(f"{where}: the rows of a claim with beyond have models of their own; some share them")
        self._known("no_task", "task", self.no_task, self.tasks)
        self._known("baseline", "row", [self.baseline] if self.baseline else [], self.rows)
        for floor in self.floors:
            self._known("floor", "metric", [floor.metric], self.metrics)
            self._known("floor", "row", [floor.row] if floor.row else [], self.rows)
            if floor.row is None and self.baseline is None:
                raise ValueError("floor: name its row, as the table has no baseline")
        for key, metric in self.metrics.items():
            if isinstance(metric, TimeMetric) and metric.relative_to is not None:
                self._known(f"metric {key}", "row", [metric.relative_to], self.rows)
        for name, row in self.rows.items():
            self._known(f"row {name}", "task", row.tasks or [], self.tasks)
            owners = [each for each, other in self.rows.items() if other.shares is None]
            self._known(f"row {name}", "row with models of its own", [row.shares] if row.shares else [], owners)
            for task in self.tasks_of(name):
                self._known(f"paper numbers of row {name}", "metric", self.paper_of(name, task), self._measured())
            for scale, config in self.scales.items():
                runs = config.not_done is None and "train" in config.steps
                if runs and scale not in row.recipe and scale not in row.not_run and self._trains(config, name):
                    raise ValueError(f"row {name} has neither a recipe for {scale} nor a reason in not_run")
        return self

    def _trains(self, config: ScaleConfig, row: str) -> bool:
        step = config.steps["train"]
        return row not in step.without and (step.rows is None or row in step.rows)

    @property
    def floors(self) -> list[FloorConfig]:
        """The floor of the table, then those of single claims."""
        return [floor for floor in (self.floor, *(claim.floor for claim in self.claims)) if floor is not None]

    def _measured(self) -> dict[str, Any]:
        return {**self.metrics, "parameters": None}

    @staticmethod
    def _known(where: str, what: str, names: Any, known: Any) -> None:
        for name in names:
            if name not in known:
                raise ValueError(f"{where}: no {what} {name!r}; there are {', '.join(known)}")

    def tasks_of(self, row: str) -> list[str]:
        """The tasks of a row; one without a name where the table has none."""
        return (self.rows[row].tasks or list(self.tasks)) or [""]

    def models_of(self, row: str) -> str:
        """The row whose trained models a row has: itself, or the one that it shares them with."""
        return self.rows[row].shares or row

    def paper_of(self, row: str, task: str) -> dict[str, Any]:
        """The paper's numbers of a row and task, by metric."""
        numbers: dict[str, Any] = dict(self.rows[row].paper)
        return numbers.get(task, {}) if self.tasks else numbers

    def metrics_at(self, scale: Scale) -> dict[str, Any]:
        """The metrics that a scale measures."""
        return {name: metric for name, metric in self.metrics.items() if scale in metric.scales}


def runnable(table: TableConfig, scale: Scale) -> Iterator[tuple[str, str]]:
    """(row, task) of everything that is run at a scale."""
    for row in table.rows:
        if scale not in table.rows[row].not_run:
            yield from ((row, task) for task in table.tasks_of(row) if scale not in table.no_task.get(task, {}))


def find_table(name: str, recipes: Path) -> Path:
    """The file of a table: a path, or a name such as 002-table1 in RECIPES/tables. UsageError with the nearest name."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    names = [path.stem for path in all_tables(recipes)]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        known = f"tables: {', '.join(names)}" if names else "--recipes names the folder that holds tables/"
        raise UsageError(
            f"no table {name!r} in {recipes / 'tables'}", hint=f"did you mean {near[0]}?" if near else known
        )
    return recipes / "tables" / f"{name}.yaml"


def all_tables(recipes: Path) -> list[Path]:
    """The files of all tables, by name."""
    return sorted((recipes / "tables").glob("*.yaml"))


def load_table(path: Path) -> TableConfig:
    """Read and check a table. Raises ConfigError with the key, the file and the line."""
    value, places = read_yaml(path)
    scales = value.get("scales")
    if isinstance(scales, dict):
        for scale, options in scales.items():
            if isinstance(options, dict):
                scales[scale] = _used(path, options, places, ("scales", scale, "use"))
    return validate(TableConfig, value, file=path, places=places)


def _used(
    path: Path, options: dict[str, Any], places: Places, key: tuple[str, ...], above: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """The keys of a scale or of a file of steps, merged into those of the file that it uses, if any.

    `above`: the files that use `path`, to find a circle.
    """
    if "use" not in options:
        return options
    name = options["use"]
    if not isinstance(name, str):
        raise places[key].problem("use names one file in the folder of the table")
    used = path.parent / name
    above = (*above, path.resolve())
    if used.resolve() in above:
        raise places[key].problem(f"{name} uses itself")
    below, below_places = read_yaml(used)
    own = {key: value for key, value in options.items() if key != "use"}
    return merge(_used(used, below, below_places, ("use",), above), own)
