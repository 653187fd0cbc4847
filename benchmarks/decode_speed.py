"""Translating speed: phraseloom and CTranslate2 on the same weights, by turns in one run, for several widths.

Run: python benchmarks/decode_speed.py [--model FOLDER ...] [--text FILE | --dataset FOLDER] [--sentences 1000]
Subword segmentation is left out on both sides: both get and give subword tokens. Both translate the same sentences, at most
--max-length tokens out.

greedy, beam 5       in batches of 64 sorted by length, without length penalty, so that both look for the most probable output
beam 5 own           each side's own rule: phraseloom as the model says (Wu et al. 0.6), CTranslate2 its default (mean log p)
greedy one, beam 5 one   one sentence a call, on one core: the latency (the first --one of the sentences)
mechanisms           QueryK 1-2, ConvKV 1-2, source phrases (paper 001), continuous output without and with a gate (paper 003),
                     LSTM and GRU on both sides (paper 004; layers and width as the Transformer's)
                     against token attention and a softmax, all ours: time ratio / FLOP ratio of models that are not trained and
                     write outputs of one length, and eager torch / compiled library

A ratio is the time of the other side over ours: above 1 we are faster. int8 is compared with CTranslate2's, and with our fp32;
the share of equal greedy outputs of both precisions is printed. `--clock cpu` measures processor time, for a machine that has
other work; then all rows have one worker.

Without --model one model of each of --widths is trained on the data first (kept in the ignored local/bench).
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from common import WORK, finish, median_ratio, parser, peer, reference_shape, table, take_cores
from corpora import add_data_options, open_data
from ctranslate import CTranslate, what_does_not_fit
from phraseloom.decoding.translator import TranslationReport, Translator
from phraseloom.files import atomic_write_text
from phraseloom.layers.packed import pack_for_inference
from phraseloom.layers.table import TargetTable
from phraseloom.models.build import build_model
from phraseloom.models.flops import decoding_flop
from phraseloom.models.store import find_model, load_model, read_config
from phraseloom.native.library import load
from phraseloom.options.decoding import DecodingConfig
from phraseloom.options.model import ModelConfig
from phraseloom.text.lines import read_lines
from training_speed import own_recipe

QUICK = {
    "world_pairs": 300,
    "world_subwords": 400,
    "rounds": 1,
    "sentences": 8,
    "one": 2,
    "max_length": 10,
    "train_updates": 2,
    "widths": [16],
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

PLAIN = {"length_penalty": {"kind": "none"}}


class IdSide:
    """Stands in for `phraseloom.text.tokenizer.Side`: a line is ids as decimal numbers, and so is a translation.

    Every piece is a word of its own.
    """

    vocabulary: Any
    language = "en"
    longest_piece = 12
    tag_ids: Mapping[str, int] = MappingProxyType({})

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

    def word_of_piece(self, ids: Sequence[int], begun: Sequence[str] = ()) -> list[int]:
        return list(range(len(ids)))

    def pieces_of(self, line: str, ids: Sequence[int]) -> list[str]:
        return []

    def piece(self, number: int) -> str:
        return str(number)


class Ids:
    """A tokenizer of ids on both sides."""

    source = target = IdSide()
    tags: tuple[str, ...] = ()

    def tag_ids(self, tags: Sequence[str]) -> list[int]:
        return []


@dataclass(frozen=True)
class Row:
    """A candidate: its name, its function (returns seconds, output tokens), and its results so far."""

    name: str
    work: Callable[[], tuple[float, int]]
    group: str
    done: list[tuple[float, int]]


def own_row(
    name: str, group: str, model: Any, config: DecodingConfig, lines: list[str], options: argparse.Namespace
) -> Row:
    translator, clock = Translator(model, Ids(), config), CLOCKS[options.clock]
    cores = 1 if group.endswith(("one", *KERNELS)) or options.clock == "cpu" else options.cores
    calls = [[line] for line in lines] if group.endswith("one") else [lines]

    def work(calls: list[list[str]] = calls) -> tuple[float, int]:
        torch.set_num_threads(cores)
        begin = clock()
        found = [t for call in calls for t in translator.translate(call, report=TranslationReport())]
        return clock() - begin, sum(len(t.tokens) + 1 for t in found)

    work([lines[:64]])
    return Row(name, work, group, [])


def peer_row(name: str, group: str, server: CTranslate, request: dict[str, Any]) -> Row:
    def work() -> tuple[float, int]:
        answer = server.translate(**request)
        return answer["seconds"], answer["tokens"]

    server.translate(**{**request, "first": 64 * request["workers"], "one": False})
    return Row(name, work, group, [])


def groups(options: argparse.Namespace, generation: dict[str, Any]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """For each kind of search our options and those of CTranslate2."""
    bounds = {"max_length": {"factor": 0, "constant": options.max_length}, "batch_sentences": options.batch}
    common = {
        "batch": options.batch,
        "max_length": options.max_length,
        "clock": options.clock,
        "first": None,
        "one": False,
    }
    one = {**common, "first": options.one, "one": True}
    own = {**generation, "n_best": 1, **bounds}
    return {
        "greedy": ({**own, **PLAIN, "beam": 1}, {**common, "beam": 1, "length_penalty": 0}),
        "beam 5": ({**own, **PLAIN, "beam": 5}, {**common, "beam": 5, "length_penalty": 0}),
        "beam 5 own": ({**own, "beam": 5}, {**common, "beam": 5, "length_penalty": 1}),
        "greedy one": ({**own, **PLAIN, "beam": 1}, {**one, "beam": 1, "length_penalty": 0}),
        "beam 5 one": ({**own, **PLAIN, "beam": 5}, {**one, "beam": 5, "length_penalty": 0}),
    }


def rows_of(
    options: argparse.Namespace, model: Any, generation: dict[str, Any], lines: list[str], server: CTranslate | None
) -> list[Row]:
    """All candidates, warmed up."""
    rows = []
    for group, (own, other) in groups(options, generation).items():
        one = group.endswith("one")
        cores = 1 if one or options.clock == "cpu" else options.cores
        chosen = lines[: options.one] if one else lines
        for precision, workers in dict.fromkeys((("fp32", cores), ("fp32", 1), ("int8", cores))):
            if precision == "int8" and load() is None:
                continue
            config = DecodingConfig.model_validate({**own, "workers": workers, "precision": precision})
            name = f"{OURS[precision]} {workers} x {cores // workers}"
            rows.append(own_row(name, group, model, config, chosen, options))
        if server is None:
            continue
        for compute, workers in dict.fromkeys((("float32", 1), ("float32", cores), ("int8_float32", cores))):
            request = {**other, "compute": compute, "workers": workers, "threads": cores // workers}
            rows.append(peer_row(f"CTranslate2 {compute} {workers} x {cores // workers}", group, server, request))
    return rows


OURS = {"fp32": "phraseloom", "int8": "phraseloom int8"}
BASE, KERNELS = "token", ("auto", "eager")


def recurrent(**options: Any) -> dict[str, Any]:
    """Both sides recurrent, with these options of both; the layers are those of the shape."""
    return {side: {"kind": "recurrent", **options} for side in ("encoder", "decoder")}


MECHANISMS: dict[str, dict[str, Any]] = {
    BASE: {},
    "queryk 1-2": {"attention": "queryk heterogeneous 1-2"},
    "convkv 1-2": {"attention": "convkv heterogeneous 1-2"},
    "source phrases": {"phrases": {}},
    "continuous": {"output": {"kind": "continuous"}, "tied": "two_way"},
    "words or phrases": {"output": {"kind": "word_or_phrase", "fertility": {"widths": [256]}}, "tied": "two_way"},
    "lstm": recurrent(),
    "gru": recurrent(cell="gru"),
}


def mechanism_rows(options: argparse.Namespace, width: int, size: int) -> tuple[list[Row], dict[tuple[str, str], int]]:
    """Untrained models of one shape that write outputs of one length, in the compiled library (kernels: auto) and in eager
    torch, one thread each; the FLOP of each search and mechanism."""
    length = min(15, options.max_length)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, size, (min(256, options.sentences), length), generator=generator).tolist()
    lines = [" ".join(map(str, line)) for line in ids]
    bounds = {"min_length": {"factor": 0, "constant": length}, "max_length": {"factor": 0, "constant": length}}
    rows, flop = [], {}
    for name, change in MECHANISMS.items():
        config = ModelConfig.model_validate(with_change(shape_of(options, width), change))
        torch.manual_seed(1)
        table = TargetTable(torch.nn.functional.normalize(torch.randn(size, 300), dim=-1), size - size // 10)
        model = build_model(config, size, size, table).eval()
        pack_for_inference(model)
        for beam in (1, 5):
            for kernels in KERNELS:
                group = f"{'greedy' if beam == 1 else 'beam 5'}, {kernels}"
                decoding = {**PLAIN, **bounds, "beam": beam, "batch_sentences": options.batch, "workers": 1}
                chosen = DecodingConfig.model_validate({**decoding, "kernels": kernels})
                rows.append(own_row(name, group, model, chosen, lines, options))
                flop[group, name] = decoding_flop(config, size, [(length + 1, length + 1)], beam=beam)
    return rows, flop


def with_change(shape: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The shape with a change; the encoder and the decoder keep their number of layers."""
    sides = {side: {**shape[side], **change.get(side, {})} for side in ("encoder", "decoder")}
    return {**shape, **change, **sides}


