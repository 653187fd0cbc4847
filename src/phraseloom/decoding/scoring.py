"""Scores of given text, token by token, with one forward pass: log P(target | source), or log P(line)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.decoding.batching import map_batches, num_workers, plan_batches
from phraseloom.decoding.limits import refuse_nan, tempering_of
from phraseloom.decoding.penalties import LengthPenalty
from phraseloom.options.decoding import DecodingConfig, GenerationConfig

Pair = tuple[Sequence[int], Sequence[int]]
Config = DecodingConfig | GenerationConfig


@dataclass(frozen=True)
class Score:
    """`log_prob` in nats, with EOS; `score` = (`log_prob` + word bonus · tokens) / length penalty, as in search.

    `token_log_probs` has one more entry than `tokens`, for EOS. `cropped`: the end of a side was left out.
    """

    log_prob: float
    score: float
    tokens: list[str]
    token_log_probs: list[float]
    cropped: bool = False

    @staticmethod
    def of(
        token_log_probs: list[float],
        tokens: list[str],
        penalty: LengthPenalty,
        cropped: bool = False,
        *,
        word_bonus: float = 0.0,
    ) -> Score:
        """The score from the log-probabilities of tokens and EOS."""
        total, length = sum(token_log_probs), len(token_log_probs)
        divisor = float(penalty.divisor(torch.tensor(length, dtype=torch.float64)))
        return Score(total, (total + word_bonus * (length - 1)) / divisor, tokens, token_log_probs, cropped)


def score_pairs(
    model: Any,
    pairs: Sequence[Pair],
    config: DecodingConfig,
    device: torch.device,
    phrases: Sequence[list[int]] | None = None,
) -> list[list[float]]:
    """Log-probability of each target token and of EOS, for pairs of subword ids without EOS.

    A pair of two empty sides has probability 1: a blank line translates to a blank line without the model. `phrases`: the sizes
    of the source phrases, if the model needs them.
    """
    result: list[list[float]] = [[0.0] for _ in pairs]
    real = [i for i, (s, t) in enumerate(pairs) if len(s) or len(t)]
    sizes = None if phrases is None else [phrases[i] for i in real]
    score = partial(model.score, tempering=tempering_of(config))
    for i, row in zip(real, _score(score, [pairs[i] for i in real], config, device, sizes), strict=True):
        result[i] = row
    return result


def score_lines(
    model: Any, lines: Sequence[Sequence[int]], config: GenerationConfig, device: torch.device
) -> list[list[float]]:
    """Log-probability of each token and of EOS under a language model, for lines of subword ids without EOS.

    A blank line has the probability of EOS as its first token.
    """
    return _score(model.score, [((), line) for line in lines], config, device)


def _score(
    score: Callable[[Batch], Tensor],
    pairs: Sequence[Pair],
    config: Config,
    device: torch.device,
    phrases: list[list[int]] | None = None,
) -> list[list[float]]:
    workers = num_workers(config.workers, device)
    sizes = [max(len(s) for s in pair) + 1 for pair in pairs]
    batches = plan_batches(sizes, sentences=config.sentences_together, tokens=config.batch_tokens, workers=workers)
    result: list[list[float]] = [[] for _ in pairs]

    def work(batch: list[int]) -> list[list[float]]:
        chosen = [pairs[i] for i in batch]
        with torch.inference_mode():
            phrase_sizes = None if phrases is None else [phrases[i] for i in batch]
            tensors = make_batch([s for s, _ in chosen], [t for _, t in chosen], phrase_sizes).to(device)
            log_probs_BT = score(tensors)
            refuse_nan(log_probs_BT)
        return [row[: len(t) + 1] for row, (_, t) in zip(log_probs_BT.double().tolist(), chosen, strict=True)]

    for batch, part in zip(batches, map_batches(work, batches, workers=workers), strict=True):
        for i, row in zip(batch, part, strict=True):
            result[i] = row
    return result
