"""What a model is made of, as data. No torch here: recipes are checked without it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from phraseloom.config import Config

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 64, "heads": 4, "ffn_width": 256, "encoder": {"layers": 2}, "decoder": {"layers": 2}},
    "small": {"width": 256, "heads": 4, "ffn_width": 1024, "encoder": {"layers": 3}, "decoder": {"layers": 3}},
    "base": {"width": 512, "heads": 8, "ffn_width": 2048, "encoder": {"layers": 6}, "decoder": {"layers": 6}},
    "big": {"width": 1024, "heads": 16, "ffn_width": 4096, "encoder": {"layers": 6}, "decoder": {"layers": 6}},
}


class TokenScoreConfig(Config):
    """Ordinary scaled dot-product scores."""

    kind: Literal["token"] = "token"


class RelativeScoreConfig(Config):
    """Scores with clipped relative positions (Shaw et al. 2018); self-attention only."""

    kind: Literal["relative"] = "relative"
    clip: Annotated[int, Field(ge=1)] = 16
    on_values: bool = True


ScoreConfig = Annotated[TokenScoreConfig | RelativeScoreConfig, Field(discriminator="kind")]


class HomogeneousConfig(Config):
    """Every head attends to one order; with token scores this is multi-head attention."""

    kind: Literal["homogeneous"] = "homogeneous"


class AttentionConfig(Config):
    """One attention block: a score and an arrangement."""

    score: ScoreConfig = TokenScoreConfig()
    arrangement: HomogeneousConfig = HomogeneousConfig()


class AttentionsConfig(Config):
    """The attention of each use, switchable on its own."""

    encoder_self: AttentionConfig = AttentionConfig()
    decoder_self: AttentionConfig = AttentionConfig()
    cross: AttentionConfig = AttentionConfig()

    @model_validator(mode="after")
    def _cross_has_no_distance(self) -> AttentionsConfig:
        if self.cross.score.kind == "relative":
            raise ValueError(
                "relative scores are for self-attention: source and target positions have no common distance"
            )
        return self


class TransformerEncoderConfig(Config):
    """A stack of self-attention and feed-forward layers."""

    kind: Literal["transformer"] = "transformer"
    layers: Annotated[int, Field(ge=1, le=100)] = 6


class TransformerDecoderConfig(Config):
    """A stack of causal self-attention, cross-attention and feed-forward layers."""

    kind: Literal["transformer"] = "transformer"
    layers: Annotated[int, Field(ge=1, le=100)] = 6


class SinusoidConfig(Config):
    """Fixed sinusoid position vectors, added to the embeddings."""

    kind: Literal["sinusoid"] = "sinusoid"
    layout: Literal["halves", "interleaved", "t2t"] = "halves"


class NoPositionsConfig(Config):
    """No position vectors (for relative attention)."""

    kind: Literal["none"] = "none"


PositionsConfig = Annotated[SinusoidConfig | NoPositionsConfig, Field(discriminator="kind")]


class SoftmaxConfig(Config):
    """Softmax over the target vocabulary, with label smoothing in training (spec §7)."""

    kind: Literal["softmax"] = "softmax"
    bias: bool = False
    label_smoothing: Fraction = 0.1
    smoothing: Literal["uniform", "t2t", "kl"] = "uniform"


class ModelConfig(Config):
    """A translation model. `preset` fills in sizes; every other key stands over it.

    `tied`: three_way (source, target and output share one matrix; needs a joint vocabulary), two_way (target and output),
    none. `norm`: where the layer normalisation stands. Dropout rates: `dropout` on embeddings and sub-layer outputs,
    `attention_dropout` on attention weights, `ffn_dropout` inside the feed-forward layer.
    """

    preset: Literal["tiny", "small", "base", "big"] | None = None
    width: Annotated[int, Field(ge=2, le=16384)] = 512
    heads: Annotated[int, Field(ge=1, le=256)] = 8
    ffn_width: Annotated[int, Field(ge=1, le=65536)] = 2048
    encoder: TransformerEncoderConfig = TransformerEncoderConfig()
    decoder: TransformerDecoderConfig = TransformerDecoderConfig()
    attention: AttentionsConfig = AttentionsConfig()
    positions: PositionsConfig = SinusoidConfig()
    output: SoftmaxConfig = SoftmaxConfig()
    norm: Literal["pre", "post"] = "pre"
    tied: Literal["three_way", "two_way", "none"] = "three_way"
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.1
    ffn_dropout: Fraction = 0.0

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("preset") not in PRESETS:
            return value
        filled = dict(PRESETS[value["preset"]])
        for key, given in value.items():
            below = filled.get(key)
            filled[key] = {**below, **given} if isinstance(below, dict) and isinstance(given, dict) else given
        return filled

    @model_validator(mode="after")
    def _sizes_fit(self) -> ModelConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.width % 2 and self.positions.kind == "sinusoid":
            raise ValueError(f"width {self.width} is odd: sinusoid positions need pairs of channels")
        return self
