"""`phraseloom prepare` with data.target_phrases beside the same commands, run by hand: processor time, children included.

Run: python benchmarks/prepare_phrases.py [--pairs 20000] [--rounds 3]
The text is that of the built-in world, English to German. By hand means: tokenize, align, phrases extract, filter and segment,
embeddings train, and prepare on the joined text, with the same options. What `prepare` adds is the check of its input, the
records of its steps with their checksums, and the summary. Both sides start from empty folders.

The bar: at most twice the sum of the commands.
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

from common import finish, parser, table, take_cores
from corpora import world_text
from phraseloom.files import atomic_write_text

QUICK = {"rounds": 1, "pairs": 300, "epochs": 1}
BAR = 2.0
Words = list[str | Path]
RECIPE = """
format: 1
name: bench-phrases
data:
  folder: {folder}
  source_language: en
  target_language: de
  train: [{{source: {source}, target: {target}}}]
  text: {{tokenize: moses}}
  {phrases}
  subwords: {{kind: words, phrases: 5000, min_frequency: 2, center: true, joined: true, vectors: {vectors}}}
"""


def arguments() -> argparse.Namespace:
    result = parser(__doc__, quick=QUICK)
    result.add_argument("--pairs", type=int, default=20_000, help="pairs of the built-in world")
    result.add_argument("--epochs", type=int, default=20, help="passes of embeddings train")
    result.add_argument("--rounds", type=int, default=3)
    return result.parse_args()


def cost(*words: str | Path, stdin: Path | None = None, stdout: Path | None = None) -> float:
    """Processor seconds of a command and of the processes that it started and waited for."""
    command = [sys.executable, "-m", "phraseloom", *map(str, words)]
    reading = os.open(stdin or os.devnull, os.O_RDONLY)
    writing = os.open(stdout or os.devnull, os.O_WRONLY | os.O_CREAT)
    process = subprocess.Popen(command, stdin=reading, stdout=writing, stderr=subprocess.DEVNULL)
    os.close(reading)
    os.close(writing)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime


def by_recipe(text: Path, folder: Path, epochs: int) -> float:
    recipe = folder / "recipe.yaml"
    vectors = f"{{train: {{epochs: {epochs}}}}}"
    files = {"source": text / "train.en", "target": text / "train.de"}
    content = RECIPE.format(folder=folder / "data", phrases="target_phrases: {}", vectors=vectors, **files)
    atomic_write_text(recipe, content)
    return cost("prepare", recipe)


def by_hand(text: Path, folder: Path, epochs: int) -> dict[str, float]:
    """Processor seconds of each command."""
    source, target, joined, both = (folder / name for name in ("source", "target", "joined", "both"))
    candidates, phrases, vectors = (folder / name for name in ("candidates.tsv", "phrases.tsv", "vectors.vec"))
    aligned: Words = ["-s", source, "-t", target]
    seconds = {
        "tokenize source": cost("tokenize", "-l", "en", stdin=text / "train.en", stdout=source),
        "tokenize target": cost("tokenize", "-l", "de", stdin=text / "train.de", stdout=target),
        "align train": cost("align", "train", *aligned, "-o", folder / "aligner", "--links", folder / "links"),
        "phrases extract": cost("phrases", "extract", *aligned, "-a", folder / "links", "-o", candidates),
        "phrases filter": cost("phrases", "filter", candidates, "-t", target, "-o", phrases),
    }
    links: Words = ["-s", source, "-a", folder / "links", "--rule", "aligned", "--fertility", folder / "fertility"]
    seconds["phrases segment"] = cost("phrases", "segment", target, "--table", phrases, *links, stdout=joined)
    both.write_bytes(joined.read_bytes() + target.read_bytes())
    how: Words = ["--min-count", "2", "--sample", "0.001", "--epochs", str(epochs), "--vocabulary", phrases]
    seconds["embeddings train"] = cost("embeddings", "train", both, "-o", vectors, *how)
    recipe, files = folder / "recipe.yaml", {"source": text / "train.en", "target": joined}
    atomic_write_text(recipe, RECIPE.format(folder=folder / "data", phrases="", vectors=vectors, **files))
    return {**seconds, "prepare on joined text": cost("prepare", recipe)}


def main() -> None:
    options = arguments()
    take_cores(options.cores)
    os.environ["OMP_NUM_THREADS"] = "1"
    text = world_text(options.pairs)
    print(f"{options.pairs:,} pairs of the built-in world", flush=True)
    rounds: list[tuple[float, dict[str, float]]] = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as recipe, tempfile.TemporaryDirectory() as hand:
            whole = by_recipe(text, Path(recipe), options.epochs)
            rounds.append((whole, by_hand(text, Path(hand), options.epochs)))
    parts = {name: statistics.median(seconds[name] for _, seconds in rounds) for name in rounds[0][1]}
    figures: dict[str, Any] = {"prepare": statistics.median(whole for whole, _ in rounds), "by hand": parts}
    table(["", "processor s"], [["prepare with target_phrases", figures["prepare"]], *map(list, parts.items())])
    ratio = statistics.median(whole / sum(seconds.values()) for whole, seconds in rounds)
    print(f"the bar is {BAR:g}: {'met' if ratio <= BAR else 'NOT met'}", flush=True)
    finish("prepare_phrases", options, ratios={"prepare / by hand": ratio}, figures=figures)


if __name__ == "__main__":
    main()
