"""The plan of a table: its steps, which of them are done, and the cost of each training before it starts.

    time = updates · pairs per update · FLOP per pair (models/flops.py) / (FLOP/s · the share of them that a training reaches)

The speed is the one that finished trainings of this folder reached; else `SHARE` of a measured matrix product; or that of a GPU
by name. Lengths are those of the dataset if it exists, else those that the table assumes. If no formula counts a model
(language models), an update takes 6 FLOP per parameter and token (Kaplan et al. 2020).
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phraseloom.errors import PhraseloomError, UsageError, plural
from phraseloom.options.text import RandomVectors, TrainedVectors
from phraseloom.recipe import AnyRecipe, Recipe, load_recipe
from phraseloom.report.markup import terminal
from phraseloom.report.run.machine import matrix_speed
from phraseloom.reproduce.execute import duration
from phraseloom.reproduce.records import Record, read_record
from phraseloom.reproduce.steps import Step, Steps, in_order, missing
from phraseloom.reproduce.table import LengthsConfig, ScaleConfig, TableConfig, runnable


@dataclass
class Plan:
    """The steps of the chosen rows in order, with the estimate of each training by identity.

    All rows come with the first seed, then with the next, so that a run that is stopped leaves whole seeds.
    """

    steps: Steps
    chosen: list[tuple[str, str]]
    seeds: Sequence[int]
    ordered: list[Step] = field(default_factory=list)
    estimates: dict[str, CostEstimate] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)

    @property
    def trainings(self) -> list[Step]:
        """The trainings among the steps."""
        return [step for step in self.ordered if step.trains]

    def flop(self) -> dict[str, float]:
        """FLOP by identity, for the records."""
        return {identity: e.flop for identity, e in self.estimates.items() if e.flop is not None}


def make_plan(steps: Steps, rows: Sequence[str] | None, seeds: Sequence[int]) -> Plan:
    """The plan of the chosen rows (all runnable rows if `rows` is None). Raises UsageError for unknown names."""
    chosen = choose(steps.table, steps, rows)
    plan = Plan(steps, chosen, seeds)
    requested = [s for seed in seeds for task, row in chosen for s in steps.steps_of(row, task, seed)]
    plan.ordered = in_order(requested)
    plan.records = {step.identity: read_record(step) for step in plan.ordered}
    plan.estimates = {step.identity: estimate(step, steps.config) for step in plan.trainings}
    return plan


def choose(table: TableConfig, steps: Steps, rows: Sequence[str] | None) -> list[tuple[str, str]]:
    """(task, row) of the requested rows: `base`, `en-de/base`, or all of a task, `en-de/`."""
    able = [(task, row) for row, task in runnable(table, steps.scale)]
    able = sorted(able, key=lambda p: ((list(table.tasks) or [""]).index(p[0]), list(table.rows).index(p[1])))
    if rows is None:
        return able
    chosen: set[tuple[str, str]] = set()
    for name in rows:
        task, slash, row = name.rpartition("/")
        matches = {p for p in able if (not slash or p[0] == task) and (not row or p[1] == row)}
        if not matches:
            reason = table.rows[row].not_run.get(steps.scale) if row in table.rows else None
            why = f"is not run at scale {steps.scale}: {reason}" if reason else "does not exist"
            hint = f"rows: {', '.join(table.rows)}" + (f"; tasks: {', '.join(table.tasks)}" if table.tasks else "")
            raise UsageError(f"row {name!r} {why}", hint=hint)
        chosen |= matches
    return [place for place in able if place in chosen]


def render(plan: Plan, speeds: Mapping[str, Speed]) -> str:
    """The plan as text; `speeds` by precision, or one for all under ""."""
    table, config = plan.steps.table, plan.steps.config
    parts = [f"{table.title}\nscale {plan.steps.scale}: {config.says.strip()}"]
    rows, left, disk = [], 0.0, 0
    unknown = False
    for step in plan.trainings:
        cost, record = plan.estimates[step.identity], plan.records[step.identity]
        speed = speeds.get("") or speeds[cost.precision]
        seconds = cost.seconds(speed)
        done = f"done, {duration(record.seconds)}"
        state = {"done": done, "stopped": "resumes", "failed": "failed before", "changed": "again"}
        if record.state != "done":
            left += seconds or 0.0
            disk += cost.disk
            unknown |= seconds is None
        rows.append(
            [
                str(step.place) if step.name == "train" else step.title,
                f"{cost.parameters:,}",
                "" if cost.updates is None else f"{cost.updates:,}",
                "" if cost.target_tokens is None else f"{cost.target_tokens:,}",
                "" if cost.flop is None else f"{cost.flop:.2e}",
                "not known" if seconds is None else duration(seconds),
                gigabytes(cost.disk),
                state.get(record.state, "new"),
            ]
        )
    if rows:
        headers = ["training", "parameters", "updates", "target tokens", "FLOP", "time", "disk", ""]
        parts.append(terminal(headers, rows))
    counts = Counter(step.name for step in plan.ordered)
    ready = Counter(step.name for step in plan.ordered if plan.records[step.identity].state == "done")
    listed = ", ".join(f"{name} {ready[name]}/{number}" for name, number in counts.items())
    parts.append(f"steps done: {listed}" if listed else "nothing to run")
    parts.append("\n".join(_changes(plan)))
    remarks = sorted({r for e in plan.estimates.values() for r in e.remarks})
    lines = [f"not run: {row.label}: {row.not_run[plan.steps.scale]}" for row in _not_run(plan)]
    lines += [
        f"not run: {task}: {why[plan.steps.scale]}" for task, why in table.no_task.items() if plan.steps.scale in why
    ]
    lines += [f"assumed: {remark}" for remark in remarks]
    lines += [f"speed ({precision or 'all'}): {speed.says}" for precision, speed in speeds.items()] if rows else []
    more = " and more, see above" if unknown else ""
    if rows:
        lines.append(f"left: {duration(left)} of training{more} one after the other, {gigabytes(disk)} of disk")
        lines.append("text steps, translation and analysis come on top and are not estimated")
    parts.append("\n".join(lines))
    return "\n\n".join(filter(None, parts)) + "\n"


def _changes(plan: Plan) -> list[str]:
    """Files of the data root that have changed or disappeared since steps read them, and steps that ran again since."""
    changes: Counter[tuple[str, str]] = Counter()
    for record in plan.records.values():
        changes.update(record.changed.items())
    lines = [
        f"changed: {name} ({why}): {plural(number, 'step')} will be repeated" for (name, why), number in changes.items()
    ]
    done = [step for step in plan.ordered if plan.records[step.identity].state == "done"]
    gone = missing(done)
    named = ", ".join(gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
    lines += [f"missing under {plan.steps.root}: {named}; the results of their steps are kept"] if gone else []
    return lines


def _not_run(plan: Plan) -> list[Any]:
    return [row for row in plan.steps.table.rows.values() if plan.steps.scale in row.not_run]


def gigabytes(size: float) -> str:
    """A size on disk: MB below one GB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


