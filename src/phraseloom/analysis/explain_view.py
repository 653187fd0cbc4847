"""What one model makes of one sentence pair, as plain data: a View of the schema in `analysis/explain.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from phraseloom.analysis.explain_model import explainer_of
from phraseloom.analysis.explain_text import ExplainedPair, notes, scores, texts
from phraseloom.data.tensors import make_batch

View = dict[str, Any]


def view(translator: Any, pair: ExplainedPair, uses: Sequence[str]) -> View:
    """The view of a pair whose source is not blank. Raises ModelError (NaN), UsageError (no such layer or head)."""
    model = translator.model
    result = texts(translator.tokenizer, pair) | scores(translator, pair)
    result |= {"notes": notes(translator, pair)} | _nothing()
    with torch.inference_mode():
        sizes = None if pair.phrases is None else [pair.phrases]
        batch = make_batch([pair.source], [pair.target], sizes).to(translator.device)
        return explainer_of(model).fill_view(result, translator, pair, batch, uses)


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
