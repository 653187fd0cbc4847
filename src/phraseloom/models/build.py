"""Build models from their configuration. No other code turns options into modules."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import torch
from torch import nn

from phraseloom.errors import ModelError
from phraseloom.layers.attention import MultiHeadAttention, build_attention
from phraseloom.layers.embeddings import Sinusoid, TokenEmbedding
from phraseloom.layers.feedforward import FeedForward, Residual
from phraseloom.layers.fertility import Fertility
from phraseloom.layers.initialisation import DRAWS, initialise, xavier_uniform
from phraseloom.layers.phrase_representation import (
    SCORERS,
    AttentiveCombination,
    PhraseRepresentation,
    TransparentAttention,
)
from phraseloom.layers.recurrent import ATTENTIONS, CELLS, BlockAttention, Cell
from phraseloom.layers.reordering import ReorderedEncoder, SoftReordering
from phraseloom.layers.segments import TensorSegmenter
from phraseloom.layers.table import TableEmbedding, TargetTable
from phraseloom.losses.vmf_normalizer import SMALLEST_DIMENSION
from phraseloom.models.decoder import TransformerDecoder, TransformerDecoderLayer
from phraseloom.models.encoder import NoEncoder, TransformerEncoder, TransformerEncoderLayer
from phraseloom.models.language_model import LanguageModel
from phraseloom.models.phrases import SourcePhrases
from phraseloom.models.recurrent import RecurrentDecoder, RecurrentEncoder
from phraseloom.models.translation import TranslationModel
from phraseloom.options.attention import AttentionConfig
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import (
    FixedSegmentsConfig,
    ModelConfig,
    NoEncoderConfig,
    PhrasesConfig,
    PositionsConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    SoftmaxConfig,
    VariationalDropoutConfig,
    WordOrPhraseConfig,
)
from phraseloom.options.segmental import EXTRA_TOKENS
from phraseloom.outputs import OUTPUTS, ContinuousOutput, SoftmaxOutput
from phraseloom.text.vocabulary import BOS, PAD

AnyModelConfig = ModelConfig | LanguageModelConfig

UNIFORM_EMBEDDINGS = {"small_uniform": 2.0, "xavier_uniform": 6.0}  # U(±√(this / (V + D)))


def build_model(config: ModelConfig, source_size: int, target_size: int, table: TargetTable | None = None) -> Any:
    """A newly initialised model for vocabularies of these sizes; seed torch first.

    `table`: the fixed vectors of the target vocabulary, for a continuous output. Raises ModelError if the configuration needs
    them, or a joint vocabulary, and there is none.
    """
    if config.tied == "three_way" and source_size != target_size:
        raise ModelError(
            f"tied: three_way shares one matrix, but the vocabularies have {source_size} and {target_size} entries",
            hint="prepare the data with joint subwords or set model.tied to two_way",
        )
    build_whole = MODELS.get(config.decoder.kind)
    ends = _ends(config, source_size, target_size if build_whole is None else target_size + EXTRA_TOKENS, table)
    parts: dict[str, Any] = dict(zip(("source_embedding", "target_embedding", "output"), ends, strict=True))
    parts["encoder"] = _reordered(config, ENCODERS[config.encoder.kind](config))
    model: Any
    if build_whole is not None:
        model = build_whole(config, **parts)
    else:
        decoder = DECODERS[config.decoder.kind](config)
        phrases = None if config.phrases is None else _phrases(config, config.phrases)
        model = TranslationModel(**parts, decoder=decoder, phrases=phrases, fertility=_fertility(config))
    start(model, config)
    return model


def build_language_model(config: LanguageModelConfig, size: int) -> LanguageModel:
    """A newly initialised language model for a vocabulary of this size; seed torch first."""
    weight = _matrix(size, config.width)
    output_weight = weight if config.tied == "two_way" else _matrix(size, config.width)
    model = LanguageModel(
        embedding=TokenEmbedding(
            weight,
            positions=_positions(config.width, config.positions),
            dropout=config.dropout,
            scaled=config.scale_embeddings,
        ),
        decoder=_transformer_decoder(config),
        output=_softmax(config.output, output_weight),
    )
    start(model, config)
    return model


def start(model: nn.Module, config: AnyModelConfig) -> None:
    """Draw the parameters by `config.init`; layers come with xavier_uniform, embeddings with N(0, 1/√D).

    The projection of a continuous output comes with the start of torch.
    """
    options = config.init
    if options.kind == "uniform":
        assert options.range is not None
        constant = {id(p) for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()}
        constant |= {id(m.gate) for m in model.modules() if isinstance(m, MultiHeadAttention)}
        for parameter in model.parameters():
            if id(parameter) not in constant:
                nn.init.uniform_(parameter, -options.range, options.range)
    elif options.kind != "xavier_uniform":
        initialise(model, DRAWS[options.kind])
    elif isinstance(output := getattr(model, "output", None), ContinuousOutput):
        initialise(output, xavier_uniform)  # not in its constructor: other kinds would get other random numbers
    for module in model.modules():
        if options.embeddings != "normal" and isinstance(module, TokenEmbedding | TableEmbedding | SoftmaxOutput):
            matrix = module.linear.weight if isinstance(module, TableEmbedding) else module.weight
            bound = (UNIFORM_EMBEDDINGS[options.embeddings] / sum(matrix.shape)) ** 0.5
            nn.init.uniform_(matrix, -bound, bound)
        if isinstance(module, Cell) and options.kind != "uniform":
            module.initialise(DRAWS.get(options.recurrent, xavier_uniform))
            if options.recurrent == "orthogonal":
                module.make_orthogonal()
        if isinstance(module, TransformerEncoderLayer | TransformerDecoderLayer):
            for part in module.children():
                phrases = isinstance(part, AttentiveCombination) and options.phrase_scale is not None
                scale = options.phrase_scale if phrases else options.branch_scale
                last = part.arrangement if isinstance(part, MultiHeadAttention) else part
                if scale != 1.0 and not isinstance(last, Residual):
                    for matrix in cast(Any, last).last_matrices():
                        matrix.detach().mul_(scale)


def _matrix(size: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(size, width).normal_(std=width**-0.5))


def _ends(
    config: ModelConfig, source_size: int, target_size: int, table: TargetTable | None
) -> tuple[TokenEmbedding, TokenEmbedding | TableEmbedding, SoftmaxOutput | ContinuousOutput]:
    """The embeddings of source and target, and the output; they share matrices according to `tied`."""
    width = config.embedding_width or config.width
    target_positions, source_positions = config.positions.target, config.positions.source

    def options(positions: PositionsConfig) -> dict[str, Any]:
        norm = nn.LayerNorm(width, eps=config.norm_epsilon) if config.embedding_norm else None
        scaled = config.scale_embeddings
        return {"positions": _positions(width, positions), "dropout": config.dropout, "norm": norm, "scaled": scaled}

    if isinstance(config.output, SoftmaxConfig):
        target = _matrix(target_size, width)
        source = target if config.tied == "three_way" else _matrix(source_size, width)
        output = _softmax(config.output, target if config.tied != "none" else _matrix(target_size, config.width))
        return (
            TokenEmbedding(source, **options(source_positions)),
            TokenEmbedding(target, **options(target_positions)),
            output,
        )
    if table is None or len(table) != target_size:
        raise ModelError(
            f"a {config.output.kind} output needs the vectors of the {target_size} target tokens, and the dataset has none",
            hint="prepare the data with data.subwords: {kind: words, vectors: FILE.vec}",
        )
    if table.width < SMALLEST_DIMENSION:
        raise ModelError(
            f"a {config.output.kind} output needs target vectors of {SMALLEST_DIMENSION} or more dimensions, not {table.width}",
            hint="prepare the data with wider vectors, or with a larger data.subwords.dimensions",
        )
    source_embedding = TokenEmbedding(_matrix(source_size, width), **options(source_positions))
    target_embedding = (
        TableEmbedding(table, width=width, **options(target_positions))
        if config.tied == "two_way"
        else TokenEmbedding(_matrix(target_size, width), **options(target_positions))
    )
    output_options = config.output.model_dump(exclude={"kind", "fertility"})
    output = OUTPUTS[config.output.kind](table, width=config.width, forbidden=(PAD, BOS), **output_options)
    return source_embedding, target_embedding, output


def _fertility(config: ModelConfig) -> Fertility | None:
    options = config.output.fertility if isinstance(config.output, WordOrPhraseConfig) else None
    if options is None:
        return None
    return Fertility(config.embedding_width or config.width, config.width, **options.model_dump())


def _positions(width: int, positions: PositionsConfig) -> Sinusoid | None:
    if positions.kind == "none":
        return None
    return Sinusoid(width=width, layout=positions.layout)


def _softmax(options: SoftmaxConfig, weight: nn.Parameter) -> SoftmaxOutput:
    return SoftmaxOutput(
        weight,
        bias=options.bias,
        label_smoothing=options.label_smoothing,
        smoothing=options.smoothing,
        forbidden=(PAD, BOS) if options.smoothing == "kl" else (),
        excluded=tuple({"pad": PAD, "bos": BOS}[name] for name in options.excluded),
    )


def _attention(config: AnyModelConfig, use: str) -> MultiHeadAttention:
    block: AttentionConfig = getattr(config.attention, use)
    return build_attention(
        width=config.width,
        heads=config.heads,
        reads_ahead=use == "encoder_self",
        dropout=config.attention_dropout,
        bias=config.attention_bias,
        backend=config.attention.backend,
        **block.arguments(),
    )


def _residual(config: AnyModelConfig) -> Residual:
    return Residual(width=config.width, norm=config.norm, dropout=config.dropout, epsilon=config.norm_epsilon)


def _feed_forward(config: AnyModelConfig) -> FeedForward | None:
    if isinstance(config, ModelConfig) and config.feed_forward == "interleaved":
        return None
    return FeedForward(
        width=config.width, inner=config.ffn_width, dropout=config.ffn_dropout, activation=config.activation
    )


def _encoder_layer(config: ModelConfig) -> TransformerEncoderLayer:
    attention, feed_forward = _attention(config, "encoder_self"), _feed_forward(config)  # in the order of random draws
    return TransformerEncoderLayer(
        attention=attention,
        feed_forward=feed_forward,
        residuals=[_residual(config) for _ in range(1 if feed_forward is None else 2)],
        combination=_combination(config),
    )


def _decoder_layer(config: AnyModelConfig) -> TransformerDecoderLayer:
    reads_source = isinstance(config, ModelConfig)
    self_attention = _attention(config, "decoder_self")
    cross_attention = _attention(config, "cross") if reads_source else None
    feed_forward = _feed_forward(config)
    return TransformerDecoderLayer(
        self_attention=self_attention,
        cross_attention=cross_attention,
        feed_forward=feed_forward,
        residuals=[_residual(config) for _ in range(1 + reads_source + (feed_forward is not None))],
        combination=_combination(config) if isinstance(config, ModelConfig) else None,
    )


def _combination(config: ModelConfig) -> AttentiveCombination | None:
    if config.phrases is None:
        return None
    inner_dropout = config.phrases.combination_dropout
    return AttentiveCombination(
        width=config.width,
        heads=config.heads,
        inner=config.ffn_width if config.phrases.combination_width is None else config.phrases.combination_width,
        residual=_residual(config),
        attention_dropout=config.attention_dropout,
        inner_dropout=config.dropout if inner_dropout is None else inner_dropout,
        attended_dropout=config.phrases.attended_dropout,
        add_attended=config.phrases.residual == "both",
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

    def mixture(requested: bool) -> TransparentAttention | None:
        if not requested or levels == 1:  # an encoder-free model has one level, nothing to mix
            return None
        return TransparentAttention(levels=levels, layers=layers, dropout=config.dropout)

    return SourcePhrases(
        segmenter=TensorSegmenter(**segments.model_dump(exclude={"kind"}))
        if isinstance(segments, FixedSegmentsConfig)
        else None,
        representations=[representation() for _ in range(levels)],
        transparent=mixture(phrases.transparent),
        transparent_tokens=mixture(phrases.transparent_tokens),
    )


def _reordered(config: ModelConfig, encoder: Any) -> Any:
    """The encoder, after the layers of soft reordering of the configuration."""
    if config.reordering is None:
        return encoder
    width, options = config.embedding_width or config.width, config.reordering
    layers = [SoftReordering(width=width, window=options.window) for _ in range(options.layers)]
    return ReorderedEncoder(encoder, layers)


def _transformer_encoder(config: ModelConfig) -> TransformerEncoder:
    layers = [_encoder_layer(config) for _ in range(config.encoder.layers)]
    return TransformerEncoder(layers, width=config.width, final_norm=config.norm == "pre", epsilon=config.norm_epsilon)


def _recurrent_encoder(config: ModelConfig) -> RecurrentEncoder:
    options, width = config.encoder, config.width
    assert isinstance(options, RecurrentEncoderConfig)
    cell = CELLS[options.cell]
    reads = [config.embedding_width or width] + [width] * (options.layers - 1)
    layers = [
        [cell(input_width=reads[number], width=width // 2) for _ in range(2)]
        if number < options.bidirectional
        else [cell(input_width=reads[number], width=width)]
        for number in range(options.layers)
    ]
    keep_final = isinstance(config.decoder, RecurrentDecoderConfig) and config.decoder.initial == "final"
    return RecurrentEncoder(
        layers,
        residual=options.residual,
        dropout=options.dropout,
        keep_final=keep_final,
        variational=_rates(options.variational_dropout),
        norm=nn.LayerNorm(width, eps=config.norm_epsilon) if options.memory_norm else None,
    )


def _rates(options: VariationalDropoutConfig) -> tuple[float, float]:
    return options.inputs, options.states


def _no_encoder(config: ModelConfig) -> NoEncoder:
    assert isinstance(config.encoder, NoEncoderConfig)
    width = config.embedding_width or config.width
    return NoEncoder(nn.LayerNorm(width, eps=config.norm_epsilon) if config.encoder.memory_norm else None)


def _transformer_decoder(config: AnyModelConfig) -> TransformerDecoder:
    layers = [_decoder_layer(config) for _ in range(config.decoder.layers)]
    return TransformerDecoder(layers, width=config.width, final_norm=config.norm == "pre", epsilon=config.norm_epsilon)


def _recurrent_decoder(config: ModelConfig) -> RecurrentDecoder:
    options, width = config.decoder, config.width
    assert isinstance(options, RecurrentDecoderConfig)
    cell = CELLS[options.cell]
    if options.attention == "multihead":
        attention: nn.Module = BlockAttention(_attention(config, "cross"))
    else:
        attention = ATTENTIONS[options.attention](width=width)
    embedded = config.embedding_width or width
    first = embedded + width if options.input_feeding else embedded
    return RecurrentDecoder(
        [cell(input_width=first if number == 0 else width, width=width) for number in range(options.layers)],
        attention=attention,
        width=width,
        variational=_rates(options.variational_dropout),
        **options.model_dump(include={"initial", "input_feeding", "residual", "hidden_dropout", "dropout"}),
    )


def _lazy(module: str, name: str) -> Callable[..., nn.Module]:
    """A builder of another package, imported at its first call."""

    def build(*args: Any, **kwargs: Any) -> nn.Module:
        model: nn.Module = getattr(import_module(module), name)(*args, **kwargs)
        return model

    return build


ENCODERS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "transformer": _transformer_encoder,
    "recurrent": _recurrent_encoder,
    "columns": _lazy("phraseloom.npmt.model", "columns_encoder"),
    "none": _no_encoder,
}
DECODERS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "transformer": _transformer_decoder,
    "recurrent": _recurrent_decoder,
}

# Decoder kinds with a model class of their own, built from embeddings, output and encoder.
MODELS: dict[str, Callable[..., nn.Module]] = {"segmental": _lazy("phraseloom.npmt.model", "segmental_model")}