SHARE = 0.5  # of the matrix-product speed of a CPU that a training of small models reaches here (docs/results/performance.md)
GPU_SHARE = 0.4  # the most that we assume of large batches; not measured
# Seconds that Python and the launch of kernels take for each layer and micro-batch, forward and backward: measured on an H200
# with models of 6 and 12 Transformer layers (docs/results/performance.md).
LAUNCH = 0.006
BYTES = 4
COPIES = 3  # weights and two moments in a checkpoint
SPECIALS = 4
VECTOR_WIDTH = 300  # of a file of vectors
DEFAULT_LENGTHS = LengthsConfig(source=25, target=25)
DEFAULT_VOCABULARY = 32_000

# Peak in FLOP/s of dense products, as NVIDIA's data sheets have it (SXM boards): fp32 without tensor cores, tf32 and bf16 with
# them. A V100 has neither.
GPUS: dict[str, dict[str, float]] = {
    "V100": {"fp32": 15.7e12},
    "A100": {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12},
    "H100": {"fp32": 66.9e12, "tf32": 495e12, "bf16": 989e12},
    "H200": {"fp32": 66.9e12, "tf32": 495e12, "bf16": 989e12},
    "RTX4090": {"fp32": 82.6e12, "tf32": 82.6e12, "bf16": 165e12},
}


@dataclass(frozen=True)
class Speed:
    """FLOP/s that a training is expected to reach, and the source of the figure. `launch`: the least seconds of a layer and
    micro-batch, however small (0 on a CPU)."""

    flops: float
    says: str
    launch: float = 0.0


@dataclass(frozen=True)
class CostEstimate:
    """The cost of one training. `precision`: of its products on a GPU (fp32, tf32, bf16). `layers`: how often a layer reads a
    micro-batch, None if unknown. `remarks`: assumptions."""

    parameters: int
    updates: int | None
    target_tokens: int | None
    flop: float | None
    disk: int
    precision: str
    layers: int | None = None
    remarks: tuple[str, ...] = ()

    def seconds(self, speed: Speed) -> float | None:
        """Expected time at a speed."""
        return None if self.flop is None else max(self.flop / speed.flops, speed.launch * (self.layers or 0))


