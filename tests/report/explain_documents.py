"""Explain documents without a model: random attention of every shape that the page has to show."""

from __future__ import annotations

import base64
import itertools
import zlib
from typing import Any

import numpy as np

NUMBER = np.random.default_rng
SOURCE = "Ein alter Mann fährt mit dem Fahrrad durch den Wintergarten ."
TARGET = "An old man rides his bicycle through the winter garden ."


def packed(values: np.ndarray) -> dict[str, Any]:
    scale = float(values.max(initial=0.0)) or 1.0
    data = np.round(values / scale * 255).astype(np.uint8)
    return {
        "shape": list(values.shape),
        "scale": scale,
        "data": base64.b64encode(zlib.compress(data.tobytes())).decode(),
    }


def pieces_of(text: str) -> tuple[list[str], list[int | None]]:
    """Pieces of at most six characters with the word that each is of, and the end of the sentence."""
    pieces, words = [], []
    for number, word in enumerate(text.split()):
        parts = [word[i : i + 6] for i in range(0, len(word), 6)]
        pieces += [part if i == 0 else f"…{part}" for i, part in enumerate(parts)]
        words += [number] * len(parts)
    return [*pieces, "</s>"], [*words, None]


def axis(tokens: list[str], orders: list[int], side: str) -> dict[str, Any]:
    """Tokens first, then n-grams; an axis that begins with BOS counts from -1."""
    rows = [(n, end) for n in orders for end in range(n - 1, len(tokens))]
    first = -1 if tokens[0] == "<s>" else 0
    return {
        "labels": ["·".join(tokens[end - n + 1 : end + 1]) for n, end in rows],
        "orders": [n for n, _ in rows],
        "ends": [end + first for _, end in rows],
        "side": side,
    }


def attention(
    use: str, layer: int, rows: dict[str, Any], columns: dict[str, Any], orders: list[int], heads: int, seed: int
) -> dict[str, Any]:
    """Softmax around the diagonal, other slots and heads less or more sharp; the decoder does not look ahead."""
    height, width = len(rows["ends"]), len(columns["ends"])
    row_ends, column_ends = np.array(rows["ends"])[:, None], np.array(columns["ends"])[None, :]
    draw = NUMBER([seed, layer])
    place = row_ends / row_ends.max() - column_ends / column_ends.max()
    sharp = np.linspace(4, 16, heads)[:, None, None]
    logits = (
        -np.abs(place) * sharp * 2 + draw.normal(0, 0.9, (heads, height, width)) - 0.5 * np.array(columns["orders"])
    )
    if use == "decoder-self":
        logits[:, column_ends > row_ends] = -np.inf
    with np.errstate(invalid="ignore"):
        weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    return {
        "use": use, "layer": layer, "heads": heads, "kind": f"queryk interleaved {'-'.join(map(str, orders))}",
        "rows": rows, "columns": columns, "weights": packed(weights), "tokens": spread(weights, rows, columns, orders),
    }  # fmt: skip


def spread(
    weights: np.ndarray, rows: dict[str, Any], columns: dict[str, Any], orders: list[int]
) -> dict[str, Any] | None:
    if orders == [1]:
        return None
    queries = weights[:, np.array(rows["orders"]) == 1]
    first = columns["ends"][0]
    result = np.zeros((*queries.shape[:2], max(columns["ends"]) + 1 - first))
    for column, (order, last) in enumerate(zip(columns["orders"], columns["ends"], strict=True)):
        end = last - first
        result[:, :, end - order + 1 : end + 1] += queries[:, :, column, None] / order
    return packed(result)


