"""Phrase vectors, the combination network with which tokens read them, and transparent attention (P001).

**Phrase vectors** from token vectors: a glance over the phrase, then attention guided by it (P001 §3.2).

    g = max_k x_k  or  mean_k x_k                              the glance, over the tokens of the phrase
    s_k = w2 · sigmoid(W1 [g ; x_k] + b1)                      the score of a token
    softmax:  p = softmax_k(s),   phrase = Σ_k p_k x_k          (P001 eq. 3-5)
    gated:    c_k = sigmoid(s_k + b2) / m,   phrase = Σ_k c_k x_k + (1 - Σ_k c_k) g       (m tokens; the released code)
    none:     phrase = g

W1 is split: one product of its token half with the tokens and one of its glance half with the phrases, so that no
concatenation of token and glance is needed.

**The attentive combination network**: every token attends to the phrases of the source (P001 §3.4).

    a = MultiHeadAttention(query = x, keys = values = R)             R the phrase vectors; no biases
    z = W_b dropout(sigmoid(W_a [x ; a] + b_a))                      the token first; f inner values
    post-norm:  y = LN(x + a + dropout(z))
    pre-norm:   y = x + a + dropout(z), with LN(x) in place of x above and phrases made of normalised tokens

The released code adds both x and a to z; `add_attended=False` adds only x, as in the paper's text. The phrases of a source do
not change from step to step of the decoder, so their keys and values are computed once.

**Transparent attention**: every decoder layer has its own mixture of all encoder levels (P001 eq. 6).

    R̃^j = Σ_{i=0}^{L} softmax_i(w)[i, j] R^i        level 0 is the embeddings; w (L+1, decoder layers)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.attention.masks import Visibility, masked_softmax
from phraseloom.layers.feedforward import Residual, dropout
from phraseloom.layers.initialisation import Draw, draw_linear, fan_in_uniform, xavier_uniform
from phraseloom.layers.packed import Packed, linear
from phraseloom.layers.segments import PhraseSegments


class PhraseScorer(nn.Module):
    """How much each token counts in its phrase. `hidden` (h, 2D) has the glance first, as in the released code."""

    def __init__(self, *, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * width, inner)
        self.score = nn.Parameter(torch.empty(inner))
        self.dropout = dropout
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw W1; w2 always comes from ± 1/√h, and the bias becomes zero."""
        draw_linear(self.hidden, draw)
        fan_in_uniform(self.score, fan_in=len(self.score), fan_out=1)

    def scores(self, x_BSD: Tensor, glance_BPD: Tensor, segments: PhraseSegments) -> Tensor:
        """The score of each token given the glance of its phrase, (B, S)."""
        glance_weight, token_weight = self.hidden.weight.chunk(2, 1)
        from_glance = segments.to_tokens(F.linear(glance_BPD, glance_weight))
        inner = F.linear(x_BSD, token_weight, self.hidden.bias) + from_glance
        return dropout(inner, self.dropout, self.training).sigmoid() @ self.score

    def forward(self, x_BSD: Tensor, glance_BPD: Tensor, segments: PhraseSegments) -> tuple[Tensor, Tensor]:
        """Token vectors and glances → phrase vectors (B, P, D) and the weights of the tokens (B, P, S)."""
        scores_BS = self.scores(x_BSD, glance_BPD, segments)
        weights = masked_softmax(scores_BS[:, None].expand_as(segments.outside), segments.outside)
        return weights @ x_BSD, weights


class GatedPhraseScorer(PhraseScorer):
    """The variant of the released code: no softmax; the glance gets the remaining weight."""

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
    """The phrase vectors of one level, the embeddings or the output of one encoder layer."""

    def __init__(self, *, glance: Literal["max", "mean"], scorer: PhraseScorer | None) -> None:
        super().__init__()
        self.glance, self.scorer = glance, scorer

    def forward(self, x_BSD: Tensor, segments: PhraseSegments) -> tuple[Tensor, Tensor | None]:
        """Token vectors → phrase vectors (B, P, D), and the weights of the tokens (B, P, S) if there is a scorer.

        Values at padded tokens have no effect; phrases that do not exist have the vector 0.
        """
        x_BSD = segments.without_padding(x_BSD)
        glance = segments.largest(x_BSD) if self.glance == "max" else segments.mean(x_BSD)
        return (glance, None) if self.scorer is None else self.scorer(x_BSD, glance, segments)


class PhraseKeys(NamedTuple):
    """Keys and values of the phrases of each sentence, (B, H, P, E) each, and which of them exist."""

    keys: Tensor
    values: Tensor
    visibility: Visibility

    def select(self, sentences_B: Tensor) -> PhraseKeys:
        """These sentences only, in this order."""
        lengths, phrases = self.visibility.lengths_B, self.keys.shape[2]
        if lengths is not None:
            lengths = lengths.index_select(0, sentences_B)
        visibility = Visibility(key_length=phrases, lengths_B=lengths, device=self.keys.device)
        return PhraseKeys(self.keys.index_select(0, sentences_B), self.values.index_select(0, sentences_B), visibility)


