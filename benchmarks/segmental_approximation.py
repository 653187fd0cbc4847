"""What the approximations of a trained segmental model save and cost: time, likelihood and gradient beside the exact ones.

Run: python benchmarks/segmental_approximation.py RUN [--dataset FOLDER] [--pairs 64] [--settings 0.01/- 0.01/5 0/-/1024 …]
A setting is POSTERIOR/BAND or POSTERIOR/BAND/NEGATIVES, as in `decoder.approximation` of a recipe; `-` is no band. All settings
take turns on the same training pairs, without dropout; samples of the softmax differ from round to round. Loss: how much the
negative log-likelihood of a word is above the exact one, in nats. Gradient: its distance from the exact one by the length of
that, and the cosine of the two, both in the last round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import finish, median_ratio, parser, table, take_cores
from phrasal import take_turns

QUICK = {"pairs": 4, "settings": ["0.01/-", "0/3", "0/-/10"], "rounds": 1}

SETTINGS = ["0/-", "0.0001/-", "0.001/-", "0.01/-", "0.05/-", "0/8", "0/5", "0/3", "0.001/5", "0.01/5"]
SETTINGS += ["0/-/256", "0/-/1024", "0/-/4096", "0.01/-/1024"]


def arguments() -> argparse.Namespace:
    result = parser(__doc__, quick=QUICK)
    result.add_argument("run", type=Path, nargs="?", help="run or model folder; --quick needs none")
    result.add_argument("--dataset", type=Path, help="default: that of the run")
    result.add_argument("--pairs", type=int, default=64)
    result.add_argument("--settings", nargs="+", default=SETTINGS)
    result.add_argument("--rounds", type=int, default=3)
    result.add_argument("--threads", type=int, help="default: one a core")
    options = result.parse_args()
    if options.run is None and not options.quick:
        result.error("give a run or model folder")
    return options


def setting(text: str) -> dict[str, Any]:
    """The options of an approximation."""
    posterior, band, negatives = [*text.split("/"), "-", "-"][:3]
    return {
        "posterior": float(posterior),
        "band": None if band == "-" else float(band),
        "negatives": None if negatives == "-" else int(negatives),
    }


def without_dropout(model: Any) -> Any:
    """The model, as in training but for dropout."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if name.endswith("dropout") and isinstance(value, float):
                setattr(module, name, 0.0)
    return model.train()


class Work:
    """Loss and gradient of the pairs with one setting."""

    def __init__(self, model: Any, batches: list[Any], text: str) -> None:
        from phraseloom.options.segmental import ApproximationConfig

        self.model, self.batches, self.approximation = model, batches, ApproximationConfig(**setting(text))
        self.loss, self.gradient = 0.0, torch.zeros(0)

    def seconds(self, number: int) -> float:
        """Of one round."""
        self.model.approximation = self.approximation
        self.model.zero_grad()
        begin = time.perf_counter()
        sums = []
        for batch in self.batches:
            sums.append(self.model.loss(batch))
            sums[-1].objective.backward()
        seconds = time.perf_counter() - begin
        self.loss = sum(float(s.nll) for s in sums) / sum(s.tokens for s in sums)
        parameters = [p.grad.flatten() for p in self.model.parameters() if p.grad is not None]
        self.gradient = torch.cat(parameters).double()
        return seconds


def batches_of(split: Any, count: int) -> Iterable[Any]:
    """`count` pairs from all over a split, sixteen together."""
    from phraseloom.data.tensors import make_batch

    numbers = [int(i * len(split) / count) for i in range(min(count, len(split)))]
    for first in range(0, len(numbers), 16):
        part = numbers[first : first + 16]
        yield make_batch([split.source(i).tolist() for i in part], [split.target(i).tolist() for i in part])


def untrained(options: argparse.Namespace) -> tuple[Any, list[Any]]:
    """A small model of random weights and random pairs of ids."""
    from phrasal_work import corpus_of
    from phraseloom.models.build import build_model
    from segmental import configs

    sizes = {
        "width": 16,
        "max_segment": 3,
        "connect": False,
        "vocabulary": 50,
        "dataset": None,
        "recipe": None,
        "quick": True,
    }
    shape = argparse.Namespace(**sizes)
    corpus = corpus_of(shape)
    torch.manual_seed(1)
    model = build_model(configs(shape)["npmt"], corpus.vocabulary, corpus.vocabulary)
    return model, [corpus.batch(np.arange(options.pairs))]


def trained(options: argparse.Namespace) -> tuple[Any, list[Any]]:
    """The model of a run and pairs of its training data."""
    from phraseloom.data.corpus import Dataset
    from phraseloom.models.store import find_model, load_model
    from phraseloom.recipe import load_recipe

    model = load_model(find_model(options.run), "cpu")[0]
    folder = options.dataset or Path(load_recipe(options.run / "config.yaml").data.folder)
    return model, list(batches_of(Dataset.open(folder, verify=False).split("train"), options.pairs))


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads or take_cores(options.cores))
    model, batches = untrained(options) if options.run is None else trained(options)
    without_dropout(model)
    torch.manual_seed(1)
    settings = list(dict.fromkeys(["0/-", *options.settings]))
    work = {text: Work(model, batches, text) for text in settings}
    times = take_turns(settings, options.rounds, lambda name, number: work[name].seconds(number))
    exact, rows, ratios = work["0/-"], [], {}
    for text, own in work.items():
        faster = median_ratio(times["0/-"], times[text])
        distance = float((own.gradient - exact.gradient).norm() / exact.gradient.norm())
        cosine = float(torch.cosine_similarity(own.gradient, exact.gradient, 0))
        rows.append([text, faster, own.loss - exact.loss, distance, cosine])
        ratios[f"{text}: exact / approximate, time"] = faster
        ratios[f"{text}: error of the gradient"] = distance
        ratios[f"{text}: loss too high"] = own.loss - exact.loss
    print(
        f"{options.run.name if options.run else 'untrained'}: {options.pairs} pairs, exact loss {exact.loss:.4f} nats a word\n"
    )
    table(
        ["posterior/band/negatives", "times as fast", "loss + nats/word", "gradient: error", "gradient: cosine"], rows
    )
    finish("segmental_approximation", options, ratios=ratios, figures={"seconds": times})


if __name__ == "__main__":
    main()
