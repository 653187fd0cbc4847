"""The source phrases of one sentence as plain data (schema: `analysis/explain.py`): how much each token counts in its phrase,
and how much of each phrase a token reads in the combination network of every layer (P001 §3.4; spec §3.5).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from phraseloom.analysis.explain_attention import TokenAxis
from phraseloom.analysis.packing import pack
from phraseloom.decoding.limits import refuse_nan
from phraseloom.layers.phrase_representation import GatedPhraseScorer
from phraseloom.models.phrases import PhraseLevels


def phrase_attention(
    weights: Sequence[Tensor],
    kinds_L: Sequence[str],
    use: str,
    rows: TokenAxis,
    source: TokenAxis,
    spans: Sequence[tuple[int, int]],
) -> Iterator[dict[str, Any]]:
    """For each layer of one use its entry of `attention`; weights (1, H, Q, P) of one sentence, `source` its tokens.

    Raises ModelError where the model gives NaN.
    """
    row_axis, queries = rows.axis([1])
    columns = {
        "labels": [source.tokens.label(end - begin, end - 1) for begin, end in spans],
        "orders": [end - begin for begin, end in spans],
        "ends": [end - 1 for _, end in spans],
        "side": source.side,
    }
    for layer, (weights_1HQP, kind) in enumerate(zip(weights, kinds_L, strict=True), 1):
        refuse_nan(weights_1HQP)
        cells_HRC = weights_1HQP[0, :, : len(queries), : len(spans)].double().cpu().numpy()
        yield {
            "use": use,
            "layer": layer,
            "heads": len(cells_HRC),
            "kind": kind,
            "rows": row_axis,
            "columns": columns,
            "weights": pack(cells_HRC),
            "tokens": None,
        }


def phrase_vectors(levels: PhraseLevels) -> list[dict[str, Any]]:
    """The phrases of each level of the encoder, and how much each token counts in them."""
    spans = levels.segments.spans(0)
    result = []
    for level, (weights_BPS, made_by) in enumerate(zip(levels.weights, levels.representations, strict=True)):
        if weights_BPS is not None:
            refuse_nan(weights_BPS)
        phrases = []
        for p, (begin, end) in enumerate(spans):
            weights = [] if weights_BPS is None else weights_BPS[0, p, begin:end].tolist()
            share = None if weights_BPS is None else 0.0
            if isinstance(made_by.scorer, GatedPhraseScorer):
                share = max(0.0, 1.0 - sum(weights))
            phrases.append({"begin": begin, "end": end, "weights": weights, "share": share})
        stage = "encoder" if level else "embeddings"
        result.append({"stage": stage, "layer": level or None, "phrases": phrases})
    return result
