"""The softmax behind the states of segment networks: log p of single tokens of many rows, and its gradient in portions.

    log p(v | h) = h·W_v + b_v - log Σ_u exp(h·W_u + b_u)

Of each row only a few tokens are asked for, so no tensor of rows × V is kept: the normaliser of a portion of rows is made and
dropped, and made again for the gradient. Nothing here is seen by autograd.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from phraseloom.layers.packed import Packed


class Pairs(NamedTuple):
    """Tokens that are asked for: of `row_P` the token `token_P`."""

    row_P: Tensor
    token_P: Tensor


class Softmax(NamedTuple):
    """The matrix (V, D), the bias (V,) or None, and how many rows make a portion; both laid out anew, where that is faster."""

    weight_VD: Tensor
    bias_V: Tensor | None
    portion: int
    packed: Packed | None = None

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Unnormalised scores (N, V)."""
        if self.packed is not None:
            return self.packed(hidden_ND)
        if self.bias_V is None:
            return hidden_ND @ self.weight_VD.t()
        return torch.addmm(self.bias_V, hidden_ND, self.weight_VD.t())

    def log_normalizers(self, hidden_RD: Tensor) -> Tensor:
        """log Σ_v exp(logit_v) of each row, (R,), at least in float32."""
        exact = torch.promote_types(hidden_RD.dtype, torch.float32)
        result_R = hidden_RD.new_empty(len(hidden_RD), dtype=exact)
        for part_N, hidden_ND in zip(result_R.split(self.portion), hidden_RD.split(self.portion), strict=True):
            logits_NV = self.logits(hidden_ND).to(exact)
            part_N.copy_(logits_NV[:, 0] - logits_NV.log_softmax(1)[:, 0])  # half the time of logsumexp
        return result_R

    def scores(self, hidden_RD: Tensor, pairs: Pairs) -> Tensor:
        """The logits of the pairs, (P,)."""
        found = (hidden_RD.index_select(0, pairs.row_P) * self.weight_VD.index_select(0, pairs.token_P)).sum(1)
        return found if self.bias_V is None else found + self.bias_V.index_select(0, pairs.token_P)


class Gradient:
    """The gradient of Σ weight · log p: that of the hidden states is given back, those of W and b are added up."""

    def __init__(self, softmax: Softmax, *, of_weight: bool, of_bias: bool) -> None:
        self.softmax = softmax
        weight, bias = softmax.weight_VD, softmax.bias_V
        self.weight_VD = torch.zeros_like(weight) if of_weight else None
        self.bias_V = torch.zeros_like(bias) if of_bias and bias is not None else None

    def add(self, hidden_RD: Tensor, mass_R: Tensor, pairs: Pairs, weight_P: Tensor) -> Tensor:
        """`weight_P` of each pair; `mass_R` their sum for each row. The gradient (R, D) of the hidden states."""
        softmax, weight = self.softmax, self.softmax.weight_VD
        grad_RD = torch.empty_like(hidden_RD)
        exact = torch.promote_types(hidden_RD.dtype, torch.float32)
        for begin in range(0, len(hidden_RD), softmax.portion):
            part = slice(begin, begin + softmax.portion)
            hidden_ND = hidden_RD[part]
            p_NV = softmax.logits(hidden_ND).softmax(1, dtype=exact).mul_(mass_R[part, None])
            grad_RD[part] = torch.mm(p_NV, weight).neg_()
            if self.weight_VD is not None:
                self.weight_VD.addmm_(p_NV.t().to(self.weight_VD.dtype), hidden_ND.to(self.weight_VD.dtype), alpha=-1)
            if self.bias_V is not None:
                self.bias_V -= p_NV.sum(0)
        grad_RD.index_add_(
            0, pairs.row_P, (weight.index_select(0, pairs.token_P) * weight_P[:, None]).to(grad_RD.dtype)
        )
        if self.weight_VD is not None:
            gold_PD = hidden_RD.index_select(0, pairs.row_P) * weight_P[:, None]
            self.weight_VD.index_add_(0, pairs.token_P, gold_PD.to(self.weight_VD.dtype))
        if self.bias_V is not None:
            self.bias_V.index_add_(0, pairs.token_P, weight_P.to(self.bias_V.dtype))
        return grad_RD
