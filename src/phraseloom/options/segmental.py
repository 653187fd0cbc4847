"""Options of models that write segments (NPMT). No torch here: recipes are checked without it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from phraseloom.config import Config

# START and END follow the target vocabulary.
EXTRA_TOKENS = 2


Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
# Masks are drawn in steps of 1/65536 (layers/feedforward.py), and some units must remain.
DropoutRate = Annotated[float, Field(ge=0.0, le=0.9999)]


class ColumnsEncoderConfig(Config):
    """Two columns of recurrent layers; one starts forwards, one backwards, and the direction alternates with each layer.

    `width`: of each column (null: half the model's); `dropout` acts between layers and on the output.
    """

    kind: Literal["columns"]
    layers: Annotated[int, Field(ge=1, le=100)] = 2
    cell: Literal["lstm", "gru"] = "gru"
    width: Annotated[int, Field(ge=1, le=16384)] | None = None
    dropout: DropoutRate = 0.0


class ApproximationConfig(Config):
    """What training leaves out of the sum over all segmentations; scores, validation losses and search stay exact.

    `posterior`: the segments of a position and a start give a word no gradient if their posterior probability of holding it
    is together below this; the likelihood still counts all segments.
    `band`: count only segments that begin and end within this many target tokens of the diagonal of the pair; this gives a
    lower bound of the likelihood (null: count all).
    `negatives`: the softmax counts the words of the batch and this number of others, sampled for each batch, which represent
    the rest of the vocabulary (`npmt/sampled.py`; null: count all).
    """

    posterior: Fraction = 0.0
    band: Annotated[float, Field(ge=0.5, le=1000)] | None = None
    negatives: Annotated[int, Field(ge=1)] | None = None


class SegmentalDecoderConfig(Config):
    """Each source position writes a segment of 0 to `max_segment` target tokens by recurrent layers that start from its state.

    `connect`: they also start from recurrent layers that have read the earlier target. `dropout` acts after each layer.
    `approximation`: what training leaves out (null: nothing).
    """

    kind: Literal["segmental"]
    layers: Annotated[int, Field(ge=1, le=100)] = 2
    cell: Literal["lstm", "gru"] = "gru"
    max_segment: Annotated[int, Field(ge=1, le=100)] = 6
    connect: bool = False
    dropout: DropoutRate = 0.0
    approximation: ApproximationConfig | None = None


class ReorderingConfig(Config):
    """Layers that mix each source token with its neighbours in a window, before the encoder."""

    window: Annotated[int, Field(ge=1, le=99)] = 7
    layers: Annotated[int, Field(ge=1, le=100)] = 1

    @field_validator("window")
    @classmethod
    def _has_a_middle(cls, window: int) -> int:
        if window % 2 == 0:
            raise ValueError(f"a window of {window} tokens has no middle: it is odd")
        return window


def fill_segmental(value: Any) -> Any:
    """`value` with the defaults for a segmental decoder: no label smoothing, no tied matrices."""
    if not isinstance(value, dict):
        return value
    decoder, output = value.get("decoder"), value.get("output", {})
    kind = decoder.get("kind") if isinstance(decoder, dict) else getattr(decoder, "kind", None)
    if kind != "segmental":
        return value
    if isinstance(output, dict):
        output = {"label_smoothing": 0.0, **output} if output.get("kind", "softmax") == "softmax" else output
    return {"tied": "none", **value, "output": output}


def check_segmental(config: Any) -> None:
    """Raise ValueError if a ModelConfig has options that columns or segments do not support."""
    if config.encoder.kind == "columns":
        if config.encoder.width is None and config.width % 2:
            raise ValueError(
                f"width {config.width} is odd: each column has half of it, unless encoder.width says another"
            )
        if config.phrases is not None:
            raise ValueError("phrases are made at every layer of an encoder; the two columns have no layers in common")
    if config.decoder.kind != "segmental":
        return
    if config.phrases is not None:
        raise ValueError("phrases are read by the layers of a Transformer decoder; the decoder here is segmental")
    if config.output.kind != "softmax":
        raise ValueError(
            f"output.kind: {config.output.kind} has no end of a segment; a segmental decoder needs a softmax"
        )
    if config.output.label_smoothing:
        raise ValueError(
            "a segmental model is trained on the sum over all segmentations: output.label_smoothing must be 0"
        )
    if config.tied == "three_way":
        raise ValueError(
            "tied: three_way shares one matrix, but only the target of a segmental model has START and END"
        )
    if config.positions.target.kind != "none":
        raise ValueError("positions.target: a segmental decoder reads its words in order, and has none")
