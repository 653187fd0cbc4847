"""The interface of a model to search, and the options, bounds, forced prefixes and results of a search."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from phraseloom.decoding.cancellation import ShouldCancel
from phraseloom.decoding.penalties import LengthPenalty, NoPenalty
from phraseloom.errors import ModelError
from phraseloom.layers.fertility import Tempering
from phraseloom.options.decoding import DecodingConfig
from phraseloom.outputs import DecoderOutput
from phraseloom.text.vocabulary import BOS, EOS, PAD, UNK

NEVER = float("-inf")


class OutputScorer(Protocol):
    """Scores of the next token. The exact stopping rule needs log-probabilities ≤ 0. `gate`: λ_word and λ_phrase."""

    def log_probs(self, hidden_RD: Tensor, gate_R2: Tensor | None = None) -> Tensor:
        """log p of every token, (R, V). Sampling and ensembles use it."""
        ...

    def gold_log_probs(self, hidden_ND: Tensor, gold_N: Tensor, gate_N2: Tensor | None = None) -> Tensor:
        """log p of one token per row, (N,)."""
        ...

    def candidates(self, hidden_RD: Tensor, count: int, gate_R2: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """log p and ids of the best tokens of each row, (R, count) each, best first, ties by lower id."""
        ...


class SearchModel(Protocol):
    """An incremental model; row r = sentence · beam + hypothesis."""

    writes: str
    output: OutputScorer

    def start(self, memory: Any, *, beam: int, max_length: int) -> Any:
        """The state before the first target token, with `beam` rows per sentence, for `max_length` steps."""
        ...

    def step(self, tokens_R: Tensor, state: Any) -> DecoderOutput:
        """Feed the last token of each row; the decoder output for the next one."""
        ...


class Segment(NamedTuple):
    """Tokens `start` … `end` - 1 of an output, emitted by source position `source` (from 0) of a segmental model.

    `log_prob` is log p(these tokens and the end of the segment | source position).
    """

    source: int
    start: int
    end: int
    log_prob: float

    def shifted(self, *, source: int = 0, target: int = 0) -> Segment:
        """Shifted right by `source` and `target` tokens."""
        return Segment(self.source + source, self.start + target, self.end + target, self.log_prob)


class Hypothesis(NamedTuple):
    """One output: `tokens` without EOS; `log_prob` in nats with EOS; `score` = log_prob / divisor.

    `cut`: the search ended it at the maximal length before the model chose EOS. `segments`: of a segmental model, in the
    order of the tokens.
    """

    tokens: list[int]
    log_prob: float
    score: float
    cut: bool
    segments: list[Segment] | None = None


@dataclass(frozen=True)
class Sampling:
    """Options of sampling (`sampling.py`): tokens are drawn from p^(1/temperature), among the `top_k` best and the fewest that
    hold `top_p` of the mass."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


