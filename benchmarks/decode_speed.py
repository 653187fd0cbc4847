"""Translating speed: phraseloom and CTranslate2 on the same weights, by turns in one run.

Run: python benchmarks/decode_speed.py --model FOLDER [--text FILE | --dataset FOLDER] [--sentences 1000]
Subword segmentation is left out on both sides: both get and give subword tokens. Both translate the same sentences in
batches of 64 sorted by length, at most --max-length tokens out.

beam 5      no length penalty on either side, so that both look for the most probable output
beam 5 own  each side's own rule: phraseloom as the model says (Wu et al. 0.6), CTranslate2 its default (mean log p)

Without --model a small one is trained on the built-in world first (some minutes; kept in the ignored local/bench).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from common import WORK, finish, parser, peer, reference_shape, table, take_cores
from corpora import add_data_options, open_data
from ctranslate import CTranslate, what_does_not_fit
from phraseloom.decoding.translator import TranslationReport, Translator
from phraseloom.files import atomic_write_text
from phraseloom.layers.packed import pack_for_inference
from phraseloom.models.store import find_model, load_model, read_config
from phraseloom.options.decoding import DecodingConfig
from phraseloom.options.model import ModelConfig
from phraseloom.text.lines import read_lines
from training_speed import own_recipe

QUICK = {"world_pairs": 300, "world_subwords": 400, "rounds": 1, "sentences": 8, "max_length": 10, "train_updates": 2}

PLAIN = {"length_penalty": {"kind": "none"}}


class IdSide:
    """Stands in for `phraseloom.text.tokenizer.Side`: a line is ids as decimal numbers, and so is a translation.

    Every piece is a word of its own.
    """

    vocabulary: Any
    longest_piece = 12

    def __init__(self) -> None:
        self.vocabulary = self.subwords = self

    def encode(self, line: str) -> list[int]:
        return [int(n) for n in line.split()]

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        return [[int(n) for n in line.split()] for line in lines]

    def decode(self, ids: Sequence[int], begun: Sequence[str] = ()) -> str:
        return " ".join(map(str, ids))

    def words_of(self, ids: Sequence[int], begun: Sequence[str] = ()) -> list[str]:
        return [str(n) for n in ids]

    def words_of_piece(self, ids: Sequence[int], begun: Sequence[str] = ()) -> list[range]:
        return [range(n, n + 1) for n in range(len(ids))]

    def word_of_piece(self, ids: Sequence[int]) -> list[int]:
        return list(range(len(ids)))

    def piece(self, number: int) -> str:
        return str(number)


class Ids:
    """A tokenizer of ids on both sides."""

    source = target = IdSide()


@dataclass(frozen=True)
class Row:
    """A candidate: its name, its function (returns seconds, output tokens), and its results so far."""

    name: str
    work: Callable[[], tuple[float, int]]
    group: str
    done: list[tuple[float, int]]


def own_row(name: str, group: str, model: Any, config: DecodingConfig, lines: list[str], cores: int) -> Row:
    translator = Translator(model, Ids(), config)

    def work(given: list[str] = lines) -> tuple[float, int]:
        torch.set_num_threads(cores)
        begin = time.perf_counter()
        found = translator.translate(given, report=TranslationReport())
        return time.perf_counter() - begin, sum(len(t.tokens) + 1 for t in found)

    work(lines[:64])
    return Row(name, work, group, [])


def peer_row(name: str, group: str, server: CTranslate, request: dict[str, Any]) -> Row:
    def work() -> tuple[float, int]:
        answer = server.translate(**request, first=None)
        return answer["seconds"], answer["tokens"]

    server.translate(**request, first=64 * request["workers"])
    return Row(name, work, group, [])


def groups(options: argparse.Namespace, generation: dict[str, Any]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """For each kind of search our options and those of CTranslate2."""
    bounds = {"max_length": {"factor": 0, "constant": options.max_length}, "batch_sentences": options.batch}
    common = {"batch": options.batch, "max_length": options.max_length}
    own = {**generation, "n_best": 1, **bounds}
    return {
        "greedy": ({**own, **PLAIN, "beam": 1}, {**common, "beam": 1, "length_penalty": 0}),
        "beam 5": ({**own, **PLAIN, "beam": 5}, {**common, "beam": 5, "length_penalty": 0}),
        "beam 5 own": ({**own, "beam": 5}, {**common, "beam": 5, "length_penalty": 1}),
    }


def rows_of(
    options: argparse.Namespace, model: Any, generation: dict[str, Any], lines: list[str], server: CTranslate | None
) -> list[Row]:
    """All candidates, warmed up."""
    cores, rows = options.cores, []
    for group, (own, other) in groups(options, generation).items():
        for workers in dict.fromkeys((cores, 1)):
            config = DecodingConfig.model_validate({**own, "workers": workers})
            name = f"phraseloom {workers} x {cores // workers}"
            rows.append(own_row(name, group, model, config, lines, cores))
        if server is None:
            continue
        for compute, workers in (("float32", 1), ("float32", cores), ("int8_float32", cores)):
            request = {**other, "compute": compute, "workers": workers, "threads": cores // workers}
            rows.append(peer_row(f"CTranslate2 {compute} {workers} x {cores // workers}", group, server, request))
    return rows


def agreement(options: argparse.Namespace, model: Any, lines: list[str], server: CTranslate) -> float:
    """The share of equal greedy outputs, which shows whether both have the same model."""
    own, other = groups(options, {})["greedy"]
    found = Translator(model, Ids(), DecodingConfig.model_validate(own)).translate(lines, report=TranslationReport())
    request = {**other, "compute": "float32", "workers": 1, "threads": options.cores}
    theirs = server.translate(**request, first=None, outputs=True)["outputs"]
    return sum(t.text == o for t, o in zip(found, theirs, strict=True)) / len(lines)


def stand_in(options: argparse.Namespace) -> Path:
    """A model of the reference shape, trained for a few minutes on the data of the options."""
    dataset = open_data(options)
    updates = options.train_updates
    run = WORK / "models" / f"{dataset.fingerprint[:16]}-{updates}"
    if not (run / "last" / "manifest.json").is_file():
        print(f"training a model for {updates} updates in {run}", flush=True)
        recipe = own_recipe(reference_shape(options), dataset, 3700, 0.5, WORK / "models" / "recipe.yaml")
        changes = [f"training.{k}" for k in (f"max_updates={updates}", f"checkpoint_every={updates}", "log_every=50")]
        subprocess.run(
            [sys.executable, "-m", "phraseloom", "train", str(recipe), *changes, "--run", str(run)], check=True
        )
    return run


def sentences(options: argparse.Namespace, tokenizer: Any) -> list[str]:
    """The first sentences of --text, else of the test (or validation) text of the dataset, as ids."""
    if options.text is not None:
        raw = list(read_lines(options.text))
    else:
        dataset = open_data(options)
        raw = dataset.split("test" if "test" in dataset else "valid").text()[0]
    found = [" ".join(map(str, ids)) for ids in tokenizer.source.encode_batch(raw) if ids]
    return found[: options.sentences]


def compare(rows: list[Row]) -> dict[str, float]:
    """Per search: our best row against each of CTranslate2's, in sentences and in output tokens a second."""
    ratios = {}
    for group in dict.fromkeys(r.group for r in rows):
        own = [r for r in rows if r.group == group and r.name.startswith("phraseloom")]
        best = min(own, key=lambda r: statistics.median(s for s, _ in r.done))
        for other in (r for r in rows if r.group == group and r not in own):
            pairs = list(zip(best.done, other.done, strict=True))
            ratios[f"{group}: {best.name} / {other.name}"] = statistics.median(o[0] / b[0] for b, o in pairs)
    return ratios


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    add_data_options(arguments)
    arguments.add_argument("--model", type=Path, help="model or run folder")
    arguments.add_argument("--text", type=Path, help="sentences to translate, raw text")
    arguments.add_argument("--sentences", type=int, default=1000)
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--max-length", type=int, default=100)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument(
        "--train-updates", type=int, default=300, help="updates of the model that is trained without --model"
    )
    options = arguments.parse_args()
    options.cores = take_cores(options.cores)
    os.environ.setdefault("OMP_NUM_THREADS", str(options.cores))
    folder = find_model(options.model if options.model is not None else stand_in(options))
    model, tokenizer, generation = load_model(folder)
    pack_for_inference(model)  # as Translator.from_pretrained does
    _, config = read_config(folder)
    if not isinstance(config, ModelConfig):
        raise SystemExit(f"{folder} is a language model; give a translation model")
    lines = sentences(options, tokenizer)
    scratch = WORK / "decode_speed"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    atomic_write_text(scratch / "sentences", "".join(line + "\n" for line in lines))
    with contextlib.ExitStack() as stack:
        server = connect(config, scratch)
        if server is not None:
            stack.callback(server.close)
            longest = max(len(line.split()) for line in lines)
            version = server.convert(model, config, max(longest, options.max_length) + 8)
            share = agreement(options, model, lines, server)
            print(f"CTranslate2 {version}; {100 * share:.1f} % of the greedy outputs are equal")
        rows = rows_of(options, model, generation, lines, server)
        for number in range(options.rounds):
            for row in rows:
                row.done.append(row.work())
            print(f"round {number + 1} of {options.rounds}", flush=True)
    shutil.rmtree(scratch, ignore_errors=True)
    report(options, rows, len(lines))


def connect(config: ModelConfig, scratch: Path) -> CTranslate | None:
    reason, interpreter = what_does_not_fit(config), peer("ct2")
    if interpreter is None:
        return None
    if reason is not None:
        print(f"CTranslate2 is left out: it cannot hold this model, {reason}")
        return None
    return CTranslate(interpreter, scratch / "sentences", scratch)


def report(options: argparse.Namespace, rows: list[Row], count: int) -> None:
    figures, cells = [], []
    for row in rows:
        seconds = statistics.median(s for s, _ in row.done)
        tokens = row.done[0][1]
        cells.append([row.group, row.name, count / seconds, tokens / seconds, tokens / count])
        figures.append(dict(zip(("search", "system", "sentences", "tokens", "length"), cells[-1], strict=True)))
    print(f"{count} sentences, batches of {options.batch}; workers x threads")
    table(["search", "system", "sentences/s", "tokens/s", "tokens/sentence"], cells)
    finish("decode_speed", options, ratios=compare(rows), figures=figures)


if __name__ == "__main__":
    main()
