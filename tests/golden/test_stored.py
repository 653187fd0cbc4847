"""What earlier versions did: a stored learning curve is run again, a stored model translates as it did (N10, C10)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phraseloom.decoding.translator import Translator
from tests.golden.make import CURVE, MODEL, losses, train


def test_the_stored_learning_curve_is_learned_again(tmp_path: Path) -> None:
    """To 1e-4: processors with other vector units round differently; the same machine gives the same bits."""
    stored = json.loads(CURVE.read_bytes())
    assert len(stored) == 40
    assert losses(train(tmp_path)) == pytest.approx(stored, rel=1e-4)


def test_the_stored_model_translates_as_it_did() -> None:
    source, output = ((MODEL / n).read_bytes().decode().split("\n")[:-1] for n in ("source.en", "output.de"))
    assert [t.text for t in Translator.from_pretrained(MODEL / "model").translate(source)] == output
