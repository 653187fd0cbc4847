"""A gate between attention to tokens and attention to all slots, for phrasal attention that begins as attention to tokens.

For each head, with θ a parameter that starts at 0,

    p ← (1 - g) · softmax over tokens + g · softmax over all slots        g = tanh |θ|, with derivative 1 at θ = 0

so that g = 0 is exactly attention to tokens, rows stay distributions, and the gate opens at the first step whatever the
sign of its gradient. Only queries of single tokens have one (docs/decisions/0006-replaced-layers-begin-equal.md).
"""

from __future__ import annotations

import torch
from torch import Tensor

from phraseloom.layers.attention.masks import masked_softmax
from phraseloom.layers.attention.structure import Structure


def can_be_gated(structure: Structure) -> bool:
    """Whether heads see both tokens and n-grams, so that a gate has something to choose between."""
    return len(structure.blocks) > 1 and 1 in structure.orders


def opening(theta: Tensor) -> Tensor:
    """How far a gate is open, in [0, 1): tanh |θ|, whose derivative at 0 is taken from the right, 1, and not as 0."""
    return torch.where(theta >= 0, theta, -theta).tanh()


def mix_with_tokens(
    weights: Tensor,
    scores: Tensor,
    hidden: Tensor | None,
    gate_H: Tensor,
    structure: Structure,
    *,
    by_time: bool = False,
) -> Tensor:
    """(1 - g) · softmax over the tokens + g · `weights`, for the queries of single tokens; (B, H, J·Q, G·K).

    `by_time`: the columns of weights and scores are K·G, and nothing is hidden.
    """
    blocks = len(structure.blocks)
    length, queries = scores.shape[-1] // blocks, scores.shape[-2] // len(structure.query_orders)
    block = next(g for g, parts in enumerate(structure.blocks) if parts[0].order == 1)
    row = structure.query_orders.index(1) * queries
    rows = slice(row, row + queries)
    columns = slice(block, None, blocks) if by_time else slice(block * length, (block + 1) * length)
    if hidden is not None:
        hidden = hidden[..., columns] if hidden.shape[-2] in (1, queries) else hidden[..., rows, columns]
    tokens = masked_softmax(scores[..., rows, columns], hidden)
    open_H11 = gate_H[:, None, None]
    mixed = weights[..., rows, :] * open_H11
    mixed[..., columns] += (1.0 - open_H11) * tokens
    if len(structure.query_orders) == 1:
        return mixed
    return torch.cat([weights[..., :row, :], mixed, weights[..., row + queries :, :]], -2)


def mix_contexts(contexts: Tensor, of_tokens: Tensor, gate_H: Tensor, structure: Structure) -> Tensor:
    """The same for contexts (B, H, J·Q, E): (1 - g) · those of attention to tokens + g · those of all slots, for the queries of
    single tokens."""
    m = structure.query_orders.index(1)
    both = [c.unflatten(2, (len(structure.query_orders), -1)) for c in (contexts, of_tokens)]
    mixed = both[1][:, :, m].lerp(both[0][:, :, m], gate_H[:, None, None].to(contexts.dtype))
    if len(structure.query_orders) == 1:
        return mixed
    return torch.cat([both[0][:, :, :m].flatten(2, 3), mixed, both[0][:, :, m + 1 :].flatten(2, 3)], 2)
