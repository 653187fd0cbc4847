"""Validation BLEU: the references are the raw lines as a translation would write them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from phraseloom.decoding import translator
from phraseloom.decoding.config import DecodingConfig
from phraseloom.text.config import TextConfig, WordsConfig
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.words import learn
from phraseloom.training.validate import Validator


@pytest.mark.parametrize("joined", [True, False])
def test_references_are_plain_text(monkeypatch: pytest.MonkeyPatch, joined: bool) -> None:
    plain = "It's the quality of life (in all towns)."
    raw = "It 's the quality_of_life ( in all towns ) ." if joined else plain
    words = learn([raw], WordsConfig(joined=joined, phrases=1 if joined else 0))
    tokenizer = Tokenizer(TextConfig(tokenize="moses"), "de", "en", learn(["a"], WordsConfig()), words)

    class Fake:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            pass

        def translate(self, lines: list[str], **options: Any) -> list[Any]:
            return [SimpleNamespace(text=plain) for _ in lines]

    monkeypatch.setattr(translator, "Translator", Fake)
    world = SimpleNamespace(rank=0, size=1, any=lambda flag: False, gather_lines=lambda lines: lines)
    job: Any = SimpleNamespace(
        config=SimpleNamespace(bleu_beam=1), world=world, model=None, stop=SimpleNamespace(is_set=lambda: False)
    )
    lengths = np.ones(2, np.int32)
    validator = Validator(
        lengths, lengths, lambda indices: None, text=(["a", "a"], [raw, raw]), tokenizer=tokenizer,
        decoding=DecodingConfig(),
    )  # fmt: skip
    assert validator._bleu(job, *validator.text)["bleu"] == 100.0  # type: ignore[misc]
