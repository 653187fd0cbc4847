"""From options to modules: the encoder of columns, soft reordering, the segmental model."""

from __future__ import annotations

from typing import Any

from torch import nn

from phraseloom.layers.embeddings import TokenEmbedding
from phraseloom.layers.recurrent import CELLS
from phraseloom.layers.reordering import ReorderedEncoder, SoftReordering
from phraseloom.models.columns import ColumnsEncoder
from phraseloom.models.config import ModelConfig
from phraseloom.models.segment_decoder import ResidualCells
from phraseloom.models.segmental import SegmentalModel, SegmentDecoder
from phraseloom.models.segmental_config import ColumnsEncoderConfig, SegmentalDecoderConfig
from phraseloom.outputs.softmax import SoftmaxOutput

EXTRA_TOKENS = 2
"""START and END, behind the target vocabulary."""


def columns_encoder(config: ModelConfig) -> ColumnsEncoder:
    """An entry of ENCODERS."""
    options: Any = config.encoder
    assert isinstance(options, ColumnsEncoderConfig)
    cell, width = CELLS[options.cell], options.width or config.width // 2
    embedded = config.embedding_width or config.width
    columns = [
        [cell(input_width=width if layer else embedded, width=width) for layer in range(options.layers)]
        for _ in range(2)
    ]
    return ColumnsEncoder(columns, width=config.width, dropout=options.dropout)


def reordered(config: ModelConfig, encoder: Any) -> Any:
    """The encoder, with the layers of soft reordering before it that the configuration asks for."""
    if config.reordering is None:
        return encoder
    width, options = config.embedding_width or config.width, config.reordering
    layers = [SoftReordering(width=width, window=options.window) for _ in range(options.layers)]
    return ReorderedEncoder(encoder, layers)


def segmental_model(
    config: ModelConfig,
    *,
    source_embedding: TokenEmbedding,
    target_embedding: TokenEmbedding,
    encoder: nn.Module,
    output: SoftmaxOutput,
) -> SegmentalModel:
    """A segmental model from its ends, which have rows for START and END, and its encoder."""
    options: Any = config.decoder
    assert isinstance(options, SegmentalDecoderConfig)
    target_embedding.dropout = 0.0  # spec §5.1: of the source alone
    cell, width = CELLS[options.cell], config.width
    embedded = config.embedding_width or width

    def cells() -> ResidualCells:
        layers = [cell(input_width=width if layer else embedded, width=width) for layer in range(options.layers)]
        return ResidualCells(layers, embedding_width=embedded, dropout=options.dropout)

    return SegmentalModel(
        source_embedding=source_embedding,
        target_embedding=target_embedding,
        encoder=encoder,
        decoder=SegmentDecoder(cells(), cells() if options.connect else None),
        output=output,
        max_segment=options.max_segment,
        approximation=options.approximation,
    )
