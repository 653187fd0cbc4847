"""The recipe with contexts of 1,024 tokens, at a tiny size: it trains by fused attention, resumes bit for bit, generates."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from phraseloom.layers.attention import backend

from .conftest import Command

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "language_model" / "long_12.yaml"
SMALL = [
    "data.folder=dataset", "data.subwords.size=14", "data.subwords.byte_fallback=false", "data.processes=1",
    "model.width=16", "model.heads=2", "model.ffn_width=16", "model.decoder.layers=1",
    "training.schedule.kind=constant", "training.schedule.rate=0.001",
    "training.processes=1", "training.batch_tokens=2100", "training.micro_batches=1", "training.log_every=1",
]  # fmt: skip


def test_trains_on_contexts_of_1024_tokens_and_generates(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(1)
    (tmp_path / "long_lm").mkdir()
    for name, count in (("train", 6), ("valid", 2), ("test", 1)):
        lines = [" ".join(chance.choice("abcdef") for _ in range(550)) + "\n" for _ in range(count)]
        (tmp_path / "long_lm" / f"{name}.txt").write_bytes("".join(lines).encode())
    made: list[tuple[int, bool]] = []
    real = backend.is_fused

    def watched(*args: object, length: int, **options: object) -> bool:
        made.append((length, real(*args, length=length, **options)))  # type: ignore[arg-type]
        return made[-1][1]

    monkeypatch.setattr(backend, "is_fused", watched)
    outcome = command("prepare", str(RECIPE), *SMALL)
    assert outcome.code == 0, outcome.err
    for run, stops in (("whole", [4]), ("halves", [2, 4])):
        for updates in stops:
            limits = [f"training.max_updates={updates}", "training.checkpoint_every=2"]
            outcome = command("train", str(RECIPE), "--run", run, *SMALL, *limits)
            assert outcome.code == 0, outcome.err
    contexts = [(length, fused) for length, fused in made if length > 540]  # the check of the start has short lines
    assert len(contexts) >= 8 and all(fused and length <= 1025 for length, fused in contexts)
    weights = [next((tmp_path / run / "last").rglob("model.safetensors")).read_bytes() for run in ("whole", "halves")]
    assert weights[0] == weights[1], "a resumed run is the run that was never stopped"
    outcome = command("generate", "whole", "--max-tokens", "5", stdin=b"a b c\n")
    assert outcome.code == 0 and outcome.out.strip(), outcome.err
