"""A small model of words and phrases with vectors, in a folder, and text whose fertility is easy: long words give phrases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from phraseloom.models.store import save_model
from phraseloom.models.tasks import build
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import SPECIALS, Vocabulary
from phraseloom.text.words import Words

WORDS = ["an", "der", "Haus", "Lebensqualität", "Hochschule", "Arbeitsplatz", "ging", "zu", ".", "Wintergarten"]
OUTPUT: dict[str, Any] = {"kind": "word_or_phrase"}
MODEL: dict[str, Any] = {
    "width": 8,
    "embedding_width": 6,
    "encoder": {"kind": "recurrent", "layers": 1},
    "decoder": {"kind": "recurrent", "layers": 1, "attention": "general", "initial": "final"},
    "dropout": 0.3,
}


def tokenizer(text: TextConfig | None = None) -> Tokenizer:
    """Words of both sides, the target with phrases and random unit vectors."""
    source = Words(Vocabulary([*SPECIALS, *WORDS]))
    target = Vocabulary([*SPECIALS, "of", "life", "went", "school", "quality_of_life", "high_school"])
    vectors = np.random.default_rng(0).normal(size=(len(target), 5)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Tokenizer(text or TextConfig(), "de", "en", source, Words(target, joined=True, vectors=vectors))


def saved(folder: Path, output: dict[str, Any] | None = None, text: TextConfig | None = None) -> Path:
    """A model folder."""
    config = ModelConfig.model_validate({**MODEL, "output": output or OUTPUT})
    torch.manual_seed(7)
    of_text = tokenizer(text)
    settings = {"languages": ("de", "en"), "generation": {"beam": 1}}
    save_model(folder, build(config, of_text), config, of_text, **settings)
    return folder


def lines(number: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Sentences and their fertilities: 2 of a word of more than 9 letters, else 1 if it begins with a capital, else 0."""
    random = np.random.default_rng(seed)
    sentences = [[WORDS[i] for i in random.integers(0, len(WORDS), random.integers(1, 9))] for _ in range(number)]
    numbers = [[2 if len(w) > 9 else int(w[0].isupper()) for w in words] for words in sentences]
    return [" ".join(words) for words in sentences], [" ".join(map(str, row)) for row in numbers]


def written(folder: Path, **files: list[str]) -> None:
    """Files of lines."""
    for name, rows in files.items():
        (folder / name).write_bytes("".join(f"{row}\n" for row in rows).encode())
