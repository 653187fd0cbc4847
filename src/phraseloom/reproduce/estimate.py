"""What a training will cost before it starts: parameters, tokens, matrix-product FLOP, time and disk.

    time = updates · pairs an update · FLOP of a pair (models/flops.py) / (FLOP/s · share of them that a training reaches)

The speed is what finished trainings of this folder have reached; else a matrix product is timed and `SHARE` of it assumed; or
that of a GPU by name. Lengths are those of the dataset if it is there, else those that the table assumes. Where no formula
counts a model (language models) an update is 6 FLOP a parameter and token (Kaplan et al. 2020).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phraseloom.errors import PhraseloomError, UsageError
from phraseloom.recipe import AnyRecipe, Recipe, load_recipe
from phraseloom.reproduce.records import Record, read_record
from phraseloom.reproduce.steps import Step
from phraseloom.reproduce.table import LengthsConfig, ScaleConfig

SHARE = (
    0.5  # of the matrix-product speed of a CPU that a training of small models reaches here (docs/results.md, Speed)
)
GPU_SHARE = 0.4
BYTES = 4
COPIES = 3  # weights and two moments in a checkpoint
SPECIALS = 4
VECTOR_WIDTH = 300
DEFAULT_LENGTHS = LengthsConfig(source=25, target=25)
DEFAULT_VOCABULARY = 32_000

# Dense peak in FLOP/s as the makers state it: (fp32 without tensor cores, bf16 with them).
GPUS: dict[str, tuple[float, float]] = {
    "V100": (15.7e12, 15.7e12),
    "A100": (19.5e12, 312e12),
    "H100": (66.9e12, 989e12),
    "H200": (66.9e12, 989e12),
    "RTX4090": (82.6e12, 165e12),
}


@dataclass(frozen=True)
class Speed:
    """FLOP/s that a training is expected to reach, and where the figure comes from."""

    flops: float
    says: str


@dataclass(frozen=True)
class CostEstimate:
    """One training. `remarks`: what was assumed."""

    parameters: int
    updates: int | None
    target_tokens: int | None
    flop: float | None
    disk: int
    precision: str
    remarks: tuple[str, ...] = ()

    def seconds(self, speed: Speed) -> float | None:
        """Expected time at a speed."""
        return None if self.flop is None else self.flop / speed.flops


def estimate(step: Step, scale: ScaleConfig) -> CostEstimate:
    """The cost of a training step. Raises ConfigError for a recipe that cannot be read."""
    assert step.recipe is not None
    recipe = load_recipe(step.recipe, list(step.changes))
    remarks: list[str] = []
    sizes = _vocabularies(recipe, scale, remarks)
    parameters = count_parameters(recipe, *sizes)
    lengths = _lengths(recipe, scale, remarks)
    training = recipe.training
    updates = training.max_updates
    if updates is None:
        updates = scale.updates
        if updates is not None:
            remarks.append(f"{updates:,} updates, as no number of updates ends the training")
    tokens = None if updates is None else updates * training.batch_tokens
    flop = None if tokens is None else tokens / lengths.target * _pair_flop(recipe, sizes, lengths, parameters, remarks)
    kept = training.keep_last + 2  # and best, last
    disk = BYTES * parameters * (COPIES * kept + bool(training.average_last))
    return CostEstimate(parameters, updates, tokens, flop, disk, training.precision, tuple(remarks))


def count_parameters(recipe: AnyRecipe, source: int, target: int) -> int:
    """The trained parameters of a recipe's model with vocabularies of these sizes; no memory is taken."""
    import torch

    from phraseloom.layers.table import TargetTable
    from phraseloom.models.build import build_language_model, build_model

    with torch.device("meta"):
        if not isinstance(recipe, Recipe):
            model: Any = build_language_model(recipe.model, target)
        elif recipe.model.output.kind == "softmax":
            model = build_model(recipe.model, source, target)
        else:
            phrases = getattr(recipe.data.subwords, "phrases", 0)
            table = TargetTable(torch.empty(target, VECTOR_WIDTH), target - phrases)
            model = build_model(recipe.model, source, target, table)
        return sum(p.numel() for p in model.parameters())


