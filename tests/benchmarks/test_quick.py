"""Every benchmark runs to its end with --quick and leaves ratios; what they are is measured elsewhere, on a quiet machine."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
PROGRAMS = {path.stem: path for path in sorted(FOLDER.glob("*.py")) if b"__main__" in path.read_bytes()}
BENCHMARKS = [name for name in PROGRAMS if name != "run"]


def run(name: str, folder: Path, *arguments: str) -> str:
    """What a benchmark prints; without peers, and with its data and models in `folder`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PHRASELOOM_PEER_")}
    environment |= {"PHRASELOOM_BENCH_WORK": str(folder / "work"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(PROGRAMS[name]), *arguments, "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", BENCHMARKS)
def test_runs_and_leaves_ratios(name: str, tmp_path: Path) -> None:
    printed = run(name, tmp_path, "--json", str(tmp_path / "result.json"))
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert result["benchmark"] == name
    has_peers = b" peer(" in PROGRAMS[name].read_bytes()
    assert result["ratios"] or (has_peers and result["figures"]), "nothing was compared or measured"
    assert all(math.isfinite(value) for value in result["ratios"].values())
    assert all(ratio in printed for ratio in result["ratios"])
    if has_peers:
        assert "is left out: set PHRASELOOM_PEER_" in printed


def test_run_writes_the_ratios_of_the_benchmarks_it_is_given(tmp_path: Path) -> None:
    printed = run("run", tmp_path, "attention", "loss")
    (file,) = (tmp_path / "work" / "results").glob("run-*.json")
    results = json.loads(file.read_bytes())
    assert set(results) == {"attention", "loss"}
    assert all(ratio in printed for one in results.values() for ratio in one["ratios"])
