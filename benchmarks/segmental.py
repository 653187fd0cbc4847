"""NPMT beside LSTMs with attention of the same width: speed of an update and of a search, FLOP, and where an update goes.

Run: python benchmarks/segmental.py [--dataset FOLDER] [--width 512] [--tokens 1500] [--rounds 3] [--connect] [--json FILE]
All rows take turns in one run on the same batches (ids are random, lengths those of the dataset or like those of Multi30k), in
one process. An update is all that `phraseloom train` does, without making its batches; a search is encoding and searching of a
batch by untrained models; npmt is made to write about one word a position.

npmt   embeddings of half the width, window 7, two columns of 2 GRUs, 2 GRUs write segments of up to 6 words
lstm   2 + 2 layers, the lower reading both ways, mlp attention, input feeding, softmax
pconmt the same, continuous output over the words and as many phrases (paper 003); it has no search here

FLOP of npmt are those of `phraseloom.npmt.flops`: an update is three forward passes (`plain`). As it is computed
the rows are run twice forward, so at most four; rows that hold no posterior probability are left out of the second run, which
an untrained model has few of.

The bar: npmt / lstm in time at most 1.3 × npmt / lstm in FLOP. What approximations of a trained model save and cost is told by
segmental_approximation.py.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from common import finish, median_ratio, parser, table, take_cores
from corpora import add_data_options
from phrasal import take_turns

QUICK = {"vocabulary": 50, "width": 16, "tokens": 20, "sentences": 2, "rounds": 1, "max_segment": 3, "table_width": 12}

BEAMS = (1, 5)
BAR = 1.3


def arguments() -> argparse.Namespace:
    result = parser(__doc__, quick=QUICK)
    add_data_options(result)
    result.set_defaults(vocabulary=6000)
    result.add_argument("--width", type=int, default=512)
    result.add_argument("--tokens", type=int, default=1500, help="target tokens of an update")
    result.add_argument("--sentences", type=int, default=32, help="of a search")
    result.add_argument("--rounds", type=int, default=3)
    result.add_argument("--max-segment", type=int, default=6)
    result.add_argument("--connect", action="store_true", help="segments are given the words before them")
    result.add_argument("--table-width", type=int, default=300, help="of pconmt")
    result.add_argument("--threads", type=int, help="default: one a core")
    return result.parse_args()


def configs(options: argparse.Namespace) -> dict[str, Any]:
    """The models."""
    from phraseloom.options.model import ModelConfig

    width, rates = options.width, {"dropout": 0.1, "attention_dropout": 0.1}
    sizes = {"width": width, "heads": max(1, width // 64), "ffn_width": 4 * width, **rates}
    segmental = {
        "output": {"bias": True},
        "embedding_width": width // 2,
        "reordering": {"window": 7},
        "encoder": {"kind": "columns", "layers": 2, "width": width // 2, "dropout": 0.1},
        "decoder": {
            "kind": "segmental",
            "layers": 2,
            "max_segment": options.max_segment,
            "connect": options.connect,
            "dropout": 0.1,
        },
    }
    recurrent = {"kind": "recurrent", "layers": 2, "cell": "lstm", "dropout": 0.1}
    lstm = {"encoder": {**recurrent, "bidirectional": 2}, "decoder": {**recurrent, "initial": "final"}}
    continuous = {"tied": "none", "output": {"kind": "word_or_phrase"}}
    return {
        "npmt": ModelConfig.model_validate({**sizes, **segmental}),
        "lstm": ModelConfig.model_validate(sizes | lstm),
        "pconmt": ModelConfig.model_validate(sizes | lstm | continuous),
    }


class Clock:
    """Adds up the seconds that functions take, when they are not inside one another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self.seconds[name] += time.perf_counter() - begin

        return timed


@contextlib.contextmanager
def watched(clock: Clock) -> Iterator[None]:
    """The parts of an update of npmt, timed."""
    from phraseloom.npmt import likelihood
    from phraseloom.npmt.likelihood import Gradient, Softmax
    from phraseloom.npmt.rows import ResidualCells

    places: list[tuple[Any, str, str]] = [
        (likelihood, "segmentations", "dynamic program"),
        (ResidualCells, "step", "segments forward"),
        (Softmax, "log_probs", "softmax forward"),
        (Gradient, "add", "softmax again, with gradient"),
        (torch.autograd, "grad", "segments backward"),
    ]
    before = [getattr(owner, name) for owner, name, _ in places]
    for (owner, name, part), function in zip(places, before, strict=True):
        setattr(owner, name, clock.around(part, function))
    try:
        yield
    finally:
        for (owner, name, _), function in zip(places, before, strict=True):
            setattr(owner, name, function)


def write_a_word_each(model: Any) -> None:
    """Make END unlikely after START and likely after a word, so that each source position of an untrained model writes one."""
    with torch.no_grad():
        start_E = model.target_embedding(torch.tensor([[model.start_token]]))[0, 0]
        passed_D = model.decoder.segment.residual(start_E)  # what reaches the output past the cells
        likely = math.log(len(model.output.weight)) + 4
        model.output.weight[model.end_token] = -passed_D * (likely + 5) / passed_D.square().sum()
        model.output.bias[model.end_token] = likely


