"""The cost of phrase representations: training and search of each row of P001, Table 2, against the base and its own FLOP.

Run: python benchmarks/phrases.py [--dataset FOLDER] [--layers 2] [--parts train beam greedy] [--rows NAME...]
All rows take turns in one process on the same batches; each time is divided by that of the base in the same round, and this by
the ratio of their matrix-product FLOP (flops.py). The FLOP of the bar are those of the paper's formulas, however the layers
compute them (`plain`); `computed` are those of the products that the layers make. A quotient of 1 is a row that costs
what the products of the paper's formulas cost.

train    an update as `phraseloom train` does it (its loop, loss, flat Adam), in one process of all cores
beam     encoding and search with beam 5 to a given length, with weights packed as for translating; greedy: beam 1

The bars: 1.10 in training and 1.20 in search, for every row.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

from common import finish, parser, table, take_cores
from corpora import add_data_options
from phrasal import take_turns

QUICK = {
    "rows": ["max_attn_ta", "narrow"],
    "parts": ["train", "greedy"],
    "vocabulary": 50,
    "width": 16,
    "heads": 2,
    "ffn_width": 32,
    "layers": 1,
    "tokens": 60,
    "sentences": 4,
    "rounds": 1,
}

PARTS = ("train", "beam", "greedy")
BEAMS = {"beam": 5, "greedy": 1}
BARS = {"train": 1.10, "beam": 1.20, "greedy": 1.20}
BASE = "base"
GLANCE: dict[str, Any] = {"attention": "none", "transparent": False}
QUERYK = "queryk heterogeneous 1-2"
# The names are those of the recipes; f is the inner width of the combination network.
ROWS: dict[str, dict[str, Any]] = {
    BASE: {},
    "mean": {"phrases": {**GLANCE, "glance": "mean"}},
    "max": {"phrases": GLANCE},
    "max_attn": {"phrases": {"transparent": False}},
    "max_attn_ta": {"phrases": {}},
    "narrow": {"phrases": {"combination_width": 1}},  # f = d
    "attention": {"phrases": {"combination_width": 0}},  # no network
    "half": {"phrases": {"combination_width": 2}},  # f = 2d
    "queryk_ta": {"phrases": {}, "attention": QUERYK},
    "queryk": {"attention": QUERYK},
    "gated_ta": {"phrases": {"attention": "gated", "transparent_tokens": True}},
}
USUAL = ("mean", "max", "max_attn", "max_attn_ta", "narrow", "attention")


def arguments() -> argparse.Namespace:
    result = parser(__doc__, quick=QUICK)
    add_data_options(result)
    result.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    result.add_argument(
        "--rows", nargs="+", choices=list(ROWS), default=list(USUAL), help="the base is always measured"
    )
    result.add_argument("--width", type=int, default=512)
    result.add_argument("--heads", type=int, default=8)
    result.add_argument("--ffn-width", type=int, default=2048)
    result.add_argument("--layers", type=int, default=2, help="in the encoder and in the decoder")
    result.add_argument("--norm", choices=("post", "pre"), default="post")
    result.add_argument("--tokens", type=int, default=4096, help="target tokens per update")
    result.add_argument("--micro-batches", type=int, default=2)
    result.add_argument("--sentences", type=int, default=64, help="sentences per search")
    result.add_argument("--rounds", type=int, default=5)
    result.add_argument("--threads", type=int, help="default: one per core")
    result.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    return result.parse_args()


def model_config(options: argparse.Namespace, name: str) -> Any:
    """The shape of the options with the phrases of a row; base and rows normalise their embeddings, as in P001."""
    from phraseloom.options.model import ModelConfig

    row, layers = ROWS[name], {"layers": options.layers}
    sizes = {"width": options.width, "heads": options.heads, "ffn_width": options.ffn_width}
    if factor := row.get("phrases", {}).get("combination_width"):
        row = {**row, "phrases": {**row["phrases"], "combination_width": factor * options.width}}
    shape = {**sizes, "encoder": layers, "decoder": layers, "norm": options.norm, "embedding_norm": True}
    return ModelConfig.model_validate({**shape, **row})


Flop = Callable[[str, int, bool], int]


def compare(
    part: str, times: dict[str, list[float]], flop: Flop, parameters: dict[str, int]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Print the table of one kind of work; its ratios and figures."""
    rows: list[list[Any]] = []
    ratios, figures = {}, {}
    rounds = range(1, len(times[BASE]) + 1)
    for name, own in times.items():
        by_time = [t / b for t, b in zip(own, times[BASE], strict=True)]
        plain, computed = ([flop(name, r, c) / flop(BASE, r, c) for r in rounds] for c in (False, True))
        quotients = [t / f for t, f in zip(by_time, plain, strict=True)]
        found, spread = statistics.median(quotients), max(quotients) - min(quotients)
        time_ratio, plain_ratio, computed_ratio = (statistics.median(x) for x in (by_time, plain, computed))
        passed = "" if name == BASE else "yes" if found <= BARS[part] else "NO"
        seconds, millions = statistics.median(own), parameters[name] / 1e6
        rows.append([name, millions, seconds, time_ratio, plain_ratio, found, spread, computed_ratio, passed])
        figures[name] = {"seconds": own, "time_ratio": by_time, "flop_ratio": plain, "computed_flop_ratio": computed}
        if name != BASE:
            ratios[f"{part}: {name}, time / base"] = time_ratio
            ratios[f"{part}: {name}, FLOP / base"] = plain_ratio
            ratios[f"{part}: {name}, time ratio / FLOP ratio"] = found
    print(f"{part}; medians over {len(rounds)} rounds; spread: lowest to highest quotient")
    heads = ["row", "M param.", "seconds", "time / base", "FLOP / base", "quotient", "spread", "computed FLOP / base"]
    table([*heads, f"<= {BARS[part]:.2f}"], rows)
    return ratios, figures


