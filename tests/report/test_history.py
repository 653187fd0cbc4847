"""Histories of runs: what a run wrote comes back, whatever a crash did to it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phraseloom.report.run.history import read_history


def write_run(folder: Path, updates: int = 60, *, bleu: bool = True, timing: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    for u in range(1, updates + 1):
        nll = 2 + 5 * math.exp(-u / 20)
        lines.append(
            {"update": u, "loss": nll + 0.5, "nll": nll, "lr": 1e-3 / u, "grad_norm": 1 / u, "target_tokens": 99}
        )
        if u % 20 == 0:
            scores = {"perplexity": math.exp(nll)} | ({"bleu": 30.0 - 100 / u} if bleu else {})
            lines.append({"update": u, "validation": scores, "best": True})
    (folder / "metrics.jsonl").write_bytes(b"".join(json.dumps(x).encode() + b"\n" for x in lines))
    if timing:
        clock = [{"update": u, "seconds": u * 1.5} for u in range(10, updates + 1, 10)]
        (folder / "timing.jsonl").write_bytes(b"".join(json.dumps(x).encode() + b"\n" for x in clock))
    return folder


def test_history_comes_back(tmp_path: Path) -> None:
    history = read_history(write_run(tmp_path / "run"))
    assert history.name == "run"
    assert (len(history.training), len(history.validation), history.unreadable) == (60, 3, 0)
    updates, bleu = history.curve("bleu", of="validation")
    assert updates.tolist() == [20, 40, 60]
    assert bleu.tolist() == [25.0, 27.5, pytest.approx(30 - 100 / 60)]
    assert history.at_time(np.array([0.0, 15, 60])) == pytest.approx([0, 22.5, 90])


def test_a_file_cut_anywhere_is_read(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", 6) / "metrics.jsonl"
    whole = path.read_bytes()
    for size in range(0, len(whole), 3):
        path.write_bytes(whole[:size])
        history = read_history(path.parent)
        assert len(history.training) >= whole[:size].count(b"\n")
        assert history.unreadable <= 1


def test_resumed_runs_and_strange_lines(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 3, timing=False)
    strange = [
        b'{"update": 2, "nll": 9.0, "loss": 9.5}',  # after a resume: the later line counts
        b'{"update": 4, "nll": null, "loss": null, "skipped": true}',
        b'{"update": 5, "nll": NaN, "loss": 1e999}',
        b'{"update": true, "nll": 1}',
        b'{"update": -1}',
        b"[1, 2]",
        b"\xff\xfe{",
        b"[" * 100_000,
        b"",
    ]
    with (folder / "metrics.jsonl").open("ab") as handle:
        handle.write(b"\n".join(strange) + b"\n")
    history = read_history(folder)
    updates, nll = history.curve("nll")
    assert updates.tolist() == [1, 2, 3]
    assert nll[1] == 9.0
    assert history.unreadable == 6
    assert history.at_time(np.array([1.0])) is None
