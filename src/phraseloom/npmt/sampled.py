"""A softmax over the tokens of a batch and a sample of the other tokens, for the training of segmental models.

    Ẑ(h) = Σ_{v in P} exp(logit_v)  +  (V - |P|) / k · Σ_{v in S} exp(logit_v)

P holds the words of the batch, START and END; S holds k of the other tokens, drawn uniformly without replacement. The factor
is added to the logits of S as log((V - |P|) / k). The expectation of Ẑ over S is the exact normaliser, so that of log Ẑ is
below its logarithm: the loss is too low on average, by about half the squared coefficient of variation of Ẑ. All rows of a
batch share S. The idea is that of sampled softmax (Jean et al. 2015); P is counted exactly, which keeps the frequent tokens out
of the error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Sampled(NamedTuple):
    """The tokens `token_U` of a softmax over U of V tokens, what their logits are raised by, and the place of each token of the
    batch in it (N)."""

    token_U: Tensor
    raised_U: Tensor
    place_N: Tensor

    def weight(self, weight_VD: Tensor) -> Tensor:
        """The rows of these tokens, (U, D)."""
        return weight_VD.index_select(0, self.token_U)

    def bias(self, bias_V: Tensor | None) -> Tensor:
        """Their bias (U,), with what the logits are raised by."""
        return self.raised_U if bias_V is None else bias_V.index_select(0, self.token_U) + self.raised_U


def sample(token_N: Tensor, vocabulary: int, negatives: int, *, like: Tensor) -> Sampled | None:
    """The tokens of a batch and `negatives` others; None if these are all of the vocabulary. `like` has the dtype of logits.

    The sample comes from torch's global generator of the CPU, so runs can be resumed.
    """
    present = torch.zeros(vocabulary, dtype=torch.bool, device=token_N.device)
    present[token_N] = True
    others = (~present).nonzero()[:, 0]
    if len(others) <= negatives:
        return None
    drawn = torch.randperm(len(others))[:negatives].to(others.device)
    token_U = torch.cat([present.nonzero()[:, 0], others[drawn]])
    raised_U = like.new_zeros(len(token_U))
    raised_U[-negatives:] = math.log(len(others) / negatives)
    place_V = torch.empty(vocabulary, dtype=torch.int64, device=token_N.device)
    place_V[token_U] = torch.arange(len(token_U), device=token_N.device)
    return Sampled(token_U, raised_U, place_V[token_N])
