"""Learning to align: `phraseloom align train` beside fast_align as a Python extension (systran-align), both directions.

Run: python benchmarks/align.py [--source FILE --target FILE] [--rounds 3] [--iterations 5]
Each is a process of its own and they take turns; what counts is processor time (user and system) of all its threads, from the
text to the file of both tables. Without files the text is that of the built-in world. The peer is run like fast_align -d -v;
its interpreter is named by PHRASELOOM_PEER_ALIGN (benchmarks/README.md). The row `apply` is `align apply` on the same text.

The bar: at most three times the peer's time (a ratio of 0.33 or more).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import finish, parser, peer, table, take_cores
from corpora import world_text
from phraseloom.text.lines import read_lines, write_lines

PEER = """
import sys, systran_align
systran_align.generate_alignment_probabilities(
    sys.argv[1], sys.argv[1] + ".f", sys.argv[1] + ".b", iterations=int(sys.argv[2]), favor_diagonal=True,
    variational_bayes=True)
"""
PAIRS = 100_000
QUICK = {"rounds": 1, "pairs": 100, "iterations": 2}


def arguments() -> argparse.Namespace:
    result = parser(__doc__, quick=QUICK)
    result.add_argument("--source", type=Path, help="text, plain or compressed; with --target")
    result.add_argument("--target", type=Path)
    result.add_argument("--pairs", type=int, default=PAIRS, help="pairs of the built-in world, without --source")
    result.add_argument("--rounds", type=int, default=3)
    result.add_argument("--iterations", type=int, default=5)
    options = result.parse_args()
    if (options.source is None) != (options.target is None):
        result.error("--source and --target go together")
    return options


def text(options: argparse.Namespace, folder: Path) -> tuple[Path, Path, Path]:
    """Source, target, and both in the form that the peer reads; lines with a blank side are left out."""
    if options.source is None:
        world = world_text(options.pairs)
        options.source, options.target = world / "train.en", world / "train.de"
    lines = zip(read_lines(options.source), read_lines(options.target), strict=True)
    pairs = [(s, t) for s, t in lines if s.strip() and t.strip()]
    paths = folder / "source", folder / "target", folder / "joined"
    write_lines(paths[0], (s for s, _ in pairs))
    write_lines(paths[1], (t for _, t in pairs))
    write_lines(paths[2], (f"{s} ||| {t}" for s, t in pairs))
    print(
        f"{len(pairs):,} pairs of {options.source.name}, {options.target.name}; {options.iterations} iterations",
        flush=True,
    )
    return paths


def cost(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Processor seconds and peak memory in MiB of a command."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"failed: {' '.join(command)}")
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / scale


def main() -> None:
    options = arguments()
    take_cores(options.cores)
    python = peer("align")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        source, target, joined = text(options, Path(name))
        files = ["-s", str(source), "-t", str(target)]
        program, model = [sys.executable, "-m", "phraseloom", "align"], str(Path(name) / "model")
        commands = {
            "train": [*program, "train", *files, "-o", model, "--iterations", str(options.iterations), "--overwrite"],
            "apply": [*program, "apply", model, *files],
        }
        if python is not None:
            commands["fast_align"] = [python, "-c", PEER, str(joined), str(options.iterations)]
        found: dict[str, list[tuple[float, float]]] = {key: [] for key in commands}
        for _ in range(options.rounds):
            for key, command in commands.items():
                found[key].append(cost(command, environment))
    figures: dict[str, Any] = {
        key: {"seconds": statistics.median(s for s, _ in values), "MiB": max(m for _, m in values)}
        for key, values in found.items()
    }
    table(["", "processor s", "peak MiB"], [[key, f["seconds"], f["MiB"]] for key, f in figures.items()])
    ratios = {"apply / train": figures["apply"]["seconds"] / figures["train"]["seconds"]}
    if python is not None:
        rounds = zip(found["fast_align"], found["train"], strict=True)
        each = [(theirs[0] / ours[0], theirs[1] / ours[1]) for theirs, ours in rounds]
        ratios["fast_align / train"] = statistics.median(r for r, _ in each)
        ratios["fast_align / train, memory"] = statistics.median(m for _, m in each)
    finish("align", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
