"""Source phrase representations, as data (P001; spec §3). No torch here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from phraseloom.config import Config

Tokens = Annotated[int, Field(ge=1, le=10_000)]


class FixedSegmentsConfig(Config):
    """Phrases of max(min(`max_tokens`, ⌈tokens / `min_chunks`⌉), `floor`) subwords (spec §3.1).

    `basis`: tokens of the sentence, or of the padded batch as in the released code, where a translation depends on its
    batch.
    """

    kind: Literal["fixed"] = "fixed"
    max_tokens: Tokens = 8
    min_chunks: Tokens = 6
    floor: Tokens = 3
    basis: Literal["sentence", "batch"] = "sentence"


class DatasetSegmentsConfig(Config):
    """The phrases that the dataset was prepared with: those of trees or of a phrase table (`data.phrases`)."""

    kind: Literal["dataset"] = "dataset"


SegmentsConfig = Annotated[FixedSegmentsConfig | DatasetSegmentsConfig, Field(discriminator="kind")]


class PhrasesConfig(Config):
    """Phrase vectors at every level of the encoder, and a combination network in every layer.

    `glance` and `attention` say how a phrase vector is made (none: it is the glance). `transparent`: every decoder layer has
    its own mixture of all levels; else all get the last. `transparent_tokens`: the same for the token states. `residual`: the
    combination network adds token and attended phrases to its output (both: the released code) or the token alone (token: the
    paper's text). `combination_width`: f of the combination network (null: `ffn_width`, as in the paper). `scorer_width`: h of
    the scorer (null: `width`).
    """

    segments: SegmentsConfig = FixedSegmentsConfig()
    glance: Literal["max", "mean"] = "max"
    attention: Literal["none", "softmax", "gated"] = "softmax"
    transparent: bool = True
    transparent_tokens: bool = False
    residual: Literal["both", "token"] = "both"
    combination_width: Annotated[int, Field(ge=1, le=65536)] | None = None
    scorer_width: Annotated[int, Field(ge=1, le=65536)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> PhrasesConfig:
        if self.attention == "none" and self.scorer_width is not None:
            raise ValueError("scorer_width has no meaning with attention: none")
        return self
