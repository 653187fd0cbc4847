"""Explain a model that writes token by token: its description, and attention, phrase vectors and gate of a sentence pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from phraseloom.analysis.explain.attention import (
    TokenAxis,
    attention,
    attention_links,
    phrase_attention,
    phrase_vectors,
)
from phraseloom.analysis.explain.model import kinds, name_of
from phraseloom.analysis.explain.text import ExplainedPair
from phraseloom.analysis.fertility import NAMES
from phraseloom.analysis.heatmap import PHRASE_USES, tokens_of
from phraseloom.data.tensors import Batch
from phraseloom.decoding.limits import refuse_nan, tempering_of
from phraseloom.errors import plural
from phraseloom.layers.reordering import ReorderedEncoder
from phraseloom.models.encoder import TransformerEncoder
from phraseloom.models.recurrent import RecurrentDecoder, RecurrentEncoder
from phraseloom.outputs import OUTPUTS
from phraseloom.outputs.continuous import WordOrPhraseOutput
from phraseloom.text.vocabulary import BOS, EOS

USE_NAMES = {"encoder-self": "encoder", "decoder-self": "decoder", "cross": "cross"}


def note(model: Any) -> str | None:
    """A note if the model has no attention to the source."""
    if model.decoder.cross_structures:
        return None
    return "this model attends to no source tokens: its decoder sees one fixed vector of the source"


def fill_view(
    view: dict[str, Any], translator: Any, pair: ExplainedPair, batch: Batch, uses: Sequence[str]
) -> dict[str, Any]:
    """Add attention, links, phrase vectors and gate. Raises ModelError (NaN), UsageError (no such layer or head)."""
    model = translator.model
    looks = model.attention_maps(batch.source_BS, batch.source_lengths_B, batch.target_in_BT, batch.phrase_sizes_BP)
    for use in uses:
        rows, columns = _lines(translator.tokenizer, pair, use)
        of_use = getattr(looks, use.replace("-", "_"))
        if use in PHRASE_USES:
            spans = [] if looks.phrases is None else looks.phrases.segments.spans(0)
            view["attention"] += phrase_attention(of_use, kinds(model, use), use, rows, columns, spans)
            continue
        for entry, shares in attention(of_use, kinds(model, use), use, rows, columns):
            view["attention"].append(entry)
            view["shares"] += shares
    if looks.cross:
        view |= attention_links(translator, pair, looks.cross)
    if looks.phrases is not None:
        view["phrase_vectors"] = phrase_vectors(looks.phrases)
    view["gate"] = _gate(translator, pair, batch)
    return view


def _lines(tokenizer: Any, pair: ExplainedPair, use: str) -> tuple[TokenAxis, TokenAxis]:
    """The rows and columns of a use (for phrases, their tokens), without the last step if the target is not whole."""
    keys = TokenAxis(tokens_of(tokenizer.source, [*pair.source, EOS]), "source", len(pair.source) + 1)
    shown = len(pair.target) + pair.whole
    if use in ("encoder-self", "encoder-phrases"):
        return keys, keys
    if use in ("cross", "decoder-phrases"):
        return TokenAxis(tokens_of(tokenizer.target, [*pair.target, EOS]), "target", shown), keys
    own = TokenAxis(tokens_of(tokenizer.target, [BOS, *pair.target]), "target", shown, first=-1)
    return own, own


def _gate(translator: Any, pair: ExplainedPair, batch: Batch) -> dict[str, Any] | None:
    """Which target tokens are phrases; with a fertility module also the fertility of each source token and the word share."""
    model = translator.model
    if not isinstance(model.output, WordOrPhraseOutput):
        return None
    is_phrase = [i >= model.output.table.first_phrase for i in pair.target] + [False] * pair.whole
    if model.fertility is None:
        return {"fertility": None, "classes": [], "word_share": None, "is_phrase": is_phrase}
    source = (batch.source_BS, batch.source_lengths_B, batch.phrase_sizes_BP)
    classes_SC = model.fertility(*model.source_states(*source))[0].softmax(-1, dtype=torch.float64)
    memory = model.encode(*source, tempering=tempering_of(translator.config))
    share_T = model.decode(batch.target_in_BT, memory).gate[0, : len(is_phrase), 0].double()
    refuse_nan(share_T)
    return {
        "fertility": [*classes_SC[: len(pair.source)].tolist(), None],
        "classes": list(NAMES[model.fertility.classes]),
        "word_share": share_T.tolist(),
        "is_phrase": is_phrase,
    }


def describe(model: Any) -> str:
    """The encoder and decoder with their layers, kinds of attention, source phrases and output, in one line."""
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
    output = name_of(model.output, OUTPUTS)
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
