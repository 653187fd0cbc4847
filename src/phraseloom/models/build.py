"""The only code that turns a model configuration into modules."""

from __future__ import annotations

import torch
from torch import nn

from phraseloom.errors import ModelError
from phraseloom.layers.attention import ARRANGEMENTS, SCORES, MultiHeadAttention
from phraseloom.layers.embeddings import Sinusoid, TokenEmbedding
from phraseloom.layers.feedforward import FeedForward
from phraseloom.layers.residual import Residual
from phraseloom.models.config import AttentionConfig, ModelConfig
from phraseloom.models.decoder import TransformerDecoder, TransformerDecoderLayer
from phraseloom.models.encoder import TransformerEncoder, TransformerEncoderLayer
from phraseloom.models.translation import TranslationModel
from phraseloom.outputs import OUTPUTS
from phraseloom.text.vocabulary import BOS, PAD


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
    positions = (
        Sinusoid(width=config.width, layout=config.positions.layout) if config.positions.kind == "sinusoid" else None
    )
    pre = config.norm == "pre"
    return TranslationModel(
        source_embedding=TokenEmbedding(source_weight, positions=positions, dropout=config.dropout),
        target_embedding=TokenEmbedding(target_weight, positions=positions, dropout=config.dropout),
        encoder=TransformerEncoder(
            [_encoder_layer(config) for _ in range(config.encoder.layers)], width=config.width, final_norm=pre
        ),
        decoder=TransformerDecoder(
            [_decoder_layer(config) for _ in range(config.decoder.layers)], width=config.width, final_norm=pre
        ),
        output=OUTPUTS[config.output.kind](
            output_weight,
            bias=config.output.bias,
            label_smoothing=config.output.label_smoothing,
            smoothing=config.output.smoothing,
            forbidden=(PAD, BOS) if config.output.smoothing == "kl" else (),
        ),
    )


def _matrices(config: ModelConfig, source: int, target: int) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    def make(size: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(size, config.width).normal_(std=config.width**-0.5))

    target_weight = make(target)
    source_weight = target_weight if config.tied == "three_way" else make(source)
    output_weight = target_weight if config.tied != "none" else make(target)
    return source_weight, target_weight, output_weight


def _attention(config: ModelConfig, block: AttentionConfig) -> MultiHeadAttention:
    keys = {k: v for k, v in block.score.model_dump().items() if k != "kind"}
    score = SCORES[block.score.kind](width=config.width, heads=config.heads, **keys)
    arrangement = ARRANGEMENTS[block.arrangement.kind](width=config.width, dropout=config.attention_dropout)
    return MultiHeadAttention(score=score, arrangement=arrangement)


def _residual(config: ModelConfig) -> Residual:
    return Residual(width=config.width, norm=config.norm, dropout=config.dropout)


def _feed_forward(config: ModelConfig) -> FeedForward:
    return FeedForward(width=config.width, inner=config.ffn_width, dropout=config.ffn_dropout)


def _encoder_layer(config: ModelConfig) -> TransformerEncoderLayer:
    return TransformerEncoderLayer(
        attention=_attention(config, config.attention.encoder_self),
        feed_forward=_feed_forward(config),
        residuals=(_residual(config), _residual(config)),
    )


def _decoder_layer(config: ModelConfig) -> TransformerDecoderLayer:
    return TransformerDecoderLayer(
        self_attention=_attention(config, config.attention.decoder_self),
        cross_attention=_attention(config, config.attention.cross),
        feed_forward=_feed_forward(config),
        residuals=(_residual(config), _residual(config), _residual(config)),
    )
