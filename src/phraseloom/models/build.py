"""The only code that turns a model configuration into modules."""

from __future__ import annotations

import torch
from torch import nn

from phraseloom.errors import ModelError
from phraseloom.layers.attention import MultiHeadAttention, build_attention
from phraseloom.layers.combination import AttentiveCombination
from phraseloom.layers.embeddings import Sinusoid, TokenEmbedding
from phraseloom.layers.feedforward import FeedForward
from phraseloom.layers.phrase_representation import SCORERS, PhraseRepresentation
from phraseloom.layers.residual import NORM_EPSILON, Residual
from phraseloom.layers.segments import FixedSegmenter
from phraseloom.layers.transparent import TransparentAttention
from phraseloom.models.config import ModelConfig
from phraseloom.models.decoder import TransformerDecoder, TransformerDecoderLayer
from phraseloom.models.encoder import TransformerEncoder, TransformerEncoderLayer
from phraseloom.models.language_model import CausalDecoder, CausalLayer, LanguageModel
from phraseloom.models.language_model_config import LanguageModelConfig
from phraseloom.models.phrase_config import FixedSegmentsConfig, PhrasesConfig
from phraseloom.models.phrases import SourcePhrases
from phraseloom.models.translation import TranslationModel
from phraseloom.outputs import OUTPUTS, SoftmaxOutput
from phraseloom.text.vocabulary import BOS, PAD

AnyModelConfig = ModelConfig | LanguageModelConfig


def build_model(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """A freshly initialised model for vocabularies of these sizes; the caller seeds torch.

    Raises ModelError where the configuration needs a joint vocabulary and there is none.
    """
    if config.tied == "three_way" and source_size != target_size:
        raise ModelError(
            f"tied: three_way shares one matrix, but the vocabularies have {source_size} and {target_size} entries",
            hint="prepare the data with joint subwords or set model.tied to two_way",
        )
    source_weight, target_weight, output_weight = _matrices(config, source_size, target_size)
    positions, pre = _positions(config), config.norm == "pre"

    def embedding(weight: nn.Parameter) -> TokenEmbedding:
        norm = nn.LayerNorm(config.width, eps=NORM_EPSILON) if config.embedding_norm else None
        return TokenEmbedding(weight, positions=positions, dropout=config.dropout, norm=norm)

    return TranslationModel(
        source_embedding=embedding(source_weight),
        target_embedding=embedding(target_weight),
        encoder=TransformerEncoder(
            [_encoder_layer(config) for _ in range(config.encoder.layers)], width=config.width, final_norm=pre
        ),
        decoder=TransformerDecoder(
            [_decoder_layer(config) for _ in range(config.decoder.layers)], width=config.width, final_norm=pre
        ),
        output=_output(config, output_weight),
        phrases=None if config.phrases is None else _phrases(config, config.phrases),
    )


def build_language_model(config: LanguageModelConfig, size: int) -> LanguageModel:
    """A freshly initialised language model for a vocabulary of this size; the caller seeds torch."""
    weight = _matrix(config, size)
    output_weight = weight if config.tied == "two_way" else _matrix(config, size)
    return LanguageModel(
        embedding=TokenEmbedding(weight, positions=_positions(config), dropout=config.dropout),
        decoder=CausalDecoder(
            [_causal_layer(config) for _ in range(config.decoder.layers)],
            width=config.width,
            final_norm=config.norm == "pre",
        ),
        output=_output(config, output_weight),
    )


def _matrix(config: AnyModelConfig, size: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(size, config.width).normal_(std=config.width**-0.5))


def _matrices(config: ModelConfig, source: int, target: int) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    target_weight = _matrix(config, target)
    source_weight = target_weight if config.tied == "three_way" else _matrix(config, source)
    output_weight = target_weight if config.tied != "none" else _matrix(config, target)
    return source_weight, target_weight, output_weight


def _positions(config: AnyModelConfig) -> Sinusoid | None:
    if config.positions.kind == "none":
        return None
    return Sinusoid(width=config.width, layout=config.positions.layout)


def _output(config: AnyModelConfig, weight: nn.Parameter) -> SoftmaxOutput:
    return OUTPUTS[config.output.kind](
        weight,
        bias=config.output.bias,
        label_smoothing=config.output.label_smoothing,
        smoothing=config.output.smoothing,
        forbidden=(PAD, BOS) if config.output.smoothing == "kl" else (),
    )


def _attention(config: AnyModelConfig, use: str) -> MultiHeadAttention:
    block = getattr(config.attention, use)
    score, arrangement = block.score.model_dump(exclude_none=True), block.arrangement.model_dump(exclude_none=True)
    return build_attention(
        width=config.width,
        heads=config.heads,
        score=score.pop("kind"),
        arrangement=arrangement.pop("kind"),
        reads_ahead=use == "encoder_self",
        dropout=config.attention_dropout,
        **score,
        **arrangement,
    )


def _residual(config: AnyModelConfig) -> Residual:
    return Residual(width=config.width, norm=config.norm, dropout=config.dropout)


def _feed_forward(config: AnyModelConfig) -> FeedForward:
    return FeedForward(width=config.width, inner=config.ffn_width, dropout=config.ffn_dropout)


def _encoder_layer(config: ModelConfig) -> TransformerEncoderLayer:
    return TransformerEncoderLayer(
        attention=_attention(config, "encoder_self"),
        feed_forward=_feed_forward(config),
        residuals=(_residual(config), _residual(config)),
        combination=_combination(config),
    )


def _decoder_layer(config: ModelConfig) -> TransformerDecoderLayer:
    return TransformerDecoderLayer(
        self_attention=_attention(config, "decoder_self"),
        cross_attention=_attention(config, "cross"),
        feed_forward=_feed_forward(config),
        residuals=(_residual(config), _residual(config), _residual(config)),
        combination=_combination(config),
    )


def _combination(config: ModelConfig) -> AttentiveCombination | None:
    if config.phrases is None:
        return None
    return AttentiveCombination(
        width=config.width,
        heads=config.heads,
        inner=config.phrases.combination_width or config.ffn_width,
        residual=_residual(config),
        attention_dropout=config.attention_dropout,
        inner_dropout=config.dropout,
    )


def _phrases(config: ModelConfig, phrases: PhrasesConfig) -> SourcePhrases:
    levels, layers, segments = config.encoder.layers + 1, config.decoder.layers, phrases.segments

    def representation() -> PhraseRepresentation:
        scorer = SCORERS.get(phrases.attention)
        inner = phrases.scorer_width or config.width
        return PhraseRepresentation(
            glance=phrases.glance,
            scorer=None if scorer is None else scorer(width=config.width, inner=inner, dropout=config.dropout),
        )

    def mixture(wanted: bool) -> TransparentAttention | None:
        return TransparentAttention(levels=levels, layers=layers, dropout=config.dropout) if wanted else None

    return SourcePhrases(
        segmenter=FixedSegmenter(**segments.model_dump(exclude={"kind"}))
        if isinstance(segments, FixedSegmentsConfig)
        else None,
        representations=[representation() for _ in range(levels)],
        transparent=mixture(phrases.transparent),
        transparent_tokens=mixture(phrases.transparent_tokens),
    )


def _causal_layer(config: LanguageModelConfig) -> CausalLayer:
    return CausalLayer(
        self_attention=_attention(config, "decoder_self"),
        feed_forward=_feed_forward(config),
        residuals=(_residual(config), _residual(config)),
    )