def compare_mechanisms(rows: list[Row], flop: dict[tuple[str, str], int]) -> dict[str, float]:
    """For each search and mechanism: (time over that of token attention) / (FLOP over those of token attention), and the
    time of eager torch over that of the compiled library."""
    timed, ratios = {(row.group, row.name): [seconds for seconds, _ in row.done] for row in rows}, {}
    for (group, name), seconds in timed.items():
        if name != BASE:
            products = flop[group, name] / flop[group, BASE]
            label = f"{group}, {name}: time ratio / FLOP ratio {products:.2f}"
            ratios[label] = median_ratio(seconds, timed[group, BASE]) / products
        if group.endswith("auto"):
            eager = timed[group.replace("auto", "eager"), name]
            ratios[f"{group}, {name}: eager / auto"] = median_ratio(eager, seconds)
    return ratios


def shape_of(options: argparse.Namespace, width: int) -> dict[str, Any]:
    """The reference shape with this width."""
    shape = reference_shape(options)
    return shape if options.quick else {**shape, "width": width, "heads": max(4, width // 64), "ffn_width": 4 * width}


def agreement_of_bytes(options: argparse.Namespace, model: Any, lines: list[str]) -> float:
    """The share of greedy outputs that are the same in fp32 and in int8."""
    own, _ = groups(options, {})["greedy"]
    translator = Translator(model, Ids(), DecodingConfig.model_validate(own))
    found = (translator.translate(lines, report=TranslationReport(), precision=p) for p in ("fp32", "int8"))
    return sum(one.text == other.text for one, other in zip(*found, strict=True)) / len(lines)


def agreement(options: argparse.Namespace, model: Any, lines: list[str], server: CTranslate) -> float:
    """The share of equal greedy outputs, which shows whether both have the same model."""
    own, other = groups(options, {})["greedy"]
    found = Translator(model, Ids(), DecodingConfig.model_validate(own)).translate(lines, report=TranslationReport())
    request = {**other, "compute": "float32", "workers": 1, "threads": options.cores, "outputs": True}
    theirs = server.translate(**request)["outputs"]
    return sum(t.text == o for t, o in zip(found, theirs, strict=True)) / len(lines)


def stand_in(options: argparse.Namespace, width: int) -> Path:
    """A model of the reference shape with this width, trained for some minutes on the data of the options."""
    dataset = open_data(options)
    updates = options.train_updates
    run = WORK / "models" / f"{dataset.fingerprint[:16]}-{width}-{updates}"
    if not (run / "last" / "manifest.json").is_file():
        print(f"training a model of width {width} for {updates} updates in {run}", flush=True)
        recipe = own_recipe(shape_of(options, width), dataset, 3700, 0.5, WORK / "models" / "recipe.yaml")
        changes = [f"training.{k}" for k in (f"max_updates={updates}", f"checkpoint_every={updates}", "log_every=50")]
        changes.append(f"training.schedule.peak={min(0.001, 0.256 / width):g}")
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
    """Per search: our best row in fp32 against each of CTranslate2's, and our int8 against it and CTranslate2's int8."""
    ratios = {}
    for group in dict.fromkeys(r.group for r in rows):
        here = [r for r in rows if r.group == group]
        own = [r for r in here if r.name.startswith(OURS["fp32"])]
        in_bytes = [r for r in own if r.name.startswith(OURS["int8"])]
        best = min((r for r in own if r not in in_bytes), key=lambda r: statistics.median(s for s, _ in r.done))
        peers = [r for r in here if r not in own]
        pairs = [(best, other) for other in peers]
        pairs += [(one, other) for one in in_bytes for other in (best, *(r for r in peers if "int8" in r.name))]
        for one, other in pairs:
            times = zip(one.done, other.done, strict=True)
            ratios[f"{group}: {one.name} / {other.name}"] = statistics.median(o[0] / s[0] for s, o in times)
    return ratios


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    add_data_options(arguments)
    arguments.add_argument("--model", type=Path, nargs="+", help="model or run folders")
    arguments.add_argument("--text", type=Path, help="sentences to translate, raw text")
    arguments.add_argument("--sentences", type=int, default=1000)
    arguments.add_argument("--one", type=int, default=100, help="sentences for the latency of one sentence a call")
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--max-length", type=int, default=100)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    arguments.add_argument(
        "--widths", type=int, nargs="+", default=[128, 256, 512], help="of the models without --model"
    )
    arguments.add_argument(
        "--train-updates", type=int, default=300, help="updates of the models that are trained without --model"
    )
    options = arguments.parse_args()
    options.cores = take_cores(options.cores)
    os.environ.setdefault("OMP_NUM_THREADS", str(options.cores))
    ratios: dict[str, float] = {}
    figures: list[dict[str, Any]] = []
    for folder in options.model or [stand_in(options, width) for width in options.widths]:
        measure(options, find_model(folder), ratios, figures)
    finish("decode_speed", options, ratios=ratios, figures=figures)


def measure(options: argparse.Namespace, folder: Path, ratios: dict[str, float], figures: list[dict[str, Any]]) -> None:
    """One model, and a model of its width for each mechanism."""
    model, tokenizer, generation = load_model(folder)
    pack_for_inference(model)  # as Translator.from_pretrained does
    _, config = read_config(folder)
    if not isinstance(config, ModelConfig):
        raise SystemExit(f"{folder} is a language model; give a translation model")
    lines, scratch = sentences(options, tokenizer), WORK / "decode_speed"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    atomic_write_text(scratch / "sentences", "".join(line + "\n" for line in lines))
    print(f"width {config.width}: {folder}", flush=True)
    with contextlib.ExitStack() as stack:
        server = connect(config, scratch)
        if server is not None:
            stack.callback(server.close)
            longest = max(len(line.split()) for line in lines)
            version = server.convert(model, config, max(longest, options.max_length) + 8)
            share = agreement(options, model, lines, server)
            print(f"CTranslate2 {version}; {100 * share:.1f} % of the greedy outputs are equal")
        if load() is not None:
            print(
                f"{100 * agreement_of_bytes(options, model, lines):.1f} % of our greedy outputs are equal in fp32 and int8"
            )
        rows = rows_of(options, model, generation, lines, server)
        mechanisms, flop = mechanism_rows(options, config.width, len(tokenizer.target.vocabulary))
        for number in range(options.rounds):
            for row in (*rows, *mechanisms):
                row.done.append(row.work())
            print(f"round {number + 1} of {options.rounds}", flush=True)
    shutil.rmtree(scratch, ignore_errors=True)
    report(options, config.width, rows + mechanisms, figures)
    for name, value in {**compare(rows), **compare_mechanisms(mechanisms, flop)}.items():
        ratios[f"{config.width} {name}"] = value


def connect(config: ModelConfig, scratch: Path) -> CTranslate | None:
    reason, interpreter = what_does_not_fit(config), peer("ct2")
    if interpreter is None:
        return None
    if reason is not None:
        print(f"CTranslate2 is left out: it cannot hold this model, {reason}")
        return None
    return CTranslate(interpreter, scratch / "sentences", scratch)


def report(options: argparse.Namespace, width: int, rows: list[Row], figures: list[dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        seconds, tokens = statistics.median(s for s, _ in row.done), row.done[0][1]
        count = options.one if row.group.endswith("one") else options.sentences
        cells.append([row.group, row.name, tokens / seconds, 1000 * seconds / tokens])
        figures.append({"width": width, "count": count, "seconds": seconds, "tokens": tokens})
        figures[-1].update(search=row.group, system=row.name)
    print(f"width {width}, batches of {options.batch}; workers x threads; {options.clock} time")
    table(["search", "system", "tokens/s", "ms/token"], cells)


if __name__ == "__main__":
    main()
