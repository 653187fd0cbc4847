"""The recipe with contexts of 1,024 tokens, at a tiny size: it trains by fused attention, goes on bit for bit, and generates."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from phraseloom.layers.attention import backend, multihead

from .conftest import Command

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "language_model" / "long_12.yaml"
SMALL = [
    "data.folder=dataset", "data.subwords.size=14", "data.subwords.byte_fallback=false", "data.processes=1",
    "model.width=16", "model.heads=2", "model.ffn_width=16", "model.decoder.layers=1",
    "training.processes=1", "training.batch_tokens=2100", "training.micro_batches=1", "training.log_every=1",
]  # fmt: skip


def test_trains_on_contexts_of_1024_tokens_and_generates(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(1)
    (tmp_path / "long_lm").mkdir()
    for name, count in (("train", 6), ("valid", 2), ("test", 1)):
        lines = [" ".join(chance.choice("abcdef") for _ in range(500)) + "\n" for _ in range(count)]
        (tmp_path / "long_lm" / f"{name}.txt").write_bytes("".join(lines).encode())
    lengths: list[int] = []
    real = backend.is_fused

    def watched(*args: object, length: int, need_weights: bool) -> bool:
        lengths.append(length)
        fused = real(*args, length=length, need_weights=need_weights)  # type: ignore[arg-type]
        assert fused
        return fused

    monkeypatch.setattr(multihead, "is_fused", watched)
    outcome = command("prepare", str(RECIPE), *SMALL)
    assert outcome.code == 0, outcome.err
    for run, stops in (("whole", [4]), ("halves", [2, 4])):
        for updates in stops:
            limits = [f"training.max_updates={updates}", "training.checkpoint_every=2"]
            outcome = command("train", str(RECIPE), "--run", run, *SMALL, *limits)
            assert outcome.code == 0, outcome.err
    assert lengths and 900 < min(lengths) <= max(lengths) <= 1025
    weights = [next((tmp_path / run / "last").rglob("model.safetensors")).read_bytes() for run in ("whole", "halves")]
    assert weights[0] == weights[1], "a resumed run is the run that was never stopped"
    outcome = command("generate", "whole", "--max-tokens", "5", stdin=b"a b c\n")
    assert outcome.code == 0 and outcome.out.strip(), outcome.err
