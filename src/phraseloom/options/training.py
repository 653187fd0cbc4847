"""The `training` part of a recipe: batches, optimiser, schedule, stops, checkpoints. No torch here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from phraseloom.config import Config, or_value_of
from phraseloom.options.data import FileName

__all__ = [
    "AdamConfig",
    "EmbeddingsConfig",
    "GuidedAlignmentConfig",
    "ScheduleConfig",
    "StartFromConfig",
    "TrainingConfig",
    "changed_keys",
    "differing_options",
    "flatten",
    "shaping_keys",
]


class AdamConfig(Config):
    """Adam (Kingma and Ba 2015); the defaults are those of the Transformer papers."""

    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.98, ge=0, lt=1)
    epsilon: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0, description="decoupled (AdamW), times the learning rate; 0 = plain Adam")


class InverseSqrtConfig(Config):
    """rate(s) = factor · width^-0.5 · min(s^-0.5, s · warmup^-1.5), s from 1."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    factor: PositiveFloat = 1.0
    warmup: PositiveInt = 4000


class InverseSqrtPeakConfig(Config):
    """inverse_sqrt with a given peak: rate(s) = peak · min((s / warmup)^-0.5, s / warmup)."""

    kind: Literal["inverse_sqrt_peak"]
    peak: PositiveFloat
    warmup: PositiveInt = 4000


class ConstantConfig(Config):
    """rate(s) = rate, reached linearly over `warmup` steps."""

    kind: Literal["constant"]
    rate: PositiveFloat
    warmup: int = Field(0, ge=0)


class PlateauConfig(Config):
    """Constant, multiplied by `factor` after `patience` validations in a row without a better result of the metric `by`.

    They are those at every `checkpoint_every` updates; one at the end of a run does not count.
    """

    kind: Literal["plateau"]
    rate: PositiveFloat
    warmup: int = Field(0, ge=0)
    factor: float = Field(0.7, gt=0, lt=1)
    patience: PositiveInt = 8
    by: Literal["perplexity", "bleu"] = "perplexity"


class DecayConfig(Config):
    """Linear warm-up to `peak`, then down to `floor` · peak at step `updates` (default: `max_updates`)."""

    kind: Literal["cosine", "linear"]
    peak: PositiveFloat
    warmup: int = Field(0, ge=0)
    updates: PositiveInt | None = None
    floor: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _rises_before_it_falls(self) -> DecayConfig:
        if self.updates is not None and self.warmup >= self.updates:
            raise ValueError(
                f"warmup ({self.warmup}) must be below updates ({self.updates}), the step at which the rate ends"
            )
        return self


ScheduleConfig = Annotated[
    InverseSqrtConfig | InverseSqrtPeakConfig | ConstantConfig | PlateauConfig | DecayConfig,
    Field(discriminator="kind"),
]


class EmbeddingsConfig(Config):
    """Initial embedding matrices from a run, a model folder or a `.vec` file; a path in place of the mapping is for both
    sides. `fixed`: do not train them.
    """

    model_config = ConfigDict(json_schema_extra=or_value_of("source"))

    source: FileName | None = None
    target: FileName | None = None
    fixed: bool = False

    @model_validator(mode="before")
    @classmethod
    def _for_both(cls, value: Any) -> Any:
        return {"source": value, "target": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _names_an_origin(self) -> EmbeddingsConfig:
        if not self.sides:
            raise ValueError("embeddings need the path of a run, a model folder or a .vec file: source, target or both")
        return self

    @property
    def sides(self) -> dict[str, str]:
        """The path of each side that has one."""
        return {side: path for side, path in (("source", self.source), ("target", self.target)) if path is not None}


class StartFromConfig(Config):
    """The model folder, run folder or checkpoint whose weights a run starts with; a path in place of the mapping is `path`.

    `optimizer`: fresh, or (continue) with Adam's moments and step number, from which the schedule continues.
    """

    model_config = ConfigDict(json_schema_extra=or_value_of("path"))

    path: FileName
    optimizer: Literal["fresh", "continue"] = "fresh"

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value


class FertilityStageConfig(Config):
    """The fertility module that `train` adds at the end: the model `fertility` in the folder of the run.

    Options of `fertility train`; `rate` is its `--learning-rate`. The defaults of `classes`, `widths` and `downsample` differ:
    all tokens and a smaller module cost less time than the paper's. It needs the labels that `prepare` writes for
    `data.target_phrases`.
    """

    classes: Literal[4, 2] = 2
    inputs: Literal["both", "states", "embeddings"] = "both"
    widths: list[PositiveInt] = Field([512, 256])
    weights: list[PositiveFloat] | None = None
    downsample: bool = False
    calibrate: bool = True
    epochs: PositiveInt = 10
    rate: PositiveFloat = 5e-4
    batch: PositiveInt = 256
    max_tokens: PositiveInt = 256

    @model_validator(mode="after")
    def _one_weight_a_class(self) -> FertilityStageConfig:
        if self.weights is not None and len(self.weights) != self.classes:
            raise ValueError(f"weights has {len(self.weights)} numbers for {self.classes} classes")
        return self


class GuidedAlignmentConfig(Config):
    """Supervise cross-attention by the word links of the dataset (Chen et al. 2016; `losses/guided.py`)."""

    weight: PositiveFloat = Field(0.05, description="factor of the loss, which is summed like the loss of the tokens")
    decay: float = Field(1.0, gt=0, le=1, description="factor on `weight` after each epoch")
    layers: list[PositiveInt] = Field([], description="decoder layers, from 1; empty = the last but one")
    heads: list[PositiveInt] = Field([], description="heads of these layers, from 1; empty = all")

    @model_validator(mode="after")
    def _names_each_once(self) -> GuidedAlignmentConfig:
        for name, numbers in (("layers", self.layers), ("heads", self.heads)):
            twice = [number for number in numbers if numbers.count(number) > 1]
            if twice:
                raise ValueError(f"{name} has {twice[0]} twice; each counts once")
        return self


ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_*?.]+$")]


