"""What phrasal attention costs: training, search and memory of each structure against the base Transformer and its own FLOP.

Run: python benchmarks/phrasal.py [--dataset FOLDER] [--layers 6] [--parts train decode memory] [--structures NAME...]
All structures take turns in one process on the same batches; each time is divided by that of the base in the same round, and
this by the ratio of their matrix-product FLOP (flops.py). A quotient of 1 is a structure that costs what its products cost.

train    an update as `phraseloom train` does it (its loop, loss, flat Adam), in one process of all cores
decode   encoding and search (beam 5, greedy) to a given length, with weights packed as for translating
memory   peak of a process that does the update which needs most; each structure has a process of its own

The bars: 1.15 in training and 1.25 in search for heterogeneous QueryK and ConvKV 1-2 and 1-2-3, memory 1.6 for 1-2.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import finish, parser, table, take_cores
from corpora import add_data_options

QUICK = {
    "structures": ["queryk heterogeneous 1-2"],
    "vocabulary": 50,
    "width": 16,
    "heads": 2,
    "ffn_width": 32,
    "layers": 1,
    "tokens": 60,
    "sentences": 4,
    "rounds": 1,
}

PARTS = ("train", "decode", "memory")
BARS = {"train": 1.15, "beam 5": 1.25, "greedy": 1.25, "memory": 1.6}


def arguments() -> argparse.Namespace:
    result = parser(__doc__, quick=QUICK)
    add_data_options(result)
    result.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    result.add_argument(
        "--structures", nargs="+", metavar="NAME", help="as in model.attention; the base is always measured"
    )
    result.add_argument("--width", type=int, default=512)
    result.add_argument("--heads", type=int, default=8)
    result.add_argument("--ffn-width", type=int, default=2048)
    result.add_argument("--layers", type=int, default=6, help="in the encoder and in the decoder")
    result.add_argument("--tokens", type=int, default=4096, help="target tokens per update")
    result.add_argument("--micro-batches", type=int, default=2)
    result.add_argument("--sentences", type=int, default=64, help="sentences per search")
    result.add_argument("--rounds", type=int, default=7)
    result.add_argument("--threads", type=int, help="default: one per core")
    result.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    result.add_argument(
        "--precision", default="fp32", choices=["fp32", "bf16"], help="of training, as training.precision"
    )
    result.add_argument("--tf32", action="store_true", help="on a GPU, fp32 products of training in TF32")
    result.add_argument("--compile", action="store_true", help="as training.compile")
    result.add_argument("--memory-of", metavar="NAME", help=argparse.SUPPRESS)
    return result.parse_args()


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage between the timed pieces, not during them."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def take_turns(names: list[str], rounds: int, work: Callable[[str, int], float]) -> dict[str, list[float]]:
    """Seconds of each round; the first round warms up and does not count. Another candidate begins each round."""
    times: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.freeze()  # modules and models are not garbage: scanning them takes longer than a short turn
    try:
        for number in range(rounds + 1):
            for i in range(len(names)):
                name = names[(i + number) % len(names)]
                with no_collection():
                    seconds = work(name, number)
                if number:
                    times[name].append(seconds)
            if number:
                print(f"round {number} of {rounds}: {names[0]} {times[names[0]][-1]:.2f} s", flush=True)
    finally:
        gc.unfreeze()
    return times


def has_bar(name: str, what: str) -> bool:
    """Whether the project has a bar for a structure."""
    words = name.split()
    if len(words) != 3 or words[1] != "heterogeneous":
        return False
    return words[2] == "1-2" or (words[2] == "1-2-3" and what != "memory")


def compare(
    what: str, times: dict[str, list[float]], flop: Callable[[str, int], int], parameters: dict[str, int]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Print the table of one kind of work; its ratios and figures."""
    base, *_ = times
    rows, ratios, figures = [], {}, {}
    for name, own in times.items():
        by_time = [t / b for t, b in zip(own, times[base], strict=True)]
        by_flop = [flop(name, r) / flop(base, r) for r in range(1, len(own) + 1)]
        quotients = [t / f for t, f in zip(by_time, by_flop, strict=True)]
        found, spread = statistics.median(quotients), max(quotients) - min(quotients)
        rate = statistics.median(flop(name, r) / t for r, t in enumerate(own, 1)) / 1e9
        passed = ("yes" if found <= BARS[what] else "NO") if has_bar(name, what) else ""
        time_ratio, flop_ratio = statistics.median(by_time), statistics.median(by_flop)
        millions = parameters[name] / 1e6
        rows.append([name, millions, statistics.median(own), rate, time_ratio, flop_ratio, found, spread, passed])
        figures[name] = {"seconds": own, "time_ratio": by_time, "flop_ratio": by_flop, "quotient": quotients}
        if name != base:
            ratios[f"{what}: {name}, time / base"] = time_ratio
            ratios[f"{what}: {name}, time ratio / FLOP ratio"] = found
    print(f"{what}; medians over {len(times[base])} rounds; spread: lowest to highest quotient")
    heads = ["structure", "M param.", "seconds", "GFLOP/s", "time / base", "FLOP / base", "quotient", "spread"]
    table([*heads, f"<= {BARS[what]}"], rows)
    return ratios, figures


