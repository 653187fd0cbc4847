"""A small random model with its tokenizer, for tests of the translator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.cli.conftest import command
from tests.helpers import tiny_tokenizer

from phraseloom.decoding.translator import Translator
from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig
from phraseloom.text.vocabulary import EOS

__all__ = ["command", "lines_of_words", "model_folder", "translator"]

WORDS = [
    "the",
    "old",
    "man",
    "sleeps",
    "a",
    "cow",
    "is",
    "small",
    ",",
    "but",
    "winter",
    "garden",
    "dark",
    ".",
    "we",
    "invite",
    "them",
    "tonight",
]


def lines_of_words(count: int, longest: int = 12, seed: int = 0) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(0, len(WORDS), (n,), generator=generator).tolist()) for n in sizes]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose outputs end by themselves now and then, at different lengths."""
    tokenizer = tiny_tokenizer(tmp_path_factory.mktemp("text"))
    torch.manual_seed(3)
    config = ModelConfig.model_validate(
        {
            "width": 32,
            "heads": 4,
            "ffn_width": 64,
            "encoder": {"layers": 2},
            "decoder": {"layers": 3},
            "output": {"kind": "softmax", "bias": True},
            "tied": "none",
            "init": "xavier_uniform",
        }
    )
    size = len(tokenizer.source.vocabulary)
    model = build_model(config, size, size)
    with torch.no_grad():
        model.output.weight.mul_(1.5)
        model.output.bias[EOS] = 1.5
    folder = tmp_path_factory.mktemp("model") / "m"
    save_model(
        folder,
        model,
        config,
        tokenizer,
        languages=("en", "de"),
        generation={"max_length": {"factor": 1.5, "constant": 5}},
    )
    return folder


@pytest.fixture(scope="session")
def translator(model_folder: Path) -> Translator:
    return Translator.from_pretrained(model_folder)