class TrainingConfig(Config):
    """How a model is trained. Everything that changes the result is here; nothing depends on the machine."""

    seed: int = Field(1, ge=0, lt=2**31)
    start_from: StartFromConfig | None = Field(
        None, description="the model that training starts from; null = a new one"
    )
    embeddings: EmbeddingsConfig | None = Field(None, description="initial embedding matrices; null = random")
    freeze: list[ModuleName] = Field([], description="modules that are not trained; * matches any text")
    rates: dict[ModuleName, PositiveFloat] = Field({}, description="factors on the learning rate, by module")
    fertility: FertilityStageConfig | None = Field(
        None, description="add a fertility module after training; null = none"
    )
    # batches
    batch_tokens: PositiveInt = Field(4000, description="target tokens (with end symbols) of one update, on average")
    micro_batches: PositiveInt | Literal["per_process"] = Field(
        2,
        description="pieces of an update, shared among the processes; per_process = one for each process of the first start",
    )
    max_micro_tokens: PositiveInt | None = Field(
        None,
        description="most sentences × longest side of a piece, with padding; an update gets more pieces if necessary",
    )
    pool_updates: PositiveInt = Field(500, description="updates within which sentences are sorted by length")
    # optimisation
    optimizer: AdamConfig = AdamConfig()
    schedule: ScheduleConfig = InverseSqrtConfig()
    clip_norm: PositiveFloat | None = Field(1.0, description="limit on the norm of the gradient; null = none")
    gradient_per: Literal["token", "sentence"] = Field(
        "token", description="what the summed loss of an update is divided by before its gradient is clipped"
    )
    guided_alignment: GuidedAlignmentConfig | None = Field(
        None, description="loss of the cross-attention against the links of data.train; null = none"
    )
    # stops
    max_updates: PositiveInt | None = 100_000
    max_epochs: PositiveInt | None = None
    max_minutes: PositiveFloat | None = Field(None, description="wall-clock limit of training; not reproducible")
    patience: PositiveInt | None = Field(None, description="validations in a row without a better value of `best_by`")
    best_by: Literal["perplexity", "loss", "cosine_loss", "bleu"] = "perplexity"
    # validation and checkpoints
    checkpoint_every: PositiveInt = Field(1000, description="updates between saves, each followed by a validation")
    valid_tokens: PositiveInt = Field(4000, description="padded target tokens of a validation batch")
    bleu_every: int = Field(0, ge=0, description="validations between translations of the validation text; 0 = never")
    bleu_beam: PositiveInt = Field(1, description="beam of those translations")
    keep_last: PositiveInt = Field(
        3, description="newest regular checkpoints that are kept, as are the best and the newest"
    )
    average_last: int = Field(
        0, ge=0, description="checkpoints averaged into the folder `averaged` at the end; 0 = none"
    )
    # safety
    bad_steps: PositiveInt = Field(5, description="non-finite steps in a row after which the run stops")
    alarm_perplexity: PositiveFloat | None = Field(
        None, description="stop above this; always above 4 · vocabulary (segmental: 4 · vocabulary³)"
    )
    # machine
    device: Literal["auto", "cpu", "cuda"] = "auto"
    processes: PositiveInt | Literal["auto"] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    tf32: bool = Field(True, description="on GPUs, let fp32 products round their factors to TF32 (10 bits)")
    compile: bool = False
    checkpoint_activations: bool = Field(
        False, description="keep the inputs of Transformer layers only, and run the layers again in the backward pass"
    )
    # reports
    log_every: PositiveInt = Field(50, description="updates between lines on stderr without a terminal")
    tensorboard: bool = False
    tracker: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = Field(
        None, description="MODULE:FUNCTION that is called with each record of metrics.jsonl, for W&B, MLflow …"
    )

    @property
    def pieces(self) -> int | None:
        """The number of micro-batches of an update, hence the most processes; None if they follow the processes."""
        if self.micro_batches == "per_process":
            return None
        return pieces_of_update(self.micro_batches, self.batch_tokens, self.max_micro_tokens)

    @model_validator(mode="after")
    def _fits_together(self) -> TrainingConfig:
        if not (self.max_updates or self.max_epochs or self.max_minutes or self.patience):
            raise ValueError("one of max_updates, max_epochs, max_minutes, patience has to end the run")
        if isinstance(self.schedule, DecayConfig) and not (self.schedule.updates or self.max_updates):
            kind = self.schedule.kind
            raise ValueError(f"schedule {kind} needs schedule.updates or max_updates: it has to end somewhere")
        if self.best_by == "bleu" and not self.bleu_every:
            raise ValueError("best_by: bleu needs bleu_every of at least 1")
        if isinstance(self.schedule, PlateauConfig) and self.schedule.by == "bleu" and not self.bleu_every:
            raise ValueError("schedule.by: bleu needs bleu_every of at least 1")
        if self.average_last > self.keep_last:
            raise ValueError(f"average_last needs as many checkpoints kept: keep_last is {self.keep_last}")
        if self.start_from is not None and self.embeddings is not None:
            raise ValueError(
                "start_from takes all matrices of a model, and embeddings names others; keep one (freeze fixes a matrix)"
            )
        pieces = self.pieces
        if isinstance(self.processes, int) and pieces is not None and self.processes > pieces:
            raise ValueError(f"processes is above micro_batches ({pieces}): some would have nothing to do")
        return self


