"""The work that several benchmarks measure: an update and a search of a model, the same for every configuration."""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from common import peak_bytes
from corpora import open_data
from flops import Pair, decoding_flop, training_flop
from phraseloom.data.batches import BatchPlan
from phraseloom.data.tensors import Batch, make_batch
from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.search import search
from phraseloom.layers.packed import pack_for_inference
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig
from phraseloom.options.training import TrainingConfig
from phraseloom.text.vocabulary import SPECIALS
from phraseloom.training.distributed import World, keep_pages
from phraseloom.training.loop import TrainingJob, probe_largest, run_update
from phraseloom.training.optimization import rate_function

BASE = "token"
RELATIVE = "queryk-relative heterogeneous 1-2"
STRUCTURES: dict[str, Any] = {
    BASE: "token",
    "relative": {"encoder_self": "relative", "decoder_self": "relative"},
    f"{RELATIVE}, cross queryk": {
        "encoder_self": RELATIVE,
        "decoder_self": RELATIVE,
        "cross": "queryk heterogeneous 1-2",
    },
    **{
        name: name
        for name in (
            "queryk heterogeneous 1-2",
            "convkv heterogeneous 1-2",
            "queryk heterogeneous 1-2-3",
            "convkv heterogeneous 1-2-3",
            "queryk heterogeneous 1-2 keys-per-order",
            "queryk heterogeneous 1-2-3-4",
            "queryk homogeneous 44",
            "convkv homogeneous 44",
            "queryk interleaved 1-2",
            "convkv interleaved 1-2",
        )
    },
}


def model_config(options: argparse.Namespace, name: str) -> ModelConfig:
    """The shape of the options with the attention of a structure."""
    sizes = {"width": options.width, "heads": options.heads, "ffn_width": options.ffn_width}
    layers = {"layers": options.layers}
    attention = STRUCTURES.get(name, name)
    return ModelConfig.model_validate({**sizes, "encoder": layers, "decoder": layers, "attention": attention})


@dataclass(frozen=True)
class Corpus:
    """Lengths of sentence pairs without EOS, and what they are; the ids are random: no time depends on them.

    `vocabulary`: of both sides, or with `target_vocabulary` of the source.
    """

    source: np.ndarray
    target: np.ndarray
    vocabulary: int
    said: str
    target_vocabulary: int | None = None

    @property
    def types(self) -> int:
        """The size of the target vocabulary."""
        return self.vocabulary if self.target_vocabulary is None else self.target_vocabulary

    def batch(self, examples: np.ndarray) -> Batch:
        random = np.random.default_rng(int(examples[0]))

        def ids(lengths: np.ndarray, types: int) -> list[np.ndarray]:
            return [random.integers(len(SPECIALS), types, n) for n in lengths]

        return make_batch(ids(self.source[examples], self.vocabulary), ids(self.target[examples], self.types))

    def pairs(self, examples: np.ndarray) -> list[Pair]:
        """Lengths with EOS."""
        return [(int(s) + 1, int(t) + 1) for s, t in zip(self.source[examples], self.target[examples], strict=True)]


def corpus_of(options: argparse.Namespace) -> Corpus:
    """The lengths of the dataset of the options; without one, lengths like those of Multi30k.

    Multi30k English → German with 6,000 joint subwords: 14.7 ± 5.1 and 15.2 ± 5.8 tokens, correlation 0.8.
    """
    if options.dataset is not None or options.recipe is not None:
        dataset = open_data(options)
        train = dataset.split("train")
        size = max(len(dataset.tokenizer.source.vocabulary), len(dataset.tokenizer.target.vocabulary))
        return Corpus(np.asarray(train.source_lengths), np.asarray(train.target_lengths), size, dataset.config.name)
    random = np.random.default_rng(1)
    count = 200 if options.quick else 20_000
    source = 3 + random.gamma(5.3, 2.2, count)
    target = source * random.lognormal(0.01, 0.22, count)
    source_lengths, target_lengths = (x.round().clip(2, 60).astype(np.int32) for x in (source, target))
    return Corpus(source_lengths, target_lengths, options.vocabulary, "lengths like those of Multi30k")


def nothing(*_: Any) -> Any:
    raise AssertionError("a benchmark neither validates nor saves")