class SampleSeed(NamedTuple):
    """What the samples of a sentence depend on: a seed, the number of its line, its part of a split line (both from 0)."""

    seed: int
    line: int
    part: int = 0


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search: `beam` live hypotheses, the `n_best` finished ones as result.

    `banned` ids appear only in a forced prefix. `exact`: the exact stopping rule; otherwise a sentence is also done when `beam`
    of its hypotheses have finished. `transformers`: the rules of that library instead of both (`beam.py`). `word_bonus`: added
    to the score of a segmental model for each token. `should_cancel`: called at each step; the search raises Cancelled if it
    returns True. `sampling`: draw `n_best` samples instead of searching; `seeds`: one per sentence. `no_repeat_ngram_size`: no
    n-gram of this size occurs twice in an output, except in a forced prefix; 0 for no such rule. It never bans EOS.
    """

    beam: int = 1
    n_best: int = 1
    penalty: LengthPenalty = field(default_factory=NoPenalty)
    end: int = EOS
    begin: int = BOS
    banned: tuple[int, ...] = (PAD, UNK, BOS)
    exact: bool = True
    transformers: bool = False
    word_bonus: float = 0.0
    should_cancel: ShouldCancel | None = None
    sampling: Sampling | None = None
    seeds: Sequence[SampleSeed] = ()
    no_repeat_ngram_size: int = 0


@dataclass(frozen=True)
class Limits:
    """Per sentence: the most and the fewest tokens (EOS not counted), and the forced prefix.

    `expected`: the initial size of caches in steps (they grow on demand); None for the longest output.
    """

    longest: Tensor
    shortest: Tensor
    prefixes: Sequence[Sequence[int]] | None = None
    expected: int | None = None

    @staticmethod
    def of(
        longest: Sequence[int],
        shortest: Sequence[int] | None = None,
        prefixes: Sequence[Sequence[int]] | None = None,
        device: torch.device | str = "cpu",
        expected: int | None = None,
    ) -> Limits:
        """Limits from lists. A `longest` below the forced prefix is raised to it; `shortest` is at most `longest`."""
        low = list(shortest) if shortest is not None else [0] * len(longest)
        sizes = [len(p) for p in prefixes] if prefixes is not None else [0] * len(low)
        high = [max(n, size) for n, size in zip(longest, sizes, strict=True)]
        low = [min(n, m) for n, m in zip(low, high, strict=True)]
        return Limits(
            torch.tensor(high, dtype=torch.long, device=device),
            torch.tensor(low, dtype=torch.long, device=device),
            prefixes if any(sizes) else None,
            expected,
        )

    @property
    def capacity(self) -> int:
        """The initial size of caches, in steps."""
        steps = int(self.longest.max()) + 1
        return steps if self.expected is None else min(steps, self.expected)

    def forced(self, step: int, sentences: Tensor) -> tuple[Tensor, Tensor] | None:
        """The positions in `sentences` that have a forced token at `step`, and these tokens; None if there are none."""
        if self.prefixes is None:
            return None
        here = [(i, self.prefixes[b][step]) for i, b in enumerate(sentences.tolist()) if step < len(self.prefixes[b])]
        if not here:
            return None
        places, tokens = zip(*here, strict=True)
        device = sentences.device
        return torch.tensor(places, device=device), torch.tensor(tokens, device=device)


def ban(log_probs: Tensor, tokens: Tensor, banned: tuple[int, ...]) -> Tensor:
    """`log_probs` in float64, -inf for banned tokens."""
    result = log_probs.double().clamp_(max=0.0)
    for token in banned:
        result.masked_fill_(tokens == token, NEVER)
    return result


def tempering_of(config: DecodingConfig) -> Tempering:
    """How these options temper the gate between words and phrases, if the model has one."""
    return Tempering(config.phrase_odds, config.gate_weight)


def refuse_nan(values: Tensor) -> None:
    """Raise ModelError if a model returned NaN: its weights are broken."""
    if bool(values.isnan().any()):
        raise ModelError("the model gives NaN instead of probabilities", hint="its weights are broken; use another")


def nothing_allowed() -> ModelError:
    """The error of a search without an output."""
    return ModelError(
        "no output of the allowed length has a probability above 0", hint="relax min_length or no_repeat_ngram_size"
    )


def hypotheses_of(tokens_TR: Tensor, log_prob_R: Tensor, cut_R: Tensor, options: SearchOptions) -> list[Hypothesis]:
    """One output per column of `tokens_TR`, which is filled up with EOS; `log_prob_R` and `cut_R` are those of `Hypothesis`."""
    length_R = (tokens_TR != options.end).sum(0)
    score_R = log_prob_R / options.penalty.divisor(length_R.double() + 1.0)
    rows = zip(*(x.tolist() for x in (tokens_TR.T, length_R, log_prob_R, score_R, cut_R)), strict=True)
    return [Hypothesis(row[:length], total, score, cut) for row, length, total, score, cut in rows]


def finish(steps: Generator[Tensor, None, list[list[Hypothesis]]]) -> list[list[Hypothesis]]:
    """The result of a search that yields at every step."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: list[list[Hypothesis]] = end.value
            return result
