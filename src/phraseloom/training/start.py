"""How well a model separates tokens before its first update.

The new model reads random tokens. Measured for the states of encoder and decoder, and for the gradients at the embedded source
(of a language model: the embedded text):

    separation        1 - mean cosine between two tokens of a sentence, without dropout           0: all tokens are one vector
    signal / noise    in training, for states minus the mean of their sentence: √(variance over tokens / over dropout masks)
    spread            root mean square distance of a state's coordinates from their mean over the sentence

A start is collapsed if the separation is below 0.01, the signal below a tenth of the noise, or the spread below 0.01. The first
updates of such a model learn a unigram distribution, and training may stay on that plateau.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.text.vocabulary import SPECIALS

__all__ = ["PartStart", "StartReport", "measure_start", "random_batch"]

SENTENCES, LENGTH, MASKS, PHRASE = 4, 20, 6, 4
LEAST_SEPARATION, LEAST_SIGNAL, LEAST_SPREAD = 0.01, 0.1, 0.01


@dataclass(frozen=True)
class PartStart:
    """The measurements of one part of a model; see the module docstring. `signal` is infinite without dropout."""

    separation: float
    signal: float
    spread: float

    @property
    def collapsed(self) -> bool:
        """Whether the states of different tokens are almost equal."""
        healthy = self.separation >= LEAST_SEPARATION and self.signal >= LEAST_SIGNAL and self.spread >= LEAST_SPREAD
        return not healthy  # NaN is not healthy


@dataclass(frozen=True)
class StartReport:
    """The start of a model: its `parts` by name, and the separation of the `gradient` at the embeddings."""

    parts: dict[str, PartStart]
    gradient: float

    @property
    def collapsed(self) -> list[str]:
        """The names of the collapsed parts; empty for a good start."""
        names = [name for name, part in self.parts.items() if part.collapsed]
        return names if self.gradient >= LEAST_SEPARATION else [*names, "gradient"]

    def __str__(self) -> str:
        parts = (
            f"{name} {_short(part.separation)} (signal/noise {_short(part.signal)}, spread {_short(part.spread)})"
            for name, part in self.parts.items()
        )
        return f"separation of tokens at the start: {'; '.join(parts)}; gradient {_short(self.gradient)}"


def _short(number: float) -> str:
    return f"{number:.2g}" if number < 0.1 else f"{number:.2f}"


def measure_start(model: Any, *, source_size: int, target_size: int, seed: int = 0) -> StartReport:
    """The start of a model for vocabularies of these sizes, from about seven passes over four sentences of random tokens.

    Does not change torch's random state, the gradients or the mode of the model.
    """
    device = next(model.parameters()).device
    batch = random_batch(source_size=source_size, target_size=target_size, seed=seed).to(device)
    was_training = model.training
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        try:
            with torch.no_grad():
                model.eval()
                clean = model.token_states(batch)
                model.train()
                noisy = [model.token_states(batch) for _ in range(MASKS)]
            gradient = _gradient_separation(model.eval(), batch)
        finally:
            model.train(was_training)
    parts = {name: _part(states, torch.stack([n[name] for n in noisy])) for name, states in clean.items()}
    return StartReport(parts, gradient)


def random_batch(*, source_size: int, target_size: int, seed: int = 0) -> Batch:
    """Four pairs of twenty random tokens for vocabularies of these sizes, with source phrases of four tokens."""
    rng = np.random.default_rng(seed)
    sources, targets = (
        [rng.integers(min(len(SPECIALS), size - 1), size, LENGTH).tolist() for _ in range(SENTENCES)]
        for size in (source_size, target_size)
    )
    sizes = [PHRASE] * (LENGTH // PHRASE) + [1]
    return make_batch(sources, targets, [sizes] * SENTENCES)


def _part(states_BSD: Tensor, noisy_KBSD: Tensor) -> PartStart:
    states_BSD, noisy_KBSD = states_BSD.double(), noisy_KBSD.double()
    length = states_BSD.shape[1]
    noisy_KBSD = noisy_KBSD - noisy_KBSD.mean(2, keepdim=True)  # the common part of all tokens separates none
    noise = noisy_KBSD.var(0).mean()
    signal = (noisy_KBSD.mean(0).square().mean() - noise / MASKS) * length / (length - 1)
    spread = (states_BSD - states_BSD.mean(1, keepdim=True)).square().mean().sqrt()
    ratio = (signal.clamp(min=0.0) / noise).sqrt() if noise > 0 else torch.tensor(float("inf"))
    return PartStart(_separation(states_BSD), ratio.item(), spread.item())


def _separation(vectors_BSD: Tensor) -> float:
    """1 - mean cosine between two vectors of a sentence."""
    unit_BSD = F.normalize(vectors_BSD.double(), dim=-1)
    length = unit_BSD.shape[1]
    cosines_B = (unit_BSD.sum(1).square().sum(-1) - length) / (length * (length - 1))
    return 1.0 - cosines_B.mean().item()


def _gradient_separation(model: Any, batch: Batch) -> float:
    """The separation of the gradients of the loss at the embedded tokens; parameters get no gradient."""
    embedding = model.source_embedding if hasattr(model, "source_embedding") else model.embedding
    embedded: list[Tensor] = []

    def hook_output(module: Any, args: Any, result: Tensor) -> Tensor:
        embedded.append(result.detach().requires_grad_())
        return embedded[-1]

    hook = embedding.register_forward_hook(hook_output)
    try:
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(model.loss(batch).objective, embedded[:1])
    finally:
        hook.remove()
    return _separation(gradient)
