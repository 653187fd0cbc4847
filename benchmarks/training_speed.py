"""Training speed of the reference model: phraseloom and other programs by turns, and the matrix-product limit.

Run: python benchmarks/training_speed.py [--dataset FOLDER | --recipe RECIPE --data-root FOLDER] [--systems own hf onmt]
All read the same ids. Rates are real (not padded) source + target tokens a second, one end symbol a sentence and side.
phraseloom is `phraseloom train` as users run it: `own` with one process a core, `own-1` with one process of all cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from common import PEERS, WORK, finish, parser, peer, reference_shape, table, take_cores
from corpora import Export, add_data_options, export, open_data, training_work
from limits import summary
from phraseloom.data.corpus import Dataset
from phraseloom.files import atomic_write_text
from trainees import Tokens, Trainee, Turn

QUICK = {
    "world_pairs": 300,
    "world_subwords": 400,
    "systems": ["own", "hf", "onmt", "joey", "sockeye"],
    "tokens": 200,
    "rounds": 1,
    "updates": 2,
    "settle": 1,
    "warm_up": 1,
}

SYSTEMS = ("own", "own-1", "hf", "hf-eager", "onmt", "joey", "sockeye")
# Batches by padded tokens of one side: their tokens over the real ones of the larger side, on captions. JoeyNMT does not sort
# sentences by length.
PADDED = {"onmt": 1.16, "joey": 2.2, "sockeye": 1.16}


def own_recipe(shape: dict[str, Any], dataset: Dataset, tokens: int, target_share: float, file: Path) -> Path:
    """A recipe for a model of that shape that never validates and reports every update."""
    training = {
        "batch_tokens": round(tokens * target_share),
        "schedule": {"kind": "inverse_sqrt_peak", "peak": 0.001, "warmup": 100},
        "max_updates": 10_000_000,
        "checkpoint_every": 10_000_000,
        "log_every": 1,
    }
    data = dataset.config.model_dump(mode="json")
    tied = "three_way" if dataset.tokenizer.joint else "two_way"
    recipe = {"format": 1, "name": "bench", "data": data, "model": {**shape, "tied": tied}, "training": training}
    atomic_write_text(file, yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True))
    return file


def own(name: str, recipe: Path, processes: str, run: Path) -> Trainee:
    def tokens_of(updates: range) -> list[Tokens]:
        text = (run / "metrics.jsonl").read_text(encoding="utf-8")
        records = [json.loads(line) for line in text.split("\n")[:-1]]
        return [(r["source_tokens"], r["tokens"]) for r in records if r.get("update") in updates]

    command = [sys.executable, "-m", "phraseloom", "train", str(recipe), f"training.processes={processes}"]
    return Trainee(name, [*command, "--run", str(run)], pattern=r"^update (\d+) epoch ", tokens_of=tokens_of)


def trainees(options: argparse.Namespace, dataset: Dataset, found: Export, cores: int, scratch: Path) -> list[Trainee]:
    """Those systems of the options that are to be had."""
    recipe = own_recipe(reference_shape(options), dataset, options.tokens, found.target_share, scratch / "recipe.yaml")
    threads = ["--threads", str(cores), "--vocabulary", str(found.vocabulary)]
    environment = {"OMP_NUM_THREADS": str(cores), "MKL_NUM_THREADS": str(cores)}
    result = []
    for name in options.systems:
        if name.startswith("own"):
            result.append(own(name, recipe, "1" if name == "own-1" else "auto", scratch / name))
            continue
        interpreter = peer(name.split("-")[0])
        if interpreter is None:
            continue
        if name in PADDED:
            batch = round(options.tokens * max(found.target_share, 1 - found.target_share) * PADDED[name])
            files = [str(PEERS / f"{name}_train.py"), str(found.folder), str(scratch / name)]
            command = [interpreter, *files, "--batch", str(batch), *threads]
        else:
            attention = "eager" if name == "hf-eager" else "sdpa"
            files = [str(PEERS / "hf_train.py"), str(found.folder)]
            command = [interpreter, *files, "--tokens", str(options.tokens), "--attention", attention, *threads]
        result.append(Trainee(name, command, environment=environment))
    return result


def limit_now(cores: int) -> dict[str, float]:
    """The matrix-product limit, in a process of its own."""
    code = "import json, torch, limits; torch.set_num_threads({}); print(json.dumps(limits.products(2)))"
    command = [sys.executable, "-c", code.format(cores)]
    found = subprocess.run(command, cwd=PEERS.parent, stdout=subprocess.PIPE, text=True, check=True).stdout
    rates: dict[str, float] = json.loads(found)
    return rates


def take_turns(options: argparse.Namespace, systems: list[Trainee], cores: int) -> tuple[dict[str, list[Turn]], Any]:
    """Rounds of turns of all systems, and the products measured once a round."""
    turns: dict[str, list[Turn]] = {s.name: [] for s in systems}
    products: list[dict[str, float]] = []
    for number in range(options.rounds):
        if number % 2 == 0 or number == options.rounds - 1:
            products.append(limit_now(cores))
        for system in systems:
            turns[system.name].append(system.turn(options.settle, options.updates))
        rates = ", ".join(f"{name} {t[-1].rate:,.0f}" for name, t in turns.items())
        print(f"round {number + 1}: {rates} tokens/s", flush=True)
    return turns, {name: statistics.median(p[name] for p in products) for name in products[0]}


def compare(turns: dict[str, list[Turn]]) -> dict[str, float]:
    """Medians over the rounds of the ratio within each round."""

    def ratio(a: str, b: str) -> float:
        return statistics.median(x.rate / y.rate for x, y in zip(turns[a], turns[b], strict=True))

    peers = [name for name in turns if not name.startswith("own")]
    ratios = {f"own / {name}": ratio("own", name) for name in turns if name != "own" and "own" in turns}
    if peers and "own" in turns:
        rounds = zip(*(turns[name] for name in ["own", *peers]), strict=True)
        ratios["own / faster peer"] = statistics.median(o.rate / max(p.rate for p in rest) for o, *rest in rounds)
    return ratios


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    add_data_options(arguments)
    arguments.add_argument(
        "--systems", nargs="+", choices=SYSTEMS, default=["own", "own-1", "hf", "onmt", "joey", "sockeye"]
    )
    arguments.add_argument("--tokens", type=int, default=3700, help="real source + target tokens an update")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--updates", type=int, default=12, help="updates counted in each turn")
    arguments.add_argument("--settle", type=int, default=2, help="updates at the start of a turn that do not count")
    arguments.add_argument("--warm-up", type=int, default=10)
    options = arguments.parse_args()
    cores = take_cores(options.cores)
    dataset = open_data(options)
    found = export(dataset)
    scratch = WORK / "training_speed"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    systems = trainees(options, dataset, found, cores, scratch)
    with contextlib.ExitStack() as stack:
        for system in systems:
            stack.callback(system.close)
            print(f"starting {system.name}", flush=True)
            system.start(options.warm_up, limit=900)
        turns, products = take_turns(options, systems, cores)
        peaks = {s.name: s.peak() for s in systems}
    shutil.rmtree(scratch, ignore_errors=True)
    report(options, dataset, found, turns, products, peaks)


def report(
    options: argparse.Namespace,
    dataset: Dataset,
    found: Export,
    turns: dict[str, list[Turn]],
    products: dict[str, float],
    peaks: dict[str, int],
) -> None:
    work, limits = training_work(dataset.split("train"), found.vocabulary, reference_shape(options)), summary(products)
    rows, figures = [], {}
    for name, own_turns in turns.items():
        rate = statistics.median(t.rate for t in own_turns)
        gflops = statistics.median(work.of(t.source, t.target) / t.seconds for t in own_turns) / 1e9
        updates = sum(t.updates for t in own_turns)
        tokens = sum(t.source + t.target for t in own_turns) / updates
        spread = (max(t.rate for t in own_turns) - min(t.rate for t in own_turns)) / rate
        figures[name] = {"tokens_per_second": rate, "gflops": gflops, "tokens_per_update": tokens, "peak": peaks[name]}
        share = gflops / limits["large"]
        rows.append([name, rate, spread, tokens, gflops, share, gflops / limits["model"], peaks[name] / 2**20])
    mean = work.of(1 - found.target_share, found.target_share) / 1e6
    print(
        f"\n{found.vocabulary} subwords; {mean:.1f} MFLOP a token; matrix products: large {limits['large']:.0f}, "
        f"of this model's shapes {limits['model']:.0f} GFLOP/s; peak memory summed over processes"
    )
    table(
        ["system", "tokens/s", "spread", "tokens/update", "GFLOP/s", "of limit", "of shapes", "peak MiB"],
        rows,
    )
    ratios = compare(turns)
    if "own" in figures:
        ratios["own / matrix-product limit"] = figures["own"]["gflops"] / limits["large"]
    finish("training_speed", options, ratios=ratios, figures={"systems": figures, "products": products})


if __name__ == "__main__":
    main()
