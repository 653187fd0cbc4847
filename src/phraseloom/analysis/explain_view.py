"""What one model makes of one sentence pair, as plain data: a View of the schema in `analysis/explain.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from phraseloom.analysis.explain_attention import TokenAxis, attention
from phraseloom.analysis.explain_links import attention_links, segments
from phraseloom.analysis.explain_model import kinds
from phraseloom.analysis.explain_phrases import phrase_attention, phrase_vectors
from phraseloom.analysis.explain_text import ExplainedPair, notes, scores, texts
from phraseloom.analysis.fertility import NAMES
from phraseloom.analysis.heatmap import PHRASE_USES, tokens_of
from phraseloom.data.tensors import Batch, make_batch
from phraseloom.decoding.limits import refuse_nan
from phraseloom.decoding.segmental import is_segmental
from phraseloom.outputs.continuous import WordOrPhraseOutput
from phraseloom.text.vocabulary import BOS, EOS

View = dict[str, Any]


def view(translator: Any, pair: ExplainedPair, uses: Sequence[str]) -> View:
    """The view of a pair whose source is not blank. Raises ModelError (NaN), UsageError (no such layer or head)."""
    model = translator.model
    result = texts(translator.tokenizer, pair) | scores(translator, pair)
    result |= {"notes": notes(translator, pair)} | _nothing()
    with torch.inference_mode():
        sizes = None if pair.phrases is None else [pair.phrases]
        batch = make_batch([pair.source], [pair.target], sizes).to(translator.device)
        if is_segmental(model):
            return _segmental(result, segments(translator, pair, batch))
        looks = model.look(batch.source_BS, batch.source_lengths_B, batch.target_in_BT, batch.phrase_sizes_BP)
        for use in uses:
            rows, columns = _lines(translator.tokenizer, pair, use)
            of_use = getattr(looks, use.replace("-", "_"))
            if use in PHRASE_USES:
                spans = [] if looks.phrases is None else looks.phrases.segments.spans(0)
                result["attention"] += phrase_attention(of_use, kinds(model, use), use, rows, columns, spans)
                continue
            for entry, shares in attention(of_use, kinds(model, use), use, rows, columns):
                result["attention"].append(entry)
                result["shares"] += shares
        if looks.cross:
            result |= attention_links(translator, pair, looks.cross)
        if looks.phrases is not None:
            result["phrase_vectors"] = phrase_vectors(looks.phrases)
        result["gate"] = _gate(model, pair, batch)
    return result


def blank_view(text: str, *, given: bool) -> View:
    """The view of a blank source, which no model sees."""
    lists = ("source_tokens", "target_tokens", "source_word", "target_word", "target_span")
    more = ("source_words", "target_words", "token_log_probs")
    note = "the source is blank: the model does not see it"
    said = {"target": text, "given": given, "log_prob": None, "score": None, "notes": [note]}
    return said | {name: [] for name in (*lists, *more)} | _nothing()


def _nothing() -> View:
    """What a model without attention, segments, source phrases and gate has."""
    lists: View = {name: [] for name in ("attention", "shares", "word_links", "phrase_links")}
    return lists | {"segments": None, "phrase_vectors": None, "gate": None}


def _segmental(result: View, found: View) -> View:
    """With the segments; the source loses EOS, which such a model does not read."""
    cut = {name: result[name][:-1] for name in ("source_tokens", "source_word")}
    return result | found | cut | {"notes": result["notes"] + found["notes"]}


def _lines(tokenizer: Any, pair: ExplainedPair, use: str) -> tuple[TokenAxis, TokenAxis]:
    """What stands down and across, of phrases their tokens; without the step behind the target where that is not whole."""
    keys = TokenAxis(tokens_of(tokenizer.source, [*pair.source, EOS]), "source", len(pair.source) + 1)
    shown = len(pair.target) + pair.whole
    if use in ("encoder-self", "encoder-phrases"):
        return keys, keys
    if use in ("cross", "decoder-phrases"):
        return TokenAxis(tokens_of(tokenizer.target, [*pair.target, EOS]), "target", shown), keys
    own = TokenAxis(tokens_of(tokenizer.target, [BOS, *pair.target]), "target", shown, first=-1)
    return own, own


def _gate(model: Any, pair: ExplainedPair, batch: Batch) -> dict[str, Any] | None:
    """Which target tokens are phrases; where fertility chooses, that of each source token and the share of words."""
    if not isinstance(model.output, WordOrPhraseOutput):
        return None
    is_phrase = [i >= model.output.table.first_phrase for i in pair.target] + [False] * pair.whole
    if model.fertility is None:
        return {"fertility": None, "classes": [], "word_share": None, "is_phrase": is_phrase}
    given = (batch.source_BS, batch.source_lengths_B, batch.phrase_sizes_BP)
    classes_SC = model.fertility(*model.source_states(*given))[0].softmax(-1, dtype=torch.float64)
    hidden_BTD, _ = model.decode(batch.target_in_BT, model.encode(*given))
    share_T = hidden_BTD[0, : len(is_phrase), model.output.width].double()
    refuse_nan(share_T)
    return {
        "fertility": [*classes_SC[: len(pair.source)].tolist(), None],
        "classes": list(NAMES[model.fertility.classes]),
        "word_share": share_T.clamp(0.0, 1.0).tolist(),
        "is_phrase": is_phrase,
    }
