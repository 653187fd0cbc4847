"""Peak memory and speed of `phraseloom prepare` on corpora of different sizes; the memory should not grow with them.

Run: python benchmarks/prepare_memory.py [--pairs 100000 1000000] [--processes 1 2] [--deduplicate] [--text SOURCE TARGET]
Corpora are made up (seeded words of Zipf frequency, 5 to 25 a sentence), so nothing is needed. With --text, two parallel files
are repeated up to the number of pairs, each pair with the number of its repetition as a last word so that it is no
duplicate. The peak of a process is VmHWM of /proc, read every 20 ms for the command and its workers. With several numbers of
--processes, the ratio of their speeds is printed; learning the subwords, in one thread, is part of the time. "copies" is what
the machine allows: the speed of as many commands of one process at the same time, which share nothing.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path

import numpy as np

from common import finish, parser
from phraseloom.text.lines import read_lines

QUICK = {"pairs": [300], "processes": [1, 2], "subwords": 400}
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


def repeated(path: Path, pairs: int) -> Iterator[str]:
    """`pairs` lines of a file, from the beginning again after its end; each ends in the number of the repetition."""
    turns = (f"{line} {turn}" for turn in count(1) for line in read_lines(path))
    return islice(turns, pairs)


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


def at_once(folder: Path, given: dict[str, object], copies: int) -> float:
    """The seconds of `copies` commands with one process each, at the same time."""
    recipes = [folder / f"copy{number}.yaml" for number in range(copies)]
    for recipe in recipes:
        recipe.write_text(RECIPE.format(**{**given, "folder": recipe.with_suffix("")}))
    started = time.monotonic()
    with ThreadPoolExecutor(copies) as pool:
        list(pool.map(lambda recipe: measure(folder, recipe, 1), recipes))
    return time.monotonic() - started


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    arguments.add_argument("--pairs", type=int, nargs="+", default=[100_000, 1_000_000])
    arguments.add_argument("--processes", type=int, nargs="+", default=[2])
    arguments.add_argument("--text", type=Path, nargs=2, metavar=("SOURCE", "TARGET"))
    arguments.add_argument("--subwords", type=int, default=8000)
    arguments.add_argument("--sample", type=int, default=100_000)
    arguments.add_argument("--deduplicate", action="store_true")
    options = arguments.parse_args()
    first: dict[int, int] = {}
    ratios: dict[str, float] = {}
    figures = []
    print(
        f"{'pairs':>10} {'processes':>9} {'main MiB':>9} {'worker MiB':>11} {'all MiB':>8} {'seconds':>8} {'pairs/s':>8} "
        f"{'memory':>6} {'speed':>6}"
    )
    for pairs in options.pairs:
        speeds: list[float] = []
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for number, side in enumerate("st"):
                lines = sentences(pairs, number + 1) if options.text is None else repeated(options.text[number], pairs)
                with gzip.open(folder / f"{side}.txt.gz", "wb", compresslevel=1) as out:
                    out.writelines(f"{line}\n".encode() for line in lines)
            recipe = folder / "recipe.yaml"
            given = {
                "folder": folder / "out",
                "subwords": options.subwords,
                "sample": options.sample,
                "deduplicate": str(options.deduplicate).lower(),
            }
            recipe.write_text(RECIPE.format(**given))
            for processes in options.processes:
                top, workers, seconds = measure(folder, recipe, processes)
                total = top + sum(workers.values())
                memory = total / first.setdefault(processes, total)
                speeds.append(pairs / seconds)
                print(
                    f"{pairs:>10,} {processes:>9} {top / 2**20:>9.0f} {max(workers.values(), default=0) / 2**20:>11.0f} "
                    f"{total / 2**20:>8.0f} {seconds:>8.1f} {speeds[-1]:>8,.0f} {memory:>6.2f} {speeds[-1] / speeds[0]:>6.2f}",
                    flush=True,
                )
                ratios[f"peak memory, {processes} processes, {pairs} pairs / {options.pairs[0]}"] = memory
                ratios[f"speed, {pairs} pairs, {processes} processes / {options.processes[0]}"] = speeds[-1] / speeds[0]
                figures.append(
                    {"pairs": pairs, "processes": processes, "main": top, "workers": workers, "seconds": seconds}
                )
            copies = max(options.processes)
            if options.processes[0] == 1 < copies:
                seconds = at_once(folder, given, copies)
                speed = copies * pairs / seconds
                print(
                    f"{pairs:>10,} {f'{copies} copies':>9} {seconds:>39.1f} {speed:>8,.0f} {speed / speeds[0]:>13.2f}"
                )
                ratios[f"speed, {pairs} pairs, {copies} copies / one"] = speed / speeds[0]
                figures.append({"pairs": pairs, "copies": copies, "seconds": seconds})
    finish("prepare_memory", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
