"""Small translators of every kind of model that `explain` must take."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from phraseloom.decoding.translator import Translator
from phraseloom.models import tasks
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.phrases.segmenters import TableSegmenter, TreeSegmenter
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import SPECIALS, Vocabulary
from phraseloom.text.words import Words

SIZES: dict[str, Any] = {"width": 16, "heads": 4, "ffn_width": 16}
TWO_LAYERS: dict[str, Any] = {**SIZES, "encoder": {"layers": 2}, "decoder": {"layers": 3}}
RECURRENT = {"kind": "recurrent", "layers": 2}
COLUMNS = {"encoder": {"kind": "columns", "layers": 1, "cell": "gru"}, "reordering": {"window": 3}}


def everywhere(kind: str) -> dict[str, Any]:
    return {**TWO_LAYERS, "attention": dict.fromkeys(("encoder_self", "decoder_self", "cross"), kind)}


def recurrent(kind: str, **more: Any) -> dict[str, Any]:
    return {**SIZES, "encoder": RECURRENT, "decoder": {**RECURRENT, "attention": kind}, **more}


def segmental(connect: bool) -> dict[str, Any]:
    decoder = {"kind": "segmental", "layers": 1, "cell": "gru", "max_segment": 3, "connect": connect}
    return {**SIZES, **COLUMNS, "decoder": decoder, "output": {"bias": True}}


TRANSFORMERS: dict[str, dict[str, Any]] = {
    kind: everywhere(kind)
    for kind in (
        "token",
        "queryk homogeneous 22",
        "convkv homogeneous 1-2-1",
        "queryk heterogeneous 1-2",
        "convkv heterogeneous 1-3",
        "queryk interleaved 1-2",
        "queryk interleaved 1-2-3 keys-per-order",
    )
}
MIXED = {
    "encoder_self": "relative",
    "decoder_self": "convkv heterogeneous 1-2",
    "cross": "queryk interleaved 1-2",
}
OTHERS: dict[str, dict[str, Any]] = {
    "mixed": {**TWO_LAYERS, "attention": MIXED},
    "heterogeneous without tokens": {**TWO_LAYERS, "attention": {"cross": "queryk heterogeneous 2-3"}},
    "no encoder": {**SIZES, "encoder": {"kind": "none"}, "decoder": {"layers": 2}},
    "recurrent mlp": recurrent("mlp"),
    "recurrent general": recurrent("general"),
    "recurrent multihead": recurrent("multihead", attention={"cross": "queryk heterogeneous 1-2"}),
    "recurrent fixed": recurrent("fixed"),
    "recurrent without encoder": {**recurrent("mlp"), "encoder": {"kind": "none"}},
    "source phrases": {**TWO_LAYERS, "phrases": {"attention": "softmax"}},
    "gated source phrases": {**TWO_LAYERS, "phrases": {"attention": "gated", "transparent": False}},
    "glances": {**TWO_LAYERS, "phrases": {"attention": "none"}},
    "phrasal with source phrases": {**everywhere("queryk heterogeneous 1-2"), "phrases": {}},
    "no encoder, source phrases": {**SIZES, "encoder": {"kind": "none"}, "decoder": {"layers": 2}, "phrases": {}},
    "recurrent encoder, source phrases": {**SIZES, "encoder": RECURRENT, "decoder": {"layers": 2}, "phrases": {}},
    "segmental": segmental(False),
    "segmental connected": segmental(True),
}
CONTINUOUS: dict[str, dict[str, Any]] = {
    "continuous": {**TWO_LAYERS, "output": {"kind": "continuous"}},
    "words or phrases": {**TWO_LAYERS, "output": {"kind": "word_or_phrase"}},
    "gate": {**TWO_LAYERS, "output": {"kind": "word_or_phrase", "fertility": {"classes": 4, "widths": [8]}}},
    "recurrent gate": {
        **recurrent("general"),
        "output": {"kind": "word_or_phrase", "fertility": {"classes": 2, "widths": [8]}},
    },
}
TREES: dict[str, Any] = {**TWO_LAYERS, "phrases": {"segments": {"kind": "dataset"}, "attention": "softmax"}}
KINDS = TRANSFORMERS | OTHERS | CONTINUOUS
WORDS, PHRASES = ["the", "old", "man", "sleeps", ".", "cow"], ["old_man", "the_old_man"]


def joined_tokenizer() -> Tokenizer:
    """Whole words and joined phrases with random vectors."""
    rows = np.random.default_rng(1).normal(size=(4 + len(WORDS) + len(PHRASES), 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    target = Words(Vocabulary([*SPECIALS, *WORDS, *PHRASES]), joined=True, vectors=rows)
    return Tokenizer(TextConfig(), "de", "en", Words(Vocabulary([*SPECIALS, *WORDS])), target)


def translator_of(kind: str, tokenizer: Tokenizer, *, seed: int = 0) -> Translator:
    """A model of a kind with random weights, as it decodes; short outputs."""
    tokenizer = joined_tokenizer() if kind in CONTINUOUS else tokenizer
    torch.manual_seed(seed)
    model = tasks.build(ModelConfig.model_validate(KINDS[kind]), tokenizer)
    return Translator(model, tokenizer).with_options(max_length={"factor": 1.0, "constant": 2}, beam=2)


def tree_translator(tokenizer: Tokenizer) -> Translator:
    """A model whose source phrases are made of parse trees."""
    return _of_dataset_phrases(tokenizer, TreeSegmenter(max_tokens=4, min_chunks=1, floor=1))


def table_translator(tokenizer: Tokenizer, phrases: list[str]) -> Translator:
    """A model whose source phrases are those of a table."""
    return _of_dataset_phrases(tokenizer, TableSegmenter(phrases))


def _of_dataset_phrases(tokenizer: Tokenizer, segmenter: TreeSegmenter | TableSegmenter) -> Translator:
    torch.manual_seed(0)
    model = tasks.build(ModelConfig.model_validate(TREES), tokenizer)
    return Translator(model, tokenizer, segmenter=segmenter).with_options(max_length={"factor": 1.0, "constant": 2})
