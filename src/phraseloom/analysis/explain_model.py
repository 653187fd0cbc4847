"""What a loaded model is, in one line: its parts, and the kind of each of its attentions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phraseloom.decoding.segmental import is_segmental
from phraseloom.errors import plural
from phraseloom.layers.attention import ARRANGEMENTS, SCORES
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.config import KindEntry
from phraseloom.layers.recurrent_attention import ATTENTIONS
from phraseloom.layers.reordering import ReorderedEncoder
from phraseloom.models.encoder import TransformerEncoder
from phraseloom.models.recurrent import RecurrentDecoder, RecurrentEncoder
from phraseloom.outputs import OUTPUTS

USE_NAMES = {"encoder-self": "encoder", "decoder-self": "decoder", "cross": "cross"}


def kind_of(attention: Any) -> str:
    """An attention as `layers/naming.py` writes it: `queryk heterogeneous 1-2`, `token`; also mlp, general."""
    recurrent = _name(attention, ATTENTIONS)
    if recurrent is not None:
        return recurrent
    block = getattr(attention, "block", attention)
    score, arrangement = _name(block.score, _loaded(SCORES)), _name(block.arrangement, _loaded(ARRANGEMENTS))
    if block.structure.is_token:
        return str(score)
    orders = _split(block.structure) if arrangement == "homogeneous" else "-".join(map(str, block.structure.orders))
    return f"{score} {arrangement} {orders}"


def _name(thing: Any, table: dict[str, Any]) -> str | None:
    return next((name for name, kind in table.items() if type(thing) is kind), None)


def _loaded(table: Mapping[str, KindEntry]) -> dict[str, Any]:
    return {name: entry.load() for name, entry in table.items()}


def _split(structure: Structure) -> str:
    heads = {part.order: part.last - part.first for block in structure.blocks for part in block}
    counts = [heads.get(order, 0) for order in range(1, max(heads) + 1)]
    return ("" if max(counts) < 10 else "-").join(map(str, counts))


def kinds(model: Any, use: str) -> list[str]:
    """The kind of each layer of one use of attention; none where there is no such attention. Of the attention to phrases it is
    what these are made of."""
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


def describe(model: Any) -> str:
    """Encoder and decoder with their layers, kinds of attention, source phrases, output."""
    if is_segmental(model):
        reads = ", each given the words before it" if model.connects else ""
        return f"segmental (NPMT): segments of up to {model.max_segment} subwords{reads}"
    parts = [_encoder(model.encoder), _decoder(model.decoder)]
    by_kind: dict[str, list[str]] = {}
    for use, name in USE_NAMES.items():
        for kind in dict.fromkeys(kinds(model, use)):
            by_kind.setdefault(kind, []).append(name)
    parts += [f"attention {kind} ({', '.join(names)})" for kind, names in by_kind.items()]
    if not model.decoder.cross_structures:
        parts.append("no attention to the source")
    if model.phrases is not None:
        parts.append("source phrase representations")
    output = _name(model.output, OUTPUTS)
    if output != "softmax":
        parts.append(f"output {output}" + (" with fertility" if model.fertility is not None else ""))
    return "; ".join(parts)


def _encoder(encoder: Any) -> str:
    if isinstance(encoder, ReorderedEncoder):
        return f"soft reordering, {_encoder(encoder.encoder)}"
    if isinstance(encoder, TransformerEncoder | RecurrentEncoder):
        name = "transformer" if isinstance(encoder, TransformerEncoder) else "recurrent"
        return f"{name} encoder of {plural(len(encoder.layers), 'layer')}"
    return "no encoder"


def _decoder(decoder: Any) -> str:
    if isinstance(decoder, RecurrentDecoder):
        return f"recurrent decoder of {plural(len(decoder.cells), 'layer')}"
    return f"transformer decoder of {plural(len(decoder.layers), 'layer')}"
