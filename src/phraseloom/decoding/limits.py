"""What the search needs from a model, and the bounds, forced prefixes and results of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from phraseloom.decoding.cancellation import Question
from phraseloom.decoding.penalties import LengthPenalty, NoPenalty
from phraseloom.errors import ModelError
from phraseloom.text.vocabulary import BOS, EOS, PAD, UNK

NEVER = float("-inf")


class OutputScorer(Protocol):
    """Scores of the next token. Log-probabilities must not be above 0: the exact stop rests on it."""

    def log_probs(self, hidden_RD: Tensor) -> Tensor:
        """log p of every token, (R, V). Only sampling asks for it."""
        ...

    def gold_log_probs(self, hidden_ND: Tensor, gold_N: Tensor) -> Tensor:
        """log p of one token a row, (N,)."""
        ...

    def candidates(self, hidden_RD: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """log p and ids of the best tokens of each row, (R, count) each, best first, equals by lower id."""
        ...


class SearchModel(Protocol):
    """An incremental model; row r = sentence · beam + hypothesis."""

    writes: str
    output: Any

    def start(self, memory: Any, *, beam: int, max_length: int) -> Any:
        """The state before the first target token, for `beam` rows a sentence; `max_length` steps are expected."""
        ...

    def step(self, tokens_R: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Feed the last token of each row; the hidden vectors (R, D) for the next one, and attention weights."""
        ...


class Segment(NamedTuple):
    """Tokens `start` … `end` - 1 of an output, which source position `source` (from 0) of a segmental model emitted.

    `log_prob` is log p(these tokens and the end of the segment | source position).
    """

    source: int
    start: int
    end: int
    log_prob: float

    def moved(self, *, source: int = 0, target: int = 0) -> Segment:
        """The same with so many tokens more before it on each side."""
        return Segment(self.source + source, self.start + target, self.end + target, self.log_prob)


class Hypothesis(NamedTuple):
    """One output: `tokens` without EOS; `log_prob` in nats with that of EOS; `score` = log_prob / divisor.

    `cut` is True where the search ended it at the maximal length although the model wanted to go on. `segments`: of a
    segmental model, in the order of the tokens, which they cover.
    """

    tokens: list[int]
    log_prob: float
    score: float
    cut: bool
    segments: list[Segment] | None = None


@dataclass(frozen=True)
class SearchOptions:
    """`beam` hypotheses kept, `n_best` of the finished ones returned; `banned` ids are never produced.

    Ids in `banned` may stand in a forced prefix. `exact`: search on until nothing better can come; otherwise a sentence
    is also done when `beam` of its hypotheses have finished. `transformers`: the rules of that library (`beam.py`) in place of
    both. `word_bonus`: what each token adds to the score of a
    segmental model. `cancelled` is asked at each step; where it says so, the search raises Cancelled.
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
    cancelled: Question | None = None


@dataclass(frozen=True)
class Limits:
    """Per sentence: the most and the fewest tokens (EOS not counted), and tokens that the output must begin with.

    `expected` steps are what caches are made for at first (they grow when it takes more); None: for the longest output.
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
        """Limits from lists; a bound below the forced prefix is raised to it, and shortest ≤ longest holds."""
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
        """The number of steps to make caches for."""
        steps = int(self.longest.max()) + 1
        return steps if self.expected is None else min(steps, self.expected)

    def forced(self, step: int, sentences: Tensor) -> tuple[Tensor, Tensor] | None:
        """Which of `sentences` have a forced token at `step` (positions in `sentences`), and those tokens."""
        if self.prefixes is None:
            return None
        here = [(i, self.prefixes[b][step]) for i, b in enumerate(sentences.tolist()) if step < len(self.prefixes[b])]
        if not here:
            return None
        places, tokens = zip(*here, strict=True)
        device = sentences.device
        return torch.tensor(places, device=device), torch.tensor(tokens, device=device)


def ban(log_probs: Tensor, tokens: Tensor, banned: tuple[int, ...]) -> Tensor:
    """`log_probs` with those of banned tokens set to -inf (float64)."""
    result = log_probs.double().clamp_(max=0.0)
    for token in banned:
        result.masked_fill_(tokens == token, NEVER)
    return result


def refuse_nan(values: Tensor) -> None:
    """ModelError if a model gave NaN: its weights are broken, and no search can repair that."""
    if bool(values.isnan().any()):
        raise ModelError("the model gives NaN instead of probabilities", hint="its weights are broken; take another")
