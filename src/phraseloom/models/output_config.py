"""Options of the output layers. No torch here: recipes are checked without it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from phraseloom.config import Config, Whole

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class SoftmaxConfig(Config):
    """Softmax over the target vocabulary, with label smoothing in training (spec §7).

    `excluded`: special tokens that are no classes: their probability is 0, as that of the start token in models of Marian. It
    needs `bias: true` and `smoothing: kl`, which puts no mass on them.
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


class ContinuousConfig(Config):
    """A vector near the fixed vector of the word (P003; spec §4): data with `subwords: {kind: words, vectors: FILE}`.

    `loss`: see spec §4.3; lambda1 and lambda2 are of the regularised forms, lambda_released of the released one.
    `approximation` of the von Mises-Fisher normaliser: exact, as the published program has it, or with the bound of spec §4.2.
    `hidden_layer`: one more layer, with ReLU, before the vector.
    """

    kind: Literal["continuous"]
    loss: Literal[
        "vmf", "vmf_reg1", "vmf_reg2", "vmf_reg1_reg2", "vmf_released", "cosine", "l2", "max_margin"
    ] = "vmf_released"  # fmt: skip
    lambda1: Annotated[float, Field(ge=0.0)] = 0.02
    lambda2: PositiveFloat = 0.1
    lambda_released: float = 0.2
    approximation: Literal["exact", "released", "bound"] = "exact"
    hidden_layer: bool = False


class FertilityConfig(Config):
    """The module that says of each source token whether it gives a word or a phrase (spec §4.8); `fertility train` adds it.

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
    """Continuous output over words and phrases. `score`: how the gate of the `fertility` module, if there is one, is applied
    (spec §4.9): mixture is log λ + log density, the others are those of the paper and of the published program."""

    kind: Literal["word_or_phrase"]  # type: ignore[assignment]
    score: Literal["mixture", "density", "released"] = "mixture"
    fertility: FertilityConfig | None = None


OutputConfig = Annotated[SoftmaxConfig | ContinuousConfig | WordOrPhraseConfig, Field(discriminator="kind")]
