"""The work that continuous.py measures: updates and searches of one network with different outputs, an update cut into parts,
and the memory of scoring."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from common import peak_bytes
from phrasal_work import Corpus, Searching, Training
from phraseloom.layers.packed import pack_for_inference
from phraseloom.layers.table import TargetTable
from phraseloom.losses.vmf import concentration, vmf_loss
from phraseloom.losses.vmf_normalizer import log_normalizer
from phraseloom.models import translation as targets
from phraseloom.options.model import ModelConfig
from phraseloom.outputs import ContinuousOutput, SoftmaxOutput
from phraseloom.training.distributed import keep_pages


@dataclass(frozen=True)
class Row:
    """A kind of output, the number of its types, of which the last `phrases` are phrases, whether there is a gate, and whether
    it learns by a max-margin loss, against a number of drawn `rivals` and as many frequent ones, or all words (None: against
    all rows), or else by the released density."""

    kind: str
    types: int
    phrases: int = 0
    gate: bool = False
    margin: bool = False
    rivals: int | None = None
    all_words: bool = False

    def __str__(self) -> str:
        types = short(self.types - self.phrases) + (f"+{short(self.phrases)}" if self.phrases else "")
        few = "" if self.rivals is None else f" of {'words and ' * self.all_words}{short(self.rivals)}"
        loss = " max_margin" * self.margin + few
        return f"{self.kind} {types}" + (" gate" if self.gate else "") + loss


def short(number: int) -> str:
    """50,000 as 50k."""
    return f"{number // 1000}k" if number and number % 1000 == 0 else str(number)


def model_config(options: argparse.Namespace, row: Row) -> ModelConfig:
    """The network of the options with the output of a row."""
    width, layers, rate = options.width, options.layers, options.dropout
    output: dict[str, Any] = {"kind": row.kind, **({"fertility": {}} if row.gate else {})}
    if row.margin:
        output |= {
            "loss": "max_margin",
            "rivals": row.rivals,
            "frequent_rivals": "words" if row.all_words else row.rivals or 0,
        }
    elif row.kind != "softmax":
        output |= {"loss": "vmf_released"}
    sizes = {"width": width, "heads": max(1, width // 64), "ffn_width": 4 * width, "tied": "two_way", "output": output}
    rates = {"dropout": rate, "attention_dropout": rate}
    if options.network == "transformer":
        parts: dict[str, Any] = {"encoder": {"layers": layers}, "decoder": {"layers": layers}}
    else:
        recurrent = {
            "kind": "recurrent",
            "layers": layers,
            "cell": options.network,
            "dropout": rate if layers > 1 else 0.0,
        }
        decoder = {**recurrent, "attention": "general", "initial": "final", "hidden_dropout": rate}
        parts = {"encoder": {**recurrent, "bidirectional": layers}, "decoder": decoder}
    return ModelConfig.model_validate({**sizes, **rates, **parts})


def random_table(options: argparse.Namespace, row: Row) -> TargetTable | None:
    """Random unit vectors for the types of a row; none for a softmax."""
    if row.kind == "softmax":
        return None
    generator = torch.Generator().manual_seed(1)
    rows_VM = torch.randn(row.types, options.table_width, generator=generator)
    rows_VM.div_(torch.linalg.vector_norm(rows_VM, dim=1, keepdim=True))
    return TargetTable(rows_VM, row.types - row.phrases)


class Updates:
    """Training updates of a row, whole or cut into parts, on batches made before."""

    def __init__(self, options: argparse.Namespace, row: Row, corpus: Corpus) -> None:
        self.row, self.corpus = row, replace(corpus, target_vocabulary=row.types)
        self.training = Training(options, model_config(options, row), self.corpus, random_table(options, row))
        self.parameters, self.updates = self.training.parameters, options.updates
        self.made = {}
        for number in range((options.rounds + 1) * options.updates):
            (examples,) = self.training.job.plan.update(number)
            self.made[examples.tobytes()] = self.corpus.batch(examples)
        self.training.job.batch_of = lambda examples: self.made[examples.tobytes()]

    def numbers(self, turn: int) -> range:
        """The updates of a turn."""
        return range(turn * self.updates, (turn + 1) * self.updates)

    def seconds(self, turn: int) -> float:
        """Of the whole updates of a turn."""
        return sum(self.training.update(number) for number in self.numbers(turn))

    def flop(self, turn: int) -> int:
        """Of the updates of a turn."""
        return sum(self.training.flop(number) for number in self.numbers(turn))

    def sizes(self, turn: int) -> tuple[int, int]:
        """Sentences and tokens, of both sides, of a turn."""
        examples = [e for number in self.numbers(turn) for e in self.training.job.plan.update(number)]
        pairs = [pair for e in examples for pair in self.corpus.pairs(e)]
        return len(pairs), sum(source + target for source, target in pairs)

    def parts(self, turn: int) -> dict[str, float]:
        """Seconds of the parts of the updates of a turn."""
        laps: dict[str, float] = {}
        for number in self.numbers(turn):
            for part, seconds in self._cut_update(number).items():
                laps[part] = laps.get(part, 0.0) + seconds
        return laps

    def _cut_update(self, number: int) -> dict[str, float]:
        """An update whose graph is cut behind the network and behind the projection; the parts of it, in seconds.

        Of a softmax, `projection` is product, softmax and loss in one. `normaliser`, a part of `loss`, is computed once more.
        """
        job = self.training.job
        model: Any = job.model
        (examples,) = job.plan.update(number)
        batch, clock = self.made[examples.tobytes()], Clock()
        job.flat.grad.zero_()
        clock.lap("optimiser")
        memory = model.encode(batch.source_BS, batch.source_lengths_B)
        hidden_ND, gold_N, _ = targets.real(model.decode(batch.target_in_BT, memory), batch)
        cut_ND = hidden_ND.detach().requires_grad_()
        clock.lap("network")
        kappa_N = None
        if self.row.kind == "softmax":
            model.output.loss(cut_ND, gold_N).objective.backward()
            clock.lap("projection")
        else:
            predicted_NM = model.output.predict(cut_ND)
            cut_NM = predicted_NM.detach().requires_grad_()
            clock.lap("projection")
            rows_NM = F.embedding(gold_N, model.output.table.rows_VM)
            vmf_loss(cut_NM, rows_NM, kind=model.output.kind, **model.output.lambdas).sum().backward()
            clock.lap("loss")
            predicted_NM.backward(cut_NM.grad)
            clock.lap("projection")
            kappa_N = concentration(cut_NM.detach())
        hidden_ND.backward(cut_ND.grad)
        clock.lap("network")
        job.flat.gradient_norm().item()
        job.optimizer.step(0.0, 1 / len(gold_N))
        clock.lap("optimiser")
        clock.laps["sum"] = sum(clock.laps.values())
        if kappa_N is not None:
            clock.lap("")
            log_normalizer(kappa_N.requires_grad_(), model.output.table.width).sum().backward()
            clock.lap("normaliser")
            del clock.laps[""]
        return clock.laps


class Clock:
    """Seconds between laps, summed by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Count the time since the last lap as `name`."""
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now


def searching(options: argparse.Namespace, row: Row, corpus: Corpus) -> Searching:
    """Searches by an untrained model of a row."""
    corpus = replace(corpus, target_vocabulary=row.types)
    return Searching(options, model_config(options, row), corpus, random_table(options, row))


def scoring_memory(options: argparse.Namespace, row: Row) -> dict[str, float]:
    """Bytes that a process holds for an output laid out for search, and by which its peak grows when it scores a search step.

    The first call has a single row: what oneDNN and the allocator set up once is not counted.
    """
    keep_pages()
    before, table = peak_bytes(os.getpid()), random_table(options, row)
    if table is None:
        weight = nn.Parameter(torch.zeros(row.types, options.width).normal_(), requires_grad=False)
        output: Any = SoftmaxOutput(weight)
    else:
        output = ContinuousOutput(table, width=options.width)
    pack_for_inference(nn.Sequential(output, nn.Linear(1, 1)))
    with torch.inference_mode():
        output.candidates(torch.randn(1, options.width), options.beam)
        held = peak_bytes(os.getpid())
        output.candidates(torch.randn(options.sentences * options.beam, options.width), options.beam)
    peak = peak_bytes(os.getpid())
    if peak <= 0:
        raise SystemExit("this system does not tell the peak memory of a process")
    return {"held": held - before, "scoring": peak - held}
