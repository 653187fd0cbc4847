"""Training speed of recurrent models: ours beside OpenNMT-py's LSTM of the same size, our Transformer, and each other.

Run: python benchmarks/recurrent.py [--dataset FOLDER] [--widths 256 512] [--layers 2] [--rows NAME...]
All rows take turns in one run on the same batches (ids are random, lengths those of the dataset or like those of Multi30k), one
process each with the same threads. An update is zeroing of gradients, forward, loss, backward, clipping and Adam; making the
batches is left out on both sides. Ratios are medians over the rounds of the ratio within a round.

lstm mlp, lstm general   both encoder layers read both ways, initial states final, input feeding: what OpenNMT-py has
onmt mlp, onmt general   its encoder, input-feeding decoder, loss and optimiser (peers/onmt_rnn.py); dropout, smoothing as ours
lstm mlp without feeding, gru mlp, transformer (four times the width in its feed-forward layers, heads of 64 channels)
lstm mlp residual, memory norm, variational dropout   with these options, beside `lstm mlp`

OpenNMT-py's MLP attention projects the source in every step, ours once a sentence: its FLOP are counted as it works. Its cells
have two biases a gate, its output has a bias, its layer behind general attention none; parameters are printed for both.

The bar: at least 0.8 of the tokens/s of OpenNMT-py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

from common import PEERS, WORK, finish, median_ratio, parser, peer, table, take_cores
from corpora import add_data_options
from phrasal import take_turns

QUICK = {
    "rows": ["lstm mlp", "gru mlp", "lstm mlp without feeding", "lstm mlp memory norm", "onmt mlp"],
    "vocabulary": 50,
    "widths": [16],
    "layers": 1,
    "tokens": 60,
    "updates": 1,
    "rounds": 1,
}

BAR = 0.8
LSTM: dict[str, Any] = {"attention": "mlp"}
ROWS: dict[str, dict[str, Any]] = {
    "lstm mlp": LSTM,
    "onmt mlp": LSTM,
    "lstm general": {"attention": "general"},
    "onmt general": {"attention": "general"},
    "lstm mlp without feeding": {**LSTM, "input_feeding": False},
    "onmt mlp without feeding": {**LSTM, "input_feeding": False},
    "gru mlp": {**LSTM, "cell": "gru"},
    "onmt gru mlp": {**LSTM, "cell": "gru"},
    "lstm mlp residual": {**LSTM, "both": {"residual": True}},
    "lstm mlp memory norm": {**LSTM, "encoder": {"memory_norm": True}},
    "lstm mlp variational dropout": {**LSTM, "both": {"variational_dropout": {"inputs": 0.1, "states": 0.1}}},
    "transformer": {},
}
USUAL = [name for name in ROWS if name not in ("onmt mlp without feeding", "onmt gru mlp")]
# (faster or slower, than): times divided, beside the division of their FLOP
AGAINST = {
    "lstm mlp": ["transformer"],
    "lstm general": ["transformer"],
    "lstm mlp without feeding": ["lstm mlp"],
    "gru mlp": ["lstm mlp"],
    "lstm mlp residual": ["lstm mlp"],
    "lstm mlp memory norm": ["lstm mlp"],
    "lstm mlp variational dropout": ["lstm mlp"],
}


def arguments() -> argparse.Namespace:
    result = parser(__doc__, quick=QUICK)
    add_data_options(result)
    result.set_defaults(vocabulary=6000)
    result.add_argument("--rows", nargs="+", choices=list(ROWS), default=USUAL)
    result.add_argument("--widths", nargs="+", type=int, default=[256, 512])
    result.add_argument("--layers", type=int, default=2, help="in the encoder and in the decoder")
    result.add_argument("--dropout", type=float, default=0.1)
    result.add_argument("--tokens", type=int, default=1500, help="target tokens per update")
    result.add_argument("--updates", type=int, default=2, help="updates per turn")
    result.add_argument("--rounds", type=int, default=5)
    result.add_argument("--threads", type=int, help="default: one per core")
    return result.parse_args()


def model_config(options: argparse.Namespace, name: str) -> Any:
    """Our model of a row; of an `onmt` row the one that it is compared with."""
    from phraseloom.options.model import ModelConfig

    width, row, layers = options.width, ROWS[name], options.layers
    rates = {"dropout": options.dropout, "attention_dropout": options.dropout}
    sizes = {"width": width, "heads": max(1, width // 64), "ffn_width": 4 * width, **rates}
    if name == "transformer":
        return ModelConfig.model_validate({**sizes, "encoder": {"layers": layers}, "decoder": {"layers": layers}})
    between = options.dropout if layers > 1 else 0.0
    own = {key: value for key, value in row.items() if key not in ("both", "encoder")}
    recurrent = {"kind": "recurrent", "layers": layers, "cell": row.get("cell", "lstm"), "dropout": between}
    recurrent |= row.get("both", {})
    encoder = {**recurrent, "bidirectional": layers, **row.get("encoder", {})}
    decoder = {**recurrent, **own, "initial": "final", "hidden_dropout": options.dropout}
    return ModelConfig.model_validate({**sizes, "encoder": encoder, "decoder": decoder})


class Own:
    """Our model of a row, with batches made before."""

    def __init__(self, options: argparse.Namespace, name: str, corpus: Any) -> None:
        from phrasal_work import Training

        self.training, self.updates = Training(options, model_config(options, name), corpus), options.updates
        self.parameters = self.training.parameters
        pieces = [self.training.job.plan.update(n) for n in numbers(options, range(options.rounds + 1))]
        self.batches = [corpus.batch(examples) for (examples,) in pieces]
        made = {examples.tobytes(): batch for (examples,), batch in zip(pieces, self.batches, strict=True)}
        self.training.job.batch_of = lambda examples: made[examples.tobytes()]

    def seconds(self, number: int) -> float:
        """Of the updates of a turn."""
        return sum(self.training.update(n) for n in range(number * self.updates, (number + 1) * self.updates))

    def close(self) -> None:
        """Nothing is left open."""


class Peer:
    """OpenNMT-py's model of a row, in a process that waits for its turn."""

    def __init__(self, options: argparse.Namespace, name: str, interpreter: str, batches: Path) -> None:
        from phraseloom.text.vocabulary import PAD

        row = {"cell": "lstm", "input_feeding": True, **ROWS[name]}
        sizes = {key: getattr(options, key) for key in ("width", "layers", "dropout", "threads", "vocabulary")}
        command = [interpreter, str(PEERS / "onmt_rnn.py"), str(batches), json.dumps({**row, **sizes, "pad": PAD})]
        self.updates = options.updates
        threads = str(options.threads)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )
        self.told = self._read()
        self.parameters: int = self.told["parameters"]

    def seconds(self, number: int) -> float:
        """Of the updates of a turn."""
        assert self.process.stdin is not None
        request = {"updates": list(range(number * self.updates, (number + 1) * self.updates))}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return float(self._read()["seconds"])

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"OpenNMT-py stopped; run it by hand to see why: {' '.join(map(str, self.process.args))}")  # type: ignore[arg-type]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def numbers(options: argparse.Namespace, turns: range) -> range:
    """The updates of some turns."""
    return range(turns.start * options.updates, turns.stop * options.updates)


