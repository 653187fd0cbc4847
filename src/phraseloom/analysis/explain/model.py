"""A one-line description of a loaded model: its parts, and the kind of each attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from phraseloom.data.tensors import Batch
from phraseloom.layers.attention import ARRANGEMENTS, SCORES
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.recurrent import ATTENTIONS
from phraseloom.models.recurrent import RecurrentDecoder
from phraseloom.options.attention import KindEntry

EXPLAINERS = {"tokens": "phraseloom.analysis.explain.tokens", "segments": "phraseloom.npmt.analysis"}
"""The module with the functions of `Explainer`, by what a model `writes`."""


class Explainer(Protocol):
    """The functions that explain one way of writing a target."""

    def describe(self, model: Any) -> str:
        """The model in one line."""
        ...

    def note(self, model: Any) -> str | None:
        """A note on what the model lacks, if anything."""
        ...

    def fill_view(
        self, view: dict[str, Any], translator: Any, pair: Any, batch: Batch, uses: Sequence[str]
    ) -> dict[str, Any]:
        """The view of a pair (schema: `analysis/explain/sentence.py`) with the model's part filled in."""
        ...


def explainer_of(model: Any) -> Explainer:
    """The functions for the way in which `model` writes."""
    return cast(Explainer, import_module(EXPLAINERS[model.writes]))


def describe(model: Any) -> str:
    """A model in one line: encoder and decoder with their layers, kinds of attention, source phrases, output."""
    return explainer_of(model).describe(model)


def kind_of(attention: Any) -> str:
    """The kind of an attention in the notation of `options/attention.py`, `queryk heterogeneous 1-2`; also mlp, general."""
    recurrent = name_of(attention, ATTENTIONS)
    if recurrent is not None:
        return recurrent
    block = getattr(attention, "block", attention)
    score, arrangement = name_of(block.score, _loaded(SCORES)), name_of(block.arrangement, _loaded(ARRANGEMENTS))
    if block.structure.is_token:
        return str(score)
    orders = _split(block.structure) if arrangement == "homogeneous" else "-".join(map(str, block.structure.orders))
    return f"{score} {arrangement} {orders}"


def name_of(thing: Any, table: dict[str, Any]) -> str | None:
    """The name of the class of `thing` in a table."""
    return next((name for name, kind in table.items() if type(thing) is kind), None)


def _loaded(table: Mapping[str, KindEntry]) -> dict[str, Any]:
    return {name: entry.load() for name, entry in table.items()}


def _split(structure: Structure) -> str:
    heads = {part.order: part.last - part.first for block in structure.blocks for part in block}
    counts = [heads.get(order, 0) for order in range(1, max(heads) + 1)]
    return ("" if max(counts) < 10 else "-").join(map(str, counts))


def kinds(model: Any, use: str) -> list[str]:
    """The kind of each layer of one use of attention, empty without such attention; for attention to phrases, their origin."""
    encoder, decoder = model.encoder, model.decoder
    if use == "encoder-phrases":
        return [f"phrases of {_level(i)}" for i in range(len(encoder.layers))] if _reads_phrases(encoder) else []
    if use == "decoder-phrases":
        return [f"phrases of {_levels_read(model)}"] * len(decoder.layers) if _reads_phrases(decoder) else []
    if use == "encoder-self":
        return [kind_of(layer.attention) for layer in encoder.layers] if encoder.structures else []
    if use == "decoder-self":
        return [kind_of(layer.self_attention) for layer in decoder.layers] if decoder.own_structures else []
    if not decoder.cross_structures:
        return []
    if isinstance(decoder, RecurrentDecoder):
        return [kind_of(decoder.attention)]
    return [kind_of(layer.cross_attention) for layer in decoder.layers]


def _reads_phrases(stack: Any) -> bool:
    return any(getattr(layer, "combination", None) is not None for layer in getattr(stack, "layers", ()))


def _level(number: int) -> str:
    return f"encoder {number}" if number else "embeddings"


def _levels_read(model: Any) -> str:
    levels = len(model.phrases.representations)
    return _level(levels - 1) if model.phrases.transparent is None or levels == 1 else "all levels"