def train(options: argparse.Namespace, names: list[str]) -> tuple[dict[str, float], dict[str, Any]]:
    from phrasal_work import Training, corpus_of
    from phraseloom.training.run import settle_torch

    corpus = corpus_of(options)
    runs = {name: Training(options, model_config(options, name), corpus) for name in names}
    settle_torch(runs[BASE].job.world)
    times = take_turns(names, options.rounds, lambda name, number: runs[name].update(number))
    parameters = {name: run.parameters for name, run in runs.items()}
    return compare("train", times, lambda name, r, c: runs[name].flop(r, computed=c), parameters)


def decode(options: argparse.Namespace, names: list[str], part: str) -> tuple[dict[str, float], dict[str, Any]]:
    import torch

    from phrasal_work import Searching, corpus_of

    torch.use_deterministic_algorithms(False)
    corpus, beam = corpus_of(options), BEAMS[part]
    searches = {name: Searching(options, model_config(options, name), corpus) for name in names}
    parameters = {name: one.parameters for name, one in searches.items()}
    times = take_turns(names, options.rounds, lambda name, number: searches[name].search(number, beam))
    return compare(part, times, lambda name, r, c: searches[name].flop(r, beam, computed=c), parameters)


def main() -> None:
    options = arguments()
    cores = take_cores(options.cores)
    import torch

    from phrasal_work import corpus_of

    torch.set_num_threads(options.threads or cores)
    names = [BASE, *(n for n in dict.fromkeys(options.rows) if n != BASE)]
    corpus = corpus_of(options)
    print(
        f"{options.width} wide, {options.heads} heads, feed-forward {options.ffn_width}, {options.layers} + {options.layers} "
        f"layers, {options.norm}-norm; {corpus.said}: {corpus.source.mean() + 1:.1f} + {corpus.target.mean() + 1:.1f} tokens "
        f"a pair; {corpus.vocabulary} subwords, {options.tokens} target tokens an update; {torch.get_num_threads()} thread(s)"
    )
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {}
    for part in (p for p in PARTS if p in options.parts):
        found, figures[part] = train(options, names) if part == "train" else decode(options, names, part)
        ratios |= found
    finish("phrases", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