def estimate(step: Step, scale: ScaleConfig) -> CostEstimate:
    """The cost of a training step. Raises ConfigError for a recipe that cannot be read."""
    assert step.recipe is not None
    recipe = load_recipe(step.recipe, list(step.changes))
    remarks: list[str] = []
    sizes = vocabularies(recipe, scale, remarks)
    parameters = count_parameters(recipe, *sizes)
    lengths = _lengths(recipe, scale, remarks)
    training = recipe.training
    updates = training.max_updates
    if updates is None:
        updates = scale.updates
        if updates is not None:
            remarks.append(f"{updates:,} updates, as no number of updates ends the training")
    tokens = None if updates is None else updates * training.batch_tokens
    flop = None if tokens is None else tokens / lengths.target * pair_flop(recipe, sizes, lengths, parameters, remarks)
    checkpoints = training.keep_last + 2  # and best, last
    disk = BYTES * parameters * (COPIES * checkpoints + bool(training.average_last))
    precision = "tf32" if training.precision == "fp32" and training.tf32 else training.precision
    layers = None if updates is None else updates * (training.pieces or 1) * count_layers(recipe)
    return CostEstimate(parameters, updates, tokens, flop, disk, precision, layers, tuple(remarks))


def count_layers(recipe: AnyRecipe) -> int:
    """The layers of a recipe's model, encoder and decoder together."""
    model: Any = recipe.model
    parts = [model.encoder, model.decoder] if isinstance(recipe, Recipe) else [model]
    return sum(getattr(part, "layers", 0) for part in parts)


def count_parameters(recipe: AnyRecipe, source: int, target: int) -> int:
    """The number of trained parameters of a recipe's model, without allocating them."""
    return sum(size for _, size in parameter_sizes(recipe, source, target))


def parameter_sizes(recipe: AnyRecipe, source: int, target: int) -> list[tuple[str, int]]:
    """The names and sizes of the trained parameters of a recipe's model, without allocating them."""
    import torch

    from phraseloom.layers.initialisation import ShapesOnly

    with ShapesOnly():
        model = new_model(recipe, source, target, vectors=torch.empty)
        return [(name, parameter.numel()) for name, parameter in model.named_parameters()]


def new_model(recipe: AnyRecipe, source: int, target: int, *, vectors: Callable[[int, int], Any]) -> Any:
    """A new model of a recipe for vocabularies of these sizes; seed torch first.

    `vectors(size, width)`: the table of a continuous output, of which only the recipe is known.
    """
    from phraseloom.layers.table import TargetTable
    from phraseloom.models.build import build_language_model, build_model

    if not isinstance(recipe, Recipe):
        return build_language_model(recipe.model, target)
    if recipe.model.output.kind == "softmax":
        return build_model(recipe.model, source, target)
    table = TargetTable(vectors(target, _vector_width(recipe)), _first_phrase(recipe, target))
    return build_model(recipe.model, source, target, table)


def _first_phrase(recipe: Recipe, target: int) -> int:
    """The first row of a phrase in a table of `target` rows: as many phrases as the recipe asks for, or half its rows."""
    phrases = getattr(recipe.data.subwords, "phrases", 0)
    return target - phrases if phrases < target else target // 2


def _vector_width(recipe: Recipe) -> int:
    """The width of the vectors of a continuous output, as far as the recipe says it: a file of vectors is not read."""
    subwords: Any = recipe.data.subwords
    vectors = getattr(subwords, "vectors", None)
    if isinstance(vectors, RandomVectors):
        return vectors.random
    trained = vectors.train.width if isinstance(vectors, TrainedVectors) else VECTOR_WIDTH
    return getattr(subwords, "dimensions", None) or trained


def vocabularies(recipe: AnyRecipe, scale: ScaleConfig, remarks: list[str]) -> tuple[int, int]:
    """The vocabulary size of each side: that of the dataset if it exists, else of the recipe if it says so, else assumed."""
    known = dataset_sizes(recipe)
    if known is not None:
        return known[0]
    subwords: Any = recipe.data.subwords
    if subwords.kind == "sentencepiece":
        return subwords.size, subwords.size
    if subwords.kind == "words" and scale.vocabulary is None:
        remarks.append("vocabularies counted as full")
        return _source_types(subwords.of_source()), SPECIALS + subwords.size + subwords.phrases
    size = scale.vocabulary or DEFAULT_VOCABULARY
    remarks.append(f"{size:,} types in each vocabulary")
    phrases = min(size, getattr(subwords, "phrases", 0))
    if phrases:
        remarks.append(f"{phrases:,} phrases, no more than words")
    return size, size + phrases


