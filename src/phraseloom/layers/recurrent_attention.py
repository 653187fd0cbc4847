"""Attention of a recurrent decoder: one query a step, the whole source, a context vector (spec §4.5, §6.1).

    mlp      e_s = w · tanh(W_q q + W_s m_s)       Bahdanau et al. 2015, without biases
    general  e_s = m_s · (W q)                     Luong et al. 2015
    a = softmax(e) over the real source tokens,  context = Σ_s a_s m_s
    fixed    context = m_last, whatever the query: no attention at all

Rows of queries are hypotheses: W of each of B sentences. What is made of the source once is kept in a `FixedCache`, as in
cross-attention. `MultiHeadAttention`, with any score and arrangement, serves a recurrent decoder through `BlockAttention`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.attention.cache import FixedCache
from phraseloom.layers.attention.masks import Visibility, masked_softmax
from phraseloom.layers.attention.multihead import MultiHeadAttention
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.initialisation import Draw, fan_in_uniform, xavier_uniform

__all__ = ["ATTENTIONS", "BlockAttention", "FixedContext", "GeneralAttention", "MLPAttention", "last_states"]

ONE_HEAD = Structure.of_orders(1, [1])


def last_states(memory_BSD: Tensor, lengths_B: Tensor | None) -> Tensor:
    """The state of the last real token of each sentence, (B, D)."""
    if lengths_B is None:
        return memory_BSD[:, -1]
    return memory_BSD[torch.arange(len(memory_BSD), device=memory_BSD.device), lengths_B - 1]


class _SingleHead(nn.Module):
    """Attention with one distribution over the source: a subclass says what the keys are, and the scores."""

    structure: Structure | None = ONE_HEAD

    def remember(self, memory_BSD: Tensor, visibility: Visibility, *, beam: int = 1) -> FixedCache:
        """Keys and values of a source, for the queries of `beam` hypotheses a sentence."""
        memory_BSD = visibility.without_padding(memory_BSD)
        return FixedCache([self._keys(memory_BSD)], [memory_BSD], None)

    def forward(self, query_RD: Tensor, cache: FixedCache, visibility: Visibility) -> tuple[Tensor, Tensor | None]:
        """The context (R, D) of each query, and the weights (R, 1, 1, S)."""
        query_BWD = query_RD.view(len(cache.values[0]), -1, query_RD.shape[-1])
        hidden = visibility.hidden()
        weights_BWS = masked_softmax(self._scores(query_BWD, cache.keys[0]), None if hidden is None else hidden[:, 0])
        return (weights_BWS @ cache.values[0]).flatten(0, 1), weights_BWS.flatten(0, 1)[:, None, None]

    def _keys(self, memory_BSD: Tensor) -> Tensor:
        raise NotImplementedError

    def _scores(self, query_BWD: Tensor, keys_BSD: Tensor) -> Tensor:
        raise NotImplementedError


class MLPAttention(_SingleHead):
    """Scores by a layer of tanh units."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.query_weight = nn.Parameter(torch.empty(width, width))
        self.key_weight = nn.Parameter(torch.empty(width, width))
        self.score_weight = nn.Parameter(torch.empty(width))
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw both matrices, and w from ± 1/√D whatever the distribution."""
        width = len(self.score_weight)
        for matrix in (self.query_weight, self.key_weight):
            draw(matrix, fan_in=width, fan_out=width)
        fan_in_uniform(self.score_weight, fan_in=width, fan_out=1)

    def _keys(self, memory_BSD: Tensor) -> Tensor:
        return F.linear(memory_BSD, self.key_weight)

    def _scores(self, query_BWD: Tensor, keys_BSD: Tensor) -> Tensor:
        query_BWD = F.linear(query_BWD, self.query_weight)
        return (query_BWD[:, :, None] + keys_BSD[:, None]).tanh() @ self.score_weight


class GeneralAttention(_SingleHead):
    """Scores by a bilinear form."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.query_weight = nn.Parameter(torch.empty(width, width))
        self.initialise(xavier_uniform)

    def initialise(self, draw: Draw) -> None:
        """Draw the matrix."""
        draw(self.query_weight, fan_in=len(self.query_weight), fan_out=len(self.query_weight))

    def _keys(self, memory_BSD: Tensor) -> Tensor:
        return memory_BSD

    def _scores(self, query_BWD: Tensor, keys_BSD: Tensor) -> Tensor:
        return F.linear(query_BWD, self.query_weight) @ keys_BSD.transpose(1, 2)


class FixedContext(nn.Module):
    """The last state of the source as the context of every step; no parameters, no weights."""

    structure: Structure | None = None

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.width = width

    def remember(self, memory_BSD: Tensor, visibility: Visibility, *, beam: int = 1) -> FixedCache:
        """The last state of each sentence."""
        return FixedCache([last_states(memory_BSD, visibility.lengths_B)], [], None)

    def forward(self, query_RD: Tensor, cache: FixedCache, visibility: Visibility) -> tuple[Tensor, Tensor | None]:
        """The context (R, D) of each query, and None: there are no weights."""
        last_BD = cache.keys[0]
        return last_BD.repeat_interleave(len(query_RD) // len(last_BD), 0), None


class BlockAttention(nn.Module):
    """A multi-head attention block, phrasal or not, as the attention of a recurrent decoder."""

    def __init__(self, block: MultiHeadAttention) -> None:
        super().__init__()
        self.block = block
        self.structure: Structure | None = block.structure

    def remember(self, memory_BSD: Tensor, visibility: Visibility, *, beam: int = 1) -> FixedCache:
        """Keys and values of a source, for the queries of `beam` hypotheses a sentence."""
        return self.block.remember(memory_BSD, visibility, beam=beam)

    def forward(self, query_RD: Tensor, cache: FixedCache, visibility: Visibility) -> tuple[Tensor, Tensor | None]:
        """The context (R, D) of each query, and the weights (R, H, J, G·S)."""
        return self.block.step_cross(query_RD, cache, visibility)


ATTENTIONS: dict[str, type[MLPAttention] | type[GeneralAttention] | type[FixedContext]] = {
    "mlp": MLPAttention,
    "general": GeneralAttention,
    "fixed": FixedContext,
}
