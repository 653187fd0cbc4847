"""Options of a language model: a decoder without encoder and cross-attention. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from phraseloom.config import Config, KeyPath, or_short, with_former_keys
from phraseloom.options.attention import LINE, AttentionConfig, BackendOptions
from phraseloom.options.model import (
    FORMER_KEYS,
    DropoutRate,
    InitConfig,
    PositionsConfig,
    SinusoidConfig,
    SoftmaxConfig,
    TransformerDecoderConfig,
    check_init,
    check_sizes,
    fill_init,
    fill_preset,
)


class CausalAttentionConfig(BackendOptions):
    """The attention of a language model: each token attends to itself and earlier tokens. One line is enough."""

    model_config = ConfigDict(json_schema_extra=or_short(LINE))

    decoder_self: AttentionConfig = AttentionConfig()

    @model_validator(mode="before")
    @classmethod
    def _from_line(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"decoder_self": value}
        others = [use for use in ("encoder_self", "cross") if isinstance(value, dict) and use in value]
        if others:
            raise ValueError(f"{others[0]} has no meaning in a language model, whose only attention is decoder_self")
        return value


class LanguageModelConfig(Config):
    """A language model. `preset` sets sizes; every other key overrides it.

    The keys are those of a translation model without its encoder. `tied`: two_way (one matrix for embeddings and output) or
    none. `output.label_smoothing` is 0 by default, because perplexity is the measure.
    """

    model_config = ConfigDict(json_schema_extra=with_former_keys)
    former_keys: ClassVar[Mapping[str, KeyPath]] = FORMER_KEYS

    preset: Literal["tiny", "small", "base", "big"] | None = None
    width: Annotated[int, Field(ge=2, le=16384)] = 512
    heads: Annotated[int, Field(ge=1, le=256)] = 8
    ffn_width: Annotated[int, Field(ge=1, le=65536)] = 2048
    decoder: TransformerDecoderConfig = TransformerDecoderConfig()
    attention: CausalAttentionConfig = CausalAttentionConfig()
    positions: PositionsConfig = SinusoidConfig()
    output: SoftmaxConfig = SoftmaxConfig()
    init: InitConfig = InitConfig()
    scale_embeddings: bool = True
    norm: Literal["pre", "post"] = "pre"
    norm_epsilon: Annotated[float, Field(gt=0.0, le=0.1)] = 1e-6
    attention_bias: bool = False
    activation: Literal["relu", "swish", "gelu"] = "relu"
    tied: Literal["two_way", "none"] = "two_way"
    dropout: DropoutRate = 0.1
    attention_dropout: DropoutRate = 0.1
    ffn_dropout: DropoutRate = 0.0

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "encoder" in value:
            raise ValueError("encoder has no meaning in a language model, which has a decoder only")
        if value.get("tied") == "three_way":
            raise ValueError("tied: three_way needs a source; a language model has two_way or none")
        filled = fill_init(fill_preset(value, without=("encoder",)))
        output = filled.get("output", {})
        return {**filled, "output": {"label_smoothing": 0.0, **output}} if isinstance(output, dict) else filled

    @model_validator(mode="after")
    def _sizes_fit(self) -> LanguageModelConfig:
        check_sizes(self)
        check_init(self)
        return self