def view(
    source: str,
    target: str,
    *,
    layers: int = 3,
    heads: int = 4,
    orders: tuple[int, ...] = (1, 2),
    seed: int = 1,
    **extra: Any,
) -> dict[str, Any]:
    source_tokens, source_word = pieces_of(source)
    target_tokens, target_word = pieces_of(target)
    source_words, target_words = source.split(), target.split()
    found = list(orders)
    sides = {
        "encoder-self": (source_tokens, source_tokens, "source", "source"),
        "decoder-self": (["<s>", *target_tokens[:-1]],) * 2 + ("target", "target"),
        "cross": (target_tokens, source_tokens, "target", "source"),
    }
    looks, shares = [], []
    for use, (rows, columns, row_side, column_side) in sides.items():
        for layer in range(1, layers + 1):
            axes = axis(rows, found, row_side), axis(columns, found, column_side)
            looks.append(attention(use, layer, *axes, found, heads, seed))
            parts = NUMBER([seed, layer]).dirichlet([3.0] * len(found), heads)
            of_heads = [{str(n): float(p) for n, p in zip(found, row, strict=True)} for row in parts]
            shares.append({"use": use, "layer": layer, "query": 1, "heads": of_heads})
    last = len(source_words) - 1
    links = [[min(last, t * len(source_words) // len(target_words)), t, 0.7] for t in range(len(target_words))]
    return {
        "target": target, "given": False, "log_prob": -4.25, "score": -0.39, "notes": [],
        "source_tokens": source_tokens, "target_tokens": target_tokens,
        "source_word": source_word, "target_word": target_word,
        "target_span": [None if word is None else [word, word + 1] for word in target_word],
        "source_words": source_words, "target_words": target_words,
        "token_log_probs": [-0.1 * (i % 7) - 0.02 for i in range(len(target_tokens))],
        "attention": looks, "shares": shares, "word_links": links,
        "phrase_links": [[[0, 2], [0, 2], 0.61]] if len(source_words) > 2 else [],
        "segments": None, "phrase_vectors": None, "gate": None, **extra,
    }  # fmt: skip


def model(name: str = "phrasal", **rest: Any) -> dict[str, Any]:
    return {
        "name": name, "label": f"{name} model", "parameters": 3_254_784,
        "description": "queryk interleaved 1-2, 3 + 3 layers of 128", "languages": ["de", "en"], "level_shares": None, **rest,
    }  # fmt: skip


def document(models: list[dict[str, Any]], sentences: list[dict[str, Any]]) -> dict[str, Any]:
    return {"format": 1, "version": "0.1.0", "models": models, "sentences": sentences}


def sentence(source: str, *views: dict[str, Any], reference: str | None = None) -> dict[str, Any]:
    return {"line": None, "source": source, "reference": reference, "views": list(views)}


def small() -> dict[str, Any]:
    """Two sentences of a phrasal model."""
    other = "Zwei Hunde spielen ."
    return document(
        [model()],
        [
            sentence(SOURCE, view(SOURCE, TARGET), reference="An elderly man cycles through the conservatory ."),
            sentence(
                other, view(other, "Two dogs are playing .", seed=2, notes=["the source was cropped to 250 subwords"])
            ),
        ],
    )


def long(words: int = 92, layers: int = 6, heads: int = 8) -> dict[str, Any]:
    """About a hundred tokens on each side."""
    vocabulary = [*SOURCE.split()[:-1], "und", "die", "Frau", "hält", "einen", "roten", "Ball"]
    other = [*TARGET.split()[:-1], "and", "the", "woman", "holds", "a", "red", "ball"]
    draw = NUMBER(3)
    source, target = (" ".join(draw.choice(some, words)) + " ." for some in (vocabulary, other))
    return document([model()], [sentence(source, view(source, target, layers=layers, heads=heads))])


def two_models() -> dict[str, Any]:
    """A phrasal model with three layers beside a token model with two."""
    base = model("base", description="dot, 2 + 2 layers of 128", parameters=2_900_000)
    other = view(SOURCE, "An old man is riding a bike through the conservatory .", layers=2, orders=(1,), seed=5)
    return document([model(), base], [sentence(SOURCE, view(SOURCE, TARGET), other)])


def segmental() -> dict[str, Any]:
    """No attention at all, but segments (NPMT)."""
    target = TARGET.split()
    cuts = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11]
    segments = [
        {
            "source": i,
            "target": [first, last],
            "log_prob": -0.3 * (i + 1),
            "source_token": i,
            "target_tokens": [first, last],
        }
        for i, (first, last) in enumerate(itertools.pairwise(cuts))
    ]
    segments[4]["source"], segments[5]["source"] = 5, 6
    notes = ["this model has no attention"]
    shown = view(SOURCE, TARGET, attention=[], shares=[], segments=segments, notes=notes)
    return document(
        [model("npmt", description="segmental (NPMT)")], [sentence(SOURCE, shown | {"target_words": target})]
    )


def phrase_attention(use: str, layer: int, tokens: list[str], source: list[str], sizes: list[int]) -> dict[str, Any]:
    """How tokens read source phrases of given sizes, which stand in the order of the sentence."""
    ends = np.cumsum(sizes).tolist()
    columns = {
        "labels": ["·".join(source[end - size : end]) for end, size in zip(ends, sizes, strict=True)],
        "orders": sizes,
        "ends": [end - 1 for end in ends],
        "side": "source",
    }
    side = "target" if use == "decoder-phrases" else "source"
    found = attention(use, layer, axis(tokens, [1], side), columns, [1], 4, 8)
    return found | {"kind": "phrases of all levels", "tokens": None}


def phrases() -> dict[str, Any]:
    """Source phrase vectors of two stages, and how tokens read the phrases of three layers; one word is of two phrases."""
    source = pieces_of(SOURCE)[0]
    sizes = [3, 4, 2, 1, len(source) - 10]
    stages = []
    for stage, layer in (("embeddings", None), ("encoder", 1), ("encoder", 2)):
        draw = NUMBER(layer or 0)
        some = []
        for begin, end in itertools.pairwise(itertools.accumulate(sizes, initial=0)):
            weights = draw.dirichlet([1.0] * (end - begin)).tolist()
            some.append({"begin": begin, "end": end, "weights": weights, "share": None if layer is None else 0.4})
        stages.append({"stage": stage, "layer": layer, "phrases": some})
    levels = [[0.5, 0.2, 0.1], [0.3, 0.3, 0.2], [0.2, 0.5, 0.7]]
    shown = view(SOURCE, TARGET, orders=(1,), phrase_vectors=stages)
    for use, tokens in (("encoder-phrases", source), ("decoder-phrases", shown["target_tokens"])):
        shown["attention"] += [phrase_attention(use, layer, tokens, source, sizes) for layer in (1, 2, 3)]
    return document([model("attentive", level_shares=levels)], [sentence(SOURCE, shown)])


def continuous() -> dict[str, Any]:
    """A gate of words and phrases, with fertility."""
    source, target = pieces_of(SOURCE)[0], pieces_of(TARGET)[0]
    draw = NUMBER(7)
    gate = {
        "fertility": [*draw.dirichlet([0.6, 2.0, 1.0, 0.4], len(source) - 1).tolist(), None],
        "classes": ["0", "1", "2", "3+"],
        "word_share": draw.uniform(0, 1, len(target)).tolist(),
        "is_phrase": [i in (3, 8) for i in range(len(target))],
    }
    return document([model("word_or_phrase")], [sentence(SOURCE, view(SOURCE, TARGET, orders=(1,), gate=gate))])