def _source_types(subwords: Any) -> int:
    """The source vocabulary size if the target has words. Only sentencepiece counts SPECIALS in its size."""
    if subwords.kind == "words":
        return SPECIALS + int(subwords.size)
    return int(subwords.size if subwords.kind == "sentencepiece" else subwords.merges)


def _lengths(recipe: AnyRecipe, scale: ScaleConfig, remarks: list[str]) -> LengthsConfig:
    known = dataset_sizes(recipe)
    if known is not None:
        return known[1]
    lengths = scale.lengths or DEFAULT_LENGTHS
    remarks.append(f"{lengths.source:g} + {lengths.target:g} tokens per sentence")
    return lengths


def dataset_sizes(recipe: AnyRecipe) -> tuple[tuple[int, int], LengthsConfig] | None:
    """Vocabulary sizes and mean sentence lengths of the prepared dataset; None if there is none."""
    from phraseloom.data.shards import read_index

    folder = Path(recipe.data.folder)
    if not (folder / "index.json").is_file():
        return None
    try:
        index = read_index(folder)
        train = index.splits["train"]
    except (PhraseloomError, KeyError):
        return None
    if not train.pairs or not train.target_tokens:
        return None
    sizes = index.subwords.source_vocabulary, index.subwords.target_vocabulary
    return sizes, LengthsConfig(
        source=max(1, train.source_tokens / train.pairs), target=train.target_tokens / train.pairs
    )


def pair_flop(
    recipe: AnyRecipe, sizes: tuple[int, int], lengths: LengthsConfig, parameters: int, remarks: list[str]
) -> float:
    """The FLOP of training on a pair of mean length; `sizes`: of both vocabularies. Adds to `remarks` what was assumed."""
    from phraseloom.models.flops import model_cost

    source, target = round(lengths.source), round(lengths.target)
    if isinstance(recipe, Recipe):
        model = recipe.model
        if model.phrases is not None and model.phrases.segments.kind != "fixed":
            remarks.append("phrases of trees counted as phrases of fixed length")
            fixed = type(model.phrases)().segments
            model = model.model_copy(update={"phrases": model.phrases.model_copy(update={"segments": fixed})})
        table = {"table_width": _vector_width(recipe), "first_phrase": _first_phrase(recipe, sizes[1])}
        cost = model_cost(model, sizes[1], **table, computed=True)
        if cost.remark is not None:
            remarks.append(cost.remark)
        return float(cost.training([(source, target)]))
    remarks.append("6 FLOP per parameter and token")
    return 6.0 * parameters * target


def speed_here(steps: Sequence[Step], flops: float | None = None) -> Speed:
    """The speed of this machine: `flops` if given, else that of finished trainings among `steps`, else measured and scaled."""
    if flops is not None:
        return Speed(flops, f"{flops / 1e9:,.0f} GFLOP/s as given")
    reached = [r for r in map(_reached, steps) if r is not None]
    if reached:
        median = statistics.median(reached)
        return Speed(
            median, f"{median / 1e9:,.0f} GFLOP/s, the median of {len(reached)} finished training(s) in this folder"
        )
    measured = matrix_speed()
    text = f"{SHARE:.0%} of {measured / 1e9:,.0f} GFLOP/s measured on a matrix product"
    return Speed(SHARE * measured, text)


def speed_of(gpu: str, precision: str) -> Speed:
    """The expected speed on a GPU of `GPUS`, in fp32 where it lacks the precision. Raises UsageError for another name."""
    if gpu not in GPUS:
        raise UsageError(f"no GPU {gpu!r}", hint=f"known are {', '.join(GPUS)}; or give --flops")
    kind = precision if precision in GPUS[gpu] else "fp32"
    peak, lacks = GPUS[gpu][kind], "" if kind == precision else f" (it has no {precision})"
    says = f"one {gpu}: {GPU_SHARE:.0%} of its {peak / 1e12:,.1f} TFLOP/s in {kind}{lacks}, assumed and not measured"
    least = f"at least {1e3 * LAUNCH:g} ms for each layer and micro-batch, as measured on an H200"
    return Speed(GPU_SHARE * peak, f"{says}; the peak is NVIDIA's, of dense products; {least}", LAUNCH)


def _reached(step: Step) -> float | None:
    record: Record = read_record(step)
    flop = record.content.get("flop")
    if record.state != "done" or not step.trains or not flop or record.seconds <= 0:
        return None
    return float(flop) / record.seconds