def write_batches(batches: list[Any], file: Path) -> None:
    """The arrays that peers/onmt_rnn.py reads; they are those of our batches."""
    import numpy as np

    arrays = {}
    for number, batch in enumerate(batches):
        arrays[f"source_{number}"] = batch.source_BS.numpy()
        arrays[f"lengths_{number}"] = batch.source_lengths_B.numpy()
        begin = batch.target_in_BT[:, :1].numpy()
        arrays[f"target_{number}"] = np.concatenate([begin, batch.target_out_BT.numpy()], axis=1)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)


def flop_of(options: argparse.Namespace, name: str, batches: list[Any]) -> int:
    """Of the updates of batches, padding not counted, as each system works."""
    from flops import training_flop

    pairs = [(int(s), int(t)) for b in batches for s, t in zip(b.source_lengths_B, b.target_lengths_B, strict=True)]
    config = model_config(options, name)
    total = training_flop(config, options.vocabulary, pairs)
    if name.startswith("onmt") and "mlp" in name and config.decoder.input_feeding:
        total += sum(6 * (target - 1) * source for source, target in pairs) * options.width**2
    return total


def measure(options: argparse.Namespace, corpus: Any, stack: contextlib.ExitStack) -> tuple[dict[str, float], Any]:
    """All rows of one width; ratios and figures."""
    from phraseloom.training.run import settle_torch

    interpreter = peer("onmt") if any(name.startswith("onmt") for name in options.rows) else None
    names = [name for name in options.rows if interpreter is not None or not name.startswith("onmt")]
    own = {name: Own(options, name, corpus) for name in names if not name.startswith("onmt")}
    first = next(iter(own.values()), None) or Own(options, "lstm mlp", corpus)
    settle_torch(first.training.job.world)
    file = WORK / "recurrent" / "batches.npz"
    write_batches(first.batches, file)
    systems: dict[str, Any] = {}
    for name in names:
        systems[name] = own[name] if name in own else Peer(options, name, str(interpreter), file)
        stack.callback(systems[name].close)
    told = next((s.told for s in systems.values() if isinstance(s, Peer)), None)
    if told is not None:
        print(f"OpenNMT-py {told['onmt']} with torch {told['torch']}")
    times = take_turns(names, options.rounds, lambda name, number: systems[name].seconds(number))
    counted = first.batches[options.updates :]
    tokens = sum(int(b.source_lengths_B.sum()) + int(b.target_lengths_B.sum()) for b in counted) / options.rounds
    flop = {name: flop_of(options, name, counted) / options.rounds for name in names}
    report(options, times, {name: s.parameters for name, s in systems.items()}, flop, tokens)
    figures = {name: {"seconds": own, "flop": flop[name], "tokens": tokens} for name, own in times.items()}
    return ratios_of(options, times, flop), figures