class Training:
    """A run of `phraseloom train` without its folder: `update(n)` is the n-th update, with the same batches for all.

    `table`: a TargetTable, where the output is continuous.
    """

    def __init__(
        self, options: argparse.Namespace, model_config: ModelConfig, corpus: Corpus, table: Any = None
    ) -> None:
        self.model_config, self.corpus, self.sizes = model_config, corpus, sizes_of(table)
        device = torch.device(options.device)
        arithmetic = {name: getattr(options, name) for name in ("precision", "compile") if hasattr(options, name)}
        config = TrainingConfig(batch_tokens=options.tokens, micro_batches=options.micro_batches, **arithmetic)
        plan = BatchPlan(
            corpus.source,
            corpus.target,
            seed=1,
            batch_tokens=config.batch_tokens,
            micro_batches=options.micro_batches,
        )
        torch.manual_seed(1)
        model = build_model(self.model_config, corpus.vocabulary, corpus.types, table).to(device).train()
        self.parameters = sum(p.numel() for p in model.parameters())
        self.job = TrainingJob(
            config=config,
            model=model,
            plan=plan,
            batch_of=lambda examples: corpus.batch(examples).to(device),
            validate=nothing,
            write_model=nothing,
            rate=rate_function(config.schedule, width=options.width, max_updates=None),
            highest_perplexity=math.inf,
            world=World(device=device),
        )

    def update(self, number: int) -> float:
        """Seconds of one update."""
        self.job.state.update = number
        synchronize(self.job.world.device)
        begin = time.perf_counter()
        run_update(self.job)
        synchronize(self.job.world.device)
        return time.perf_counter() - begin

    def flop(self, number: int, *, computed: bool = False) -> int:
        """FLOP of that update, padding not counted."""
        pairs = [pair for examples in self.job.plan.update(number) for pair in self.corpus.pairs(examples)]
        return training_flop(self.model_config, self.corpus.types, pairs, computed=computed, **self.sizes)


def sizes_of(table: Any) -> dict[str, int]:
    """The sizes of a table of vectors that flops.py needs."""
    return {} if table is None else {"table_width": table.width, "first_phrase": table.first_phrase}


class Searching:
    """Search for translations of given lengths by an untrained model: one batch of sentences of neighbouring lengths.

    Every sentence of a batch gets as many tokens as the mean of their references, so that all structures do the same steps.
    `table` as for `Training`.
    """

    def __init__(self, options: argparse.Namespace, config: ModelConfig, corpus: Corpus, table: Any = None) -> None:
        self.config, self.corpus, self.size = config, corpus, options.sentences
        self.sizes = sizes_of(table)
        self.device = torch.device(options.device)
        torch.manual_seed(1)
        self.model = build_model(self.config, corpus.vocabulary, corpus.types, table).to(self.device).eval()
        self.parameters = sum(p.numel() for p in self.model.parameters())
        pack_for_inference(self.model)  # as Translator.from_pretrained does
        self.order = np.lexsort((corpus.target, corpus.source))

    def examples(self, number: int) -> np.ndarray:
        """The sentences of batch `number`: from short to long and round again, golden-ratio steps through the corpus."""
        batches = max(1, len(self.order) // self.size)
        begin = int(batches * ((0.5 + number * 0.6180339887) % 1)) * self.size
        return self.order[begin : begin + self.size]

    def tokens(self, examples: np.ndarray) -> int:
        return max(1, round(float(self.corpus.target[examples].mean())))

    def search(self, number: int, beam: int) -> float:
        """Seconds of encoding and searching a batch."""
        examples = self.examples(number)
        batch, bounds = self.corpus.batch(examples).to(self.device), [self.tokens(examples)] * len(examples)
        synchronize(self.device)
        begin = time.perf_counter()
        with torch.inference_mode():
            memory = self.model.encode(batch.source_BS, batch.source_lengths_B)
            limits = Limits.of(bounds, bounds, device=self.device)
            found = search(self.model, memory, limits, SearchOptions(beam=beam))
        synchronize(self.device)
        seconds = time.perf_counter() - begin
        if any(len(hypotheses[0].tokens) != bounds[0] for hypotheses in found):
            raise SystemExit("a search ended before its length")
        return seconds

    def flop(self, number: int, beam: int, *, computed: bool = False) -> int:
        """FLOP of that search, padding not counted."""
        examples = self.examples(number)
        steps = self.tokens(examples) + 1
        pairs = [(source, steps) for source, _ in self.corpus.pairs(examples)]
        return decoding_flop(self.config, self.corpus.types, pairs, beam=beam, computed=computed, **self.sizes)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def training_memory(options: argparse.Namespace, name: str) -> dict[str, float]:
    """Peak bytes of the update that needs most: of the process beyond its libraries, on a GPU those that torch took.

    Not from getrusage, whose peak a process takes over from the one that started it.
    """
    keep_pages()
    before, corpus = peak_bytes(os.getpid()), corpus_of(options)
    training = Training(options, model_config(options, name), corpus)
    probe_largest(training.job)
    for number in range(2):
        training.update(number)
    device = training.job.world.device
    found = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_bytes(os.getpid()) - before
    if found <= 0:
        raise SystemExit("this system does not tell the peak memory of a process")
    return {"peak": found, "fixed": 16 * training.parameters}
