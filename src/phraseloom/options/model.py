"""Options of a model: initialisation, source phrases (P001), output layers, encoder and decoder.

No torch here: recipes are checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import ConfigDict, Field, PositiveFloat, model_validator

from phraseloom.config import Config, KeyPath, Whole, or_value_of, with_former_keys
from phraseloom.errors import plural
from phraseloom.options.attention import USES, AttentionConfig, AttentionsConfig
from phraseloom.options.segmental import (
    ColumnsEncoderConfig,
    DropoutRate,
    ReorderingConfig,
    SegmentalDecoderConfig,
    check_segmental,
    fill_segmental,
)


class InitConfig(Config):
    """The initialisation of the parameters; a word in place of the mapping is the `kind`.

    `kind`: fan_in_uniform, U(±√(1 / fan_in)), but xavier_uniform for the layer of a recurrent decoder that joins attention and
    state; xavier_uniform, U(±√(6 / (fan_in + fan_out))); uniform, U(±`range`) for every parameter except those of layer
    normalisations and gates of attention. `embeddings`: normal, N(0, 1/√D); small_uniform, U(±√(2 / (V + D))), the released
    start of paper 001; xavier_uniform, U(±√(6 / (V + D))), that of Sockeye (paper 004).
    `recurrent`: how each gate of recurrent cells is drawn: both matrices by this rule, or (orthogonal) the recurrent matrix
    orthogonal and the input matrix xavier_uniform. `branch_scale` multiplies the last matrix of every residual branch of a
    Transformer, and `phrase_scale` those of combination networks (null: as `branch_scale`); with 0, a branch starts as the
    identity.
    """

    model_config = ConfigDict(json_schema_extra=or_value_of("kind"))

    kind: Literal["fan_in_uniform", "xavier_uniform", "uniform"] = "fan_in_uniform"
    range: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    embeddings: Literal["normal", "small_uniform", "xavier_uniform"] = "normal"
    recurrent: Literal["orthogonal", "xavier_uniform", "fan_in_uniform"] = "orthogonal"
    branch_scale: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    phrase_scale: Annotated[float, Field(ge=0.0, le=1.0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits(self) -> InitConfig:
        if self.kind == "uniform" and self.range is None:
            raise ValueError("kind: uniform needs a range, such as 0.1")
        if self.kind != "uniform" and self.range is not None:
            raise ValueError(f"range is for kind: uniform; with kind: {self.kind}, leave it out")
        changed = [
            name
            for name, usual in (("embeddings", "normal"), ("recurrent", "orthogonal"))
            if getattr(self, name) != usual
        ]
        if self.kind == "uniform" and changed:
            raise ValueError(f"kind: uniform draws everything from its range; leave {changed[0]} out")
        return self

    def __str__(self) -> str:
        """The kind, or all keys that differ from the default, as a recipe has them."""
        changed = {
            name: value for name, value in self.model_dump().items() if value != InitConfig.model_fields[name].default
        }
        if not changed.keys() - {"kind"}:
            return self.kind
        return "{" + ", ".join(f"{name}: {value}" for name, value in ({"kind": self.kind} | changed).items()) + "}"


KINDS: Mapping[KeyPath, str] = {
    ("model", "encoder"): "transformer",
    ("model", "decoder"): "transformer",
    ("model", "output"): "softmax",
    ("model", "init"): "fan_in_uniform",
    ("model", "phrases", "segments"): "fixed",
}
"""The kinds of mappings in a recipe that may leave `kind` out."""


def mapping_of(recipe: Mapping[str, Any], path: KeyPath, word: Any) -> dict[str, Any] | None:
    """The mapping that one word in a recipe means, where a key is set below it; None if it means none.

    `recipe`: its plain data, which tells what attentions the model has.
    """
    if path == ("model", "init"):
        return {"kind": word}
    if path[:2] != ("model", "attention") or not isinstance(word, str):
        return None
    if word == "token":
        return {}
    if len(path) > 2:
        try:
            return AttentionConfig.model_validate(word).model_dump(mode="json", exclude_unset=True)
        except pydantic.ValidationError:
            return None
    if recipe.get("task") == "language_model":
        return {"decoder_self": word}
    line: Any = fill_kinds({**recipe.get("model", {}), "attention": word})["attention"]
    return dict.fromkeys(USES, line) if isinstance(line, str) else line


FORMER_KEYS: Mapping[str, KeyPath] = {"init_range": ("init", "range")}
"""Of a model: see `fill_init`."""


def fill_init(value: Any) -> Any:
    """`value` with the default of `scale_embeddings`: false for `init: {kind: uniform}`.

    `init_range: R`, the key of earlier versions, means `init: {kind: uniform, range: R}` with scaled embeddings.
    """
    if not isinstance(value, dict):
        return value
    value = dict(value)
    old = value.pop("init_range", None)
    if old is not None:
        if "init" in value:
            raise ValueError("init_range and init say the same; keep init")
        value = {"scale_embeddings": True, **value, "init": {"kind": "uniform", "range": old}}
    init = value.get("init")
    kind = (
        init if isinstance(init, str) else init.get("kind") if isinstance(init, dict) else getattr(init, "kind", None)
    )
    return {"scale_embeddings": kind != "uniform", **value}


def fill_stored_init(value: Any) -> Any:
    """`value`, the stored configuration of a model, with the start that it had when it was written.

    Before there was `init`, all matrices were drawn by xavier_uniform, except those of LSTM and GRU cells: U(±√(1 / width)),
    which is fan_in_uniform for inputs of this width. Keys of `init` that had no effect were allowed, and are left out.
    """
    if not isinstance(value, dict) or value.get("init_range") is not None:
        return value
    idle = _idle_init({_kind(value, "encoder"), _kind(value, "decoder")}, value.get("phrases"))
    init = value.get("init")
    if init is None:
        init = {"kind": "xavier_uniform", "recurrent": "fan_in_uniform"}
    if isinstance(init, dict):
        init = {key: option for key, option in init.items() if key not in idle}
    return {**value, "init": init}


def fill_stored(value: Any) -> Any:
    """`value`, the stored configuration of a model, as it is written today: the same model, without options that are refused.

    Its start is that of `fill_stored_init`. Between the layers of a stack of one, options had no effect, and are left out; so
    are options of a continuous output that its loss does not read. Where `segments` had a `floor` above `max_tokens`, every
    phrase had `floor` tokens.
    """
    value = fill_stored_init(value)
    if not isinstance(value, dict):
        return value
    value = dict(value)
    for part in ("encoder", "decoder"):
        stack = value.get(part)
        if isinstance(stack, dict) and stack.get("kind") == "recurrent" and stack.get("layers") == 1:
            value[part] = {key: option for key, option in stack.items() if key not in BETWEEN_LAYERS}
    output = value.get("output")
    if isinstance(output, dict) and output.get("kind") in ("continuous", "word_or_phrase"):
        idle = _idle_output(output.get("loss", "max_margin"), output.get("margin_weight"), output.get("score"))
        changed = {key for key in idle if output.get(key) != ContinuousConfig.model_fields[key].default}
        value["output"] = {key: option for key, option in output.items() if key not in changed}
    phrases = value.get("phrases")
    segments = phrases.get("segments") if isinstance(phrases, dict) else None
    if isinstance(segments, dict) and segments.get("kind") == "fixed":
        longest, floor = segments.get("max_tokens"), segments.get("floor")
        if isinstance(longest, int) and isinstance(floor, int) and floor > longest:
            value["phrases"] = {**phrases, "segments": {**segments, "max_tokens": floor}}
    return value


Tokens = Annotated[int, Field(ge=1, le=10_000)]


class FixedSegmentsConfig(Config):
    """Phrases of max(min(`max_tokens`, ⌈tokens / `min_chunks`⌉), `floor`) subwords.

    `basis`: the tokens of the sentence, or of the padded batch as in the released code, so that a translation depends on its
    batch. `random_start` (ours): in training, the first phrase has 1 to that many, drawn each time, so that the phrases of a
    sentence differ from epoch to epoch.
    """

    kind: Literal["fixed"] = "fixed"
    max_tokens: Tokens = 8
    min_chunks: Tokens = 6
    floor: Tokens = 3
    basis: Literal["sentence", "batch"] = "sentence"
    random_start: bool = False

    @model_validator(mode="after")
    def _floor_fits(self) -> FixedSegmentsConfig:
        if self.floor > self.max_tokens:
            raise ValueError(f"floor is at most max_tokens ({self.max_tokens}), not {self.floor}; set a lower floor")
        return self


class DatasetSegmentsConfig(Config):
    """The phrases stored in the dataset, from trees or a phrase table (`data.phrases`)."""

    kind: Literal["dataset"] = "dataset"


SegmentsConfig = Annotated[
    FixedSegmentsConfig | DatasetSegmentsConfig,
    Field(discriminator="kind", json_schema_extra={"usual_kind": "fixed"}),
]


class PhrasesConfig(Config):
    """Phrase vectors at every level of the encoder, and a combination network in every layer.

    `glance` and `attention`: how a phrase vector is computed (none: it is the glance). `transparent`: every decoder layer has
    its own mixture of all levels; otherwise all use the last. `transparent_tokens`: mix token states too. `residual`: the
    combination network adds token and attended phrases to its output (both: the released code) or the token alone (token: the
    paper's text). `combination_width`: f of the combination network (null: `ffn_width`, as in the paper; 0: attention
    to phrases without the network, ours);
    `combination_dropout`: on its f units, after the sigmoid (null: the model's `dropout`, as in the released code).
    `attended_dropout`: on a, what a token reads from the phrases (0: as in the released code; more is ours).
    `scorer_width`: h of the scorer (null: `width`).
    """

    segments: SegmentsConfig = FixedSegmentsConfig()
    glance: Literal["max", "mean"] = "max"
    attention: Literal["none", "softmax", "gated"] = "softmax"
    transparent: bool = True
    transparent_tokens: bool = False
    residual: Literal["both", "token"] = "both"
    combination_width: Annotated[int, Field(ge=0, le=65536)] | None = None
    combination_dropout: DropoutRate | None = None
    attended_dropout: DropoutRate = 0.0
    scorer_width: Annotated[int, Field(ge=1, le=65536)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("segments"), dict):
            return {**value, "segments": {"kind": "fixed", **value["segments"]}}
        return value

    @model_validator(mode="after")
    def _fits(self) -> PhrasesConfig:
        if self.attention == "none" and self.scorer_width is not None:
            raise ValueError("scorer_width has no meaning with attention: none")
        if self.combination_width == 0 and self.residual == "token":
            raise ValueError("combination_width: 0 needs residual: both; with token, nothing reads the phrases")
        if self.combination_width == 0 and self.combination_dropout is not None:
            raise ValueError("combination_dropout has no meaning with combination_width: 0")
        return self


Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class SoftmaxConfig(Config):
    """Softmax over the target vocabulary, with label smoothing in training.

    `excluded`: special tokens with probability 0, such as the start token in Marian models. It needs `bias: true` and
    `smoothing: kl`, which puts no mass on them.
    """

    kind: Literal["softmax"] = "softmax"
    bias: bool = False
    excluded: Annotated[tuple[Literal["pad", "bos"], ...], Field(strict=False)] = ()
    label_smoothing: Fraction = 0.1
    smoothing: Literal["uniform", "t2t", "kl"] = "uniform"

    @model_validator(mode="after")
    def _excluded_fits(self) -> SoftmaxConfig:
        if self.excluded and not (self.bias and self.smoothing == "kl"):
            raise ValueError("excluded needs bias: true and smoothing: kl")
        return self


def _idle_output(loss: Any, margin_weight: Any, score: Any) -> dict[str, str]:
    """The options of a continuous output without effect on this loss and gate score, each with what it is for."""
    idle = {}
    if loss != "max_margin" and not margin_weight:
        needed = "a max-margin loss: loss: max_margin, or a margin_weight"
        idle = {"margin": needed, "rivals": needed, "rival": needed}
    if loss not in ("vmf_reg1", "vmf_reg1_reg2"):
        idle["lambda1"] = "loss: vmf_reg1 or vmf_reg1_reg2"
    if loss not in ("vmf_reg2", "vmf_reg1_reg2"):
        idle["lambda2"] = "loss: vmf_reg2 or vmf_reg1_reg2"
    if loss != "vmf_released":
        idle["lambda_released"] = "loss: vmf_released"
    if loss in ("cosine", "l2", "max_margin") and score not in ("density", "released"):
        losses = "vmf, vmf_reg1, vmf_reg2, vmf_reg1_reg2 or vmf_released"
        idle["approximation"] = f"a von Mises-Fisher loss: loss: {losses}; or for score: density or released"
    return idle


class ContinuousConfig(Config):
    """A vector near the fixed vector of the word (P003): data with `subwords: {kind: words, vectors: FILE}`.

    `loss`: see `losses/vmf.py`; lambda1 and lambda2 belong to the regularised forms, lambda_released to the released one.
    `margin_weight`: adds the max-margin loss, times this, to `loss`; it then learns to tell a word from its nearest rival.
    `margin`: by how much the cosine of the right word has to win in a max-margin loss. `rival`: the word that it is compared
    with, informative (near to the prediction and far from the right word, as in Kumar and Tsvetkov) or nearest (to the
    prediction). `rivals`: look for it among this number of rows of the table, drawn for each batch, so that an update does not
    depend on its size; null = all. `frequent_rivals`: look among this number of its first rows, which are the most frequent
    words, and among the tokens of the batch as well; `words`: among all words, so that only phrases are drawn, and they hardly
    slow an update down.
    `approximation`: the von Mises-Fisher normaliser, exact, as in the released code, or a bound (`losses/vmf_normalizer.py`).
    `hidden_layer`: one more layer, with ReLU, before the vector.
    """

    kind: Literal["continuous"]
    loss: Literal[
        "vmf", "vmf_reg1", "vmf_reg2", "vmf_reg1_reg2", "vmf_released", "cosine", "l2", "max_margin"
    ] = "max_margin"  # fmt: skip
    lambda1: Annotated[float, Field(ge=0.0)] = 0.02
    lambda2: PositiveFloat = 0.1
    lambda_released: float = 0.2
    margin_weight: Annotated[float, Field(ge=0.0)] = 0.0
    margin: Annotated[float, Field(gt=0.0, le=2.0)] = 0.3
    rival: Literal["informative", "nearest"] = "informative"
    rivals: Annotated[int, Whole, Field(ge=1)] | None = None
    frequent_rivals: Annotated[int, Whole, Field(ge=0)] | Literal["words"] = 0
    approximation: Literal["exact", "released", "bound"] = "exact"
    hidden_layer: bool = False

    @model_validator(mode="after")
    def _fits(self) -> ContinuousConfig:
        if self.loss == "max_margin" and self.margin_weight:
            raise ValueError("loss: max_margin has its own margin_weight of 1; leave margin_weight out")
        if self.frequent_rivals and self.rivals is None:
            raise ValueError("frequent_rivals needs rivals, the number of those that are drawn")
        if self.frequent_rivals == "words" and self.kind == "continuous":
            raise ValueError("frequent_rivals: words is for kind: word_or_phrase; without phrases these are all rows")
        idle = _idle_output(self.loss, self.margin_weight, getattr(self, "score", None))
        for name, needed in idle.items():
            if getattr(self, name) != ContinuousConfig.model_fields[name].default:
                raise ValueError(f"{name} is for {needed}")
        return self


class FertilityConfig(Config):
    """The module that predicts whether a source token becomes a word or a phrase; `fertility train` adds it.

    `inputs`: the token's embedding, its encoder state, or both; `widths` of the inner layers. `shift`: what is taken off the
    logit of each class because training saw other shares of classes than there are; empty: nothing.
    """

    classes: Annotated[Literal[4, 2], Whole] = 4
    inputs: Literal["both", "states", "embeddings"] = "both"
    widths: Annotated[tuple[Annotated[int, Field(ge=1, le=65536)], ...], Field(strict=False)] = (4096, 1024)
    shift: Annotated[tuple[float, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _one_shift_a_class(self) -> FertilityConfig:
        if self.shift and len(self.shift) != self.classes:
            raise ValueError(f"shift has {len(self.shift)} numbers for {self.classes} classes")
        return self


class WordOrPhraseConfig(ContinuousConfig):
    """Continuous output over words and phrases. `score`: how the gate of the `fertility` module, if there is one, enters
    the score: log λ + log density (mixture), or as in the paper (density) or its released code."""

    kind: Literal["word_or_phrase"]  # type: ignore[assignment]
    score: Literal["mixture", "density", "released"] = "mixture"
    fertility: FertilityConfig | None = None


OutputConfig = Annotated[
    SoftmaxConfig | ContinuousConfig | WordOrPhraseConfig,
    Field(discriminator="kind", json_schema_extra={"usual_kind": "softmax"}),
]


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 64, "heads": 4, "ffn_width": 256, "encoder": {"layers": 2}, "decoder": {"layers": 2}},
    "small": {"width": 256, "heads": 4, "ffn_width": 1024, "encoder": {"layers": 3}, "decoder": {"layers": 3}},
    "base": {"width": 512, "heads": 8, "ffn_width": 2048, "encoder": {"layers": 6}, "decoder": {"layers": 6}},
    "big": {"width": 1024, "heads": 16, "ffn_width": 4096, "encoder": {"layers": 6}, "decoder": {"layers": 6}},
}


class TransformerEncoderConfig(Config):
    """A stack of self-attention and feed-forward layers."""

    kind: Literal["transformer"] = "transformer"
    layers: Annotated[int, Field(ge=1, le=100)] = 6


class NoEncoderConfig(Config):
    """No encoder: the decoder attends to the embeddings of the source (P004). `memory_norm`: layer normalisation of them, as
    at the end of Sockeye's encoders."""

    kind: Literal["none"] = "none"
    memory_norm: bool = False

    @property
    def layers(self) -> int:
        """0, the depth of no encoder."""
        return 0


class VariationalDropoutConfig(Config):
    """Dropout with the same masks at every step of a sentence (Gal and Ghahramani 2016; Sockeye's RNN dropout): on the inputs
    of every cell, and on its recurrent hidden state (slower in training: torch has no kernel for it)."""

    inputs: DropoutRate = 0.0
    states: DropoutRate = 0.0


BETWEEN_LAYERS = {"residual": "adds the input of each layer after the first", "dropout": "acts between layers"}


def check_between_layers(config: RecurrentEncoderConfig | RecurrentDecoderConfig) -> None:
    """Raise ValueError if an option that acts between recurrent layers is set for one layer."""
    for key, acts in BETWEEN_LAYERS.items() if config.layers == 1 else ():
        if getattr(config, key):
            raise ValueError(f"{key} has no effect on one recurrent layer: it {acts}; leave it out, or set more layers")


class RecurrentEncoderConfig(Config):
    """Recurrent layers; the bottom `bidirectional` ones read both ways, each direction with half the width (P004: 1 of 6).

    `residual`: each layer after the first adds its input to its output; `dropout` acts on their inputs. `memory_norm`: layer
    normalisation of the states that the decoder attends to.
    """

    kind: Literal["recurrent"] = "recurrent"
    layers: Annotated[int, Field(ge=1, le=100)] = 6
    cell: Literal["lstm", "gru"] = "lstm"
    bidirectional: Annotated[int, Field(ge=0)] = 1
    residual: bool = False
    dropout: DropoutRate = 0.0
    variational_dropout: VariationalDropoutConfig = VariationalDropoutConfig()
    memory_norm: bool = False

    @model_validator(mode="after")
    def _fits(self) -> RecurrentEncoderConfig:
        if self.bidirectional > self.layers:
            raise ValueError(f"{self.bidirectional} bidirectional layers, of only {self.layers}")
        check_between_layers(self)
        return self


EncoderConfig = Annotated[
    TransformerEncoderConfig | RecurrentEncoderConfig | ColumnsEncoderConfig | NoEncoderConfig,
    Field(discriminator="kind", json_schema_extra={"usual_kind": "transformer"}),
]


class TransformerDecoderConfig(Config):
    """A stack of causal self-attention, cross-attention and feed-forward layers."""

    kind: Literal["transformer"] = "transformer"
    layers: Annotated[int, Field(ge=1, le=100)] = 6


class RecurrentDecoderConfig(Config):
    """Recurrent layers, attention of the top one over the source, and a layer that joins both.

    `attention`: mlp (Bahdanau et al. 2015), general (Luong et al. 2015), fixed (the last source state at every step: no
    attention), or multihead (`attention.cross` of the model, phrasal or not). `initial`: the states start as functions of the
    last source state, as the final states of the encoder, or at zero. `input_feeding`: each step reads the joined output of
    the step before. `hidden_dropout` acts before the joining layer, `dropout` between layers; `residual` as in the encoder.
    """

    kind: Literal["recurrent"] = "recurrent"
    layers: Annotated[int, Field(ge=1, le=100)] = 6
    cell: Literal["lstm", "gru"] = "lstm"
    attention: Literal["mlp", "general", "fixed", "multihead"] = "mlp"
    initial: Literal["last", "final", "zero"] = "last"
    input_feeding: bool = True
    residual: bool = False
    hidden_dropout: DropoutRate = 0.2
    dropout: DropoutRate = 0.0
    variational_dropout: VariationalDropoutConfig = VariationalDropoutConfig()

    @model_validator(mode="after")
    def _fits(self) -> RecurrentDecoderConfig:
        check_between_layers(self)
        return self


DecoderConfig = Annotated[
    TransformerDecoderConfig | RecurrentDecoderConfig | SegmentalDecoderConfig,
    Field(discriminator="kind", json_schema_extra={"usual_kind": "transformer"}),
]

RECURRENT = ("recurrent", "columns", "segmental")
"""Kinds that read the embeddings in order, and so need no positions."""


class SinusoidConfig(Config):
    """Fixed sinusoid position vectors, added to the embeddings."""

    kind: Literal["sinusoid"] = "sinusoid"
    layout: Literal["halves", "interleaved", "t2t"] = "halves"


class NoPositionsConfig(Config):
    """No position vectors (for relative attention, and for recurrent layers)."""

    kind: Literal["none"] = "none"


PositionsConfig = Annotated[SinusoidConfig | NoPositionsConfig, Field(discriminator="kind")]


class SidePositionsConfig(Config):
    """The positions of each side; one `{kind: …}` sets both. By default, a side that recurrent layers read has none."""

    model_config = ConfigDict(json_schema_extra=or_value_of("source"))

    source: PositionsConfig = SinusoidConfig()
    target: PositionsConfig = SinusoidConfig()

    @model_validator(mode="before")
    @classmethod
    def _for_both(cls, value: Any) -> Any:
        if isinstance(value, dict) and value and not value.keys() & {"source", "target"}:
            return {"source": value, "target": value}
        return value


def fill_preset(value: Any, *, without: tuple[str, ...] = ()) -> Any:
    """`value` merged over the sizes of its preset, except the keys `without`."""
    if not isinstance(value, dict) or value.get("preset") not in list(PRESETS):  # a list: the value may be unhashable
        return value
    filled = {key: size for key, size in PRESETS[value["preset"]].items() if key not in without}
    for key, inner in value.items():
        below = filled.get(key)
        if isinstance(below, dict) and isinstance(inner, dict) and inner.get("kind") != "none":
            inner = {**below, **inner}
        filled[key] = inner
    return filled


def _kind(value: dict[str, Any], part: str) -> Any:
    """The kind of the encoder or decoder in plain data; None if it is not a name."""
    config = value.get(part, {})
    kind = config.get("kind", "transformer") if isinstance(config, dict) else getattr(config, "kind", None)
    return kind if isinstance(kind, str) else None


def fill_kinds(value: Any) -> Any:
    """`value` with the defaults that follow from the kinds of encoder and decoder (transformer by default).

    One line of attention applies to the attentions that exist; a side that recurrent layers read has no positions.
    """
    if not isinstance(value, dict):
        return value
    value = dict(value)
    for part in ("encoder", "decoder"):
        config: Any = value.get(part)
        if isinstance(config, dict):
            value[part] = {"kind": "transformer", **config}
    encoder, decoder = _kind(value, "encoder"), _kind(value, "decoder")
    line: Any = value.get("attention")
    if isinstance(line, str) and (encoder, decoder) != ("transformer", "transformer"):
        reads = value.get("decoder")
        by_block = decoder == "transformer" or (isinstance(reads, dict) and reads.get("attention") == "multihead")
        uses = {"encoder_self": encoder == "transformer", "decoder_self": decoder == "transformer", "cross": by_block}
        value["attention"] = {use: line for use, there in uses.items() if there} or {"cross": line}  # refused below
    sides: Any = value.get("positions") or {}
    if isinstance(sides, dict) and "kind" not in sides and not {encoder, decoder}.isdisjoint(RECURRENT):
        readers = {"source": encoder, "target": decoder}
        value["positions"] = {side: {"kind": "none"} for side, kind in readers.items() if kind in RECURRENT} | sides
    return value


def fill_output(value: Any) -> Any:
    """`value` with the kind of output (softmax by default) and the default of `tied` for it."""
    if not isinstance(value, dict):
        return value
    output: Any = value.get("output", {})
    if isinstance(output, dict):
        output = {"kind": "softmax", **output}
    kind = output.get("kind") if isinstance(output, dict) else getattr(output, "kind", None)
    narrow = value.get("embedding_width") not in (None, value.get("width"))
    tied = {} if kind == "softmax" and not narrow else {"tied": "none" if kind == "softmax" else "two_way"}
    return {**tied, **value, "output": output}


def check_sizes(config: Any) -> None:
    """Raise ValueError unless heads divide the width and splits add up to the heads; for any model configuration."""
    if config.width % config.heads:
        raise ValueError(f"width {config.width} is not a multiple of heads {config.heads}")
    sides = config.positions
    kinds = [
        side.kind for side in ((sides.source, sides.target) if isinstance(sides, SidePositionsConfig) else (sides,))
    ]
    embedded = getattr(config, "embedding_width", None)
    name, channels = ("width", config.width) if embedded is None else ("embedding_width", embedded)
    if channels % 2 and "sinusoid" in kinds:
        raise ValueError(f"{name} {channels} is odd: sinusoid positions need pairs of channels")
    for use, attention in config.attention.uses().items():
        arrangement = attention.arrangement
        split = arrangement.split if arrangement.kind == "homogeneous" else None
        if split is not None and sum(split) != config.heads:
            raise ValueError(
                f"attention.{use}: split {'-'.join(map(str, split))} does not divide {plural(config.heads, 'head')}"
            )


def _idle_init(kinds: set[Any], phrases: Any) -> dict[str, str]:
    """The keys of `init` without effect on an encoder and a decoder of these kinds, each with the parts that it would need."""
    idle = {}
    if phrases is None:
        idle["phrase_scale"] = "source phrases (model.phrases)"
    if kinds.isdisjoint(RECURRENT):
        idle["recurrent"] = "LSTM or GRU layers"
    if "transformer" not in kinds:
        idle["branch_scale"] = "Transformer layers"
    return idle


def check_init(config: Any) -> None:
    """Raise ValueError if a key of `init` has no effect on the model; for any model configuration."""
    kinds = {part.kind for part in (getattr(config, "encoder", None), config.decoder) if part is not None}
    for key, needed in _idle_init(kinds, getattr(config, "phrases", None)).items():
        if getattr(config.init, key) != InitConfig.model_fields[key].default:
            raise ValueError(f"init.{key} has no meaning in a model without {needed}; leave it out")


class ModelConfig(Config):
    """A translation model. `preset` sets sizes; every other key overrides it.

    `tied`: three_way (source, target and output share one matrix; needs a joint vocabulary), two_way (target and
    output; the default of a continuous output, whose fixed vectors the decoder then reads), none. `embedding_width`: of both
    embeddings of a recurrent model, if it is not `width`. `init`: how parameters are drawn. `scale_embeddings`: token
    vectors are multiplied by √width (by default not with `init.kind: uniform`). `phrases`: source phrase representations
    (null: none); `reordering`: reorders source tokens before the encoder (null: none). `norm`: the place of layer
    normalisation; `norm_epsilon`: added to variances; `embedding_norm`: also normalise the embeddings of both sides (paper
    001). `attention_bias`: biases in the projections and outputs of attention; `activation` of the feed-forward layers.
    `feed_forward`: interleaved leaves these layers out, because the output convolution of interleaved attention takes their
    place (one of two readings of paper 002, §3.3); all attentions must then be interleaved. Dropout rates: `dropout` on
    embeddings and sub-layer outputs, `attention_dropout` on attention weights, `ffn_dropout` inside the feed-forward layer.
    """

    model_config = ConfigDict(json_schema_extra=with_former_keys)
    former_keys: ClassVar[Mapping[str, KeyPath]] = FORMER_KEYS

    preset: Literal["tiny", "small", "base", "big"] | None = None
    width: Annotated[int, Field(ge=2, le=16384)] = 512
    embedding_width: Annotated[int, Field(ge=2, le=16384)] | None = None
    heads: Annotated[int, Field(ge=1, le=256)] = 8
    ffn_width: Annotated[int, Field(ge=1, le=65536)] = 2048
    encoder: EncoderConfig = TransformerEncoderConfig()
    decoder: DecoderConfig = TransformerDecoderConfig()
    attention: AttentionsConfig = AttentionsConfig()
    phrases: PhrasesConfig | None = None
    reordering: ReorderingConfig | None = None
    positions: SidePositionsConfig = SidePositionsConfig()
    output: OutputConfig = SoftmaxConfig()
    init: InitConfig = InitConfig()
    scale_embeddings: bool = True
    norm: Literal["pre", "post"] = "pre"
    norm_epsilon: Annotated[float, Field(gt=0.0, le=0.1)] = 1e-6
    embedding_norm: bool = False
    attention_bias: bool = False
    activation: Literal["relu", "swish", "gelu"] = "relu"
    feed_forward: Literal["pointwise", "interleaved"] = "pointwise"
    tied: Literal["three_way", "two_way", "none"] = "three_way"
    dropout: DropoutRate = 0.1
    attention_dropout: DropoutRate = 0.1
    ffn_dropout: DropoutRate = 0.0

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        return fill_init(fill_output(fill_segmental(fill_kinds(fill_preset(value)))))

    @model_validator(mode="after")
    def _sizes_fit(self) -> ModelConfig:
        check_sizes(self)
        check_segmental(self)
        check_init(self)
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> ModelConfig:
        encoder, decoder = self.encoder, self.decoder
        used = {
            "encoder_self": encoder.kind == "transformer",
            "decoder_self": decoder.kind == "transformer",
            "cross": decoder.kind != "segmental",
        }
        if isinstance(decoder, RecurrentDecoderConfig):
            used["cross"] = decoder.attention == "multihead"
        for use, there in used.items():
            if not there and getattr(self.attention, use) != AttentionConfig():
                which = (
                    f"encoder: {{kind: {encoder.kind}}}" if use == "encoder_self" else f"this {decoder.kind} decoder"
                )
                recurrent = isinstance(decoder, RecurrentDecoderConfig)
                hint = "; decoder.attention: multihead would use it" if use == "cross" and recurrent else ""
                raise ValueError(f"attention.{use} has no meaning with {which}{hint}")
        if isinstance(encoder, RecurrentEncoderConfig) and encoder.bidirectional and self.width % 2:
            raise ValueError(f"width {self.width} is odd: a bidirectional layer has half of it for each direction")
        if isinstance(decoder, RecurrentDecoderConfig):
            if self.phrases is not None:
                raise ValueError(
                    "phrases are read by the layers of a Transformer decoder; the decoder here is recurrent"
                )
            if decoder.initial == "final":
                states = (encoder.layers, encoder.cell) if isinstance(encoder, RecurrentEncoderConfig) else None
                if states != (decoder.layers, decoder.cell):
                    raise ValueError(
                        "decoder.initial: final needs a recurrent encoder with as many layers and the same cell as the decoder"
                    )
        return self

    @model_validator(mode="after")
    def _feed_forward_fits(self) -> ModelConfig:
        if self.feed_forward == "pointwise":
            return self
        if self.decoder.kind != "transformer":
            raise ValueError(
                f"feed_forward: interleaved is for a Transformer decoder; the decoder here is {self.decoder.kind}"
            )
        uses = ["encoder_self"] if self.encoder.kind == "transformer" else []
        for use in (*uses, "decoder_self", "cross"):
            if (kind := getattr(self.attention, use).arrangement.kind) != "interleaved":
                raise ValueError(
                    "feed_forward: interleaved leaves the feed-forward layers to the convolution of interleaved attention, "
                    f"but attention.{use} is {kind}"
                )
        return self

    @model_validator(mode="after")
    def _output_fits(self) -> ModelConfig:
        output, decoder = self.output, self.decoder
        if self.embedding_width not in (None, self.width):
            if not {self.encoder.kind, decoder.kind} <= set(RECURRENT):
                raise ValueError(
                    "embedding_width is for recurrent encoders and decoders; all else adds to embeddings of width"
                )
            if isinstance(output, SoftmaxConfig) and self.tied != "none":
                raise ValueError(f"tied: {self.tied} shares the matrix of a softmax of width {self.width} with embeddings of "
                                 f"another width; set tied: none")  # fmt: skip
        if isinstance(output, SoftmaxConfig):
            return self
        if self.tied == "three_way":
            raise ValueError("tied: three_way shares trained matrices; the vectors of a continuous output are fixed")
        fixed = isinstance(decoder, RecurrentDecoderConfig) and decoder.attention == "fixed"
        if isinstance(output, WordOrPhraseConfig) and output.fertility is not None and fixed:
            raise ValueError("output.fertility is weighed by the decoder's attention, and there is none")
        return self
