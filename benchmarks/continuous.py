"""The speed of continuous output beside softmax, in training and in search (paper 003, §2.1 and Table 3).

Run: python benchmarks/continuous.py [--dataset FOLDER] [--types 10000 50000 150000] [--parts train profile decode memory]
The same network with each output: 2 + 2 LSTM layers as in paper 003 (general attention, input feeding, the encoder reads
both ways), or a GRU or a Transformer (--network). The source has 8,000 types, so that only the output grows. Rows take turns in
one process on batches of the same lengths (those of a dataset, or like Multi30k's); ids are random, table vectors random and of
300 channels. Ratios are medians over the rounds of the ratio within a round.

train    softmax (label smoothing, its matrix shared with the target embeddings) and continuous (the released loss; max-margin
         against the whole table, and against few rows: --rivals drawn, as many frequent, and those of the batch) by number of
         types; word_or_phrase, whose table has words and phrases, against continuous with the words alone and the same loss,
         for each of the three, and with all words and --rivals drawn phrases against the words alone with all as rivals; each
         pair in turns of its own, since what runs behind a large softmax finds other caches
profile  where an update goes: network, projection (of a softmax all of its output), loss, optimiser; the von Mises-Fisher
         normaliser, a part of the loss, once more by itself
decode   encoding and search to a given length, greedy and with a beam; also with the gate of the fertility module
memory   by how much scoring one step of a beam search raises the peak of a process, each output in a process of its own

The bars: softmax / continuous grows with the number of types; word_or_phrase / continuous at most 1.1, but not where the loss
compares with the whole table; the released loss at most 3 %.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import finish, median_ratio, parser, table, take_cores
from corpora import add_data_options
from phrasal import take_turns

QUICK = {
    "types": [50, 100],
    "words": 50,
    "phrases": 30,
    "rivals": 10,
    "source_types": 50,
    "table_width": 12,
    "width": 16,
    "layers": 1,
    "tokens": 20,
    "updates": 1,
    "sentences": 4,
    "rounds": 1,
}

PARTS = ("train", "profile", "decode", "memory")
PHRASES_BAR, LOSS_BAR = 1.1, 0.03
OUTPUT_PARTS = ("network", "projection", "loss", "optimiser")


def arguments() -> argparse.Namespace:
    result = parser(__doc__, quick=QUICK)
    add_data_options(result)
    result.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    result.add_argument(
        "--types", nargs="+", type=int, default=[10_000, 50_000, 150_000], help="target vocabulary sizes"
    )
    result.add_argument(
        "--words", type=int, default=50_000, help="words of word_or_phrase, of its rival, and of the profile"
    )
    result.add_argument("--phrases", type=int, default=50_000, help="phrases of word_or_phrase")
    result.add_argument(
        "--rivals",
        type=int,
        default=2000,
        help="rivals of a max-margin loss: this number drawn, beside as many frequent ones or all words",
    )
    result.add_argument("--source-types", type=int, default=8000)
    result.add_argument("--table-width", type=int, default=300)
    result.add_argument("--network", choices=["lstm", "gru", "transformer"], default="lstm")
    result.add_argument("--width", type=int, default=256)
    result.add_argument("--layers", type=int, default=2, help="in the encoder and in the decoder")
    result.add_argument("--dropout", type=float, default=0.1)
    result.add_argument("--tokens", type=int, default=1500, help="target tokens per update")
    result.add_argument("--updates", type=int, default=2, help="updates per turn")
    result.add_argument("--sentences", type=int, default=64, help="sentences per search")
    result.add_argument("--beam", type=int, default=5)
    result.add_argument("--rounds", type=int, default=5)
    result.add_argument("--threads", type=int, help="default: one per core")
    result.add_argument("--memory-of", metavar="KIND", help=argparse.SUPPRESS)
    return result.parse_args()


def spread(above: list[float], below: list[float]) -> float:
    """From the lowest to the highest ratio within a round."""
    found = [a / b for a, b in zip(above, below, strict=True)]
    return max(found) - min(found)


def verdict(holds: bool) -> str:
    """The verdict on a bar."""
    return "ok" if holds else "MISSED"


def sizes_of(options: argparse.Namespace) -> list[int]:
    """The vocabulary sizes, including that of --words."""
    return sorted({*options.types, options.words})


def compare(
    what: str, sizes: list[int], names: Any, times: dict[str, list[float]], flop: dict[str, float]
) -> dict[str, float]:
    """Softmax / continuous by number of types; print the table."""
    rows, found = [], {}
    for size in sizes:
        softmax, continuous = names("softmax", size), names("continuous", size)
        value = median_ratio(times[softmax], times[continuous])
        found[f"{what}: {softmax} / continuous, time"] = value
        of_flop = found[f"{what}: {softmax} / continuous, FLOP"] = flop[softmax] / flop[continuous]
        rows.append([f"{size:,}", value, spread(times[softmax], times[continuous]), of_flop])
    table([f"softmax / continuous, {what}", "time", "spread", "FLOP"], rows)
    return found


def train(options: argparse.Namespace, corpus: Any) -> tuple[dict[str, float], Any]:
    """Updates by number of types, and with a table of words and phrases."""
    from continuous_work import Row, Updates
    from phraseloom.training.run import settle_torch

    sizes = sizes_of(options)
    both = Row("word_or_phrase", options.words + options.phrases, options.phrases)
    margins = [Row("continuous", n, margin=True, rivals=rivals) for n in sizes for rivals in (None, options.rivals)]
    whole: dict[str, Any] = {"margin": True}
    few: dict[str, Any] = {"margin": True, "rivals": options.rivals}
    losses = [({}, {}), (whole, whole), (few, few), ({**few, "all_words": True}, whole)]
    pairs = [(replace(both, **a), Row("continuous", options.words, **b)) for a, b in losses]
    rows = [*(Row(kind, n) for n in sizes for kind in ("softmax", "continuous")), *margins]
    rows += [row for pair in pairs for row in pair if row not in rows]
    work = {str(row): Updates(options, row, corpus) for row in rows}
    settle_torch(next(iter(work.values())).training.job.world)
    times = take_turns(list(work), options.rounds, lambda name, turn: work[name].seconds(turn))
    counts = [work[str(both)].sizes(turn) for turn in range(1, options.rounds + 1)]
    flop = {
        name: sum(w.flop(turn) for turn in range(1, options.rounds + 1)) / options.rounds for name, w in work.items()
    }
    shown = []
    for name, own in times.items():
        sentences = statistics.median(n / s for (n, _), s in zip(counts, own, strict=True))
        tokens = statistics.median(n / s for (_, n), s in zip(counts, own, strict=True))
        gflop = flop[name] / 1e9
        millions = work[name].parameters / 1e6
        seconds = statistics.median(own)
        shown.append([name, millions, sentences, tokens, gflop / options.updates, gflop / seconds])
    print(f"training updates; medians over {options.rounds} rounds")
    table(["row", "M param.", "sentences/s", "tokens/s", "GFLOP/update", "GFLOP/s"], shown)
    ratios = compare("train", sizes, lambda kind, n: str(Row(kind, n)), times, flop)
    grown = [v for key, v in ratios.items() if key.endswith("time")]
    of_margin = {str(row): (str(Row("softmax", row.types)), str(Row("continuous", row.types))) for row in margins}
    for name, (softmax, density) in of_margin.items():
        ratios[f"train: {softmax} / {name}, time"] = median_ratio(times[softmax], times[name])
        ratios[f"train: {name} / {density}, time"] = median_ratio(times[name], times[density])
    shown = [
        [name, ratios[f"train: {a} / {name}, time"], ratios[f"train: {name} / {b}, time"]]
        for name, (a, b) in of_margin.items()
    ]
    table(["max-margin loss, train", "softmax / it, time", "it / released loss, time"], shown)
    rising = all(a < b for a, b in itertools.pairwise(grown))
    print(f"softmax / continuous grows with the types: {verdict(rising)}")
    alone: dict[str, list[float]] = {}
    for phrases, words in pairs:
        names = str(words), str(phrases)
        alone |= (pair := take_turns(list(names), options.rounds, lambda name, turn: work[name].seconds(turn)))
        found = ratios[f"train: {phrases} / {words}, time"] = median_ratio(pair[str(phrases)], pair[str(words)])
        judged = (
            "" if phrases.margin and phrases.rivals is None else f", bar {PHRASES_BAR}: {verdict(found <= PHRASES_BAR)}"
        )
        print(f"{phrases} / {words}: {found:.3f}, spread {spread(pair[str(phrases)], pair[str(words)]):.3f}{judged}")
    print()
    return ratios, {"seconds": times, "pairs": alone, "flop": flop, "sizes": counts}


def profile(options: argparse.Namespace, corpus: Any) -> tuple[dict[str, float], Any]:
    """The parts of an update, as shares of their sum."""
    from continuous_work import Row, Updates
    from phraseloom.training.run import settle_torch

    rows = [Row("softmax", options.words), Row("continuous", options.words)]
    rows.append(Row("word_or_phrase", options.words + options.phrases, options.phrases))
    work = {str(row): Updates(options, row, corpus) for row in rows}
    settle_torch(next(iter(work.values())).training.job.world)
    parts: dict[str, list[dict[str, float]]] = {name: [] for name in work}

    def cut(name: str, turn: int) -> float:
        found = work[name].parts(turn)
        if turn:
            parts[name].append(found)
        return found["sum"]

    times = take_turns(list(work), options.rounds, cut)
    shown = []
    ratios: dict[str, float] = {}
    for name, laps in parts.items():
        shares = {
            p: median_ratio([lap.get(p, 0.0) for lap in laps], times[name]) for p in (*OUTPUT_PARTS, "normaliser")
        }
        ms = 1e3 * statistics.median(times[name]) / options.updates
        shown.append([name, ms, *(100 * share for share in shares.values())])
        if not name.startswith("softmax"):
            ratios |= {f"profile: {name}, {p} / update": shares[p] for p in ("loss", "normaliser", "projection")}
    print(
        "parts of an update in %; the projection of a softmax is all of its output, the normaliser is a part of the loss"
    )
    table(["row", "ms/update", *OUTPUT_PARTS, "normaliser"], shown)
    share = ratios[f"profile: {rows[1]}, loss / update"]
    print(
        f"loss of {rows[1]}: {100 * share:.2f} % of an update, bar {100 * LOSS_BAR:.0f} %: {verdict(share <= LOSS_BAR)}\n"
    )
    return ratios, parts


def decode(options: argparse.Namespace, corpus: Any) -> tuple[dict[str, float], Any]:
    """Searches by number of types, and with words and phrases, with and without a gate."""
    import torch

    from continuous_work import Row, searching

    torch.use_deterministic_algorithms(False)
    sizes, types = sizes_of(options), options.words + options.phrases
    rows = [Row(kind, n) for n in sizes for kind in ("softmax", "continuous")]
    rows += [Row("word_or_phrase", types, options.phrases, gate) for gate in (False, True)]
    work = {str(row): searching(options, row, corpus) for row in rows}
    some = next(iter(work.values()))
    ratios: dict[str, float] = {}
    figures = {}
    for what, beam in (("greedy", 1), (f"beam {options.beam}", options.beam)):

        def seconds(name: str, turn: int, beam: int = beam) -> float:
            return work[name].search(turn, beam)

        times = take_turns(list(work), options.rounds, seconds)
        turns = range(1, options.rounds + 1)
        flop = {name: sum(w.flop(turn, beam) for turn in turns) / options.rounds for name, w in work.items()}
        counts = [
            (len(some.examples(turn)), len(some.examples(turn)) * some.tokens(some.examples(turn))) for turn in turns
        ]
        shown = []
        for name, own in times.items():
            speeds = [statistics.median(c[i] / s for c, s in zip(counts, own, strict=True)) for i in (0, 1)]
            gflop = flop[name] / 1e9
            shown.append([name, *speeds, gflop, gflop / statistics.median(own)])
        print(f"{what}; medians over {options.rounds} rounds of {options.sentences} sentences")
        table(["row", "sentences/s", "tokens/s", "GFLOP", "GFLOP/s"], shown)
        ratios |= compare(what, sizes, lambda kind, n: str(Row(kind, n)), times, flop)
        plain, gated = (str(row) for row in rows[-2:])
        ratios[f"{what}: {gated} / without, time"] = median_ratio(times[gated], times[plain])
        ratios[f"{what}: {gated} / without, FLOP"] = flop[gated] / flop[plain]
        figures[what] = {"seconds": times, "flop": flop}
    return ratios, figures


def memory(options: argparse.Namespace, _: Any) -> tuple[dict[str, float], Any]:
    """Measure each output in its own process, with the same options."""
    types, shown, figures, ratios = options.words + options.phrases, [], {}, {}
    full = 4 * options.sentences * options.beam * types
    for kind in ("softmax", "continuous"):
        command = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--memory-of", kind]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        width = options.width if kind == "softmax" else options.table_width
        share = ratios[f"memory: {kind}, scoring / rows × types"] = found["scoring"] / full
        mib = [value / 2**20 for value in (4 * types * width, found["held"], found["scoring"], full)]
        shown.append([f"{kind} {types:,} × {width}", *mib, share])
        figures[kind] = found
    print(
        f"peak memory of a step of {options.sentences} sentences, beam {options.beam}; held: matrix and its packed copy"
    )
    table(["output", "matrix MiB", "held MiB", "scoring MiB", "rows × types MiB", "quotient"], shown)
    return ratios, figures


def main() -> None:
    options = arguments()
    cores = take_cores(options.cores)
    options.threads = options.threads or cores
    options.device, options.micro_batches = "cpu", 1
    import torch

    from phrasal_work import corpus_of

    torch.set_num_threads(options.threads)
    if options.memory_of is not None:
        from continuous_work import Row, scoring_memory

        print(json.dumps(scoring_memory(options, Row(options.memory_of, options.words + options.phrases))))
        return
    corpus = replace(corpus_of(options), vocabulary=options.source_types)
    print(
        f"{options.network}, {options.width} wide, {options.layers} + {options.layers} layers; {corpus.said}: "
        f"{corpus.source.mean() + 1:.1f} + {corpus.target.mean() + 1:.1f} tokens a pair; {options.source_types} source types, "
        f"{options.tokens} target tokens an update; {options.threads} thread(s)"
    )
    ratios: dict[str, float] = {}
    figures = {}
    for part in options.parts:
        found, figures[part] = {"train": train, "profile": profile, "decode": decode, "memory": memory}[part](
            options, corpus
        )
        ratios |= found
        gc.collect()
    finish("continuous", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
