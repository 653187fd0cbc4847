"""A segmental model with known probabilities, and enumeration of everything that it can emit; slow and obvious."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import torch

from phraseloom.models.decoder import Memory
from phraseloom.npmt.rows import CellStates

WORDS = (4, 5)  # 0 … 3 are the special ids
START, END = 6, 7


class Segments:
    """The words of each row: sentence, position, number of the words before, words of the segment."""

    def __init__(self, rows):
        self.rows = rows

    def reorder(self, rows):
        self.rows = [self.rows[r] for r in rows.tolist()]


class ToySegmental:
    """p(next | sentence, position, words before, words of the segment) is random, and always the same.

    `dtype`: of the log-probabilities. `spoiled`: (sentence, position, words) → log-probabilities in their place.
    """

    writes = "segments"
    start_token, end_token = START, END

    def __init__(self, seed=0, max_segment=2, connects=False, sharpness=1.5, dtype=torch.float64, spoiled=None):
        self.seed, self.max_segment, self.connects, self.sharpness = seed, max_segment, connects, sharpness
        self.dtype, self.spoiled = dtype, spoiled or {}
        self.calls, self.known = [], {}
        self.numbers = {(): 0}
        self.texts = [()]

    def memory(self, lengths, names=None):
        """States that say which sentence and position they are of; `names`: numbers of the sentences."""
        names = list(range(len(lengths))) if names is None else names
        states = torch.zeros(len(lengths), max(lengths, default=0), 2, dtype=torch.float64)
        for b, name in enumerate(names):
            states[b, :, 0], states[b, :, 1] = name, torch.arange(states.shape[1])
        return Memory(states, torch.tensor(lengths) if len(set(lengths)) > 1 else None)

    def log_probs(self, sentence, position, before, words):
        key = (sentence, position, before if self.connects else (), words)
        if (sentence, position, words) in self.spoiled:
            return torch.as_tensor(self.spoiled[sentence, position, words], dtype=self.dtype)
        if key not in self.known:
            number = hash((self.seed, *key)) % (2**31)
            noise = torch.randn(END + 1, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            self.known[key] = (noise * self.sharpness).log_softmax(-1).to(self.dtype)
        return self.known[key]

    def segment_start(self, states_RD, history_RD=None):
        assert (history_RD is not None) == self.connects
        before = [0] * len(states_RD) if history_RD is None else history_RD[:, 0].long().tolist()
        return Segments([(int(s), int(t), self.texts[n], None) for (s, t), n in zip(states_RD, before, strict=True)])

    def segment_step(self, tokens, state):
        self.calls.append(len(tokens))
        rows = []
        for (sentence, position, before, words), token in zip(state.rows, tokens.tolist(), strict=True):
            assert (token == START) == (words is None)
            rows.append((sentence, position, before, () if words is None else (*words, token)))
        state.rows = rows
        return torch.stack([self.log_probs(*row) for row in rows])

    def history_start(self, rows):
        assert self.connects
        zeros = torch.zeros(rows, 1, dtype=torch.float64)
        return CellStates([(zeros,)], zeros)

    def history_step(self, tokens, state):
        texts = [(*self.texts[int(n)], t) for n, t in zip(state.output_RD[:, 0], tokens.tolist(), strict=True)]
        for text in texts:
            if text not in self.numbers:
                self.numbers[text] = len(self.texts)
                self.texts.append(text)
        state.output_RD = torch.tensor([[float(self.numbers[text])] for text in texts], dtype=torch.float64)
        state.layers = [(state.output_RD,)]

    def segment_log_prob(self, sentence, position, before, words):
        """log p of a segment with its end."""
        table = [self.log_probs(sentence, position, before, words[:i]) for i in range(len(words) + 1)]
        return sum(float(row[w]) for row, w in zip(table, (*words, END), strict=True))

    def segmentations(self, sentence, positions):
        """(words, ends of the segments, log p) of everything that a sentence can emit."""
        every = [s for n in range(self.max_segment + 1) for s in itertools.product(WORDS, repeat=n)]
        found = [((), (), 0.0)]
        for t in range(positions):
            found = [
                (words + s, (*ends, len(words) + len(s)), log_prob + self.segment_log_prob(sentence, t, words, s))
                for words, ends, log_prob in found
                for s in every
            ]
        return found

    def outputs(self, sentence, positions):
        """words → (log of the sum over the segmentations, the ends of the likeliest one, its log p)."""
        by_words = defaultdict(list)
        for words, ends, log_prob in self.segmentations(sentence, positions):
            if log_prob > -math.inf:
                by_words[words].append((log_prob, ends))
        return {
            words: (math.log(math.fsum(math.exp(p) for p, _ in some)), max(some)[1], max(some)[0])
            for words, some in by_words.items()
        }
