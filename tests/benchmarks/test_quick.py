"""Every benchmark runs to its end with --quick and leaves ratios; what they are is measured elsewhere, on a quiet machine."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest
from tests import forked

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
PROGRAMS = {path.stem: path for path in sorted(FOLDER.glob("*.py")) if b"__main__" in path.read_bytes()}
BENCHMARKS = [name for name in PROGRAMS if name != "run"]


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of data and models, which benchmarks share."""
    return tmp_path_factory.mktemp("work")


def run(name: str, folder: Path, work: Path, *arguments: str) -> str:
    """What a benchmark prints in `folder`, without peers."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PHRASELOOM_PEER_")}
    environment |= {"PHRASELOOM_BENCH_WORK": str(work), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(PROGRAMS[name]), *arguments, "--quick"]
    done = forked.run(command, cwd=folder, env=environment, work=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_phrases(ratios: dict[str, float]) -> None:
    """More of the mechanism is more FLOP, and times are divided by those of the base, and by FLOP."""
    for part in ("train", "greedy"):
        assert 1 < ratios[f"{part}: narrow, FLOP / base"] < ratios[f"{part}: max_attn_ta, FLOP / base"]
    for kind in {key.split(", ")[0] for key in ratios}:
        time, flop = ratios[f"{kind}, time / base"], ratios[f"{kind}, FLOP / base"]
        assert ratios[f"{kind}, time ratio / FLOP ratio"] == pytest.approx(
            time / flop, abs=1e-3
        )  # 4 digits are written


def check_recurrent(ratios: dict[str, float]) -> None:
    assert ratios["16: gru mlp / lstm mlp, FLOP"] < 1
    assert ratios["16: lstm mlp without feeding / lstm mlp, FLOP"] < 1
    assert all(value > 0 for value in ratios.values())
    assert not any("OpenNMT" in name for name in ratios)


def check_continuous(ratios: dict[str, float]) -> None:
    """In training only the products of a softmax grow with the types; in search those of both do."""
    of_train, of_greedy = (
        [ratios[f"{what}: softmax {n} / continuous, FLOP"] for n in (50, 100)] for what in ("train", "greedy")
    )
    assert of_train[0] < of_train[1] and of_greedy[0] == pytest.approx(of_greedy[1], rel=0.1)
    assert {f"beam 5: word_or_phrase 50+30 gate / without, {what}" for what in ("time", "FLOP")} < ratios.keys()
    assert 0 < ratios["profile: continuous 50, loss / update"] < 1
    assert all(value > 0 for value in ratios.values())
    assert {f"memory: {kind}, scoring / rows × types" for kind in ("softmax", "continuous")} < ratios.keys()


def check_forced(ratios: dict[str, float]) -> None:
    assert {f"{row}: attention / scores, time" for row in ("token", "queryk heterogeneous 1-2")} == ratios.keys()


CHECKS = {
    "phrases": check_phrases,
    "recurrent": check_recurrent,
    "continuous": check_continuous,
    "forced": check_forced,
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_runs_and_leaves_ratios(name: str, tmp_path: Path, work: Path) -> None:
    printed = run(name, tmp_path, work, "--json", str(tmp_path / "result.json"))
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert result["benchmark"] == name
    has_peers = b" peer(" in PROGRAMS[name].read_bytes()
    assert result["ratios"] or (has_peers and result["figures"]), "nothing was compared or measured"
    assert all(math.isfinite(value) for value in result["ratios"].values())
    assert all(ratio in printed for ratio in result["ratios"])
    CHECKS.get(name, lambda ratios: None)(result["ratios"])
    if has_peers:
        assert "is left out: set PHRASELOOM_PEER_" in printed


def test_run_writes_the_ratios_of_the_benchmarks_it_is_given(tmp_path: Path) -> None:
    printed = run("run", tmp_path, tmp_path / "work", "attention", "loss")
    (file,) = (tmp_path / "work" / "results").glob("run-*.json")
    results = json.loads(file.read_bytes())
    assert set(results) == {"attention", "loss"}
    assert all(ratio in printed for one in results.values() for ratio in one["ratios"])
