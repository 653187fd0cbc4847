"""A tiny segmental model learns to copy, through the plain verbs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.helpers import run_records
from tests.system.test_learns import recipe

from phraseloom.cli.main import run
from phraseloom.data.tensors import make_batch
from phraseloom.decoding.translator import Translator

MODEL = [
    "model.encoder={kind: columns, layers: 1}",
    "model.decoder={kind: segmental, layers: 1, max_segment: 3, dropout: 0.1}",
    "model.reordering={window: 3}",
    "model.output={bias: true}",
    "training.schedule.peak=0.01",
]


def test_copying_is_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(recipe(tmp_path, 5, "copy", max_updates=120, checkpoint_every=60, bleu_every=0, log_every=20))
    assert run(["prepare", path, "--data-root", str(tmp_path)]) == 0
    assert run(["train", path, *MODEL, "--run", str(tmp_path / "run")]) == 0
    losses = [r["loss"] for r in run_records(tmp_path / "run") if "lr" in r]
    assert losses[-1] < losses[0] / 5
    source = (tmp_path / "test.a").read_bytes().decode().split("\n")[:-1]
    translator = Translator.from_pretrained(tmp_path / "run", beam=3)
    results = translator.translate(source)
    right = sum(r.text == s for r, s in zip(results, source, strict=True))
    assert right >= 85, f"{right} of 100 lines copied"
    given = [(s, r) for s, r in zip(source, results, strict=True) if s and r.text]
    scores = translator.score([s for s, _ in given], [r.text for _, r in given])
    for score, (_, result) in zip(scores, given, strict=True):
        assert score.log_prob >= result.log_prob - 1e-4  # all segmentations, those that the search did not see too
    ids = [translator.tokenizer.source.encode(s) for s in source if s]
    with torch.no_grad():
        found = translator.model.segments(make_batch(ids, ids))
    assert (found.log_p_B <= found.marginal_B + 1e-9).all()
    assert (found.lengths_BS.sum(1) == torch.tensor([len(i) for i in ids])).all()
    capsys.readouterr()
    assert run(["inspect", str(tmp_path / "run")]) == 0
    assert "segmental" in capsys.readouterr().out