class Search:
    """Encoding and search of a batch of sentences, which differ from round to round."""

    def __init__(self, options: argparse.Namespace, config: Any, corpus: Any) -> None:
        from phrasal_work import Searching

        self.searching = Searching(options, config, corpus)
        self.segmental = config.decoder.kind == "segmental"
        self.words: list[float] = []
        if self.segmental:
            write_a_word_each(self.searching.model)

    def seconds(self, number: int, beam: int) -> float:
        """Of one batch. What an LSTM writes is bounded to the length of the references."""
        if not self.segmental:
            return self.searching.search(number, beam)
        from phraseloom.decoding.limits import Limits, SearchOptions
        from phraseloom.decoding.search import search

        examples, model = self.searching.examples(number), self.searching.model
        batch, words = self.searching.corpus.batch(examples), self.searching.tokens(examples)
        begin = time.perf_counter()
        with torch.inference_mode():
            memory = model.encode(batch.source_BS, batch.source_lengths_B)
            found = search(model, memory, Limits.of([2 * words + 20] * len(examples)), SearchOptions(beam=beam))
        seconds = time.perf_counter() - begin
        self.words.append(sum(len(some[0].tokens) for some in found) / sum(map(int, batch.source_lengths_B - 1)))
        return seconds


def main() -> None:
    options = arguments()
    cores = take_cores(options.cores)
    from continuous_work import Row, random_table
    from phrasal_work import Training, corpus_of
    from phraseloom.npmt.flops import segmental_parts
    from phraseloom.training.run import settle_torch

    options.threads = options.threads or cores
    options.device, options.micro_batches = "cpu", 1
    torch.set_num_threads(options.threads)
    corpus, models = corpus_of(options), configs(options)
    words = corpus.types
    both = random_table(options, Row("word_or_phrase", 2 * words, words))
    tables = {"pconmt": (replace(corpus, target_vocabulary=2 * words), both)}
    own = {name: Training(options, config, *tables.get(name, (corpus, None))) for name, config in models.items()}
    settle_torch(own["npmt"].job.world)
    times = take_turns(list(own), options.rounds, lambda name, number: own[name].update(number))
    pieces = [e for n in range(1, options.rounds + 1) for e in own["npmt"].job.plan.update(n)]
    pairs = [pair for examples in pieces for pair in corpus.pairs(examples)]
    cost = segmental_parts(models["npmt"], corpus.types, pairs)
    flop = {"npmt": 6 * sum(cost.values())}
    flop |= {n: sum(own[n].flop(i) for i in range(1, options.rounds + 1)) for n in ("lstm", "pconmt")}
    said = f"{corpus.said}; {corpus.vocabulary} types, width {options.width}, {options.tokens} target tokens an update"
    print(f"{said}; {options.threads} thread(s)")
    rows = []
    for name, some in times.items():
        seconds, updates = statistics.median(some), options.rounds
        speed = len(pairs) / updates / seconds
        rows.append(
            [name, own[name].parameters, speed, flop[name] / updates / 1e9, flop[name] / updates / 1e9 / seconds]
        )
    table(["training", "parameters", "pairs/s", "GFLOP/update, plain", "GFLOP/s"], rows)
    ratios = {}
    for name in ("lstm", "pconmt"):
        ratios[f"training: time, npmt / {name}"] = of_time = median_ratio(times["npmt"], times[name])
        ratios[f"training: FLOP, npmt / {name}"] = of_flop = flop["npmt"] / flop[name]
        said = "" if name != "lstm" else f"; bar {BAR}: {'ok' if of_time <= BAR * of_flop else 'MISSED'}"
        print(f"npmt / {name}: time {of_time:.1f}, FLOP {of_flop:.1f}, time by FLOP {of_time / of_flop:.2f}{said}")
    ratios |= parts(own["npmt"], options.rounds + 1, cost)
    ratios |= searches(options, {name: models[name] for name in ("npmt", "lstm")}, corpus)
    finish("segmental", options, ratios=ratios, figures={"seconds": times, "flop": flop, "forward": cost})


def parts(training: Any, number: int, cost: dict[str, int]) -> dict[str, float]:
    """Shares of the time of one update, and of the FLOP of its forward pass."""
    clock = Clock()
    with watched(clock):
        whole = training.update(number)
    rest = whole - sum(clock.seconds.values())
    shares = {**clock.seconds, "all else (encoder, optimiser)": rest}
    table(["part of an update", "seconds", "share"], [[n, s, s / whole] for n, s in shares.items()])
    total = sum(cost.values())
    table(["part of a forward pass", "FLOP share"], [[name, own / total] for name, own in cost.items()])
    return {f"share of an update: {name}": seconds / whole for name, seconds in shares.items()}


def searches(options: argparse.Namespace, models: dict[str, Any], corpus: Any) -> dict[str, float]:
    """Sentences a second, greedy and with a beam."""
    found: dict[str, float] = {}
    searching = {name: Search(options, config, corpus) for name, config in models.items()}
    for beam in BEAMS:

        def work(name: str, number: int, beam: int = beam) -> float:
            return searching[name].seconds(number, beam)

        times = take_turns(list(searching), options.rounds, work)
        rows = [[name, options.sentences / statistics.median(some)] for name, some in times.items()]
        table([f"search, beam {beam}", "sentences/s"], rows)
        found[f"search, beam {beam}: time, npmt / lstm"] = median_ratio(times["npmt"], times["lstm"])
    words = statistics.mean(searching["npmt"].words)
    print(f"npmt writes {words:.2f} words a source position; lstm as many as the references have\n")
    return found


if __name__ == "__main__":
    main()