def _vocabularies(recipe: AnyRecipe, scale: ScaleConfig, remarks: list[str]) -> tuple[int, int]:
    """How many types each side has: of the dataset if it is there, of the recipe if that settles it, else assumed."""
    known = _dataset(recipe)
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
    return size, size + getattr(subwords, "phrases", 0)


def _source_types(subwords: Any) -> int:
    """The types of the source beside a target of words; SPECIALS are counted in the size of sentencepiece alone."""
    if subwords.kind == "words":
        return SPECIALS + int(subwords.size)
    return int(subwords.size if subwords.kind == "sentencepiece" else subwords.merges)


def _lengths(recipe: AnyRecipe, scale: ScaleConfig, remarks: list[str]) -> LengthsConfig:
    known = _dataset(recipe)
    if known is not None:
        return known[1]
    found = scale.lengths or DEFAULT_LENGTHS
    remarks.append(f"{found.source:g} + {found.target:g} tokens a sentence")
    return found


def _dataset(recipe: AnyRecipe) -> tuple[tuple[int, int], LengthsConfig] | None:
    """Vocabulary sizes and mean lengths of the prepared dataset, None where there is none (yet)."""
    from phraseloom.data.index import read_index

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


def _pair_flop(
    recipe: AnyRecipe, sizes: tuple[int, int], lengths: LengthsConfig, parameters: int, remarks: list[str]
) -> float:
    from phraseloom.models.flops import model_cost

    source, target = round(lengths.source), round(lengths.target)
    if isinstance(recipe, Recipe):
        model = recipe.model
        if model.phrases is not None and model.phrases.segments.kind != "fixed":
            remarks.append("phrases of trees counted as phrases of fixed length")
            fixed = type(model.phrases)().segments
            model = model.model_copy(update={"phrases": model.phrases.model_copy(update={"segments": fixed})})
        cost = model_cost(model, sizes[1], table_width=VECTOR_WIDTH, computed=True)
        if cost.remark is not None:
            remarks.append(cost.remark)
        return float(cost.training([(source, target)]))
    remarks.append("6 FLOP a parameter and token")
    return 6.0 * parameters * target


def speed_here(steps: Sequence[Step], given: float | None = None) -> Speed:
    """The speed of this machine: `given`, or that of finished trainings among `steps`, or measured and scaled."""
    if given is not None:
        return Speed(given, f"{given / 1e9:,.0f} GFLOP/s as given")
    reached = [r for r in map(_reached, steps) if r is not None]
    if reached:
        median = statistics.median(reached)
        return Speed(
            median, f"{median / 1e9:,.0f} GFLOP/s, the median of {len(reached)} finished training(s) in this folder"
        )
    measured = matrix_speed()
    text = f"{SHARE:.0%} of {measured / 1e9:,.0f} GFLOP/s measured on a matrix product"
    return Speed(SHARE * measured, text)


def speed_of(gpu: str, precision: str, share: float = GPU_SHARE) -> Speed:
    """The expected speed on a GPU of `GPUS`. Raises UsageError for another name."""
    if gpu not in GPUS:
        raise UsageError(f"no GPU {gpu!r}", hint=f"known are {', '.join(GPUS)}; or give --flops")
    peak = GPUS[gpu][precision == "bf16"]
    says = f"one {gpu}: {share:.0%} of its {peak / 1e12:,.1f} TFLOP/s in {precision}, assumed and not measured"
    return Speed(share * peak, says)


def matrix_speed() -> float:
    """FLOP/s of a product of 768 × 768 matrices in fp32 with all threads of torch, in 0.3 s."""
    import torch

    size, rounds = 768, 0
    a, b = torch.ones(size, size), torch.ones(size, size)
    out = a @ b
    start = time.perf_counter()
    while time.perf_counter() - start < 0.3 or rounds < 3:
        torch.mm(a, b, out=out)
        rounds += 1
    return 2 * size**3 * rounds / (time.perf_counter() - start)


def _reached(step: Step) -> float | None:
    record: Record = read_record(step)
    flop = record.content.get("flop")
    if record.state != "done" or not step.trains or not flop or record.seconds <= 0:
        return None
    return float(flop) / record.seconds