def report(
    options: argparse.Namespace,
    times: dict[str, list[float]],
    parameters: dict[str, int],
    flop: dict[str, float],
    tokens: float,
) -> None:
    """Print the table of one width."""
    rows = []
    for name, own in times.items():
        seconds = statistics.median(own)
        spread = (max(own) - min(own)) / seconds
        gflop = flop[name] / 1e9
        updates = options.updates
        rows.append([name, parameters[name], tokens / seconds, spread, gflop / updates, gflop / seconds])
    print(f"width {options.width}, {options.layers} + {options.layers} layers; medians over {options.rounds} rounds")
    table(["row", "parameters", "tokens/s", "spread", "GFLOP/update", "GFLOP/s"], rows)


def ratios_of(options: argparse.Namespace, times: dict[str, list[float]], flop: dict[str, float]) -> dict[str, float]:
    """Speeds of ours divided by OpenNMT-py's; times of ours divided by another's, and their FLOP."""
    found, rows = {}, []
    for name in (n for n in times if n.startswith("onmt")):
        ours = name.replace("onmt gru", "gru").replace("onmt", "lstm")
        if ours in times:
            value = median_ratio(times[name], times[ours])
            found[f"{options.width}: {ours}, tokens/s of ours / OpenNMT-py"] = value
            rows.append([f"{ours} / {name}", value, flop[ours] / flop[name], "yes" if value >= BAR else "NO"])
    if rows:
        table(["tokens/s", "ratio", "FLOP ratio", f">= {BAR}"], rows)
    rows = []
    for name, others in AGAINST.items():
        for other in (o for o in others if name in times and o in times):
            time_ratio, flop_ratio = median_ratio(times[name], times[other]), flop[name] / flop[other]
            found[f"{options.width}: {name} / {other}, time"] = time_ratio
            found[f"{options.width}: {name} / {other}, FLOP"] = flop_ratio
            rows.append([f"{name} / {other}", time_ratio, flop_ratio, time_ratio / flop_ratio])
    if rows:
        table(["", "time", "FLOP", "quotient"], rows)
    return found


def main() -> None:
    options = arguments()
    cores = take_cores(options.cores)
    import torch

    from phrasal_work import corpus_of

    options.threads = options.threads or cores
    options.device, options.micro_batches = "cpu", 1
    torch.set_num_threads(options.threads)
    corpus = corpus_of(options)
    options.vocabulary = corpus.vocabulary
    print(
        f"{corpus.said}: {corpus.source.mean() + 1:.1f} + {corpus.target.mean() + 1:.1f} tokens a pair; {corpus.vocabulary} "
        f"subwords, {options.tokens} target tokens an update; {options.threads} thread(s)"
    )
    ratios: dict[str, float] = {}
    figures: dict[int, Any] = {}
    for width in options.widths:
        with contextlib.ExitStack() as stack:
            options.width = width
            found, figures[width] = measure(options, corpus, stack)
        ratios |= found
    finish("recurrent", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
