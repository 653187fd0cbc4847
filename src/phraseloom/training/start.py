"""How well a model separates tokens before its first update.

The new model reads sentences of random tokens, all of one length; no token occurs twice at a position. Vectors of one sentence
also differ by their positions, and vectors at one position by their sentences, even in a model that ignores which token is
where. So each measurement takes what is left of x_bs, the vector of sentence b at position s, without these two:

    r_bs = x_bs - mean_s x_bs - mean_b x_bs + mean x                  (the residual of a two-way analysis of variance)

    separation        mean |r|² / mean |x|², without dropout: the share of the token, 0 if it changes nothing; for
                      vectors of one length: 1 - mean cosine of two tokens at a position, less what their sentences explain
    signal / noise    in training: √(variance of r over tokens / variance of r over dropout masks)
    spread            root mean square of the coordinates of r, without dropout

They are measured for the states of encoder and decoder, and for the gradient of the loss at the embedded source (of a language
model: at the embedded text), which has no spread, because its size depends on that of the batch. Positions where all sentences
have the same token are left out: the end of the source and the beginning of the decoder's input. At the latter only sources
differ; whether a model tells those apart shows in the gradient.

A start is collapsed if a separation is below 0.01, a signal below a tenth of the noise, or a spread below 0.005. The first
updates of such a model learn a unigram distribution, and training may stay on that plateau.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.text.vocabulary import SPECIALS

__all__ = ["PartStart", "StartReport", "measure_start", "random_batch"]

SENTENCES, LENGTH, MASKS, PHRASE = 8, 12, 6, 4
LEAST_SEPARATION, LEAST_SIGNAL, LEAST_SPREAD = 0.01, 0.1, 0.005


@dataclass(frozen=True)
class PartStart:
    """The measurements of one part of a model; see the module docstring.

    `signal` is infinite without dropout; `spread` is None for the gradient.
    """

    separation: float
    signal: float
    spread: float | None

    @property
    def collapsed(self) -> bool:
        """Whether the vectors of different tokens are almost equal."""
        healthy = self.separation >= LEAST_SEPARATION and self.signal >= LEAST_SIGNAL
        return not (healthy and (self.spread is None or self.spread >= LEAST_SPREAD))  # NaN is not healthy

    def __str__(self) -> str:
        spread = "" if self.spread is None else f", spread {_short(self.spread)}"
        return f"{_short(self.separation)} (signal/noise {_short(self.signal)}{spread})"


@dataclass(frozen=True)
class StartReport:
    """The start of a model: its `parts` by name, the last of which is the gradient."""

    parts: dict[str, PartStart]

    @property
    def collapsed(self) -> list[str]:
        """The names of the collapsed parts; empty for a good start."""
        return [name for name, part in self.parts.items() if part.collapsed]

    def __str__(self) -> str:
        return f"separation of tokens at the start: {'; '.join(f'{name} {part}' for name, part in self.parts.items())}"


def _short(number: float) -> str:
    return f"{number:.2g}" if number < 0.1 else f"{number:.2f}"


def measure_start(model: Any, *, source_size: int, target_size: int, seed: int = 0) -> StartReport:
    """The start of a model for vocabularies of these sizes, from seven passes forward and seven forward and back.

    Does not change torch's random state, the gradients or the mode of the model.
    """
    device = next(model.parameters()).device
    batch = random_batch(source_size=source_size, target_size=target_size, seed=seed).to(device)
    was_training = model.training
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        try:
            clean = _vectors(model.eval(), batch)
            noisy = [_vectors(model.train(), batch) for _ in range(MASKS)]
        finally:
            model.train(was_training)
    return StartReport({name: _part(name, x, torch.stack([n[name] for n in noisy])) for name, x in clean.items()})


def random_batch(*, source_size: int, target_size: int, seed: int = 0) -> Batch:
    """Eight pairs of twelve random tokens for vocabularies of these sizes, with source phrases of four tokens.

    No token occurs twice at a position; a vocabulary of fewer tokens has fewer pairs, but at least two.
    """
    rng = np.random.default_rng(seed)
    tokens = [np.arange(min(len(SPECIALS), size - 2), size) for size in (source_size, target_size)]
    sentences = min(SENTENCES, *map(len, tokens))
    sources, targets = (
        np.stack([rng.choice(ids, sentences, replace=False) for _ in range(LENGTH)], 1).tolist() for ids in tokens
    )
    sizes = [PHRASE] * (LENGTH // PHRASE) + [1]
    return make_batch(sources, targets, [sizes] * sentences)


def _vectors(model: Any, batch: Batch) -> dict[str, Tensor]:
    """The states of the parts of a model and the gradient at its embedded tokens, (B, S, D), where tokens differ."""
    with torch.no_grad():
        vectors = {name: _where_tokens_differ(name, states) for name, states in model.token_states(batch).items()}
    reads_source = hasattr(model, "source_embedding")
    gradient = _gradient(model, model.source_embedding if reads_source else model.embedding, batch)
    return {**vectors, "gradient": _where_tokens_differ("encoder" if reads_source else "decoder", gradient)}


def _where_tokens_differ(side: str, x_BSD: Tensor) -> Tensor:
    """All sentences of a batch begin with BOS in a decoder and end with EOS in an encoder."""
    return x_BSD[:, 1:] if side == "decoder" else x_BSD[:, :LENGTH]


def _gradient(model: Any, embedding: torch.nn.Module, batch: Batch) -> Tensor:
    """The gradient of the loss at the output of an embedding, (B, S, D); parameters get no gradient."""
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
    return gradient


def _part(name: str, clean_BSD: Tensor, noisy_KBSD: Tensor) -> PartStart:
    noisy_KBSD = _token_part(noisy_KBSD.double())
    noise = noisy_KBSD.var(0).mean()
    signal = noisy_KBSD.mean(0).square().mean() - noise / MASKS
    ratio = (signal.clamp(min=0.0) / noise).sqrt() if noise > 0 else torch.where(signal > 0, torch.inf, 0.0)
    token, whole = (x.square().mean() for x in (_token_part(clean_BSD.double()), clean_BSD.double()))
    separation = token / whole if whole > 0 else whole
    return PartStart(separation.item(), ratio.item(), None if name == "gradient" else token.sqrt().item())


def _token_part(x_BSD: Tensor) -> Tensor:
    """What only the token explains in vectors (…, B, S, D), scaled so that its mean square is that over all tokens."""
    sentences, length = x_BSD.shape[-3:-1]
    x_BSD = x_BSD - x_BSD.mean(-3, keepdim=True)
    x_BSD = x_BSD - x_BSD.mean(-2, keepdim=True)
    return x_BSD * (sentences * length / ((sentences - 1) * (length - 1))) ** 0.5
