"""Tiny models without an encoder, and recurrent ones, learn to copy through the plain verbs, as the Transformer does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system.test_learns import recipe

from phraseloom.cli.main import run
from phraseloom.decoding.translator import Translator

MODELS = {
    "encoder-free": [
        "model.encoder={kind: none}",
        "model.init=xavier_uniform",
        "training.schedule.peak=0.005",
        "training.max_updates=160",
    ],
    "recurrent": [
        "model.encoder={kind: recurrent, layers: 1}",
        "model.decoder={kind: recurrent, layers: 1}",
        "training.schedule.peak=0.01",
    ],
}


@pytest.mark.parametrize("name", MODELS)
def test_copying_is_learned(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(recipe(tmp_path, 5, "copy", max_updates=220, checkpoint_every=220, bleu_every=0))
    assert run(["prepare", path, "--data-root", str(tmp_path)]) == 0
    assert run(["train", path, *MODELS[name], "--run", str(tmp_path / "run")]) == 0
    source = (tmp_path / "test.a").read_bytes().decode().split("\n")[:-1]
    translator = Translator.from_pretrained(tmp_path / "run", beam=3)
    results = translator.translate(source, batch_sentences=7)
    right = sum(r.text == s for r, s in zip(results, source, strict=True))
    assert right >= 85, f"{right} of 100 lines copied"
    assert all(r.text == "" for r in results[::10])
    assert [r.text for r in translator.translate(source, batch_sentences=64)] == [r.text for r in results]
    given = [(s, r) for s, r in zip(source, results, strict=True) if s and r.text]
    scores = translator.score([s for s, _ in given], [r.text for _, r in given])
    for score, (_, result) in zip(scores, given, strict=True):
        assert score.log_prob == pytest.approx(result.log_prob, abs=1e-4)
    capsys.readouterr()
    assert run(["inspect", str(tmp_path / "run")]) == 0
    assert ("recurrent" if name == "recurrent" else "none") in capsys.readouterr().out