def train(options: argparse.Namespace, names: list[str]) -> tuple[dict[str, float], dict[str, Any]]:
    from phrasal_work import Training, corpus_of, model_config
    from phraseloom.training.run import settle_torch

    corpus = corpus_of(options)
    runs = {name: Training(options, model_config(options, name), corpus) for name in names}
    settle_torch(runs[names[0]].job.world, tf32=options.tf32)
    times = take_turns(names, options.rounds, lambda name, number: runs[name].update(number))
    parameters = {name: run.parameters for name, run in runs.items()}
    return compare("train", times, lambda name, number: runs[name].flop(number), parameters)


def decode(options: argparse.Namespace, names: list[str]) -> tuple[dict[str, float], dict[str, Any]]:
    import torch

    from phrasal_work import Searching, corpus_of, model_config

    torch.use_deterministic_algorithms(False)
    corpus = corpus_of(options)
    ratios: dict[str, float] = {}
    figures = {}
    searches = {name: Searching(options, model_config(options, name), corpus) for name in names}
    parameters = {name: one.parameters for name, one in searches.items()}

    def with_beam(what: str, beam: int) -> tuple[dict[str, float], dict[str, Any]]:
        times = take_turns(names, options.rounds, lambda name, number: searches[name].search(number, beam))
        return compare(what, times, lambda name, number: searches[name].flop(number, beam), parameters)

    for what, beam in (("beam 5", 5), ("greedy", 1)):
        of_beam, figures[what] = with_beam(what, beam)
        ratios |= of_beam
    return ratios, figures


def memories(options: argparse.Namespace, names: list[str]) -> tuple[dict[str, float], dict[str, Any]]:
    """Measure each structure in its own process, with the same options."""
    figures: dict[str, Any] = {}
    for name in names:
        command = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--memory-of", name]
        figures[name] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    base, rows, ratios = figures[names[0]], [], {}
    for name, found in figures.items():
        ratio, fixed = found["peak"] / base["peak"], found["fixed"] / base["fixed"]
        passed = ("yes" if ratio <= BARS["memory"] else "NO") if has_bar(name, "memory") else ""
        rows.append([name, found["peak"] / 2**20, found["fixed"] / 2**20, ratio, fixed, passed])
        if name != names[0]:
            ratios[f"memory: {name} / base"] = ratio
    print("peak memory of an update; fixed: weights, gradient and both moments")
    table(["structure", "peak MiB", "fixed MiB", "peak / base", "fixed / base", f"<= {BARS['memory']}"], rows)
    return ratios, figures


def described(options: argparse.Namespace) -> str:
    """The device and arithmetic of training."""
    precision = "TF32" if options.precision == "fp32" and options.tf32 else options.precision
    return f"{options.device}, {precision}{', compiled' if options.compile else ''}"


def main() -> None:
    options = arguments()
    cores = take_cores(options.cores)
    import torch

    from phrasal_work import BASE, STRUCTURES, corpus_of, training_memory

    torch.set_num_threads(options.threads or cores)
    if options.memory_of is not None:
        print(json.dumps(training_memory(options, options.memory_of)))
        return
    names = [BASE, *(n for n in options.structures or STRUCTURES if n != BASE)]
    corpus = corpus_of(options)
    print(
        f"{options.width} wide, {options.heads} heads, feed-forward {options.ffn_width}, {options.layers} + {options.layers} "
        f"layers, {described(options)}; {corpus.said}: {corpus.source.mean() + 1:.1f} + {corpus.target.mean() + 1:.1f} "
        f"tokens a pair; {corpus.vocabulary} subwords, {options.tokens} target tokens an update; "
        f"{torch.get_num_threads()} thread(s)"
    )
    ratios: dict[str, float] = {}
    figures = {}
    for part, measure in (("train", train), ("decode", decode), ("memory", memories)):
        if part in options.parts:
            found, figures[part] = measure(options, names)
            ratios |= found
            gc.collect()
    finish("phrasal", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