class AttentiveCombination(nn.Module):
    """One combination network with its residual connection.

    `inner` is f; 0: no network, only the attention (z = 0). `attention_dropout` acts on the attention weights, `inner_dropout`
    on the output of the sigmoid, `attended_dropout` on a (ours). `add_attended`: whether the residual also adds a.
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        inner: int,
        residual: Residual,
        attention_dropout: float = 0.0,
        inner_dropout: float = 0.0,
        attended_dropout: float = 0.0,
        add_attended: bool = True,
    ) -> None:
        super().__init__()
        self.add_attended = add_attended
        self.heads, self.attention_dropout, self.inner_dropout = heads, attention_dropout, inner_dropout
        self.attended_dropout = attended_dropout
        self.query = nn.Linear(width, width, bias=False)
        self.keys_values = nn.Linear(width, 2 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.hidden = nn.Linear(2 * width, inner) if inner else None
        self.down = nn.Linear(inner, width, bias=False) if inner else None
        self.residual = residual
        self._packed: dict[str, Packed] = {}
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw every matrix, keys and values separately; the bias becomes zero."""
        for linear_map in (self.query, self.output, self.hidden, self.down):
            if linear_map is not None:
                draw_linear(linear_map, draw)
        for half in self.keys_values.weight.chunk(2):
            draw(half, fan_in=half.shape[1], fan_out=half.shape[0])

    def last_matrices(self) -> list[Tensor]:
        """The last matrices of the branch: the output matrix of the attention, and W_b."""
        return [self.output.weight, *([] if self.down is None else [self.down.weight])]

    def pack(self) -> None:
        """Lay out the weights for inference (`layers/packed.py`)."""
        for name in ("query", "output", "hidden", "down"):
            if (part := getattr(self, name)) is not None:
                self._packed[name] = Packed(part.weight, part.bias)

    def before(self, x: Tensor) -> Tensor:
        """The input of the network from the stream `x`; an encoder makes its phrases from it too."""
        return self.residual.before(x)

    def project_phrases(self, phrases_BPD: Tensor, visibility: Visibility) -> PhraseKeys:
        """The keys and values of the phrases of a source."""
        projected = self.keys_values(visibility.without_padding(phrases_BPD))
        keys, values = projected.unflatten(-1, (2 * self.heads, -1)).transpose(1, 2).chunk(2, 1)
        return PhraseKeys(keys, values, visibility)

    def forward(self, x_BQD: Tensor, phrases: PhraseKeys, *, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The stream (B, Q, D) → the stream after the network, and the attention weights (B, H, Q, P) before dropout.

        `before`: `self.before(x_BQD)`, if you have it already. In search the Q queries are the hypotheses of a sentence.
        """
        before = self.before(x_BQD) if before is None else before
        queries = self._product("query", before).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        scores = (queries * queries.shape[-1] ** -0.5) @ phrases.keys.transpose(-1, -2)
        weights = masked_softmax(scores, phrases.visibility.hidden())
        dropped = dropout(weights, self.attention_dropout, self.training)
        attended = self._product("output", (dropped @ phrases.values).transpose(1, 2).flatten(2))
        attended = dropout(attended, self.attended_dropout, self.training)
        x_BQD = x_BQD + attended if self.add_attended else x_BQD
        if self.hidden is None:
            return x_BQD if self.residual.pre else self.residual.norm(x_BQD), weights
        inner = self._product("hidden", torch.cat([before, attended], -1)).sigmoid()
        z = self._product("down", dropout(inner, self.inner_dropout, self.training))
        return self.residual.after(x_BQD, z), weights

    def _product(self, name: str, x: Tensor) -> Tensor:
        part = getattr(self, name)
        packed = None if self.training else self._packed.get(name)
        return linear(x, part.weight, part.bias, packed)


class TransparentAttention(nn.Module):
    """A mixture of L+1 levels for each decoder layer; `dropout` acts on the raw weights."""

    def __init__(self, *, levels: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.weight, self.dropout = nn.Parameter(torch.empty(levels, layers)), dropout
        nn.init.uniform_(self.weight, -math.sqrt(1 / levels), math.sqrt(1 / levels))

    def shares(self) -> Tensor:
        """The share of each level in each decoder layer, (L+1, decoder layers); columns sum to 1."""
        return self.weight.softmax(0)

    def forward(self, levels: Sequence[Tensor]) -> list[Tensor]:
        """One tensor per level, all of one shape → the mixture for each decoder layer."""
        shares = dropout(self.weight, self.dropout, self.training).softmax(0)
        stacked = torch.stack(tuple(levels))
        mixed = shares.t().to(stacked.dtype) @ stacked.flatten(1)
        return list(mixed.view(-1, *stacked.shape[1:]).unbind(0))
