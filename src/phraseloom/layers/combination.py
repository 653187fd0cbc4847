"""The attentive combination network: every token looks at the phrases of the source and takes what it needs (P001 §3.4;
spec §3.5).

    a = MultiHeadAttention(query = x, keys = values = R)             R the phrase vectors; no biases
    z = W_b dropout(sigmoid(W_a [x ; a] + b_a))                      the token first; f inner values
    post-norm:  y = LN(x + a + dropout(z))
    pre-norm:   y = x + a + dropout(z), with LN(x) in place of x above and phrases made of normalised tokens

The released code adds both x and a to z; the paper's text has x only. In search the keys and values of the phrases are made
once.

The phrases of a sentence are few, and a is a mixture of them: with W_a = [W_x W_y] and the columns O_h of the output
matrix that belong to head h,

    a = Σ_{h,p} weight[h, p] O_h v[h, p]           W_y a = Σ_{h,p} weight[h, p] W_y O_h v[h, p]

so the products with O and W_y can be done once a phrase and head instead of once a token (*folded*). It is exact, and
chosen where it takes fewer multiplications: at width 512 about half of those of O and W_y.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.attention.masks import Visibility, masked_softmax
from phraseloom.layers.dropout import dropout
from phraseloom.layers.packed import Packed, linear
from phraseloom.layers.residual import Residual

# A folded product must save this much to be worth its many small products.
FOLD_BELOW = 0.75


class PhraseKeys(NamedTuple):
    """Keys and values of the phrases of each sentence, (B, H, P, E) each, and which of them exist.

    `folded`, where it pays: for each head and phrase O_h v and W_y O_h v side by side, (B, H·P, D + f).
    """

    keys: Tensor
    values: Tensor
    visibility: Visibility
    folded: Tensor | None = None

    def select(self, sentences_B: Tensor) -> PhraseKeys:
        """Only these sentences, in this order."""
        lengths, phrases = self.visibility.lengths_B, self.keys.shape[2]
        if lengths is not None:
            lengths = lengths.index_select(0, sentences_B)
        visibility = Visibility(key_length=phrases, lengths_B=lengths, device=self.keys.device)
        folded = None if self.folded is None else self.folded.index_select(0, sentences_B)
        return PhraseKeys(
            self.keys.index_select(0, sentences_B), self.values.index_select(0, sentences_B), visibility, folded
        )


class AttentiveCombination(nn.Module):
    """One combination network with its residual; `inner` is f, `attention_dropout` acts on the weights of the phrases,
    `inner_dropout` behind the sigmoid."""

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        inner: int,
        residual: Residual,
        attention_dropout: float = 0.0,
        inner_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.attention_dropout, self.inner_dropout = heads, attention_dropout, inner_dropout
        self.query = nn.Linear(width, width, bias=False)
        self.keys_values = nn.Linear(width, 2 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.hidden = nn.Linear(2 * width, inner)
        self.down = nn.Linear(inner, width, bias=False)
        self.residual = residual
        for linear_map in (self.query, self.output, self.hidden, self.down):
            nn.init.xavier_uniform_(linear_map.weight)
        for half in self.keys_values.weight.chunk(2):
            nn.init.xavier_uniform_(half)
        nn.init.zeros_(self.hidden.bias)
        self._packed: dict[str, Packed] = {}

    def pack(self) -> None:
        """Lay out the weights for inference (`layers/packed.py`)."""
        for name in ("query", "output", "hidden", "down"):
            part = getattr(self, name)
            self._packed[name] = Packed(part.weight, part.bias)

    def enter(self, x: Tensor) -> Tensor:
        """What the network reads of the stream `x`; an encoder makes its phrases of the same."""
        return self.residual.enter(x)

    def remember(self, phrases_BPD: Tensor, visibility: Visibility, *, queries: int = 0) -> PhraseKeys:
        """The keys and values of the phrases of a source. `queries`: how many tokens will look at all of them, or 0 where
        that is not known, and nothing is folded."""
        made = self.keys_values(visibility.without_padding(phrases_BPD))
        keys, values = made.unflatten(-1, (2 * self.heads, -1)).transpose(1, 2).chunk(2, 1)
        sentences, phrases, width = phrases_BPD.shape
        both = width + self.down.in_features
        plain = queries * width * both
        folded = self.down.in_features * width**2 + (sentences * width + queries * self.heads) * phrases * both
        return PhraseKeys(keys, values, visibility, self._fold(values) if folded < FOLD_BELOW * plain else None)

    def _fold(self, values_BHPE: Tensor) -> Tensor:
        """O_h v and W_y O_h v of every head and phrase, (B, H·P, D + f)."""
        sentences, heads, phrases, size = values_BHPE.shape
        output = self.output.weight
        of_heads = torch.cat([output, self.hidden.weight[:, len(output) :] @ output]).view(-1, heads, size)
        by_head = values_BHPE.transpose(0, 1).reshape(heads, sentences * phrases, size)
        folded = torch.bmm(by_head, of_heads.permute(1, 2, 0)).view(heads, sentences, phrases, -1)
        return folded.transpose(0, 1).reshape(sentences, heads * phrases, -1)

    def forward(self, x_BQD: Tensor, phrases: PhraseKeys, *, entered: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The stream (B, Q, D) → the stream with what the phrases add, and the weights (B, H, Q, P) before dropout.

        `entered`: `enter(x_BQD)`, where it was needed before. In search the Q queries are the hypotheses of a sentence.
        """
        entered = self.enter(x_BQD) if entered is None else entered
        queries = self._product("query", entered).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        scores = (queries * queries.shape[-1] ** -0.5) @ phrases.keys.transpose(-1, -2)
        weights = masked_softmax(scores, phrases.visibility.hidden())
        dropped = dropout(weights, self.attention_dropout, self.training)
        if phrases.folded is None:
            attended, inner = self._plain(entered, dropped, phrases.values)
        else:
            attended, inner = self._mixed(entered, dropped, phrases.folded)
        z = self._product("down", dropout(inner.sigmoid(), self.inner_dropout, self.training))
        return self.residual.leave(x_BQD + attended, z), weights

    def _plain(self, x_BQD: Tensor, weights_BHQP: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """a and W_a [x ; a] + b_a, token by token."""
        attended = self._product("output", (weights_BHQP @ values).transpose(1, 2).flatten(2))
        return attended, self._product("hidden", torch.cat([x_BQD, attended], -1))

    def _mixed(self, x_BQD: Tensor, weights_BHQP: Tensor, folded: Tensor) -> tuple[Tensor, Tensor]:
        """The same as mixtures of what was folded."""
        width = x_BQD.shape[-1]
        of_phrases = torch.bmm(weights_BHQP.transpose(1, 2).flatten(2), folded)
        of_tokens = F.linear(x_BQD, self.hidden.weight[:, :width], self.hidden.bias)
        return of_phrases[..., :width], of_tokens + of_phrases[..., width:]

    def _product(self, name: str, x: Tensor) -> Tensor:
        part = getattr(self, name)
        packed = None if self.training else self._packed.get(name)
        return linear(x, part.weight, part.bias, packed)
