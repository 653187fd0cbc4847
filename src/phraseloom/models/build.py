"""The only code that turns a model configuration into modules."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from phraseloom.errors import ModelError
from phraseloom.layers.attention import MultiHeadAttention, build_attention
from phraseloom.layers.combination import AttentiveCombination
from phraseloom.layers.embeddings import Sinusoid, TokenEmbedding
from phraseloom.layers.feedforward import FeedForward
from phraseloom.layers.phrase_representation import SCORERS, PhraseRepresentation
from phraseloom.layers.recurrent import CELLS
from phraseloom.layers.recurrent_attention import ATTENTIONS, BlockAttention
from phraseloom.layers.residual import NORM_EPSILON, Residual
from phraseloom.layers.segments import FixedSegmenter
from phraseloom.layers.transparent import TransparentAttention
from phraseloom.models.config import ModelConfig, PositionsConfig, RecurrentDecoderConfig, RecurrentEncoderConfig
from phraseloom.models.decoder import TransformerDecoder, TransformerDecoderLayer
from phraseloom.models.encoder import NoEncoder, TransformerEncoder, TransformerEncoderLayer
from phraseloom.models.language_model import CausalDecoder, CausalLayer, LanguageModel
from phraseloom.models.language_model_config import LanguageModelConfig
from phraseloom.models.phrase_config import FixedSegmentsConfig, PhrasesConfig
from phraseloom.models.phrases import SourcePhrases
from phraseloom.models.recurrent import RecurrentDecoder, RecurrentEncoder
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

    def embedding(weight: nn.Parameter, positions: PositionsConfig) -> TokenEmbedding:
        norm = nn.LayerNorm(config.width, eps=NORM_EPSILON) if config.embedding_norm else None
        return TokenEmbedding(weight, positions=_positions(config, positions), dropout=config.dropout, norm=norm)

    return TranslationModel(
        source_embedding=embedding(source_weight, config.positions.source),
        target_embedding=embedding(target_weight, config.positions.target),
        encoder=ENCODERS[config.encoder.kind](config),
        decoder=DECODERS[config.decoder.kind](config),
        output=_output(config, output_weight),
        phrases=None if config.phrases is None else _phrases(config, config.phrases),
    )


def build_language_model(config: LanguageModelConfig, size: int) -> LanguageModel:
    """A freshly initialised language model for a vocabulary of this size; the caller seeds torch."""
    weight = _matrix(config, size)
    output_weight = weight if config.tied == "two_way" else _matrix(config, size)
    return LanguageModel(
        embedding=TokenEmbedding(weight, positions=_positions(config, config.positions), dropout=config.dropout),
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


def _positions(config: AnyModelConfig, positions: PositionsConfig) -> Sinusoid | None:
    if positions.kind == "none":
        return None
    return Sinusoid(width=config.width, layout=positions.layout)


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
        wanted = wanted and levels > 1  # of the one level of an encoder-free model there is nothing to mix
        return TransparentAttention(levels=levels, layers=layers, dropout=config.dropout) if wanted else None

    return SourcePhrases(
        segmenter=FixedSegmenter(**segments.model_dump(exclude={"kind"}))
        if isinstance(segments, FixedSegmentsConfig)
        else None,
        representations=[representation() for _ in range(levels)],
        transparent=mixture(phrases.transparent),
        transparent_tokens=mixture(phrases.transparent_tokens),
    )


def _transformer_encoder(config: ModelConfig) -> TransformerEncoder:
    layers = [_encoder_layer(config) for _ in range(config.encoder.layers)]
    return TransformerEncoder(layers, width=config.width, final_norm=config.norm == "pre")


def _recurrent_encoder(config: ModelConfig) -> RecurrentEncoder:
    options, width = config.encoder, config.width
    assert isinstance(options, RecurrentEncoderConfig)
    cell = CELLS[options.cell]
    layers = [
        [cell(input_width=width, width=width // 2) for _ in range(2)]
        if number < options.bidirectional
        else [cell(input_width=width, width=width)]
        for number in range(options.layers)
    ]
    keep_final = isinstance(config.decoder, RecurrentDecoderConfig) and config.decoder.initial == "final"
    return RecurrentEncoder(layers, residual=options.residual, dropout=options.dropout, keep_final=keep_final)


def _transformer_decoder(config: ModelConfig) -> TransformerDecoder:
    layers = [_decoder_layer(config) for _ in range(config.decoder.layers)]
    return TransformerDecoder(layers, width=config.width, final_norm=config.norm == "pre")


def _recurrent_decoder(config: ModelConfig) -> RecurrentDecoder:
    options, width = config.decoder, config.width
    assert isinstance(options, RecurrentDecoderConfig)
    cell = CELLS[options.cell]
    if options.attention == "multihead":
        attention: nn.Module = BlockAttention(_attention(config, "cross"))
    else:
        attention = ATTENTIONS[options.attention](width=width)
    first = 2 * width if options.input_feeding else width
    return RecurrentDecoder(
        [cell(input_width=first if number == 0 else width, width=width) for number in range(options.layers)],
        attention=attention,
        width=width,
        **options.model_dump(include={"initial", "input_feeding", "residual", "hidden_dropout", "dropout"}),
    )


ENCODERS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "transformer": _transformer_encoder,
    "recurrent": _recurrent_encoder,
    "none": lambda config: NoEncoder(),
}
DECODERS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "transformer": _transformer_decoder,
    "recurrent": _recurrent_decoder,
}


def _causal_layer(config: LanguageModelConfig) -> CausalLayer:
    return CausalLayer(
        self_attention=_attention(config, "decoder_self"),
        feed_forward=_feed_forward(config),
        residuals=(_residual(config), _residual(config)),
    )
