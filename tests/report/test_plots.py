"""Histories and pictures: what a run wrote comes back, whatever a crash did to it."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phraseloom.errors import DataError, UsageError
from phraseloom.report.charts import plots
from phraseloom.report.run.history import read_history

pytest.importorskip("matplotlib")
PNG = b"\x89PNG\r\n\x1a\n"


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


def test_no_run_no_picture(tmp_path: Path) -> None:
    assert plots.learning_curves(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("updates", [1, 3, 60])
@pytest.mark.parametrize("timing", [True, False])
def test_learning_curves(tmp_path: Path, updates: int, timing: bool) -> None:
    folder = write_run(tmp_path / "run", updates, timing=timing, bleu=updates == 60)
    path = plots.learning_curves(folder)
    assert path == folder / "curves.png"
    assert path.read_bytes().startswith(PNG)
    assert not [p for p in folder.iterdir() if ".tmp" in p.name]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    pictures = [plots.learning_curves(folder, tmp_path / name) for name in ("a.png", "b.png")]
    assert pictures[0] is not None
    assert pictures[1] is not None
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


def test_comparison_of_runs_with_and_without_timing(tmp_path: Path) -> None:
    runs = {f"system {i}": write_run(tmp_path / str(i), 40 + i, timing=i != 1, bleu=i != 2) for i in range(4)}
    assert plots.comparison(runs, tmp_path / "all.svg").read_bytes().lstrip().startswith(b"<?xml")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no validation"):
        plots.comparison({"x": tmp_path / "empty"}, tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_run(tmp_path / "run")
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING, "phraseloom"):
        assert plots.learning_curves(folder) is None
    assert "phraseloom[plot]" in caplog.text
    with pytest.raises(UsageError, match=r"phraseloom\[plot\]"):
        plots.comparison({"x": folder}, tmp_path / "x.png")


def test_a_run_of_one_update_has_markers(tmp_path: Path) -> None:
    from matplotlib import pyplot as plt

    history = read_history(write_run(tmp_path / "run", 1))
    figure, axes = plt.subplots(1, 2)
    plots._loss(axes[0], history)
    plots._training_value(axes[1], history, "lr", "Learning rate", "rate")
    assert [line.get_marker() for ax in axes for line in ax.lines] == ["o", "o"]
    plt.close(figure)