def pieces_of_update(micro_batches: int, batch_tokens: int, max_micro_tokens: int | None) -> int:
    """The number of micro-batches of an update, more than `micro_batches` if `max_micro_tokens` requires it."""
    return micro_batches if max_micro_tokens is None else max(micro_batches, -(-batch_tokens // max_micro_tokens))


# Keys of a recipe that may change when a run is resumed: they end, monitor or place a run, and do not change its steps.
# `data` is compared by the dataset's fingerprint instead, because folders move.
FREE_ON_RESUME = frozenset(
    f"training.{name}"
    for name in (
        "max_epochs", "max_minutes", "patience", "best_by", "checkpoint_every", "valid_tokens", "bleu_every", "bleu_beam",
        "keep_last", "average_last", "bad_steps", "alarm_perplexity", "device", "processes", "tf32", "compile",
        "checkpoint_activations", "log_every",
        "tensorboard", "tracker", "fertility",
    )
)  # fmt: skip
# The validations that lower the rate of a plateau schedule.
OF_PLATEAU = {
    "perplexity": ("training.checkpoint_every",),
    "bleu": ("training.checkpoint_every", "training.bleu_every", "training.bleu_beam"),
}
FREE_SECTIONS = ("name", "format", "data", "decoding")


# Options that change the training of a model, not what it computes.
OF_TRAINING = (
    "preset",
    "dropout",
    "attention_dropout",
    "ffn_dropout",
    "encoder.dropout",
    "encoder.variational_dropout",
    "decoder.dropout",
    "decoder.hidden_dropout",
    "decoder.variational_dropout",
    "decoder.approximation",
    "phrases.combination_dropout",
    "phrases.attended_dropout",
    "phrases.segments.random_start",
    "init",
    "output.label_smoothing",
    "output.smoothing",
)


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping of dotted keys to plain values; lists stay values."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {k: v for key, inner in value.items() for k, v in flatten(inner, f"{path}.{key}" if path else key).items()}


def differing_options(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Options of two models that change what they compute, as `key: old → new`."""
    before, after = flatten(old), flatten(new)
    keys = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    keys = [k for k in keys if not any(k == part or k.startswith(f"{part}.") for part in OF_TRAINING)]
    return [f"model.{key}: {before.get(key)} → {after.get(key)}" for key in keys]


def changed_keys(old: dict[str, Any], new: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(refused, allowed) differences of two resolved recipes, each as `key: old → new`."""
    before, after = flatten(_numbered(old)), flatten(_numbered(new))
    refused: list[str] = []
    allowed: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) == after.get(key):
            continue
        text = f"{key}: {before.get(key)} → {after.get(key)}"
        (allowed if _free(key, after) else refused).append(text)
    return refused, allowed


def _numbered(value: Any) -> Any:
    """The value with lists of mappings as mappings by number, as overrides name them: `data.train.0.source`."""
    if isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
        value = {str(number): x for number, x in enumerate(value)}
    return {key: _numbered(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def shaping_keys(recipe: dict[str, Any]) -> dict[str, Any]:
    """The dotted keys of a resolved recipe that determine the steps of a run, with their values."""
    values = flatten(recipe)
    return {key: values[key] for key in sorted(values) if not _free(key, values)}


def _free(key: str, recipe: dict[str, Any]) -> bool:
    if key == "training.max_updates":
        return not _end_shapes_the_rate(recipe)
    if recipe.get("training.schedule.kind") == "plateau" and key in OF_PLATEAU[recipe["training.schedule.by"]]:
        return False
    return ".".join(key.split(".")[:2]) in FREE_ON_RESUME or key.split(".")[0] in FREE_SECTIONS


def _end_shapes_the_rate(recipe: dict[str, Any]) -> bool:
    decays = recipe.get("training.schedule.kind") in ("cosine", "linear")
    return decays and recipe.get("training.schedule.updates") is None
