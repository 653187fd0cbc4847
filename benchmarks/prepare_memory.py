"""Peak memory and speed of `phraseloom prepare` on corpora of different sizes; the memory should not grow with them.

Run: python benchmarks/prepare_memory.py [--pairs 100000 1000000] [--processes 2] [--deduplicate]
Corpora are made up (seeded words of Zipf frequency, 5 to 25 a sentence), so nothing is needed. The peak of a process is
VmHWM of /proc, read every 20 ms for the command and its workers.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from common import finish, parser
from phraseloom.text.lines import write_lines

QUICK = {"pairs": [300], "processes": 1, "subwords": 400}
RECIPE = """
format: 1
name: memory
data:
  folder: {folder}
  source_language: en
  target_language: de
  train: [{{source: s.txt.gz, target: t.txt.gz}}]
  subwords: {{kind: sentencepiece, model: bpe, size: {subwords}, sample_lines: {sample}}}
  filter: {{deduplicate: {deduplicate}}}
"""


def sentences(pairs: int, seed: int) -> Iterator[str]:
    random = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(random.choice(letters, random.integers(2, 10))) for _ in range(30_000)])
    for start in range(0, pairs, 10_000):
        for _ in range(min(10_000, pairs - start)):
            yield " ".join(words[np.minimum(random.zipf(1.3, random.integers(5, 26)), 30_000) - 1])


def peak(pid: int) -> int:
    """Peak resident memory of a process so far, in bytes; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().split("\n"):
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(c) for c in text.split()]
    except OSError:
        return []


def measure(folder: Path, recipe: Path, processes: int) -> tuple[int, dict[int, int], float]:
    command = [sys.executable, "-m", "phraseloom", "prepare", str(recipe), "--data-root", str(folder), "--overwrite"]
    started = time.monotonic()
    run = subprocess.Popen([*command, "--processes", str(processes)], stdout=subprocess.DEVNULL)
    main, workers = 0, dict[int, int]()
    while run.poll() is None:
        main = max(main, peak(run.pid))
        for child in children(run.pid):  # the last reading counts: before its exec a child shows its parent's memory
            workers[child] = peak(child) or workers.get(child, 0)
        time.sleep(0.02)
    if run.returncode:
        sys.exit(f"prepare failed with exit code {run.returncode}")
    return main, workers, time.monotonic() - started


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    arguments.add_argument("--pairs", type=int, nargs="+", default=[100_000, 1_000_000])
    arguments.add_argument("--processes", type=int, default=2)
    arguments.add_argument("--subwords", type=int, default=8000)
    arguments.add_argument("--sample", type=int, default=100_000)
    arguments.add_argument("--deduplicate", action="store_true")
    options = arguments.parse_args()
    first: int | None = None
    ratios: dict[str, float] = {}
    figures = []
    print(f"{'pairs':>10} {'main MiB':>9} {'worker MiB':>11} {'all MiB':>8} {'seconds':>8} {'pairs/s':>8} {'ratio':>6}")
    for pairs in options.pairs:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for side, seed in (("s", 1), ("t", 2)):
                write_lines(folder / f"{side}.txt", sentences(pairs, seed))
                with (
                    gzip.open(folder / f"{side}.txt.gz", "wb", compresslevel=1) as out,
                    Path.open(folder / f"{side}.txt", "rb") as plain,
                ):
                    while block := plain.read(2**20):
                        out.write(block)
                (folder / f"{side}.txt").unlink()
            recipe = folder / "recipe.yaml"
            given = {
                "folder": folder / "out",
                "subwords": options.subwords,
                "sample": options.sample,
                "deduplicate": str(options.deduplicate).lower(),
            }
            recipe.write_text(RECIPE.format(**given))
            top, workers, seconds = measure(folder, recipe, options.processes)
            total = top + sum(workers.values())
            first = first or total
            most = max(workers.values(), default=0)
            print(
                f"{pairs:>10,} {top / 2**20:>9.0f} {most / 2**20:>11.0f} {total / 2**20:>8.0f} "
                f"{seconds:>8.1f} {pairs / seconds:>8,.0f} {total / first:>6.2f}",
                flush=True,
            )
            ratios[f"peak memory, {pairs} pairs / {options.pairs[0]}"] = total / first
            figures.append({"pairs": pairs, "main": top, "workers": workers, "seconds": seconds})
    finish("prepare_memory", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
