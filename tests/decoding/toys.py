"""Small models with known probabilities, with the interface that the search needs, and enumeration of all outputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from phraseloom.outputs import DecoderOutput
from phraseloom.outputs.topk import best_columns

END = 3


class ToyOutput:
    """The hidden vector is the row of log-probabilities."""

    def log_probs(self, hidden, gate=None):
        return hidden

    def gold_log_probs(self, hidden, gold, gate=None):
        return hidden.gather(1, gold[:, None])[:, 0]

    def candidates(self, hidden, count, gate=None):
        return best_columns(hidden, count)


@dataclass
class ToyState:
    sentences: list
    prefixes: list
    beam: int
    reorders: int = 0

    def reorder(self, rows):
        self.reorders += 1
        assert all(r // self.beam == i // self.beam for i, r in enumerate(rows.tolist()))
        self.prefixes = [self.prefixes[r] for r in rows.tolist()]

    def expand(self, beam):
        assert self.beam == 1
        self.beam = beam
        self.prefixes = [p for p in self.prefixes for _ in range(beam)]

    def keep(self, sentences):
        chosen = sentences.tolist()
        self.prefixes = [self.prefixes[b * self.beam + w] for b in chosen for w in range(self.beam)]
        self.sentences = [self.sentences[b] for b in chosen]


class ToyModel:
    """p(next | sentence, prefix) is whatever `table(sentence, prefix)` says (log-probabilities over V tokens)."""

    writes = "tokens"

    def __init__(self, table: Callable[[int, tuple[int, ...]], torch.Tensor]):
        self.table, self.output, self.rows = table, ToyOutput(), []

    def start(self, memory, *, beam, max_length):
        self.capacity, self.steps = max_length, 0
        return ToyState(list(memory), [() for _ in memory for _ in range(beam)], beam)

    def step(self, tokens, state):
        self.steps += 1
        assert self.steps <= self.capacity
        assert len(tokens) == len(state.prefixes) == len(state.sentences) * state.beam
        self.rows.append(len(tokens))
        state.prefixes = [(*p, t) for p, t in zip(state.prefixes, tokens.tolist(), strict=True)]
        rows = [self.table(state.sentences[i // state.beam], p[1:]) for i, p in enumerate(state.prefixes)]
        return DecoderOutput(torch.stack(rows))


def random_table(size: int, seed: int = 0, sharpness: float = 1.5):
    """Log-probabilities that depend on the sentence and the whole prefix."""
    known: dict = {}

    def table(sentence, prefix):
        key = (sentence, prefix)
        if key not in known:
            number = hash((seed, sentence, *prefix)) % (2**31)
            noise = torch.randn(size, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            known[key] = (noise * sharpness).log_softmax(-1)
        return known[key]

    return table


def enumerate_outputs(table, sentence, size, longest, divisor, shortest=0, prefix=()):
    """(score, log-prob, tokens) of every output of `shortest` to `longest` tokens, best first; slow and obvious."""
    found = []
    for length in range(max(shortest, len(prefix)), longest + 1):
        for rest in itertools.product([t for t in range(size) if t != END], repeat=length - len(prefix)):
            tokens = (*prefix, *rest)
            total = sum(float(table(sentence, tokens[:i])[t]) for i, t in enumerate((*tokens, END)))
            if math.isfinite(total):
                found.append((total / divisor(length + 1), total, list(tokens)))
    return sorted(found, key=lambda f: -f[0])
