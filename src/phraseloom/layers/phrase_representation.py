"""Phrase vectors from token vectors: a glance over the phrase, then attention guided by it (P001 §3.2; spec §3.2).

    g = max_k x_k  or  mean_k x_k                              the glance, over the tokens of the phrase
    s_k = w2 · sigmoid(W1 [g ; x_k] + b1)                      the score of a token
    softmax:  p = softmax_k(s),   phrase = Σ_k p_k x_k          (P001 eq. 3-5)
    gated:    c_k = sigmoid(s_k + b2) / m,   phrase = Σ_k c_k x_k + (1 - Σ_k c_k) g       (m tokens; the released code)
    none:     phrase = g

W1 is split: its token half is one product over the tokens, its glance half one over the phrases, so that no token is
joined with its glance.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.attention.masks import masked_softmax
from phraseloom.layers.dropout import dropout
from phraseloom.layers.initialisation import Draw, draw_linear, fan_in_uniform, xavier_uniform
from phraseloom.layers.segments import PhraseSegments


class PhraseScorer(nn.Module):
    """How much each token counts in its phrase. `hidden` (h, 2D) has the glance first, as the released code."""

    def __init__(self, *, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * width, inner)
        self.score = nn.Parameter(torch.empty(inner))
        self.dropout = dropout
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw W1, and w2 from ± 1/√h whatever the distribution; the bias becomes zero."""
        draw_linear(self.hidden, draw)
        fan_in_uniform(self.score, fan_in=len(self.score), fan_out=1)

    def scores(self, x_BSD: Tensor, glance_BPD: Tensor, segments: PhraseSegments) -> Tensor:
        """The score of each token given the glance of its phrase, (B, S)."""
        of_glance, of_token = self.hidden.weight.chunk(2, 1)
        inner = F.linear(x_BSD, of_token, self.hidden.bias) + segments.to_tokens(F.linear(glance_BPD, of_glance))
        return dropout(inner, self.dropout, self.training).sigmoid() @ self.score

    def forward(self, x_BSD: Tensor, glance_BPD: Tensor, segments: PhraseSegments) -> tuple[Tensor, Tensor]:
        """Token vectors and glances → phrase vectors (B, P, D) and the weights of the tokens (B, P, S)."""
        scores_BS = self.scores(x_BSD, glance_BPD, segments)
        weights = masked_softmax(scores_BS[:, None].expand_as(segments.outside), segments.outside)
        return weights @ x_BSD, weights


class GatedPhraseScorer(PhraseScorer):
    """The combination that the released code wires in: no softmax, what is left of 1 goes to the glance."""

    def __init__(self, *, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__(width=width, inner=inner, dropout=dropout)
        self.score_bias = nn.Parameter(torch.zeros(1))

    def forward(self, x_BSD: Tensor, glance_BPD: Tensor, segments: PhraseSegments) -> tuple[Tensor, Tensor]:
        """Token vectors and glances → phrase vectors (B, P, D) and the weights of the tokens (B, P, S)."""
        gates_BS = (self.scores(x_BSD, glance_BPD, segments) + self.score_bias).sigmoid()
        sizes = segments.sizes_BP.clamp(min=1)[..., None].to(x_BSD.dtype)
        weights = segments.member(x_BSD) * gates_BS[:, None] / sizes
        return weights @ x_BSD + (1 - weights.sum(-1, keepdim=True)) * glance_BPD, weights


SCORERS: dict[str, type[PhraseScorer]] = {"softmax": PhraseScorer, "gated": GatedPhraseScorer}


class PhraseRepresentation(nn.Module):
    """The phrase vectors of one level: the embeddings, or the output of one encoder layer."""

    def __init__(self, *, glance: Literal["max", "mean"], scorer: PhraseScorer | None) -> None:
        super().__init__()
        self.glance, self.scorer = glance, scorer

    def forward(self, x_BSD: Tensor, segments: PhraseSegments) -> tuple[Tensor, Tensor | None]:
        """Token vectors → phrase vectors (B, P, D), and the weights of the tokens (B, P, S) where a scorer gives them.

        What stands at padded tokens never matters; phrases that do not exist have the vector 0.
        """
        x_BSD = segments.without_padding(x_BSD)
        glance = segments.largest(x_BSD) if self.glance == "max" else segments.mean(x_BSD)
        return (glance, None) if self.scorer is None else self.scorer(x_BSD, glance, segments)
