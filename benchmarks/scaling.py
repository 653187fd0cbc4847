"""How the cost of a training step and of a decoding step grows with length, vocabulary and model size, and peak memory.

Run: python benchmarks/scaling.py [--sweeps length vocabulary size]
Random ids, so nothing is needed. Cost is time a token; each column is relative to the first row of its sweep. Memory is
what a process takes beyond the libraries it has loaded; every row has a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import finish, parser, table, take_cores

QUICK = {"sweeps": ["size"], "values": 1, "seconds": 0.0}

BASE = {"length": 25, "vocabulary": 8000, "size": "small"}
SWEEPS: dict[str, list[Any]] = {
    "length": [10, 25, 50, 100, 200],
    "vocabulary": [2000, 8000, 32000, 64000],
    "size": ["tiny", "small", "base"],
}
TRAIN_TOKENS, DECODE_SENTENCES, DECODE_STEPS = 1000, 16, 100


def memory() -> int:
    """Peak resident memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def median_time(function: Callable[[], Any], seconds: float) -> float:
    """Median time of a call: one to warm up, then at least two, for about `seconds`."""
    function()
    times: list[float] = []
    while len(times) < 2 or sum(times) < seconds:
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return sorted(times)[(len(times) - 1) // 2]


def measure(row: dict[str, Any], threads: int, seconds: float) -> dict[str, float]:
    """Time a token of training and of greedy decoding, and the memory of each; runs in a process of its own."""
    import torch

    from phraseloom.data.tensors import make_batch
    from phraseloom.decoding.limits import Limits, SearchOptions
    from phraseloom.decoding.search import search
    from phraseloom.models.build import build_model
    from phraseloom.options.model import ModelConfig
    from phraseloom.options.training import AdamConfig
    from phraseloom.training.distributed import keep_pages
    from phraseloom.training.optimization import FlatAdam, FlatParameters

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    keep_pages()
    before, length = memory(), row["length"]
    model = build_model(ModelConfig(preset=row["size"]), row["vocabulary"], row["vocabulary"])

    def ids(sentences: int) -> list[list[int]]:
        return torch.randint(4, row["vocabulary"], (sentences, length - 1)).tolist()

    def decode() -> None:
        batch = make_batch(ids(DECODE_SENTENCES), [[] for _ in range(DECODE_SENTENCES)])
        encoded = model.encode(batch.source_BS, batch.source_lengths_B)
        steps = [min(length, DECODE_STEPS)] * DECODE_SENTENCES
        search(model, encoded, Limits.of(steps, steps), SearchOptions())

    model.eval()
    with torch.inference_mode():
        decoding = median_time(decode, seconds) / (DECODE_SENTENCES * min(length, DECODE_STEPS))
    decoding_memory = memory() - before
    flat = FlatParameters(model.train())
    adam = FlatAdam(flat, AdamConfig())
    sentences = max(1, TRAIN_TOKENS // (2 * length))

    def step() -> None:
        flat.grad.zero_()
        model.loss(make_batch(ids(sentences), ids(sentences))).objective.backward()
        adam.step(1e-5, 1e-3)

    training = median_time(step, seconds) / (2 * sentences * length)
    sizes = {"training_memory": memory() - before, "decoding_memory": decoding_memory}
    return {"training": training, "decoding": decoding, **sizes}


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    arguments.add_argument("--sweeps", nargs="+", choices=list(SWEEPS), default=list(SWEEPS))
    arguments.add_argument("--values", type=int, help="measure the first values of each sweep only")
    arguments.add_argument("--seconds", type=float, default=1.5, help="for each figure")
    arguments.add_argument("--row", type=json.loads, help="measure one row and print it as JSON (used by itself)")
    options = arguments.parse_args()
    cores = take_cores(options.cores)
    if options.row is not None:
        print(json.dumps(measure(options.row, cores, options.seconds)))
        return
    ratios: dict[str, float] = {}
    figures = []
    for sweep in options.sweeps:
        rows, first = [], None
        for value in SWEEPS[sweep][: options.values]:
            row = {**BASE, sweep: value}
            command = [sys.executable, str(Path(__file__)), "--row", json.dumps(row), "--cores", str(cores)]
            command += ["--seconds", str(options.seconds)]
            found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
            first = first or found
            grown = [found[k] / first[k] for k in ("training", "decoding")]
            mib = [found[k] / 2**20 for k in ("training_memory", "decoding_memory")]
            times = [1e6 * found[k] for k in ("training", "decoding")]
            rows.append([str(value), times[0], grown[0], mib[0], times[1], grown[1], mib[1]])
            figures.append({**row, **found})
            ratios |= {f"training, {sweep} {value}": grown[0], f"decoding, {sweep} {value}": grown[1]}
        table([sweep, "train µs/token", "ratio", "MiB", "decode µs/token", "ratio", "MiB"], rows)
    finish("scaling", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
